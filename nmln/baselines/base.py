"""The protocol of a baseline: it learns from molecules, generates new ones, and scores given ones.

A baseline is a subclass of `Generator` that fills in five hooks (`build`, `loss`, `draw`, `describe`
and `rebuild`); `fit`, `generate`, `save` and `load` are common to all. Every random number of an update
is drawn from a stream that is seeded by the seed of the run and the number of the update, so that a
training that is resumed from a checkpoint continues bit for bit.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from nmln.checkpoint import load_model, save_model
from nmln.dropped import Dropped
from nmln.errors import InputError
from nmln.molecules.chemistry import Refusal
from nmln.registry import Registry


@dataclass(frozen=True)
class Budget:
    """How long to train: a number of updates, or minutes of processor time that become one.

    With minutes the schedule of the baseline's settings may end earlier; with neither it decides.
    """

    updates: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.updates is not None and self.minutes is not None:
            raise InputError("give either updates or minutes, not both.", kind="conflict")
        for name in ("updates", "minutes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"{name} must be positive, got {value}.")


def check_settings(
    settings: object,
    least: Mapping[str, int],
    shares: Sequence[str] = (),
    positive: Sequence[str] = (),
) -> None:
    """Refuse settings out of their ranges.

    Args:
        settings: the settings of a baseline.
        least: the smallest values of whole numbers and of others.
        shares: settings that are at least 0 and below 1.
        positive: settings that are above 0, and finite.
    """
    for name, smallest in least.items():
        if not smallest <= (value := getattr(settings, name)) < float("inf"):
            raise InputError(f"{name} must be at least {smallest}, got {value}.", token=name)
    for name in shares:
        if not 0 <= (value := getattr(settings, name)) < 1:
            raise InputError(f"{name} must be at least 0 and below 1, got {value}.", token=name)
    for name in positive:
        if not 0 < (value := getattr(settings, name)) < float("inf"):
            raise InputError(f"{name} must be positive, got {value}.", token=name)


class LogProb(NamedTuple):
    """Log-probabilities of molecules in nats; lower bounds unless they are `exact`.

    A molecule that the baseline cannot write has minus infinity.
    """

    values: Float64[Tensor, " molecules"]
    exact: bool


class Generator(ABC):
    """A baseline: untrained after construction, ready to generate after `fit` or `load`."""

    settings_type: ClassVar[type]
    """The frozen dataclass of its settings; a field `batch` is the number of molecules per update."""

    at_once: ClassVar[int] = 1_000
    """The number of molecules that are drawn together; each such batch has a random stream."""

    network: nn.Module
    """All parameters."""

    updates: int = 0
    """The number of updates of the whole training, while it runs; for schedules that span it."""

    def __init__(self, name: str, settings: Any) -> None:
        """`name` is the one in the registry; `BASELINES[name].new()` makes a baseline."""
        self.name, self.settings = name, settings

    # Hooks.

    @abstractmethod
    def build(self, train: Sequence[str]) -> tuple[Dropped, ...]:
        """Take the training molecules (canonical SMILES) and make the untrained network.

        Called under a fixed seed of torch's global generator. Returns the molecules that the baseline
        cannot represent, counted by reason.
        """

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of training molecules that the baseline represents."""

    @abstractmethod
    def optimiser(self) -> torch.optim.Optimizer:
        """A new optimiser of the network's parameters."""

    @property
    @abstractmethod
    def epochs(self) -> int:
        """The number of epochs of the schedule in the settings."""

    @abstractmethod
    def loss(self, chosen: Int64[Tensor, " molecules"], update: int) -> Float[Tensor, ""]:
        """The loss of some training molecules; random numbers come from torch's global generator."""

    @abstractmethod
    def draw(self, count: int) -> Sequence[str | Refusal | None]:
        """Molecules as SMILES, valid or not; global generator.

        Where there is no molecule, the reason, or None if it is not known.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """All that `rebuild` needs beside settings and parameters, in JSON form."""

    @abstractmethod
    def rebuild(self, content: Mapping[str, Any]) -> None:
        """Make the network of a saved baseline, whose parameters are loaded afterwards."""

    def log_prob(self, molecules: Sequence[str], seed: int = 0) -> LogProb | None:
        """Log-probabilities of molecules, or None where the baseline has no correct ones.

        `seed` is that of the random numbers, where a bound is estimated.
        """
        return None

    def end_epoch(
        self, epoch: int, loss: float, optimiser: torch.optim.Optimizer, memory: dict[str, Any]
    ) -> bool:
        """Called after every epoch with its mean loss; True ends the training.

        `memory` is kept in checkpoints: schedules and best parameters go there.
        """
        return False

    def finish(self, memory: Mapping[str, Any]) -> None:  # noqa: B027
        """Called after the last update, for example to return to the best parameters in `memory`."""

    # Common to all.

    def fit(
        self,
        train: Sequence[str],
        budget: Budget | None = None,
        seed: int = 0,
        progress: Callable[[int, int, float], None] | None = None,
    ) -> tuple[Dropped, ...]:
        """Train from the beginning to the end, in this process.

        Args:
            train: the training molecules.
            budget: how long; by default as the settings say.
            seed: the seed of all random numbers.
            progress: called with the updates done, those of all, and the loss.
        """
        from nmln.baselines.training import BaselineTraining

        training = BaselineTraining.start(self, train, budget or Budget(), seed)
        while not training.done:
            loss = training.step()
            if progress is not None:
                progress(training.update, training.updates, loss)
        training.finish()
        return training.dropped

    def generate(self, n: int, seed: int = 0) -> Iterator[str | None]:
        """n molecules as SMILES, valid or not; the first of them do not depend on n.

        None stands for a molecule that could not be written at all.
        """
        for number in range(-(-n // self.at_once)):
            for one in self.batch(number, seed)[: n - number * self.at_once]:
                yield one if isinstance(one, str) else None

    @torch.no_grad()
    def batch(self, number: int, seed: int = 0) -> Sequence[str | Refusal | None]:
        """One whole batch of what `draw` gives, counted from 0: a sampling can start at any."""
        self.network.eval()
        with seeded(seed, "generate", number):
            return self.draw(self.at_once)

    def save(self, path: str | Path) -> None:
        """Save as a directory of tensors and JSON."""
        content = {
            "baseline": self.name,
            "settings": json.loads(json.dumps(asdict(self.settings))),  # tuples become lists
            "content": self.describe(),
        }
        save_model(Path(path), dict(self.network.state_dict()), content)


@dataclass(frozen=True)
class Named:
    """A baseline with the settings that belong to its name."""

    title: str  # in tables and figures
    family: type[Generator]
    settings: Any
    about: str  # one sentence for `nmln baseline list`

    def new(self, name: str, **changes: Any) -> Generator:
        """An untrained baseline, with some of its settings changed."""
        return self.family(name, replace(self.settings, **changes))


BASELINES: Registry[Named] = Registry("baseline", "nmln.baselines")
"""Registered by the files that define them."""


def new(name: str, **changes: Any) -> Generator:
    """An untrained baseline by its name, with some of its settings changed."""
    return BASELINES.named(name).new(name, **changes)


def load(path: str | Path) -> Generator:
    """A baseline that was saved; nothing in its files is executed."""
    tensors, content = load_model(Path(path))
    try:
        name = content["baseline"]
        made = new(name, **settings_from(BASELINES.named(name).family, content["settings"]))
        made.rebuild(content["content"])
        made.network.load_state_dict(tensors)
    except InputError as error:
        raise error.at(str(path)) from None
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"this is not a baseline that nmln has saved ({reason}). Train it again.",
            str(path),
            kind="damaged",
        ) from None
    made.network.eval()
    return made


def settings_from(family: type[Generator], content: Mapping[str, Any]) -> dict[str, Any]:
    """Settings out of JSON, where tuples have become lists."""
    known = {entry.name for entry in fields(family.settings_type)}
    if set(content) != known:
        raise ValueError(f"its settings are not those of {family.__name__}")
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in content.items()
    }


@contextmanager
def seeded(seed: int, what: str, number: int) -> Iterator[None]:
    """Give torch's global generator a stream of its own inside, and its old state afterwards."""
    found = hashlib.sha256(f"nmln baseline {what} {seed} {number}".encode()).digest()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(found[:8], "big") >> 1)
        yield
