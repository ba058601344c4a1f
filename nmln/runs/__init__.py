"""What a user does with a folder: train, sample, evaluate, ask; one file for each."""

from nmln.runs.contents import Contents, inspect

__all__ = ["Contents", "inspect"]
