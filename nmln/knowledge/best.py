"""The best parameters so far, and the running mean that they are taken from."""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from nmln.knowledge.data import KnowledgeBase
from nmln.knowledge.potential import KnowledgePotential
from nmln.knowledge.ranking import Quality, rank
from nmln.knowledge.scoring import scorer


class Best:
    """The parameters that ranked the validation triples best so far.

    With `average` those of a running mean are judged, each step weighing 1 - average.
    """

    def __init__(self, potential: KnowledgePotential, base: KnowledgeBase, average: float) -> None:
        self.base, self.average = base, average
        self.judged = potential
        if average:
            self.judged = KnowledgePotential(potential.space, potential.shape).to(potential.dtype)
            self.judged.load_state_dict(potential.state_dict())
        self.steps = 0
        self.epoch = 0
        self.quality: Quality | None = None
        self.state: dict[str, Tensor] = {}

    @torch.no_grad()
    def follow(self, potential: KnowledgePotential) -> None:
        """Take a step of the parameters into the mean."""
        if self.judged is potential:
            return
        self.steps += 1
        forget = 1 - min(self.average, self.steps / (self.steps + 10))
        for mean, now in zip(self.judged.parameters(), potential.parameters(), strict=True):
            mean.lerp_(now, forget)

    @torch.no_grad()
    def check(self, epoch: int) -> float | None:
        """The validation MRR; without validation triples every check is the best one."""
        if not len(self.base.valid):
            self.epoch, self.state = epoch, _copy(self.judged)
            return None
        found = rank(scorer(self.judged, self.base), self.base.valid, self.base.known).both
        if self.quality is None or found.mrr > self.quality.mrr:
            self.epoch, self.quality, self.state = epoch, found, _copy(self.judged)
        return found.mrr

    def stale(self, epoch: int, patience: int) -> bool:
        """Whether validation has seen nothing better for so many epochs."""
        return len(self.base.valid) > 0 and epoch - self.epoch >= patience

    def put_back(self, potential: KnowledgePotential) -> None:
        potential.load_state_dict(self.state or self.judged.state_dict())

    def tree(self) -> dict[str, Any]:
        return {
            "mean": dict(self.judged.state_dict()),
            "steps": self.steps,
            "epoch": self.epoch,
            "quality": None if self.quality is None else asdict(self.quality),
            "state": self.state,
        }

    def restore(self, tree: dict[str, Any]) -> None:
        if tree["state"]:  # tried on: at the end it would be too late to find that it does not fit
            self.judged.load_state_dict(tree["state"])
        self.judged.load_state_dict(tree["mean"])
        self.steps, self.epoch = int(tree["steps"]), int(tree["epoch"])
        self.quality = None if tree["quality"] is None else Quality(**tree["quality"])
        self.state = dict(tree["state"])


def _copy(potential: KnowledgePotential) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in potential.state_dict().items()}
