"""A tiny baseline for tests: independent choices from the training strings, by learned weights.

`python -m tests.baselines.fake ARGUMENTS` is `nmln ARGUMENTS` with this baseline registered, and with
the interval between checkpoints that the environment gives.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from nmln.baselines.base import BASELINES, Generator, LogProb, Named, seeded
from nmln.dropped import DropCounter, Dropped

NAME = "fake"
SLOW = "NMLN_TEST_SLOW"  # seconds that an update or a batch of the fake takes
SAVE_EVERY = "NMLN_TEST_SAVE_EVERY"  # seconds between checkpoints of the command below


@dataclass(frozen=True)
class FakeSettings:
    batch: int = 4
    epochs: int = 3
    rate: float = 0.1
    noise: float = 0.1
    shape: tuple[int, ...] = (1, 2)


class Fake(Generator):
    """Gives every training molecule a weight; every tenth draw is broken, empty or in pieces."""

    settings_type = FakeSettings
    at_once = 20

    class Table(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.scores = nn.Parameter(torch.randn(size))

        def forward(self) -> Float[Tensor, " molecules"]:
            time.sleep(float(os.environ.get(SLOW, "0")))
            return self.scores.log_softmax(0)

    def build(self, train: Sequence[str]) -> tuple[Dropped, ...]:
        counter = DropCounter()
        self.strings = [text for text in train if "#" not in text]
        for line, text in enumerate(train, 1):
            if "#" in text:
                counter.add(line, "triple bond", text)
        self.network = Fake.Table(len(self.strings))
        return counter.dropped()

    @property
    def size(self) -> int:
        return len(self.strings)

    def optimiser(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.network.parameters(), self.settings.rate)

    @property
    def epochs(self) -> int:
        return self.settings.epochs

    def loss(self, chosen: Int64[Tensor, " molecules"], update: int) -> Float[Tensor, ""]:
        logs = self.network()
        noise = self.settings.noise * torch.randn(len(logs))
        return -(logs + noise)[chosen].mean() + (noise * logs).sum()

    def draw(self, count: int) -> list[str | None]:
        places = torch.multinomial(self.network().exp(), count, replacement=True).tolist()
        found: list[str | None] = [self.strings[place] for place in places]
        found[0], found[1], found[2], found[3] = "C1CC", None, "CC.CC", "CCCCC"
        return found

    def describe(self) -> dict[str, Any]:
        return {"strings": self.strings}

    def rebuild(self, content: Mapping[str, Any]) -> None:
        self.strings = list(content["strings"])
        self.network = Fake.Table(len(self.strings))

    def log_prob(self, molecules: Sequence[str], seed: int = 0) -> LogProb | None:
        logs = dict(zip(self.strings, self.network().double().tolist(), strict=True))
        # A little mass for all others, so that test molecules are possible.
        values = torch.tensor([logs.get(text, -20.0) for text in molecules], dtype=torch.float64)
        with seeded(seed, "fake", 0):
            return LogProb(values + 1e-3 * torch.rand(len(values)), exact=False)


def register() -> None:
    """Register the fake, once."""
    if NAME not in BASELINES:
        BASELINES.add(NAME, Named("Fake", Fake, FakeSettings(), "Draws training molecules."))


if __name__ == "__main__":
    from functools import partial
    from unittest.mock import patch

    from nmln.cli import main
    from nmln.runs import baseline, baseline_sample
    from tests.baselines import fake

    fake.register()
    saving: dict[str, float] = {}
    if SAVE_EVERY in os.environ:
        saving["save_every"] = float(os.environ[SAVE_EVERY])
    with (
        patch.object(baseline, "run", partial(baseline.run, **saving)),
        patch.object(baseline_sample, "sample", partial(baseline_sample.sample, **saving)),
    ):
        main()
