"""Recurrent models of strings on the split of our runs: `python -m benchmarks.strings char|selfies`.

A network of 3 x 512 units learns the training molecules as canonical SMILES by characters, or as
SELFIES, for some minutes of CPU time on one core. It stops early when a held-out tenth of the training
molecules improves no further. A row for each model and data set goes to docs/results/strings.json;
without a name the table is printed. The samples are kept in a folder that `nmln evaluate` reads.

Nats are minus the log-probability of a test molecule's canonical string. The same molecule has other
strings, so that they are an upper bound on those of the molecule. The tokens are those of the whole data
set, as the atoms of our own language are. A molecule that SELFIES cannot write is left out and counted.

A sample is valid if it reads as one connected molecule of exactly the size of the data, by the rule for
our own samples. A string that does not end within 100 tokens is not valid.
"""

import argparse
import csv
import gzip
import io
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from nmln.baselines.base import Budget
from nmln.baselines.gru import GRU, Cell, GRUSettings
from nmln.baselines.notations import Vocabulary, notation_named
from nmln.baselines.training import BaselineTraining
from nmln.config import configure
from nmln.errors import InputError
from nmln.evaluation import MARKS, Evaluation, evaluate
from nmln.files import plain, write_atomically, write_lines
from nmln.molecules.chemistry import Refusal
from nmln.molecules.sample_files import read_samples
from nmln.runs import data as sources

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "strings.json"
SAMPLES = "samples.csv.gz"
KINDS = {"char": "plain", "selfies": "selfies"}
PARCEL = 10_000  # samples between two lines of progress


@dataclass(frozen=True)
class Fit:
    """The course of training; the parameters are those with the best held-out nats.

    `best_epoch` is the best of those that were completed, counted from 1.
    """

    epochs: float
    best_epoch: int
    held_out_nats: float
    cpu_minutes: float
    stopped: Literal["no better", "out of time"]


def run(
    notation: str,
    data: str,
    minutes: float,
    samples: int,
    seed: int,
    output: Path,
    cell: Cell = "gru",
    keep: Path | None = None,
    network: dict[str, Any] | None = None,
    report: Callable[[str], None] = lambda text: print(f"  {text}", flush=True),
) -> dict[str, Any]:
    """Train a model of strings, sample from it, and compare with the two sets."""
    source = sources.load(configure({"data": {"source": data}}).data)
    if source.kind != "molecules":
        raise InputError(
            "the data must be molecules, but are not. Name a set such as pubchem-10.",
            data,
            kind="unsupported",
        )
    learnt, held_out = (
        [source.names[place] for place in part.tolist()] for part in (source.train, source.test)
    )
    if not held_out:
        raise InputError(
            "there are no test molecules. Name a set with more molecules.", data, kind="empty"
        )
    written = {name: notation_named(KINDS[notation]).split(name) for name in source.names}
    strings = {name: one for name, one in written.items() if not isinstance(one, Refusal)}
    tokens = Vocabulary.of(strings.values()).tokens
    baseline = GRU(
        "gru", GRUSettings(notation=KINDS[notation], cell=cell, tokens=tokens, **(network or {}))
    )
    fit = train(baseline, learnt, minutes, seed, report)
    if keep is not None:
        baseline.save(keep / name_of(notation, cell, data))
    each = baseline.string_nats([strings[name] for name in held_out if name in strings])
    begun = time.process_time()
    write_samples(output / SAMPLES, baseline, samples, seed, report)
    sampled = time.process_time()
    (found,) = read_samples(output / SAMPLES, size=len(source.space.domain["node"]))
    read = time.process_time()
    return {
        "model": notation,
        "cell": cell,
        "data": data,
        "train": len(learnt),
        "test": len(held_out),
        "network": described(baseline),
        "training": asdict(fit),
        "nats": {
            "value": float(each.mean()),
            "standard_error": float(each.std() / len(each) ** 0.5),
            "of": "canonical strings of test molecules, each an upper bound on the molecule's nats",
            "strings": len(each),
            "cannot_be_written": {
                "train": sum(name not in strings for name in learnt),
                "test": sum(name not in strings for name in held_out),
            },
        },
        **outcome(evaluate(found.counts, learnt, held_out, MARKS)),
        "not_valid": [{"reason": drop.reason, "count": drop.count} for drop in found.refused],
        "sampling_cpu_minutes": (sampled - begun) / 60,
        "reading_cpu_minutes": (read - sampled) / 60,
        "seed": seed,
    }


def train(
    baseline: GRU, learnt: list[str], minutes: float, seed: int, report: Callable[[str], None]
) -> Fit:
    """Train as a baseline of the package, with a line for every epoch."""
    training = BaselineTraining.start(baseline, learnt, Budget(minutes=minutes), seed)
    while not training.done:
        training.step()
        if training.update % training.per_epoch == 0:
            epoch, best = training.update // training.per_epoch, training.memory["best"]
            report(
                f"{training.seconds / 60:5.2f} min, epoch {epoch}: {best:.3f} nats held out at best"
            )
    training.finish()
    return Fit(
        training.update / training.per_epoch,
        training.memory.get("best_epoch", -1) + 1,
        float(baseline.string_nats(baseline.held_out).mean()),
        training.seconds / 60,
        "no better" if training.stopped else "out of time",
    )


def described(baseline: GRU) -> dict[str, Any]:
    """The network of a model, and its size."""
    one = baseline.settings
    return {
        "tokens": len(baseline.vocabulary.tokens), "cell": one.cell, "layers": one.layers,
        "units": one.units, "embedded": one.embedded, "dropout": one.dropout,
        "parameters": sum(part.numel() for part in baseline.network.parameters()),
    }  # fmt: skip


def write_samples(
    path: Path, baseline: GRU, count: int, seed: int, report: Callable[[str], None]
) -> None:
    """A table of one column with a row for every attempt, as the model wrote it."""

    def texts() -> Iterator[str]:
        for number, text in enumerate(baseline.generate(count, seed + 1), 1):
            yield text or ""
            if number % PARCEL == 0 or number == count:
                report(f"{number:,} of {count:,} samples")

    def write(temporary: Path) -> None:
        with (
            gzip.open(temporary, "wb") as packed,
            io.TextIOWrapper(packed, "utf-8", newline="") as file,
        ):
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["smiles"])
            table.writerows([text] for text in texts())

    write_atomically(path, write)


def outcome(found: Evaluation) -> dict[str, Any]:
    """The quality of samples; `top` is about the t most frequent different molecules."""
    top = {
        str(mark): {
            "test": found.test.at(mark),
            "train": found.train.at(mark),
            "test_without_train": found.new.at(mark),
        }
        for mark in MARKS
    }
    return {
        "samples": found.samples.attempts,
        "valid": found.valid.describe(),
        "different": found.samples.unique,
        "known_train": found.known_train.value,
        "known_test": found.known_test.value,
        "top": top,
        "covered": found.coverage_test.describe(),
        "ideal_covered": found.ideal,
    }


# The table.


def name_of(notation: str, cell: str, data: str) -> str:
    return f"{notation}-{cell}-{data}".replace("/", "-")


def stored(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def store(path: Path, row: dict[str, Any]) -> None:
    """Keep a row in place of an earlier one of the same model and data."""

    def key(one: dict[str, Any]) -> tuple[str, ...]:
        return tuple(one[name] for name in ("model", "cell", "data"))

    rows = [old for old in stored(path) if key(old) != key(row)]
    write_lines(path, [json.dumps(plain([*rows, row]), indent=1)])


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    marks = ", ".join(f"{mark:,}" for mark in MARKS)
    lines = [
        "| model | data | CPU min: training, sampling | valid | nats | samples | "
        f"test in the top {marks} | train in the same | test covered |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        nats, minutes = row["nats"], (row["training"]["cpu_minutes"], row["sampling_cpu_minutes"])
        lines.append(
            f"| {row['model']} {row['cell'].upper()} | {row['data']} | "
            f"{minutes[0]:.1f}, {minutes[1]:.1f} | {row['valid']['value']:.1%} | "
            f"{nats['value']:.2f} ± {1.96 * nats['standard_error']:.2f} | {row['samples']:,} | "
            + " | ".join(
                ", ".join(f"{row['top'][str(mark)][part]:,.0f}" for mark in MARKS)
                for part in ("test", "train")
            )
            + f" | {row['covered']['value']:.1%} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("notation", nargs="?", choices=sorted(KINDS))
    parser.add_argument("--data", default="pubchem-10")
    parser.add_argument("--minutes", type=float, default=4.0, help="CPU minutes of training")
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--cell", choices=["gru", "lstm"], default="gru")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder that the models are kept in")
    parser.add_argument("--output", type=Path, help="where the samples go; else below runs/strings")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file of the rows")
    given = parser.parse_args()
    if given.notation is None:
        print(table(stored(given.results)))
        return
    if given.samples < 1:
        parser.error("--samples must be at least 1")
    torch.set_num_threads(1)
    name = name_of(given.notation, given.cell, given.data)
    output = given.output or Path("runs") / "strings" / name
    try:
        row = run(
            given.notation, given.data, given.minutes, given.samples, given.seed, output,
            given.cell, given.keep,
        )  # fmt: skip
    except InputError as error:
        sys.exit(f"error: {error}")
    row["command"] = shlex.join(["python", "-m", "benchmarks.strings", *sys.argv[1:]])
    store(given.results, row)
    print(table([row]))
    print(f"Written: {given.results}, {output / SAMPLES}")


if __name__ == "__main__":
    main()
