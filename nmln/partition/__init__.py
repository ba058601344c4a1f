"""Partition functions: differences of log Z between levels, and absolute values.

Ratios between levels come from worlds recorded at every level (`stepping_stone`, `mbar`), absolute
values from chains annealed between the uniform distribution and a level (`annealed`,
`reverse_annealed`), and that of a whole ladder's target from both (`estimate_log_z`). Estimates that err
on opposite sides bracket the truth. Parameters must not change between the draws and the estimate.
"""

from nmln.partition.annealing import LogZ, annealed, reverse_annealed
from nmln.partition.blocks import Draws
from nmln.partition.estimate import LogZBracket, estimate_log_z
from nmln.partition.ratios import Differences, Ratios, mbar, stepping_stone

__all__ = [
    "Differences",
    "Draws",
    "LogZ",
    "LogZBracket",
    "Ratios",
    "annealed",
    "estimate_log_z",
    "mbar",
    "reverse_annealed",
    "stepping_stone",
]
