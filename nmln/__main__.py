"""`python -m nmln` is `nmln`."""

from nmln.cli import main

main()
