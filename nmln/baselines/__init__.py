"""The models that the paper compares with, re-implemented and scaled down, behind one protocol."""
