"""Samples compared with the strings of a training set and of a test set."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nmln.errors import InputError
from nmln.evaluation.counts import Counts, as_set
from nmln.evaluation.coverage import Unique, coverage, ideal_coverage, unique_at
from nmln.evaluation.recall import MARKS, RecallCurve, Scores, recall_by_score, recall_curve
from nmln.evaluation.shares import Share


@dataclass(frozen=True)
class Ranking:
    """The recall curves of the different strings ranked by the log-probability that a model gives them.

    `exact` is False if the ranking is by lower bounds of it. `new` is as in `Evaluation`.
    """

    test: RecallCurve
    train: RecallCurve
    new: RecallCurve
    exact: bool = True

    def describe(self) -> dict[str, Any]:
        """The curves as a dictionary for JSON."""
        return {"exact": self.exact, **_curves(self)}


@dataclass(frozen=True)
class Evaluation:
    """All metrics of samples that follow from comparing strings. Every `Share` names its denominator.

    `novelty` is a share of the different strings, `vun` (valid, unique and novel) of all attempts. Both
    change with the number of attempts, so compare them only between equal numbers. `known_train` and
    `known_test` are shares of the valid samples, repeats included. `ideal` is the mean coverage of a
    sampler that draws uniformly from the training and test strings, with as many attempts. `new` is
    the recall of the test set in the ranking without the training set.

    `test`, `train` and `new` are of the ranking by count; `by_probability` has the same curves of the
    ranking by log-probability, where a model gave one.
    """

    samples: Counts
    valid: Share
    unique: Share
    unique_at: tuple[Unique, ...]
    novelty: Share
    vun: Share
    known_train: Share
    known_test: Share
    coverage_train: Share
    coverage_test: Share
    ideal: float
    test: RecallCurve
    train: RecallCurve
    new: RecallCurve
    by_probability: Ranking | None = None

    def describe(self) -> dict[str, Any]:
        """The metrics as a dictionary for JSON."""
        shares = (
            "valid", "unique", "novelty", "vun", "known_train", "known_test",
            "coverage_train", "coverage_test",
        )  # fmt: skip
        ranked = self.by_probability
        return {
            "attempts": self.samples.attempts,
            **{name: getattr(self, name).describe() for name in shares},
            "unique_at": {str(one.draws): one.describe() for one in self.unique_at},
            "ideal_coverage": self.ideal,
            "recall": _curves(self),
            **({} if ranked is None else {"recall_by_probability": ranked.describe()}),
        }


def _curves(of: Evaluation | Ranking) -> dict[str, Any]:
    """The three curves of a ranking for JSON."""
    curves = {"test": of.test, "train": of.train, "test_without_train": of.new}
    return {name: curve.describe() for name, curve in curves.items()}


def evaluate(
    samples: Counts | Mapping[str, int] | Iterable[str | None],
    train: Collection[str],
    test: Collection[str],
    at: Sequence[int] = MARKS,
    log_probabilities: Scores | None = None,
) -> Evaluation:
    """Compare samples with the strings of the training set and of the held-out test set.

    Args:
        samples: counts, a mapping from strings to counts, or the samples with None for invalid ones.
        train: the strings of the training set.
        test: the strings of the test set.
        at: the ranks at which the recall curves are read off.
        log_probabilities: that of every different string under the model that generated them, up to a
            constant, for a second ranking.
    """
    counts = Counts.of(samples)
    learnt, held_out = as_set(train), as_set(test)
    if not learnt or not held_out:
        raise InputError(
            f"the training set and the test set must have at least one string each, got {len(learnt)} "
            f"and {len(held_out)}. Name sets with more strings.",
            kind="empty",
        )
    repeated = sum(count for string, count in counts.counts.items() if string in learnt)
    found = sum(count for string, count in counts.counts.items() if string in held_out)
    novel = sum(string not in learnt for string in counts.counts)
    return Evaluation(
        counts,
        valid=Share(counts.valid, counts.attempts, "attempts"),
        unique=Share(counts.unique, counts.valid, "valid samples", interval=False),
        unique_at=unique_at(counts),
        novelty=Share(novel, counts.unique, "different valid samples", interval=False),
        vun=Share(novel, counts.attempts, "attempts", interval=False),
        known_train=Share(repeated, counts.valid, "valid samples"),
        known_test=Share(found, counts.valid, "valid samples"),
        coverage_train=coverage(counts, learnt, "training set"),
        coverage_test=coverage(counts, held_out, "test set"),
        ideal=ideal_coverage(len(learnt | held_out), counts.attempts),
        test=recall_curve(counts, held_out, at=at),
        train=recall_curve(counts, learnt, at=at),
        new=recall_curve(counts, held_out, at=at, without=learnt),
        by_probability=None
        if log_probabilities is None
        else _ranked(counts, log_probabilities, learnt, held_out, at),
    )


def _ranked(
    counts: Counts,
    scores: Scores,
    learnt: frozenset[str],
    held_out: frozenset[str],
    at: Sequence[int],
) -> Ranking:
    """The curves by log-probability; refuses scores of other strings than those generated."""
    if scores.values.keys() != counts.counts.keys():
        raise InputError(
            f"a ranking by probability needs a score for each of the {counts.unique:,} generated "
            f"strings and for no other, got {len(scores.values):,}. Score exactly these.",
            kind="conflict",
        )
    return Ranking(
        recall_by_score(scores, held_out, at=at),
        recall_by_score(scores, learnt, at=at),
        recall_by_score(scores, held_out, at=at, without=learnt),
        scores.exact,
    )
