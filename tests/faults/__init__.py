"""Disks that fail and processes that are killed, at every single operation on files."""
