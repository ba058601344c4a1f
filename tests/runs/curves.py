"""How training goes on a space that can be enumerated; run alone, or by torchrun on several processes.

Prints, for every seed, the exact divergence from the target at both levels after every window of
steps, and whether all processes hold the same parameters in the end.
"""

import json
import sys

import torch
from torch import Generator, Tensor

from nmln.config import configure, override
from nmln.distributed import Ranks, join, leave
from nmln.language import Attribute, Language, predicate
from nmln.model import Model
from nmln.noise import noised
from nmln.space import Space
from nmln.training import Trainer

SPACE = Space(
    Language(
        Attribute("type", ("node",), ("A", "B")),
        predicate("bond", "node", "node", symmetric=True, reflexive=False),
    ),
    {"node": 3},
)
WORLDS = SPACE.enumerate()  # 64
RATES = (0.2, 0.02)
SEEDS, WINDOWS, STEPS = 10, 5, 16


class Summing(Ranks):
    """A broken twin: gradients are added up over the processes."""

    def average_gradients(self, rows: Tensor, blocks: int) -> Tensor:
        return super().average_gradients(rows, blocks) * blocks


class Apart(Ranks):
    """A broken twin: every process goes its own way."""

    def average_gradients(self, rows: Tensor, blocks: int) -> Tensor:
        return rows.mean(0)


def target() -> Tensor:
    """Bonds between unlike nodes, of which there is one A."""
    types, bonds = WORLDS[:, :3].double(), WORLDS[:, 3:].double()
    unlike = torch.stack(
        [(types[:, a] - types[:, b]).abs() for a, b in ((0, 1), (0, 2), (1, 2))], dim=1
    )
    scores = 2 * (bonds * (2 * unlike - 1)).sum(1) - 2 * (types.sum(1) - 2).abs()
    return scores.softmax(0)


def curve(seed: int, ranks: Ranks) -> tuple[list[list[float]], bool]:
    chances = target()
    draws = torch.multinomial(chances, 4000, True, generator=Generator().manual_seed(0))
    config = configure(
        {
            "ladder": {"rates": list(RATES)},
            "model": {"layers": 1, "hidden": 16},
            "chains": {"moves": 3, "replicas": 20},
            "optimiser": {
                "method": "sgd",
                "learning_rate": 0.02,
                "schedule": "constant",
                "warm_up": 0,
                "average": 0.0,
            },
            "training": {"steps": WINDOWS * STEPS, "batch": 20},
        }
    )
    config = override(config, {"training.seed": seed})
    model = Model.build(SPACE, WORLDS[draws], config)
    trainer = Trainer(model.potential, WORLDS[draws], config, ranks)
    found = []
    for _ in range(WINDOWS):
        for _ in range(STEPS):
            trainer.step()
        found.append(divergences(model, chances))
    own = torch.cat([p.detach().flatten() for p in model.potential.parameters()])
    alike = all(torch.equal(own, part["own"]) for part in ranks.gather({"own": own}))
    return found, alike


def divergences(model: Model, chances: Tensor) -> list[float]:
    with torch.no_grad():
        scores = model.potential.score(WORLDS.expand(len(RATES), -1, -1)).double().log_softmax(1)
    exact = [noised(SPACE, chances, rate) for rate in RATES]
    return [float((p * (p.log() - score)).sum()) for p, score in zip(exact, scores, strict=True)]


def main(kind: str) -> None:
    torch.set_num_threads(1)
    ranks = join()
    made = {"whole": Ranks, "summing": Summing, "apart": Apart}[kind](ranks.rank, ranks.count)
    results = [curve(seed, made) for seed in range(SEEDS)]
    if ranks.first:
        sys.stdout.write(json.dumps(results) + "\n")
    leave()


if __name__ == "__main__":
    main(sys.argv[1])
