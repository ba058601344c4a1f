"""The speed and memory of generating molecules, beside a character LSTM of 3 x 512.

Both models write in turns in one process on one core, and are timed by its CPU seconds, their molecules
decoded and counted. Ours samples as in `nmln sample`; the burn-in is reported separately, because it
happens once. The number of different molecules per second falls with the number of samples: both write
equally many. The LSTM is the baseline `gru` with another cell, trained for some minutes, or one that
`--keep` kept. Its rate depends on the length of its strings, its valid share on the training: after one
minute almost nothing is valid.

Memory is that of `nmln sample` in a separate process: the sum of the peaks of all its processes. With
fewer than 2 million samples (--samples) the peak for 2 million is extrapolated, as if all were different
molecules, from what each remembered world and each counted molecule was seen to add.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.molecule_memory import memory
from benchmarks.ratios import Ratio, report
from nmln import checkpoint
from nmln.baselines.base import Budget, Generator, load
from nmln.baselines.gru import GRU, GRUSettings
from nmln.baselines.notations import Vocabulary
from nmln.config import DataConfig
from nmln.errors import InputError
from nmln.evaluation import SampleCounter
from nmln.files import write_lines
from nmln.model import Model
from nmln.model.pretrained import folder_of
from nmln.molecules.chemistry import Molecule, parse_all
from nmln.runs import data as sources
from nmln.runs import sample as sampling
from nmln.runs import sample_rows, stream
from nmln.runs.specification import THIN

CHAINS = 100
BATCH = Generator.at_once  # strings that are written in a turn


@dataclass
class Stopwatch:
    """CPU and wall seconds while it runs."""

    cpu: float = 0.0
    wall: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.cpu += time.process_time() - cpu
        self.wall += time.perf_counter() - wall


@dataclass(frozen=True)
class Rate:
    """The samples of a model and their CPU seconds."""

    samples: int
    valid: int
    different: int
    seconds: float

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds

    @property
    def different_per_second(self) -> float:
        return self.different / self.seconds


# The other model.


@dataclass
class Strings:
    """Molecules from a model of strings, read and counted as they are written."""

    writer: Generator
    size: int
    watch: Stopwatch = field(default_factory=Stopwatch)
    tally: SampleCounter = field(default_factory=SampleCounter)
    known: dict[str, str | None] = field(default_factory=dict)  # as our decoder remembers worlds

    def __post_init__(self) -> None:
        self.texts = self.writer.generate(sys.maxsize)

    def write(self, count: int) -> None:
        with self.watch.running():
            texts = [text or "" for text in islice(self.texts, count)]
            new = list({text: None for text in texts if text and text not in self.known})
            for text, found in zip(new, parse_all(new), strict=True):
                self.known[text] = None
                if isinstance(found, Molecule) and len(found.atoms) == self.size:
                    self.known[text] = found.smiles
            for text in texts:
                self.tally.add(self.known.get(text))

    @property
    def rate(self) -> Rate:
        valid = sum(self.tally.counts.values())
        return Rate(self.tally.attempts, valid, len(self.tally.counts), self.watch.cpu)


def lstm(data: DataConfig, minutes: float, kept: Path | None, keep: Path | None) -> GRU:
    """A character LSTM that was kept, or one that is trained on the same molecules for some minutes."""
    if kept is not None:
        found = load(kept)
        if not isinstance(found, GRU):
            raise InputError("this is not the baseline gru. Name one that --keep kept.", str(kept))
        return found
    source = sources.load(data)
    writer = GRU("gru", GRUSettings(cell="lstm", tokens=Vocabulary.of(source.names).tokens))
    learnt = [source.names[place] for place in source.train.tolist()]
    writer.fit(learnt, Budget(minutes=minutes), progress=_progress)
    if keep is not None:
        writer.save(keep)
    return writer


def described(writer: GRU) -> dict[str, Any]:
    """The network of a model, and its size."""
    one = writer.settings
    return {
        "tokens": len(writer.vocabulary.tokens), "cell": one.cell, "layers": one.layers,
        "units": one.units, "embedded": one.embedded, "dropout": one.dropout,
        "parameters": sum(part.numel() for part in writer.network.parameters()),
    }  # fmt: skip


# Ours.


@dataclass(frozen=True)
class Generated:
    """Our rate, and where the time went; shares are of the wall time after the burn-in."""

    rate: Rate
    burn_in_seconds: float
    decoding: float
    counting: float
    whole: float

    @property
    def share(self) -> float:
        return (self.decoding + self.counting) / self.whole


def generate(
    opened: sampling.OpenedRun, strings: Strings, folder: Path, count: int, burn_in: int, thin: int
) -> Generated:
    """Samples as the command line draws them, in turns with those of the other model."""
    chains = min(CHAINS, count)
    job = sampling.begin(
        opened, opened.conditions(), count, folder / "samples",
        chains=chains, burn_in=burn_in, thin=thin,
    )  # fmt: skip
    every = max(1, BATCH // chains) * thin  # sweeps of a turn
    sweeps = 0
    begun = time.process_time(), time.perf_counter()
    after_burn_in = begun

    def tick() -> None:
        nonlocal sweeps, after_burn_in
        sweeps += 1
        if sweeps == burn_in:
            after_burn_in = time.process_time(), time.perf_counter()
        elif sweeps > burn_in and (sweeps - burn_in) % every == 0:
            strings.write(min(BATCH, count - strings.tally.attempts))

    stream.work(job, tick=tick)
    ours = Stopwatch(
        time.process_time() - after_burn_in[0] - strings.watch.cpu,
        time.perf_counter() - after_burn_in[1] - strings.watch.wall,
    )
    if left := count - strings.tally.attempts:
        strings.write(left)
    summary = stream.finish(job).summary
    counting = count_again(job, folder)
    target = summary["levels"][-1]
    return Generated(
        Rate(count, target["valid"], target["unique"], ours.cpu + counting.cpu),
        after_burn_in[0] - begun[0],
        summary["decoding_share"] * summary["seconds"],
        counting.wall,
        ours.wall + counting.wall,
    )


def count_again(job: stream.SamplingJob, folder: Path) -> Stopwatch:
    """The time after the last sample, in which rows are joined and counted and counts written."""
    watch, tally = Stopwatch(), sample_rows.RowCounter(job.levels)
    with watch.running():
        sample_rows.join_rows(folder / "joined.csv.gz", [job.folder / stream.SAMPLES])
        tally.add(folder / "joined.csv.gz")
        sample_rows.write_counts(folder / "counts.csv", tally.most_frequent(job.levels[-1]))
    return watch


def open_model(name: Path | None, folder: Path) -> sampling.OpenedRun:
    """A run, or the shipped one; of a model that was saved alone, a run is made in `folder`."""
    path = folder_of("pubchem-10") if name is None else name
    if not (path / "config.json").exists():
        model = Model.load(path)
        model.save(folder / "model")
        head = {"format": checkpoint.FORMAT, "nmln": checkpoint.VERSION, "kind": "molecules"}
        write_lines(folder / "config.json", [json.dumps({**head, **model.describe()})])
        path = folder
    opened = sampling.open_run(path)
    if opened.kind != "molecules":
        raise InputError(
            "the run must be about molecules, but is not. Name another one.",
            str(path),
            kind="unsupported",
        )
    return opened


# The whole benchmark.


@contextmanager
def one_core() -> Iterator[None]:
    """This process on one core, where the system can do that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def side_by_side(ours: Generated, theirs: Rate, burn_in: int) -> list[Ratio]:
    """The rates of both models; they have no target and are only reported."""
    rate, count = ours.rate, f"{ours.rate.samples:,} samples"
    ratios = [
        Ratio("decoding and counting / time of generating", ours.share, 0.20),
        Ratio(f"ours, {count}: samples per CPU second", rate.samples_per_second),
        Ratio(f"ours, {count}: different valid per CPU second", rate.different_per_second),
        Ratio(f"ours, {count}: valid share", rate.valid / rate.samples),
        Ratio(f"ours: CPU seconds of the {burn_in} sweeps of burn-in", ours.burn_in_seconds),
        Ratio(f"character LSTM, {count}: samples per CPU second", theirs.samples_per_second),
        Ratio(f"character LSTM, {count}: different valid per CPU second", theirs.different_per_second),
        Ratio(f"character LSTM, {count}: valid share", theirs.valid / theirs.samples),
        Ratio("ours / LSTM: samples", rate.samples_per_second / theirs.samples_per_second),
    ]  # fmt: skip
    if theirs.different:
        fraction = rate.different_per_second / theirs.different_per_second
        ratios.append(Ratio("ours / LSTM: different valid", fraction))
    return ratios


def _progress(done: int, total: int, loss: float) -> None:
    if done % 100 == 0:
        print(f"  update {done:,} of {total:,}, {loss:.3f} nats", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a run or a saved model; else the shipped one")
    parser.add_argument("--samples", type=int, default=10_000, help="of nmln sample, for memory")
    parser.add_argument("--processes", type=int, default=1, help="of nmln sample, for memory")
    parser.add_argument("--output", type=Path, help="a folder for the files of nmln sample")
    parser.add_argument("--rate-samples", type=int, default=5_000, help="of each model, for rates")
    parser.add_argument("--burn-in", type=int, default=300, help="sweeps before the first sample")
    parser.add_argument("--thin", type=int, default=THIN, help="sweeps between two samples")
    parser.add_argument("--lstm", type=Path, help="an LSTM that was kept, instead of training one")
    parser.add_argument("--keep", type=Path, help="a folder to keep the trained LSTM in")
    parser.add_argument(
        "--lstm-minutes", type=float, default=4.0, help="CPU minutes of training it"
    )
    given = parser.parse_args()
    if min(given.samples, given.rate_samples, given.processes, given.thin) < 1 or given.burn_in < 0:
        parser.error("numbers of samples and processes are at least 1, those of sweeps at least 0")
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as room:
            folder = Path(room)
            (folder / "run").mkdir()
            opened = open_model(given.model, folder / "run")
            with one_core():
                data = opened.model.config.data
                writer = lstm(data, given.lstm_minutes, given.lstm, given.keep)
                strings = Strings(writer, len(opened.model.space.domain["node"]))
                count = given.rate_samples
                ours = generate(opened, strings, folder, count, given.burn_in, given.thin)
            ratios = side_by_side(ours, strings.rate, given.burn_in)
            found, facts = memory(
                opened, given.samples, given.burn_in, given.thin, given.processes,
                given.output or folder / "command", folder / "command.log",
            )  # fmt: skip
    except InputError as error:
        sys.exit(f"error: {error}")
    moves = opened.model.config.sampling
    report(
        "molecules",
        [*ratios, *found],
        model={
            "levels": opened.model.method.chain_levels,
            "kernel": moves.kernel,
            "moves_per_sweep": moves.moves,
            "sweeps_per_sample": given.thin,
            "name": opened.name if given.model is None else given.model.name,
        },
        lstm={**described(writer), "notation": writer.settings.notation,
              "minutes": None if given.lstm else given.lstm_minutes},
        command_run=facts,
    )  # fmt: skip


if __name__ == "__main__":
    main()
