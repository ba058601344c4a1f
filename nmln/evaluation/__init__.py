"""Quality of generated strings beside a training and a test set, independent of the domain.

An *attempt* is one draw of a generator. It is *valid* if it yields a string; the caller brings strings
into a canonical form, so that equal things are equal strings. Every number names its denominator.
"""

from nmln.evaluation.by_chain import (
    ByChain,
    Estimate,
    LevelEvaluation,
    ahead,
    clustered_share,
    count_by_chain,
    fallen,
    judge_levels,
    recall_estimate,
    student,
)
from nmln.evaluation.comparison import Evaluation, Ranking, evaluate
from nmln.evaluation.counts import Counts, SampleCounter
from nmln.evaluation.coverage import (
    Unique,
    coverage,
    expected_unique,
    ideal_coverage,
    unique_at,
)
from nmln.evaluation.recall import MARKS, RecallCurve, Scores, recall_by_score, recall_curve
from nmln.evaluation.shares import Share, wilson

__all__ = [
    "MARKS",
    "ByChain",
    "Counts",
    "Estimate",
    "Evaluation",
    "LevelEvaluation",
    "Ranking",
    "RecallCurve",
    "SampleCounter",
    "Scores",
    "Share",
    "Unique",
    "ahead",
    "clustered_share",
    "count_by_chain",
    "coverage",
    "evaluate",
    "expected_unique",
    "fallen",
    "ideal_coverage",
    "judge_levels",
    "recall_by_score",
    "recall_curve",
    "recall_estimate",
    "student",
    "unique_at",
    "wilson",
]
