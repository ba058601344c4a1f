"""The cost of one model over two sizes: `python -m benchmarks.domains`, on one thread.

A step on `pubchem-9` and `pubchem-10` together, at the same number of chains, over the mean of the two
alone. The three are trained in turns, so that noise affects all equally.
"""

import torch

from benchmarks.ratios import Ratio, interleaved, report
from nmln.buckets import Bucket
from nmln.config import configure
from nmln.model import Model
from nmln.runs import data as sources
from nmln.training import Trainer

SETS = ("pubchem-9", "pubchem-10")
PRESETS = ("small", "molecules")
STEPS, ROUNDS = 5, 20


def trainer(buckets: list[Bucket], preset: str) -> Trainer:
    config = configure({"training": {"steps": 10**6}}, preset=preset)
    model = Model.build(buckets, config=config)
    made = Trainer(model.potential, buckets, model.config)
    made.step()
    return made


def steps(made: Trainer) -> None:
    for _ in range(STEPS):
        made.step()


def main() -> None:
    torch.set_num_threads(1)
    buckets = []
    for name in SETS:
        source = sources.load(configure({"data": {"source": name}}).data)
        buckets.extend(source.chosen(source.train))
    ratios = []
    for preset in PRESETS:
        made = [trainer(part, preset) for part in (buckets[:1], buckets[1:], buckets)]
        first, second, both = interleaved(
            *(lambda one=one: steps(one) for one in made), rounds=ROUNDS
        )
        mean = (first + second) / 2
        ratios += [
            Ratio(f"{preset}: a step on 9 atoms, seconds", first / STEPS),
            Ratio(f"{preset}: a step on 10 atoms, seconds", second / STEPS),
            Ratio(f"{preset}: a step on both over the mean of the two", both / mean, 1.2),
        ]
    report("domains", ratios)


if __name__ == "__main__":
    main()
