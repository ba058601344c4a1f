"""The jobs behind the command line: from files to files."""

from nmln.workflow.contents import Contents, inspect
from nmln.workflow.corruption import Outcome, builtin
from nmln.workflow.corruption import run as corrupt_builtin

__all__ = ["Contents", "Outcome", "builtin", "corrupt_builtin", "inspect"]
