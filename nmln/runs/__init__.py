"""The jobs behind the command line: from files to files."""

from nmln.runs.contents import Contents, inspect
from nmln.runs.corruption import Outcome, builtin
from nmln.runs.corruption import run as corrupt_builtin

__all__ = ["Contents", "Outcome", "builtin", "corrupt_builtin", "inspect"]
