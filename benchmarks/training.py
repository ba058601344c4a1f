"""The cost of a training step: evaluation, processes, checkpoints, memory."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.ratios import Ratio, report, resident
from nmln.config import configure
from nmln.model import Model
from nmln.runs import data as sources
from nmln.runs import train as training
from nmln.training import Trainer
from nmln.training import trainer as module

STEPS = 30
GRADIENTS = {"kernel": "gradients", "moves": 10, "sweeps": 1}


def small(**changes: dict) -> training.TrainingJob:
    """A run on the built-in molecules at the small preset, in a separate folder."""
    folder = Path(tempfile.mkdtemp()) / "run"
    config = configure({"data": {"source": "pubchem-10"}, "training": {"steps": 10**6}, **changes})
    return training.begin(folder, config)


def evaluation_share(**changes: dict) -> float:
    """Time in the potential, for chains and gradients, over the time of a step."""
    trainer = small(**changes).trainer
    taken = 0.0
    original = module.accumulate_gradient

    def timed(*given, **named):
        nonlocal taken
        start = time.perf_counter()
        found = original(*given, **named)
        taken += time.perf_counter() - start
        return found

    module.accumulate_gradient = timed
    try:
        trainer.step()
        taken, before = 0.0, trainer.evaluations.seconds
        start = time.perf_counter()
        for _ in range(STEPS):
            trainer.step()
        whole = time.perf_counter() - start
    finally:
        module.accumulate_gradient = original
    return (taken + trainer.evaluations.seconds - before) / whole


def steps_per_minute(processes: int) -> float:
    """By the command that a user types; the first steps do not count."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "nmln", "train", "pubchem-10"]
        options = ["--steps", str(3 * STEPS), "--processes", str(processes), "--output", "run"]
        subprocess.run([*command, *options], cwd=folder, check=True, capture_output=True)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    first, last = json.loads(lines[STEPS - 1]), json.loads(lines[-1])
    return 60 * (last["step"] - first["step"]) / (last["seconds"] - first["seconds"])


def checkpoint_share() -> float:
    """The time of a checkpoint over a minute."""
    job = small()
    job.trainer.step()
    training.save(job, 0.0)
    start = time.perf_counter()
    for _ in range(5):
        training.save(job, 0.0)
    return (time.perf_counter() - start) / 5 / 60


def memory_growth() -> float:
    """Resident memory after 10,000 steps of a tiny network over that after 1,000."""
    source = sources.load(configure({"data": {"source": "pubchem-10"}}).data)
    config = configure(
        {
            "ladder": {"rates": [0.05, 0.001]},
            "model": {"layers": 1, "hidden": 8},
            "chains": {"replicas": 5, "moves": 1},
            "training": {"steps": 10**6, "batch": 5},
        }
    )
    model = Model.build(source.space, source.worlds, config)
    trainer = Trainer(model.potential, source.worlds, config)
    for _ in range(1000):
        trainer.step()
    before = resident()
    for _ in range(9000):
        trainer.step()
    return resident() / before


def main() -> None:
    torch.set_num_threads(1)
    # In turns, and the better of two, because other work on the machine slows both.
    turns = [(steps_per_minute(1), steps_per_minute(2)) for _ in range(2)]
    one, two = (max(found) for found in zip(*turns, strict=True))
    ratios = [
        Ratio("potential evaluation / step", evaluation_share(), 0.75, at_most=False),
        Ratio(
            "the same with 10 gradient-informed moves",
            evaluation_share(chains=GRADIENTS),
            0.75,
            at_most=False,
        ),
        Ratio("two processes / one, steps per minute", two / one, 1.6, at_most=False),
        Ratio("one checkpoint per minute / time", checkpoint_share(), 0.02),
        Ratio("resident memory after 10,000 steps / after 1,000", memory_growth(), 1.05),
    ]
    report("training", ratios, steps_per_minute={"1": one, "2": two})


if __name__ == "__main__":
    main()
