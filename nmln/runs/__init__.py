"""What a user does with a folder: train, sample, evaluate, ask; one file for each."""
