"""Ladders of levels: corruption rates or temperatures, behind one protocol.

Both list one number per level, the noisiest or hottest level first and the target last. Code that
compares, inserts or moves levels takes any `LadderLike` and works for both.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import asin, ceil, erfc
from statistics import NormalDist
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Integer
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.marginals import Shares, redraw
from nmln.memory import in_digits, refuse_size
from nmln.noise import check_rate, corrupt, swap_bound
from nmln.space import Space
from nmln.types import Values

NOISIEST, TARGET = 0.08, 0.001  # the first and the last rate of ladders that are made for a space
Overlap = Callable[[float, float], float]
"""The predicted probability of a swap between levels at two rates."""
_MOST_LEVELS = 100
_MANY = 10_000  # groups: for worlds as large as this, estimates of the number of levels are right
_RATE_HALVINGS, _SWAP_HALVINGS = 18, 9  # of an interval, in search of a rate or a probability
_LEVEL = 1000  # bytes that a level takes at least, with its weights and its row of chains


@runtime_checkable
class LadderLike(Protocol):
    """One number per level, falling from the first level to the target.

    `kind` is the name under which diagnostics record the ladder. `coordinate` maps a rate to the scale
    on which levels are interpolated, `rate_at` maps it back.
    """

    kind: ClassVar[str]

    @property
    def rates(self) -> tuple[float, ...]: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[float]: ...

    def coordinate(self, rate: float) -> float: ...

    def rate_at(self, coordinate: float) -> float: ...


@dataclass(frozen=True)
class Ladder:
    """Corruption rates, noisiest first, target last. Levels are interpolated in the square root."""

    kind: ClassVar[str] = "noise"

    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", tuple(map(float, self.rates)))
        if not self.rates:
            raise InputError(
                "a ladder needs at least one corruption rate: Ladder((0.1, 0.01)).", kind="empty"
            )
        for level, rate in enumerate(self.rates):
            check_rate(rate, f"the corruption rate of level {level}")
        _check_falling(self.rates, "corruption rates", "Ladder")

    @staticmethod
    def even(
        free_groups: int,
        swap: float,
        noisiest: float = NOISIEST,
        target: float = TARGET,
        overlap: Overlap | None = None,
    ) -> "Ladder":
        """As few levels as give every pair of neighbours a predicted swap probability of `swap` or more.

        The prediction is `overlap`; by default `swap_bound`, which depends on the number of free groups
        of a world: the larger the world, the closer the levels. The first and the last rate are given,
        and all pairs have the same prediction.
        """
        if not 0 < swap < 1:
            raise InputError(
                f"the wanted swap probability must be above 0 and below 1, got {swap}. Take one such as "
                "0.4.",
                token="swap",
            )
        ends = Ladder((noisiest, target))  # checks both
        chance = overlap or partial(swap_bound, free_groups)
        if free_groups < 1 or chance(*ends) >= swap:
            return ends
        needed, rates = _needed(free_groups, swap, ends), [target]
        # Otherwise there is no need to count: the estimate is right, unless the prediction is another.
        if overlap is not None or free_groups < _MANY or needed < 2 * _MOST_LEVELS:
            rates = _climbed(chance, swap, ends, _MOST_LEVELS)
        if rates[-1] < noisiest:
            possible = ends.swap_of(free_groups, _MOST_LEVELS)
            if overlap is not None:
                way = [ends.coordinate(rate) for rate in (target, rates[-1], noisiest)]
                needed = 1 + ceil((len(rates) - 1) * (way[2] - way[0]) / (way[1] - way[0]))
                possible = swap_with(_MOST_LEVELS, swap, needed)
            limit = f"a ladder may have {_MOST_LEVELS}"
            raise too_many_levels(swap, free_groups, needed, limit, possible)
        low, high = swap, 1.0  # with as many levels, the largest probability that still gets there
        for _ in range(_SWAP_HALVINGS):
            middle = (low + high) / 2
            found = _climbed(chance, middle, ends, len(rates))
            low, high = (middle, high) if found[-1] >= noisiest else (low, middle)
        inner = _climbed(chance, low, ends, len(rates))[1:-1]
        return Ladder((noisiest, *_rounded(inner[::-1]), target))

    def respaced(self, power: float) -> "Ladder":
        """As many levels between the same ends, even in a power of the rate: a small one puts more of
        them near the target.
        """
        first, last = self.rates[0] ** power, self.rates[-1] ** power
        steps = len(self) - 1
        inner = [(first + (last - first) * step / steps) ** (1 / power) for step in range(1, steps)]
        return Ladder((self.rates[0], *_rounded(inner), self.rates[-1])) if steps else self

    def predicted_swaps(
        self, free_groups: int, overlap: Overlap | None = None
    ) -> tuple[float, ...]:
        """The predicted swap probability of every pair of neighbours, as for `even`."""
        chance = overlap or partial(swap_bound, free_groups)
        return tuple(chance(*pair) for pair in pairwise(self.rates))

    def swap_of(self, free_groups: int, levels: int) -> float:
        """About the swap probability of even pairs, with so many levels between the same ends.

        For large worlds: the change of the log-probability in a swap is then nearly normal.
        """
        return erfc(_length(free_groups, self) / (levels - 1) / 2)

    def __len__(self) -> int:
        return len(self.rates)

    def __iter__(self) -> Iterator[float]:
        return iter(self.rates)

    def coordinate(self, rate: float) -> float:
        """The square root of the rate."""
        return rate**0.5

    def rate_at(self, coordinate: float) -> float:
        """The rate at a coordinate: its square."""
        return float(coordinate**2)

    def nearest(self, rate: float) -> int:
        """The level whose rate is nearest to this one."""
        return min(range(len(self)), key=lambda level: abs(self.rates[level] - rate))

    def corrupt(
        self,
        space: Space,
        worlds: Integer[Tensor, "chains groups"],
        rng: Generator,
        evidence: Evidence | None = None,
        shares: Shares | None = None,
    ) -> Values:
        """A corrupted copy of every world at every level.

        Args:
            space: the space of the worlds.
            worlds: the worlds to corrupt; they must agree with the evidence.
            rng: the generator that all random numbers are drawn from, level by level.
            evidence: the categories that are allowed; observed groups stay as they are.
            shares: the frequencies that corrupted groups are drawn from; without them they take
                one of their other categories, all equally likely.
        """
        if shares is None:
            return torch.stack([corrupt(space, worlds, rate, rng, evidence) for rate in self.rates])
        return torch.stack(
            [redraw(space, worlds, rate, shares, rng, evidence) for rate in self.rates]
        )


@dataclass(frozen=True)
class Temperatures:
    """Temperatures, hottest first; the last one, usually 1, belongs to the target.

    Levels are interpolated in the inverse temperature.
    """

    kind: ClassVar[str] = "temperature"

    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", tuple(map(float, self.rates)))
        if not self.rates:
            raise InputError(
                "a ladder needs at least one temperature: Temperatures((4, 2, 1)).", kind="empty"
            )
        for level, temperature in enumerate(self.rates):
            if not 0 < temperature < float("inf"):
                raise InputError(
                    f"temperatures must be positive and finite, but level {level} has {temperature}."
                )
        _check_falling(self.rates, "temperatures", "Temperatures")

    @staticmethod
    def geometric(hottest: float, levels: int) -> "Temperatures":
        """Temperatures at a fixed ratio between neighbours, from the hottest down to 1."""
        if levels < 1 or (levels > 1 and not hottest > 1):
            raise InputError(
                f"temperatures must fall from more than 1 to 1 over at least one level, got hottest "
                f"{hottest} and levels {levels}. Raise hottest, or take one level."
            )
        refuse_size(
            _LEVEL * levels, f"a ladder of {in_digits(levels)} levels", "Take fewer levels."
        )
        return Temperatures((*(hottest ** (1 - i / (levels - 1)) for i in range(levels - 1)), 1.0))

    def __len__(self) -> int:
        return len(self.rates)

    def __iter__(self) -> Iterator[float]:
        return iter(self.rates)

    def coordinate(self, rate: float) -> float:
        """The inverse temperature."""
        return 1 / rate

    def rate_at(self, coordinate: float) -> float:
        """The temperature at an inverse temperature."""
        return float(1 / coordinate)


def ladder_of_kind(kind: str, rates: Sequence[float]) -> LadderLike:
    """The ladder of a recorded kind ("noise" or "temperature") with these rates."""
    kinds = {ladder.kind: ladder for ladder in (Ladder, Temperatures)}
    if kind not in kinds:
        raise InputError(
            f"the kind of a ladder must be {' or '.join(kinds)}, got {kind!r}.",
            token=kind,
            kind="unknown",
        )
    return kinds[kind](tuple(rates))


def too_many_levels(
    swap: float, free_groups: int, needed: int, limit: str, possible: float
) -> InputError:
    """The error for a wanted swap probability that needs more levels than `limit`, a clause, allows.

    `possible` is about the largest swap probability within the limit.
    """
    cure = "name fewer rates, such as ladder.rates=[0.05,0.01,0.001]."
    if possible > 0.01:
        cure = f"set ladder.swap={0.97 * possible:.2g} or lower, or {cure}"
    about = "about " if needed > _MOST_LEVELS else ""
    return InputError(
        f"a swap probability of {swap:g} (ladder.swap) needs {about}{needed:,} levels on worlds of "
        f"{free_groups:,} groups, but {limit}. {cure[0].upper()}{cure[1:]}",
        token="ladder.swap",
        kind="size",
    )


def swap_with(levels: int, swap: float, needed: int) -> float:
    """About the swap probability of so many even levels, where `needed` levels swap with this one."""
    return erfc(_step(swap) * (needed - 1) / (levels - 1) / 2)


def _rounded(rates: Sequence[float]) -> tuple[float, ...]:
    """The same to three digits, or to four where there are many."""
    form = "{:.3g}" if len(rates) < 20 else "{:.4g}"
    return tuple(float(form.format(rate)) for rate in rates)


def _length(free_groups: int, ends: Ladder) -> float:
    """The length of the way between two rates, for worlds of so many groups.

    In these units a short step of length s swaps with the probability erfc(s / 2).
    """
    first, last = (2 * asin(rate**0.5) for rate in (ends.rates[0], ends.rates[-1]))
    return free_groups**0.5 * (first - last)


def _needed(free_groups: int, swap: float, ends: Ladder) -> int:
    """About how many levels a ladder needs between two rates; right for large worlds."""
    return 1 + ceil(_length(free_groups, ends) / _step(swap))


def _step(swap: float) -> float:
    """The step s with erfc(s / 2) = swap, by the quantile of the normal distribution."""
    return -(2**0.5) * NormalDist().inv_cdf(swap / 2)


def _climbed(chance: Overlap, swap: float, ends: Ladder, most: int) -> list[float]:
    """Rates from the target upwards, each predicted to swap with the one below as often as wanted.

    Ends with the first that is as noisy as the noisiest wanted, or after `most` rates.
    """
    noisiest, rate = ends
    rates = [rate]
    while len(rates) < most and rates[-1] < noisiest:
        low, high = rates[-1], min(1.0, 2 * noisiest)
        if chance(high, rates[-1]) < swap:
            for _ in range(_RATE_HALVINGS):
                middle = (low + high) / 2
                enough = chance(middle, rates[-1]) >= swap
                low, high = (middle, high) if enough else (low, middle)
        rates.append(high)
    return rates


def _check_falling(rates: tuple[float, ...], what: str, name: str) -> None:
    for level, (above, below) in enumerate(pairwise(rates)):
        if above <= below:
            cure = tuple(sorted(set(rates), reverse=True))
            raise InputError(
                f"{what} must fall from level to level, but level {level} has {above} and level "
                f"{level + 1} has {below}. Sort them with {name}({cure})."
            )
