"""A corpus of bad input: what every command must refuse, as data."""
