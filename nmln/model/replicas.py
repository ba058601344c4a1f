"""Replicas that come with a model: ladders of worlds that its chains have reached, to sample from.

Burning in from noise takes most of the time of a small sampling. A model may keep the states of chains
that were mixed under its own parameters. A sampling that starts from some of them needs only as many
sweeps as make copies of one replica independent of each other, see `decide`.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Int64
from torch import Generator, Tensor

from nmln.devices import generator
from nmln.errors import InputError
from nmln.model.chains import ModelChains
from nmln.space import Space
from nmln.training.mixing import Mixing, forgetting, mixing_sweeps
from nmln.training.trainer import Trainer
from nmln.types import Values

BURN_IN = 300
"""Sweeps from noise before the first sample, unless others are asked for."""

DECORRELATION = 8
"""The fewest sweeps from replicas of the model before the first sample, unless others are asked for."""

MOST = 1000
"""The most replicas of one domain that a model keeps."""

_WATCHED = 200  # sweeps from which it is seen how soon chains forget
_BYTES = 2**19  # that the replicas of one domain may take, as long as each chain has one
_APART = 20  # the fewest sweeps between two times at which chains are kept
_PREFIX = "replicas."

Report = Callable[[int, int], None]
"""Called with the number of sweeps done and of all."""

Start = Literal["auto", "noise", "model"]
"""Where chains start: at noise, from the replicas of the model, or as `decide` finds best."""


@dataclass(frozen=True)
class Replicas:
    """Ladders of worlds at all levels, for every domain of a model, and how long they were mixed."""

    values: tuple[Values, ...]
    sweeps: int  # under the parameters of the model
    forgetting: int  # sweeps after which a chain hardly depends on where it started

    @staticmethod
    def mixed(trainer: Trainer, report: Report | None = None) -> "Replicas | None":
        """Those of a finished training, after some sweeps under its final parameters.

        None if the training was too short for its chains to be of use, see `mixing_sweeps`. The trainer
        is left as it is. `report` is called after every sweep, and may raise.
        """
        sweeps = mixing_sweeps(trainer)
        if not sweeps:
            return None
        spaces, levels = (
            [one.potential.space for one in trainer.domains],
            trainer.method.chain_levels,
        )
        every = [
            sweeps // snapshots_in(sweeps, one.replicas, levels, space)
            for one, space in zip(trainer.domains, spaces, strict=True)
        ]
        mixing = Mixing(trainer)
        for number in range(1, sweeps + 1):
            if not mixing.sweep():
                return None
            for domain, gap in enumerate(every):
                if (sweeps - number) % gap == 0 and number >= gap:
                    mixing.keep(domain)
            if report is not None:
                report(number, sweeps)
        return Replicas.of_domains(mixing.gathered(), sweeps)

    @staticmethod
    def of_domains(found: Sequence[tuple[Values, int | None]], sweeps: int) -> "Replicas":
        """Of the worlds of every domain, and the sweeps that its chains take to forget."""
        slowest = max(BURN_IN if lag is None else lag for _, lag in found)
        return Replicas(tuple(values for values, _ in found), sweeps, slowest)

    def described(self) -> dict[str, Any]:
        """What is saved beside the worlds."""
        return {"sweeps": self.sweeps, "forgetting": self.forgetting}

    def tensors(self) -> dict[str, Tensor]:
        """The worlds by name, to be saved beside the parameters."""
        return {f"{_PREFIX}{number}": values for number, values in enumerate(self.values)}

    def of(self, number: int) -> "Replicas":
        """The replicas of one domain."""
        return Replicas((self.values[number],), self.sweeps, self.forgetting)

    @property
    def count(self) -> int:
        """How many there are, in all domains."""
        return sum(values.shape[1] for values in self.values)

    @property
    def digest(self) -> str:
        """A hash that identifies them when a sampling is continued."""
        found = hashlib.sha256()
        for values in self.values:
            found.update(f"{tuple(values.shape)} {values.dtype}\n".encode())
            found.update(values.detach().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()[:16]

    @staticmethod
    def read(
        tensors: Mapping[str, Tensor],
        content: Any,
        spaces: Sequence[Space],
        levels: int,
        source: str | None = None,
    ) -> "Replicas | None":
        """The replicas among the tensors of a saved model, checked against its spaces; None without."""
        found = {name: one for name, one in tensors.items() if name.startswith(_PREFIX)}
        if content is None and not found:
            return None
        numbers = content if isinstance(content, Mapping) else {}
        counts = [numbers.get(name, -1) for name in ("sweeps", "forgetting")]
        names = [f"{_PREFIX}{number}" for number in range(len(spaces))]
        fits = all(type(one) is int and 0 <= one < 2**31 for one in counts)
        if (
            not fits
            or found.keys() != set(names)
            or not all(
                _fits(found[name], space, levels) for name, space in zip(names, spaces, strict=True)
            )
        ):
            raise InputError(
                "its replicas are not worlds of the model that it describes. Save the model again, or "
                "fetch another copy.",
                source,
                kind="damaged",
            )
        return Replicas(tuple(found[name] for name in names), *counts)


def parameters_in(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a saved model without those of its replicas."""
    return {name: one for name, one in tensors.items() if not name.startswith(_PREFIX)}


def _fits(values: Tensor, space: Space, levels: int) -> bool:
    """Whether a tensor holds worlds of a space at all levels."""
    return (
        values.dtype == space.dtype
        and values.ndim == 3
        and (values.shape[0], values.shape[2]) == (levels, space.groups)
        and values.shape[1] > 0
        and bool((values >= 0).all() and (values < space.sizes).all())
    )


# Choosing some of them.


def chosen(replicas: int, chains: int, rng: Generator) -> Int64[Tensor, " chains"]:
    """The replicas that chains start from: each once in random order, again and again."""
    rounds = -(-chains // replicas)
    orders = [torch.randperm(replicas, generator=rng, device=rng.device) for _ in range(rounds)]
    return torch.cat(orders)[:chains]


def first_worlds(
    running: ModelChains, replicas: Replicas | None, chains: int, rng: Generator
) -> Values:
    """Worlds for chains of one domain to start from: its replicas, or noise if there are none."""
    if replicas is None:
        return running.noise(chains, rng)
    (values,) = replicas.values
    return values.to(rng.device)[:, chosen(values.shape[1], chains, rng)]


class Decision(NamedTuple):
    """Where the chains of a sampling start, how long they burn in, and why."""

    from_replicas: bool
    burn_in: int
    why: str


def decide(
    start: Start,
    burn_in: int | None,
    replicas: Sequence[Replicas | None],
    condition: str | None = None,
    pace: float = 1.0,
    noise_burn_in: int = BURN_IN,
) -> Decision:
    """Where to start; the one place that decides it.

    Chains that start from replicas take as many sweeps as they need to forget them, so that two
    samplings have no more in common than two that burnt in.

    Args:
        start: what is asked for.
        burn_in: the sweeps before the first sample that are asked for. A number alone is one from
            noise, as it has always been.
        replicas: those of every domain that is sampled.
        condition: what makes the target another one than that of the model, if anything does.
        pace: the moves per sweep, as a factor on those of the model's settings.
        noise_burn_in: the sweeps from noise if none are asked for.
    """
    if start not in ("auto", "noise", "model"):
        raise InputError(
            f"a start must be auto, noise or model, got {start!r}.",
            token=str(start),
            kind="unknown",
        )
    lacking = None
    if condition is not None:
        lacking = condition
    elif not replicas or all(one is None for one in replicas):
        lacking = "the model has no chains of its own"
    elif any(one is None for one in replicas):
        lacking = "one of the sizes has no chains in the model"
    if start == "model" and lacking is not None:
        raise InputError(
            f"the chains cannot start from those of the model: {lacking}. Leave out the start, and "
            "they burn in from noise.",
            token="model",
            kind="conflict",
        )
    if start == "auto" and lacking is None and burn_in is not None:
        lacking = "a burn-in is given"
    if start == "noise":
        lacking = "asked for"
    if lacking is not None:
        sweeps = noise_burn_in if burn_in is None else burn_in
        return Decision(False, sweeps, f"noise: {lacking}")
    slowest = max(one.forgetting for one in replicas if one is not None)
    few = min(BURN_IN, ceil(max(DECORRELATION, slowest) / pace))
    return Decision(True, few if burn_in is None else burn_in, "chains of the model")


# Making them.


def snapshots_in(sweeps: int, replicas: int, levels: int, space: Space) -> int:
    """How often the chains of a domain are kept in some sweeps: at least once, and not too many."""
    size = replicas * levels * space.groups * space.dtype.itemsize
    return max(1, min(MOST // replicas, _BYTES // size, sweeps // _APART))


def mixed_from_noise(
    running: ModelChains,
    chains: int,
    sweeps: int,
    times: int,
    every: int,
    seed: int,
    report: Report | None = None,
    block: int = 50,
) -> tuple[Values, int | None]:
    """Replicas of chains that burnt in from noise, kept `times` times, `every` sweeps apart.

    The chains run in blocks, each with a random stream of its own. Beside the worlds, the sweeps that a
    chain takes to forget where it started, as seen in the last sweeps.
    """
    whole = sweeps + every * (times - 1)
    found: list[list[Values]] = [[] for _ in range(times)]
    target: list[Tensor] = []
    blocks = [min(block, chains - first) for first in range(0, chains, block)]
    for number, count in enumerate(blocks):
        rng = generator(running.potential.device, seed + number)
        start = running.noise(count, rng)
        last: deque[Tensor] = deque(maxlen=_WATCHED)
        for sweep in running.run(start, whole, rng, warm_up=sweeps):
            late, between = divmod(sweep.number - sweeps, every)
            if late >= 0 and between == 0:
                found[late].append(sweep.state.values)
            last.append(sweep.state.values[-1].cpu())
            if report is not None:
                report(number * whole + sweep.number, len(blocks) * whole)
        target.append(torch.stack(list(last)))
    worlds = torch.cat([values for kept in found for values in kept], dim=1)
    return worlds, forgetting(torch.cat(target, dim=1))
