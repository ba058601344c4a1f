"""The tables of an evaluation: the recall curves, and the molecules ranked by probability."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from math import isinf

from nmln.evaluation import Evaluation, Ranking
from nmln.molecules.sample_files import heavy_atoms
from nmln.runs.ranking import LogProbabilities

BY_COUNT, BY_PROBABILITY = "count", "probability"

_COLUMNS = ("samples", "t", "test", "test_low", "test_high", "train", "test_without_train")


def recall_table(found: Sequence[tuple[str, Evaluation]]) -> list[str]:
    """The curves at the ends of their straight parts and at the marks; they are linear in between.

    A last column says what the molecules are ranked by, if some are ranked by probability too.
    """
    both = any(one.by_probability for _, one in found)
    rows = [(*_COLUMNS, "ranked_by")]
    for name, one in found:
        rankings = {BY_COUNT: one, BY_PROBABILITY: one.by_probability}
        for by, ranking in rankings.items():
            if ranking is not None:
                rows += [(name, *cells, by) for cells in _points(ranking)]
    return _lines(rows if both else (row[:-1] for row in rows))


def _points(of: Evaluation | Ranking) -> Iterable[tuple[str, ...]]:
    for rank in sorted({*of.test.marks, *of.test.ranks, *of.train.ranks, *of.new.ranks} - {0}):
        share = of.test.share(rank)
        cells = (
            of.test.at(rank), share.low * share.total, share.high * share.total,
            of.train.at(rank), of.new.at(rank),
        )  # fmt: skip
        yield (str(rank), *(f"{cell:.6g}" for cell in cells))


def ranking_table(
    ranked: Iterable[tuple[str, Mapping[str, int], LogProbabilities]],
) -> list[str]:
    """Every different molecule with its count and log-probability, the most probable first.

    Sizes come one after the other where they cannot be compared.
    """
    rows = [("samples", "smiles", "count", "log_probability")]
    for name, counts, found in ranked:

        def order(smiles: str, found: LogProbabilities = found) -> tuple[int, float, str]:
            size = 0 if found.normalised else heavy_atoms(smiles)
            return size, -found.values[smiles], smiles

        for smiles in sorted(counts, key=order):
            value = found.values[smiles]
            shown = str(value) if isinf(value) else f"{value:.4f}"
            rows.append((name, smiles, str(counts[smiles]), shown))
    return _lines(rows)


def _lines(rows: Iterable[Sequence[str]]) -> list[str]:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().removesuffix("\n").split("\n")
