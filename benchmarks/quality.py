"""The quality of training settings: `python -m benchmarks.quality NAME --set chains.moves=5`.

Each setting trains for the same CPU time on one core, then samples from noise with the averaged
parameters. A row for each goes to docs/results/quality.json; without a name the table is printed.

The row has the CPU minutes until the chains at the target were 60, 85 and 95 % valid (a mean over the
last 400 worlds), and of the samples: the share of valid ones, the share that is in the data (known),
the numbers of the 1,000 most frequent molecules in the test and in the training set, and the share of
the test set that was generated. Nats are per training and per test molecule (log Z by annealing; see
`nmln likelihood`). The time for reading the chains does not count.
"""

import argparse
import json
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from math import exp
from pathlib import Path
from typing import Any

import torch
from torch import Generator

from nmln.buckets import Bucket
from nmln.config import Config, configure, override
from nmln.files import plain, write_lines
from nmln.model import Model, load
from nmln.runs import data as sources
from nmln.runs import likelihood
from nmln.runs.data import Source
from nmln.runs.quality import Quality
from nmln.training import DivergenceError, Metrics, Return, Trainer, train

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "quality.json"
SHARES = (0.60, 0.85, 0.95)
PILOT, LOOK = 10, 25  # steps that are timed; steps between two checks of the chains
CHAINS, BURN_IN, SWEEPS = 200, 100, 100  # of the samples at the end
ANNEALED, ANNEALING, RECORDED = 60, 1500, 600  # chains, steps and sweeps that log Z comes from
KERNEL, MOVES = "gradients", 10  # for every setting, so that models are compared


class Clock:
    """CPU minutes of this process, without those that it was stopped for."""

    def __init__(self) -> None:
        self.begun, self.paused = time.process_time(), 0.0

    @property
    def minutes(self) -> float:
        return (time.process_time() - self.begun - self.paused) / 60

    def aside(self, work: Any) -> Any:
        """Run a function without counting its time."""
        start = time.process_time()
        result = work()
        self.paused += time.process_time() - start
        return result


def steps_in(minutes: float, model: Model, worlds: torch.Tensor | Sequence[Bucket]) -> int:
    """The number of steps that fit into the CPU time."""
    trainer = Trainer(model.potential, worlds, model.config)
    trainer.step_number = model.config.training.warm_start  # its steps cost less
    trainer.step()
    start = time.process_time()
    for _ in range(PILOT):
        trainer.step()
    return round(60 * minutes * PILOT / (time.process_time() - start))


def run(
    name: str, config: Config, minutes: float, keep: Path | None, start: Model | None = None
) -> dict[str, Any]:
    """Train with one setting, perhaps from the weights of another model, and measure the result."""
    source = sources.load(config.data)
    worlds = sources.pick(source.worlds, source.train)
    steps = steps_in(minutes, Model.build(source.space, worlds, config, start=start), worlds)
    config = override(config, {"training.steps": steps})
    model = Model.build(source.space, worlds, config, start=start)
    trainer = Trainer(model.potential, worlds, model.config)
    quality = Quality.of(source.kind, source.space, frozenset(source.names))
    clock, recent, returns = Clock(), deque(maxlen=4), 0
    reached: dict[str, float] = {}
    for event in until_divergence(trainer):
        if isinstance(event, Return):
            returns += 1
            print(f"  {event}", flush=True)
        elif (
            event.step % LOOK == 0 and event.moves
        ):  # in a warm start the chains wait with the data
            found = clock.aside(lambda: quality.measure(trainer.values[-1]))
            recent.append(found["valid"])
            mean = sum(recent) / len(recent)
            for share in SHARES:
                if len(recent) == recent.maxlen and mean >= share:
                    reached.setdefault(f"{share:.0%}", round(clock.minutes, 2))
            if event.step % (4 * LOOK) == 0:
                print(f"  {clock.minutes:5.1f} min, step {event.step}/{steps}: valid {mean:.0%}, known "
                      f"{found['known']:.0%}, accepted {event.acceptance[-1]:.0%}, gradient "
                      f"{event.gradient[-1]:.0f}, pace {event.pace[-1]:.2f}, swaps "
                      + " ".join(f"{swap:.0%}" for swap in event.swaps), flush=True)  # fmt: skip
    row = {
        "name": name,
        "data": config.data.source,
        "cpu_minutes": round(clock.minutes, 2),
        "steps": trainer.step_number,
        "returns": returns,
        "minutes_until_valid": reached,
    }
    if trainer.step_number < steps:
        return row | {"diverged": True}
    model = model.averaged(trainer)
    if keep is not None:
        model.save(keep / name.replace(" ", "-"))
    return row | samples_of(model, source) | likelihood_of(model, source)


def until_divergence(trainer: Trainer) -> Iterator[Metrics | Return]:
    """A run that ends where the guard gives up."""
    try:
        yield from train(trainer)
    except DivergenceError as error:
        print(f"  {error}", flush=True)


def likelihood_of(model: Model, source: Source) -> dict[str, float]:
    """Nats per molecule, and the probability of the data; above 1, the chains missed worlds."""
    found = likelihood.measure(
        model,
        sources.pick(source.worlds, source.train),
        sources.pick(source.worlds, source.test),
        molecules=True,
        chains=ANNEALED,
        steps=ANNEALING,
        sweeps=RECORDED,
        seed=1,
    )
    train, test, part = found.train_molecules, found.test_molecules, found.partition
    assert train is not None
    assert test is not None
    return {
        "nats_train": round(train.value, 2),
        "nats_test": round(test.value, 2),
        "nats_test_error": round(test.error, 2),
        "log_z_error": round(part.error, 2),
        "data_over_z": round(exp(part.data - part.value), 3),
    }


def samples_of(model: Model, source: Source) -> dict[str, float]:
    """Metrics of samples from noise."""
    train_set = {source.names[place] for place in source.train.tolist()}
    test_set = {source.names[place] for place in source.test.tolist()}
    decoder = Quality.of(source.kind, source.space).decoder
    assert decoder is not None
    counts: Counter[str] = Counter()
    start, total = time.process_time(), 0
    for sweep in model.sample(
        BURN_IN + SWEEPS,
        Generator().manual_seed(1),
        chains=CHAINS,
        burn_in=BURN_IN,
        kernel=KERNEL,
        moves=MOVES,
    ):
        for one in decoder.decode(sweep.state.values[-1]):
            total += 1
            if one.smiles is not None:
                counts[one.smiles] += 1
    top = [smiles for smiles, _ in counts.most_common(1000)]
    known = sum(count for smiles, count in counts.items() if smiles in train_set | test_set)
    return {
        "samples": total,
        "valid": counts.total() / total,
        "known": known / total,
        "top_1000_test": sum(smiles in test_set for smiles in top),
        "top_1000_train": sum(smiles in train_set for smiles in top),
        "covered": sum(smiles in counts for smiles in test_set) / len(test_set),
        "sampling_cpu_minutes": round((time.process_time() - start) / 60, 2),
    }


def stored() -> list[dict[str, Any]]:
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| setting | data | CPU min | steps | until 60, 85, 95 % valid | valid | known | top 1,000: test, train | covered | nats: train, test |",  # noqa: E501
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        reached = row["minutes_until_valid"]
        until = ", ".join(
            f"{reached[s]:.1f}" if s in reached else "-" for s in ("60%", "85%", "95%")
        )
        lines.append(
            f"| {row['name']} | {row['data']} | {row['cpu_minutes']:.0f} | {row['steps']:,} | {until} | "
            + ("diverged | | | | |" if "diverged" in row else quality_of(row))
        )
    return "\n".join(lines)


def quality_of(row: dict[str, Any]) -> str:
    return (
        f"{row['valid']:.0%} | {row['known']:.0%} | {row['top_1000_test']}, "
        f"{row['top_1000_train']} | {row['covered']:.0%} | {nats(row)} |"
    )


def nats(row: dict[str, Any]) -> str:
    if "nats_test" not in row:
        return ""
    beyond = ", data above Z" if row["data_over_z"] > 1 else ""
    return f"{row['nats_train']:.1f}, {row['nats_test']:.1f}{beyond}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--minutes", type=float, default=7.0, help="CPU minutes of training")
    parser.add_argument("--data", default="pubchem-10")
    parser.add_argument("--keep", type=Path, help="a folder that the models are kept in")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--from", type=Path, dest="start", help="start from the weights of a model")
    given = parser.parse_args()
    if given.name is None:
        print(table(stored()))
        return
    torch.set_num_threads(1)
    config = override(
        configure({"data": {"source": given.data}}, preset=given.preset), parsed(given.set)
    )
    start = None if given.start is None else load(given.start)
    row = run(given.name, config, given.minutes, given.keep, start)
    row |= {"set": dict(text.split("=", 1) for text in given.set)}
    if given.preset != "small":
        row |= {"preset": given.preset}
    if given.start is not None:
        row |= {"from": given.start.name}
    rows = [old for old in stored() if (old["name"], old["data"]) != (row["name"], row["data"])]
    write_lines(RESULTS, [json.dumps(plain([*rows, row]), indent=1)])
    print(table([row]))


def parsed(changes: Sequence[str]) -> dict[str, Any]:
    """Settings that are given as KEY=VALUE."""
    return {key: _value(value) for key, value in (text.split("=", 1) for text in changes)}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


if __name__ == "__main__":
    main()
