"""The claims of the paper, each with the rule that judges it from recorded numbers alone."""

from nmln.reproduction import molecules, toys
from nmln.reproduction.comparing import RANK
from nmln.reproduction.verdicts import Claim

_ABLATIONS = "nmln reproduce ablations"
_RECALL = "nmln reproduce recall"
_LEVELS = "nmln reproduce levels"
_BOTH = "It does not hold if it is below one of them."

ABOVE = (
    "Two samplers are compared at an equal number of samples by two shares of the test set: what is "
    f"among the {RANK:,} most frequent molecules, and what was generated at all. One is ahead in a "
    "share if the 95 % interval of the difference (Newcombe's method, test molecules as draws) is above "
    "zero or, where both have several seeds, if its least share is above the other's largest. It is "
    "above if it is ahead in one share and the other is ahead in none."
)
"""What the rules mean by above, for readers."""

CLAIMS = (
    Claim(
        "C1",
        "Parallel noising is an exact sampler: moves and swaps leave the target of every level "
        "unchanged.",
        "Holds if one step from the exact distribution changes no probability by more than rounding, "
        "and a broken twin of each step does.",
        "nmln reproduce exactness",
        toys.exactness,
    ),
    Claim(
        "C2",
        "The expected acceptance of a swap equals the overlap of the two levels.",
        "Holds if both agree up to rounding, and the swaps that the sampler makes agree within 4.5 "
        "standard errors.",
        "nmln reproduce exactness",
        toys.acceptance,
    ),
    Claim(
        "C3",
        "On a two-well target whose barrier grows, noising tracks the target where tempering with fixed "
        "temperatures lags behind.",
        "Holds if the 95 % interval of the ratio of the errors in the last third is below 1, does not "
        "hold if it is above 1.",
        "nmln reproduce toy-tracking",
        toys.tracking,
    ),
    Claim(
        "C4",
        "On n-queens boards noising ends with fewer attacking pairs than tempering.",
        "Holds if the 95 % interval of the difference is below zero with one kernel and above zero with "
        "none; does not hold if it is above zero with one.",
        "nmln reproduce n-queens --budget quick",
        toys.queens,
    ),
    Claim(
        "C5",
        "NMLN* is above the DeepSet NMLNs s.1 and s.2 on ChEMBL-10.",
        f"Holds if NMLN* is above both at equal CPU minutes. {_BOTH}",
        _ABLATIONS,
        molecules.above_older,
    ),
    Claim(
        "C6",
        "A graph network with plain Gibbs sampling (s.3) is above the DeepSet potential.",
        f"Holds if s.3 is above s.1 and s.2 at equal CPU minutes. {_BOTH}",
        _ABLATIONS,
        molecules.above_deepset,
    ),
    Claim(
        "C7",
        "NMLN* is above Gibbs sampling with 100 and with 500 chains, and more chains alone do not help.",
        "Holds if NMLN* is above s.4 and s.5, at equal CPU minutes and at equal updates, and at equal "
        "updates neither is s.4 above s.3 nor s.5 above s.4. Does not hold if NMLN* is below one of "
        "them or more chains are above fewer.",
        _ABLATIONS,
        molecules.above_more_chains,
    ),
    Claim(
        "C8",
        "NMLN* is above both forms of DiGress in recall on most data sets.",
        "Holds if the preset molecules is above in more than half of the comparisons (data sets times "
        "forms of DiGress); does not hold if it is below in at least half.",
        _RECALL,
        molecules.above_digress,
    ),
    Claim(
        "C9",
        "At 9 and 10 atoms NMLN* is at least as good as string models.",
        "Holds if no string model is above the preset molecules on any data set; does not hold if one "
        "is on at least half of them.",
        _RECALL,
        molecules.level_with_strings,
    ),
    Claim(
        "C10",
        "Hardly any sample is valid at rate 0.1, almost all are at 0.001, and validity rises from level "
        "to level.",
        "Holds if at most 5 % are valid at the noisiest level and at least 95 % at the target, by their "
        "95 % intervals, without a fall beyond the intervals between; does not hold if an interval "
        "excludes one of these.",
        _LEVELS,
        molecules.validity_by_level,
    ),
    Claim(
        "C11",
        "Recall is highest at the lowest level.",
        "Holds if no level is above the target and the target is above most of them; does not hold if a "
        "level is above the target.",
        _LEVELS,
        molecules.recall_by_level,
    ),
    Claim(
        "C12",
        "At 15 and 20 atoms NMLN* is above DiGress in recall and validity, and string models are ahead "
        "of NMLN*.",
        "Each part holds by the majority of its comparisons: recall, validity (95 % interval of the "
        "difference), and a string model above NMLN* on the data set. Holds if all parts hold; does not "
        "hold if one does not.",
        _RECALL,
        molecules.larger_molecules,
    ),
)
