"""Partition functions: how log Z differs between the levels, and what it is.

Ratios between levels come from worlds recorded at every level (`stepping_stone`, `mbar`), absolute
values from chains annealed between the uniform distribution and a level (`annealed`,
`reverse_annealed`). Estimates that err on opposite sides bracket the truth. Parameters must not change
between the draws and the estimate.
"""

from nmln.partition.annealing import LogZ, annealed, reverse_annealed
from nmln.partition.blocks import Draws
from nmln.partition.ratios import Differences, Ratios, mbar, stepping_stone

__all__ = [
    "Differences",
    "Draws",
    "LogZ",
    "Ratios",
    "annealed",
    "mbar",
    "reverse_annealed",
    "stepping_stone",
]
