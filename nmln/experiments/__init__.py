"""The figures and tables of the paper, and the demonstration of corruption, one file each."""
