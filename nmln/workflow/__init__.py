"""The jobs behind the command line: from files to files."""

from nmln.workflow.contents import Contents, inspect
from nmln.workflow.corruption import Outcome, builtin, run

__all__ = ["Contents", "Outcome", "builtin", "inspect", "run"]
