"""The time of inference: friends and smokers, a million worlds, and Gibbs sampling in classes.

Seconds are CPU seconds of one thread. Gibbs in classes and one by one take turns on the same chains.
"""

import time
from collections.abc import Callable

import torch
from torch import Generator

from benchmarks.ratios import Ratio, interleaved, report
from nmln.formats.mln import parse_mln
from nmln.inference import Answers, Conditional, Plan
from nmln.kernels.coloured import ColouredGibbs
from nmln.kernels.gibbs import SystematicGibbs
from nmln.noise import uniform
from nmln.potentials.formula import FormulaPotential
from nmln.space import Space

SMOKERS = parse_mln("""
Smokes(person)
Cancer(person)
Friends(person, person)
1.5 Smokes(x) => Cancer(x)
1.1 Friends(x, y) => (Smokes(x) <=> Smokes(y))
-1 Smokes(x)
-0.5 Friends(x, y)
""")
KNOWS = parse_mln("""
Knows(person, person) irreflexive
0.3 Knows(x, y) ^ Knows(y, z) => Knows(x, z)
-0.5 Knows(x, y)
""")


def cpu(work: Callable[[], Answers]) -> tuple[float, Answers]:
    start = time.process_time()
    found = work()
    return time.process_time() - start, found


def main() -> None:
    torch.set_num_threads(1)
    ratios = []
    for people in (8, 20):
        space = Space(SMOKERS.language, {"person": people})
        asked = Conditional.of_formulas(space, SMOKERS.formulas)
        query = "Smokes, Cancer, Friends"
        asked.marginals(
            "Smokes", plan=Plan(chains=4, burn_in=1, sweeps=4), exactly=False
        )  # imports
        seconds, found = cpu(lambda a=asked, q=query: a.marginals(q, plan=Plan(error=0.01)))
        largest = max(answer.error for answer in found)
        ratios += [
            Ratio(f"CPU seconds for all {len(found)} marginals of {people} people", seconds),
            Ratio("  their largest standard error", largest, 0.01),
        ]

    space = Space(KNOWS.language, {"person": 5})
    asked = Conditional.of_formulas(space, KNOWS.formulas)
    seconds, found = cpu(lambda: asked.marginals("Knows", exactly=True))
    assert found.exact
    ratios.append(Ratio(f"CPU seconds to enumerate {space.number_of_worlds:,} worlds", seconds, 20))

    for people in (8, 20):
        space = Space(SMOKERS.language, {"person": people})
        potential = FormulaPotential(space, SMOKERS.formulas)
        rng = Generator().manual_seed(0)
        worlds = uniform(space, 1, 100, rng)
        coloured, one_by_one = ColouredGibbs.of(potential), SystematicGibbs(space)
        fast, slow = interleaved(
            lambda p=potential, k=coloured, w=worlds, r=rng: k.step(p, k.init(p, w), r),
            lambda p=potential, k=one_by_one, w=worlds, r=rng: k.step(p, k.init(p, w), r),
            rounds=3,
        )
        what = f"time of a sweep, groups one by one / in classes, {people} people"
        ratios.append(Ratio(what, slow / fast, 4, at_most=False))
    report("inference", ratios)


if __name__ == "__main__":
    main()
