"""How much to sharpen, by training molecules only: `python -m benchmarks.sharpening RUN SAMPLES`.

SAMPLES are plain samples of the run. For B = 1, 1.2, 1.4, 1.7 and 2 it predicts how many training
molecules are among the first t of as many independent draws from exp(B * score) / Z: a small B spends
draws on rare molecules, a large one on repeating the most probable. Each molecule's weight is the sum
over its worlds; Z at B follows from the plain samples,

    Z_B / Z_1 = mean over the draws of weight_B / weight_1,

with invalid draws counted as 0. No chain is run. The test molecules are counted beside them, but do
not choose. With --drawn B=FOLDER rows are added for samples that were drawn with `--sharpen B`: the
known molecules among the first t by count and by probability. A row for each goes to
docs/results/sharpening.json.
"""

import argparse
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from nmln.evaluation import Counts, evaluate, recall_by_score, recall_curve
from nmln.files import plain, write_lines
from nmln.model import load_run
from nmln.molecules.likelihood import Structures
from nmln.molecules.sample_files import locate, read_samples
from nmln.runs.ranking import scorer_of
from nmln.runs.references import of_run

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "sharpening.json"
SHARPENINGS = (1.0, 1.2, 1.4, 1.7, 2.0)
REPEATS = 5  # of the simulated draws


class Weights:
    """The weights of molecules at any B, from one score for each of their structures."""

    def __init__(self, run: Path, smiles: list[str]) -> None:
        model = load_run(run)
        self.smiles = smiles
        self.structures = Structures.of_smiles(model.space, smiles)
        target, worlds = model.level(-1), self.structures.worlds
        with torch.no_grad():
            found = [target.score(some[None])[0].double() for some in worlds.split(1000)]
        self.scores = torch.cat(found)

    def at(self, sharpen: float) -> Float64[Tensor, " molecules"]:
        return self.structures.log_sums(sharpen * self.scores)


def predicted(
    weights: Weights, counts: Counts, sharpen: float, known: Mapping[str, Collection[str]]
) -> dict[str, Any]:
    """How many molecules of each set as many independent draws would find."""
    logs, before = weights.at(sharpen), weights.at(1.0)
    draws = torch.tensor([counts.counts.get(one, 0) for one in weights.smiles]).double()
    growth = (logs - before + draws.log()).logsumexp(0) - torch.tensor(counts.attempts).log()
    # Z_1 from the molecules that were drawn more than once would be biased: take the known ones, a fixed
    # set, whose share of the draws is their probability.
    fixed = torch.tensor([one in known["train"] for one in weights.smiles])
    log_z = before[fixed].logsumexp(0) - (draws[fixed].sum() / counts.attempts).log()
    chances = (logs - log_z - growth).exp()
    found = {
        name: recalls(weights.smiles, chances, logs, counts.attempts, some)
        for name, some in known.items()
    }
    return {
        "sharpen": sharpen,
        "draws": counts.attempts,
        "train_share": float(chances[fixed].sum()),
        "effective_draws": effective(logs - before, draws),
        **found,
    }


def recalls(
    smiles: list[str],
    chances: Float64[Tensor, " molecules"],
    logs: Float64[Tensor, " molecules"],
    draws: int,
    known: Collection[str],
) -> dict[str, Any]:
    """Known molecules among the first t of simulated draws, ranked by count and by probability.

    Draws of molecules that are not listed, because the plain samples had none of them, count as
    molecules that came once, less probable than the others.
    """
    rng = torch.Generator().manual_seed(0)
    parts: list[dict[str, Any]] = []
    for _ in range(REPEATS):
        times = torch.poisson(draws * chances, generator=rng).long().tolist()
        others = {f"other {n}": 1 for n in range(max(0, draws - sum(times)))}
        counted = {one: count for one, count in zip(smiles, times, strict=True) if count}
        values = {one: float(log) for one, log in zip(smiles, logs, strict=True) if one in counted}
        low = dict.fromkeys(others, min(values.values()) - 1)
        parts.append(
            {
                "found": sum(one in counted for one in known),
                "by_count": recall_curve(counted | others, known).table,
                "by_probability": recall_by_score(values | low, known).table,
            }
        )
    mean: dict[str, Any] = {"found": sum(one["found"] for one in parts) / REPEATS}
    for name in ("by_count", "by_probability"):
        mean[name] = {t: sum(one[name][t] for one in parts) / REPEATS for t in parts[0][name]}
    return mean


def effective(growth: Float64[Tensor, " molecules"], draws: Float64[Tensor, " molecules"]) -> float:
    """How many of the draws the estimate of Z at B rests on, by their weights."""
    weights = (growth - growth.max()).exp()
    return float((draws * weights).sum() ** 2 / (draws * weights**2).sum())


def drawn(
    run: Path, folder: Path, known: Mapping[str, Collection[str]], sharpen: float
) -> dict[str, Any]:
    """The known molecules among the first t of samples that were drawn at B."""
    file = locate(folder)
    samples = read_samples(file, None, [10])[-1]
    scorer = scorer_of(file, samples.level, run)
    assert scorer is not None
    logs = scorer.score(samples.counts.counts, samples.counts.attempts, known["train"], print)
    assert logs is not None
    train, test = frozenset(known["train"]), frozenset(known["test"])
    found = evaluate(samples.counts, train, test, log_probabilities=logs.of(samples.counts.counts))
    assert found.by_probability is not None
    row: dict[str, Any] = {
        "sharpen": sharpen,
        "draws": samples.counts.attempts,
        "valid": found.valid.value,
        "different": samples.counts.unique,
        "found": {"train": found.coverage_train.count, "test": found.coverage_test.count},
    }
    for name, one in (("by_count", found), ("by_probability", found.by_probability)):
        row[name] = {
            "train": one.train.table,
            "test": one.test.table,
            "test_without_train": one.new.table,
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--drawn", action="append", default=[], metavar="B=FOLDER")
    given = parser.parse_args()
    torch.set_num_threads(1)
    known = {part: one.smiles for part, one in of_run(given.run).items()}
    counts = read_samples(locate(given.samples), None, [10])[-1].counts
    weights = Weights(given.run, sorted({*counts.counts, *known["train"], *known["test"]}))
    content = {
        "predicted": [predicted(weights, counts, sharpen, known) for sharpen in SHARPENINGS],
        "drawn": [
            drawn(given.run, Path(folder), known, float(sharpen))
            for sharpen, folder in (text.split("=", 1) for text in given.drawn)
        ],
    }
    write_lines(RESULTS, [json.dumps(plain(content), indent=1)])
    for row in (*content["predicted"], *content["drawn"]):
        print(json.dumps(plain(row)))


if __name__ == "__main__":
    main()
