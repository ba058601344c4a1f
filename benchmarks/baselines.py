"""Speed of the baselines: `python -m benchmarks.baselines [diffusion] [strings]`, on one thread.

The references are rates of the published designs, rewritten for graphs of one size (no masks, fused
projections), on another machine of this kind: they are targets for the order of magnitude only, and
the rate of matrix products on this machine stands beside them. All times are processor times.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.ratios import Ratio, report
from nmln.baselines.base import Budget, new, seeded
from nmln.baselines.digress import Digress
from nmln.baselines.strings import StringBaseline
from nmln.baselines.training import BaselineTraining
from nmln.config import DataConfig
from nmln.molecules.chemistry import parse_all
from nmln.molecules.sample_files import judge
from nmln.runs import data as sources

STRINGS = 200_000
_ROUNDS = 5  # of which the fastest counts
LEARNT = 150  # updates before strings are drawn, so that they have the usual lengths
NINE_LAYERS, SMALL, SMALL_TRAINING = 0.32, 28.0, 386.0  # graphs per second


def cpu(work: Callable[[], object], rounds: int = 1) -> float:
    """The processor time of one run, or of the fastest of some."""
    found = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def products(rounds: int = 20) -> float:
    """Floating-point operations per second of matrix products of the network's size."""
    left, right = torch.randn(10_000, 256), torch.randn(256, 256)
    torch.mm(left, right)
    return (
        2
        * 10_000
        * 256
        * 256
        * rounds
        / cpu(lambda: [left @ right for _ in range(rounds)], _ROUNDS)
    )


def started(name: str, molecules: list[str]) -> BaselineTraining:
    return BaselineTraining.start(new(name), molecules, Budget(updates=10_000), 0)


@torch.no_grad()
def step_time(baseline: Digress, count: int, rounds: int) -> tuple[float, float]:
    """Seconds and operations of one denoising step for some graphs."""
    baseline.network.eval()
    worlds = baseline.worlds[torch.arange(count) % len(baseline.worlds)]
    times = torch.full((count,), 250)

    def step() -> None:
        guess = baseline.denoise(worlds, times)
        baseline.diffusion.backward(guess, worlds, 249, 250)

    with FlopCounterMode(display=False) as counter:
        step()
    return cpu(step, rounds), float(counter.get_total_flops())


def diffusion(molecules: list[str]) -> list[Ratio]:
    rate = products()
    large = started("digress-9l", molecules).baseline
    assert isinstance(large, Digress)
    taken, work = step_time(large, large.at_once, 4)
    nine = large.at_once / (taken * large.settings.times)
    training = started("digress-s", molecules)
    small = training.baseline
    assert isinstance(small, Digress)
    training.step()
    updates = cpu(lambda: [training.step() for _ in range(20)], _ROUNDS) / 20
    drawing = cpu(lambda: small.batch(0), _ROUNDS)
    with torch.no_grad(), seeded(0, "generate", 0):
        worlds = small.diffusion.draw(small.at_once, small.steps, small.denoise)
    decoding = cpu(lambda: small.graphs.decode(worlds))
    return [
        Ratio("matrix products, Gflop per second", rate / 1e9),
        Ratio("DiGress of 9 layers, 500 steps, samples per second", nine),
        Ratio("the same over the reference", nine / NINE_LAYERS, 1, at_most=False),
        Ratio("its operations per second over those of matrix products", work / taken / rate),
        Ratio("DiGress-S, 50 steps, samples per second", small.at_once / drawing),
        Ratio("the same over the reference", small.at_once / drawing / SMALL, 1, at_most=False),
        Ratio("DiGress-S, training, graphs per second", small.settings.batch / updates),
        Ratio(
            "the same over the reference",
            small.settings.batch / updates / SMALL_TRAINING,
            1,
            at_most=False,
        ),
        Ratio("decoding over drawing, DiGress-S, untrained", decoding / drawing, 0.2),
    ]


@torch.no_grad()
def strings(molecules: list[str]) -> list[Ratio]:
    training = started("rnn-char", molecules)
    for _ in range(LEARNT):
        with torch.enable_grad():
            training.step()
    baseline = training.baseline
    assert isinstance(baseline, StringBaseline)
    network = baseline.network
    network.eval()
    batches = STRINGS // baseline.at_once
    drawing = reading = bare = 0.0
    for number in range(batches):
        counts: list[int] = []  # strings at every step
        hook = network.recurrent.register_forward_pre_hook(
            lambda _, inputs, counts=counts: counts.append(len(inputs[0]))
        )
        began = time.process_time()
        found = baseline.batch(number)
        drawing += time.process_time() - began
        hook.remove()
        began = time.process_time()
        last, state = network.first(max(counts))
        for count in counts:
            network.step(last[:count], tuple(part[:, :count] for part in state))
        bare += time.process_time() - began
        began = time.process_time()
        texts = [text for text in dict.fromkeys(found) if text and isinstance(text, str)]
        _ = [judge(one, 10) for one in parse_all(texts)]
        reading += time.process_time() - began
    return [
        Ratio("Molecule-RNN, strings per second", STRINGS / drawing),
        Ratio(f"{STRINGS:,} strings over the bare steps of the network", drawing / bare, 2),
        Ratio("reading over drawing, Molecule-RNN", reading / drawing, 0.2),
    ]


PARTS: dict[str, Callable[[list[str]], list[Ratio]]] = {"diffusion": diffusion, "strings": strings}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="by default both")
    chosen = parser.parse_args().parts or list(PARTS)
    torch.set_num_threads(1)
    source = sources.load(DataConfig("pubchem-10"))
    molecules = [source.names[place] for place in source.train.tolist()]
    for name in chosen:
        command = f"python -m benchmarks.baselines {name}"
        report(f"baselines-{name}", PARTS[name](molecules), command=command)


if __name__ == "__main__":
    main()
