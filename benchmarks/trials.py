"""Settings tried on large worlds: `python -m benchmarks.trials NAME --data chembl-20 --set KEY=VALUE`.

Like `benchmarks.quality`, but for worlds on which a burn-in from noise takes longer than the training:
the chains of the training, mixed under the averaged weights, are measured, and they keep running for a
fixed processor time to see how fast they find molecules. The test set is not touched: a tenth of the
training molecules is held out for the likelihood. A row for each goes to docs/results/trials.json;
without a name the table is printed, and `--page` writes it
into the laboratory notes.

Columns: CPU minutes until 60, 85 and 95 % of the chains at the target were valid (means of the last four
looks); of the mixed chains the share of valid worlds, the least swap probability of two neighbouring
levels, arrivals (worlds at the target that have been at the noisiest level since they were last there)
and different valid molecules, both per CPU second; nats per training and per held-out molecule.
"""

import argparse
import json
import time
from collections import deque
from math import exp
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from benchmarks.pages import put
from benchmarks.quality import LOOK, SHARES, Clock, parsed, steps_in, until_divergence
from nmln.config import Config, configure, override
from nmln.files import plain, write_json
from nmln.model import Model, load
from nmln.model.replicas import Replicas
from nmln.molecules.decoding import Decoder
from nmln.recording import Recorder
from nmln.runs import data as sources
from nmln.runs import likelihood
from nmln.runs.quality import Quality
from nmln.training import Return, Trainer

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "trials.json"
MIXING_SECONDS = 60.0  # CPU seconds of chains under the averaged weights
MEASURED = 400  # molecules of either part whose likelihood is measured
ANNEALED, ANNEALING, RECORDED = 60, 1000, 300  # chains, steps and sweeps that log Z comes from


def run(
    name: str,
    config: Config,
    minutes: float,
    keep: Path | None,
    start: Model | None,
    steps: int | None = None,
) -> Any:
    """Train with one setting for some minutes or steps, and measure its chains."""
    source = sources.load(config.data)
    order = torch.randperm(len(source.train), generator=Generator().manual_seed(1))
    chosen = source.train[order]
    cut = len(chosen) // 10
    held, worlds = (sources.pick(source.worlds, part) for part in (chosen[:cut], chosen[cut:]))
    if steps is None:
        model = Model.build(source.space, worlds, config, start=start)
        steps = steps_in(minutes, model, worlds)
    config = override(config, {"training.steps": steps})
    model = Model.build(source.space, worlds, config, start=start)
    trainer = Trainer(model.potential, worlds, model.config)
    row = {"name": name, "data": config.data.source, "steps": steps}
    row |= trained(trainer, Quality.of(source.kind, source.space))
    if row["diverged"]:
        return row
    replicas = Replicas.mixed(trainer)
    model = model.averaged(trainer)
    if replicas is not None:
        row |= mixed(model, replicas)
    if keep is not None:
        Model(**{**vars(model), "replicas": replicas}).save(keep / name.replace(" ", "-"))
    return row | nats(model, worlds[:MEASURED], held[:MEASURED])


def trained(trainer: Trainer, quality: Quality) -> dict[str, Any]:
    """Train to the end; how the validity of the chains grew."""
    clock, recent, returns = Clock(), deque[float](maxlen=4), 0
    reached: dict[str, float] = {}
    swaps: deque[tuple[float, ...]] = deque(maxlen=100)
    for event in until_divergence(trainer):
        if isinstance(event, Return):
            returns += 1
            continue
        swaps.append(event.swaps)
        if event.step % LOOK:
            continue
        recent.append(clock.aside(lambda: quality.measure(trainer.values[-1]))["valid"])
        mean = sum(recent) / len(recent)
        for share in SHARES:
            if len(recent) == recent.maxlen and mean >= share:
                reached.setdefault(f"{share:.0%}", round(clock.minutes, 2))
        numbers = " ".join(f"{swap:.0%}" for swap in event.swaps)
        print(
            f"  {clock.minutes:5.1f} min, step {event.step}: valid {mean:.0%}, accepted "
            f"{event.acceptance[-1]:.0%}, gradient {event.gradient[-1]:.0f}, swaps {numbers}",
            flush=True,
        )
    return {
        "cpu_minutes": round(clock.minutes, 2),
        "done": trainer.step_number,
        "diverged": trainer.step_number < trainer.config.training.steps,
        "returns": returns,
        "rates": list(trainer.method.noise),
        "minutes_until_valid": reached,
        "training_swaps": [round(one, 3) for one in torch.tensor(list(swaps)).mean(0).tolist()],
    }


def mixed(model: Model, replicas: Replicas) -> dict[str, Any]:
    """What the mixed chains do in a fixed processor time."""
    (values,) = replicas.values
    values = values[:, -model.config.chains.replicas :]  # their last state
    rng, recorder, decoder = Generator().manual_seed(1), Recorder(keep=10), Decoder(model.space)
    found, spent, sweeps, valid = set[str](), 0.0, 0, 0
    started = time.process_time()
    for sweep in model.chains().run(values, 10**9, rng):
        recorder.record(sweep)
        spent += time.process_time() - started
        sweeps += 1
        smiles = [one.smiles for one in decoder.decode(sweep.state.values[-1])]
        valid += sum(one is not None for one in smiles)
        found.update(one for one in smiles if one is not None)
        if spent >= MIXING_SECONDS:
            break
        started = time.process_time()
    seen = recorder.recording()
    return {
        "mixing_sweeps": sweeps,
        "valid": round(valid / (sweeps * values.shape[1]), 4),
        "swaps": [round(one, 3) for one in seen.swap_probability.tolist()],
        "arrivals": round(float(seen.restarts.sum()) / spent, 3),
        "molecules": round(len(found) / spent, 2),
    }


def nats(model: Model, train: Tensor, held: Tensor) -> dict[str, Any]:
    """Nats per molecule, and the weight of the data; above 1, the chains missed worlds."""
    found = likelihood.measure(
        model, train, held, molecules=True, chains=ANNEALED, steps=ANNEALING, sweeps=RECORDED, seed=1
    )  # fmt: skip
    one, other, part = found.train_molecules, found.test_molecules, found.partition
    assert one is not None
    assert other is not None
    return {
        "nats_train": round(one.value, 2),
        "nats_held": round(other.value, 2),
        "nats_error": round(other.error, 2),
        "log_z_interval": [round(number - part.value, 2) for number in part.interval],
        "data_over_z": round(exp(min(20.0, part.data - part.value)), 3),
    }


def stored() -> list[dict[str, Any]]:
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as Markdown."""
    lines = [
        "| setting | data | CPU min | steps | until 60, 85, 95 % valid | valid | least swap | "
        "arrivals/s | molecules/s | nats: train, held out |",
        "|" + " --- |" * 10,
    ]
    for row in rows:
        reached = row["minutes_until_valid"]
        until = ", ".join(
            f"{reached[s]:.1f}" if s in reached else "-" for s in ("60%", "85%", "95%")
        )
        end = "diverged | | | | |"
        if not row["diverged"]:
            chains = "- | - | - | -"
            if "valid" in row:
                chains = (
                    f"{row['valid']:.0%} | {min(row['swaps']):.0%} | {row['arrivals']:.2f} | "
                    f"{row['molecules']:.1f}"
                )
            end = f"{chains} | {row['nats_train']:.1f}, {row['nats_held']:.1f} |"
        lines.append(
            f"| {row['name']} | {row['data']} | {row['cpu_minutes']:.0f} | {row['steps']:,} | {until} | "
            + end
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--minutes", type=float, default=8.0, help="CPU minutes of training")
    parser.add_argument("--steps", type=int, help="updates, in place of --minutes")
    parser.add_argument("--data", default="chembl-15")
    parser.add_argument("--keep", type=Path, help="a folder that the models are kept in")
    parser.add_argument("--preset", default="molecules")
    parser.add_argument("--from", type=Path, dest="start", help="start from the weights of a model")
    parser.add_argument("--page", action="store_true", help="write the table")
    given = parser.parse_args()
    if given.page:
        put("laboratory-notes.md", "trials", table(stored()))
        return
    if given.name is None:
        print("\n".join(table(stored())))
        return
    torch.set_num_threads(1)
    config = override(
        configure({"data": {"source": given.data}}, preset=given.preset), parsed(given.set)
    )
    start = None if given.start is None else load(given.start)
    row = run(given.name, config, given.minutes, given.keep, start, given.steps)
    row |= {"preset": given.preset, "set": dict(text.split("=", 1) for text in given.set)}
    if given.start is not None:
        row |= {"from": given.start.name}
    rows = [old for old in stored() if (old["name"], old["data"]) != (row["name"], row["data"])]
    write_json(RESULTS, plain([*rows, row]))
    print("\n".join(table([row])))


if __name__ == "__main__":
    main()
