"""The jobs behind the command line: from files to files."""

from nmln.workflow.contents import Contents, inspect

__all__ = ["Contents", "inspect"]
