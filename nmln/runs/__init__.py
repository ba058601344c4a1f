"""Work on run folders: training, sampling, evaluation, inference; one file for each task."""
