"""Independent groups: the base that a network corrects.

On a domain that no data were seen of, the log-odds of each category against none or false are taken
from the domains that are known: linear in the logarithm of the number of tuples between two of them,
and beyond them such that the mean number of true atoms per constant stays. (A molecule of 20 atoms has
twice as many bonds as one of 10, among four times as many pairs.)
"""

from collections.abc import Mapping, Sequence
from math import log, prod
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Generator, Tensor, nn

from nmln.language import Attribute
from nmln.memory import in_digits, refuse_size
from nmln.potentials.base import BasePotential, sliced
from nmln.potentials.stand_in import StandIn, doubled
from nmln.space import Block, Space, count_tuples
from nmln.types import Alternatives, Changes, Groups, Scores, Slopes, Ties, Values

Sizes = Mapping[str, int]
"""The number of constants of every sort."""
MARGINALS = ("known_sizes", "known_numbers")
"""The tensors with the marginals of all domains; the table of one domain does not need them."""


_TOGETHER = 2**24  # one-hot numbers that are counted at a time


class _Marginals(NamedTuple):
    """The logarithms of the marginals on one domain: a number for each category of each attribute."""

    sizes: dict[str, int]
    numbers: Float[Tensor, "levels kinds"]


class IndependentPotential(BasePotential):
    """A sum over groups: a fixed number for each category of each attribute.

    All groups of an attribute share their numbers, so that relabelling changes nothing. Nothing here is
    learned: `fit` takes the numbers from data, `fit_all` those of several domains.
    """

    def __init__(
        self, space: Space, table: Float[Tensor, "levels entries"], domains: int = 0
    ) -> None:
        """`domains` is the number of domains whose marginals are kept beside the table."""
        super().__init__(space, len(table))
        self.precision = nn.Buffer(torch.zeros(0, dtype=table.dtype), persistent=False)
        self.table = nn.Buffer(table)
        if domains:
            kinds = sum(block.size for block in space.blocks)
            self.known_sizes = nn.Buffer(torch.zeros(domains, len(space.domain), dtype=torch.int64))
            self.known_numbers = nn.Buffer(table.new_zeros(domains, len(table), kinds))

    known_sizes: Int64[Tensor, "domains sorts"]
    known_numbers: Float[Tensor, "domains levels kinds"]

    @staticmethod
    def fit(
        space: Space, values: Values, prior: float = 1.0, smoothing: float = 0.0
    ) -> "IndependentPotential":
        """The logarithms of the marginals of worlds at every level; `prior` is added to each count.

        A share `smoothing` of each is uniform.
        """
        counts = torch.zeros(len(values), space.entries, dtype=torch.float64)
        for worlds in values.split(max(1, _TOGETHER // (len(values) * space.entries)), dim=1):
            counts += space.one_hot(worlds, torch.float64).sum(1).cpu()
        table = torch.empty_like(counts)
        for block in space.blocks:
            found = space.entries_of(counts[:, None], block).sum(-2) + prior  # (levels, 1, size)
            mixed = (1 - smoothing) * found / found.sum(-1, keepdim=True) + smoothing / block.size
            logs = mixed.log()
            view = space.entries_of(table[:, None], block)
            view.copy_(logs[..., None, :].expand_as(view))
        return IndependentPotential(space, table.float())

    @staticmethod
    def fit_all(
        spaces: Sequence[Space],
        values: Sequence[Tensor],
        prior: float = 1.0,
        shares: Sequence[float] | None = None,
        smoothing: float = 0.0,
    ) -> "IndependentPotential":
        """The same for several domains, on the first of them; the others by `on`.

        The numbers are those of a size: domains of equal sizes, which differ in the names of their
        constants, have the mean of their marginals by `shares` (default: those of the values).
        """
        parts = [
            IndependentPotential.fit(space, some, prior, smoothing)
            for space, some in zip(spaces, values, strict=True)
        ]
        weights = [float(some.shape[1]) for some in values] if shares is None else shares
        alike: dict[tuple[int, ...], list[int]] = {}
        for place, space in enumerate(spaces):
            alike.setdefault(_counts(space), []).append(place)
        made = IndependentPotential(spaces[0], parts[0].table, len(spaces))
        for counts, places in alike.items():
            numbers = _pooled(
                [parts[place]._numbers() for place in places], [weights[place] for place in places]
            )
            made.known_sizes[places] = torch.tensor(counts, dtype=torch.int64)
            made.known_numbers[places] = numbers
        return made.grounded(spaces[0])

    def grounded(self, space: Space) -> "IndependentPotential":
        sizes = {sort: len(names) for sort, names in space.domain.items()}
        known = self._known()
        numbers = next((one.numbers for one in known if one.sizes == sizes), None)
        if numbers is None:
            numbers = torch.cat(
                [
                    _between(known, block.attribute, block_kinds, sizes)
                    for block, block_kinds in _kinds(space)
                ],
                dim=1,
            )
        table = self.table.new_empty(self.levels, space.entries)
        for block, kinds in _kinds(space):
            view = space.entries_of(table[:, None], block)
            view.copy_(numbers[:, None, None, kinds].expand_as(view))
        made = IndependentPotential(space, table, len(known) if self._several else 0)
        if self._several:
            made.known_sizes, made.known_numbers = self.known_sizes, self.known_numbers
        return made

    def at_levels(self, levels: Sequence[int]) -> "IndependentPotential":
        if not self._several:
            return sliced(self, levels)
        chosen = self.chosen_levels(levels)
        made = IndependentPotential(self.space, self.table[chosen], len(self.known_sizes))
        made.known_sizes = self.known_sizes.clone()
        made.known_numbers = self.known_numbers[:, chosen]
        return made

    @property
    def _several(self) -> bool:
        return "known_sizes" in self._buffers

    def _known(self) -> list[_Marginals]:
        """The marginals of all domains that are known."""
        sorts = list(self.space.domain)
        if self._several:
            return [
                _Marginals(dict(zip(sorts, sizes.tolist(), strict=True)), numbers)
                for sizes, numbers in zip(self.known_sizes, self.known_numbers, strict=True)
            ]
        sizes = {sort: len(names) for sort, names in self.space.domain.items()}
        return [_Marginals(sizes, self._numbers())]

    def _numbers(self) -> Float[Tensor, "levels kinds"]:
        """A number for each category of each attribute; of an attribute without groups, zeros."""
        found = []
        for block in self.space.blocks:
            first = self.table[:, block.entries][:, : block.size]
            found.append(first if block.count else first.new_zeros(self.levels, block.size))
        return torch.cat(found, dim=1)

    @property
    def log_z(self) -> Float64[Tensor, " levels"]:
        """Exact, because the groups are independent."""
        return self._by_group().logsumexp(2).sum(1)

    def draw(self, count: int, rng: Generator) -> Values:
        """Independent worlds for every level."""
        refuse_size(
            8 * self.levels * self.space.groups * count,
            f"{in_digits(count)} worlds at {self.levels} levels",
            "Take fewer chains.",
        )
        shares = self._by_group().softmax(2).to(rng.device)
        drawn = torch.multinomial(shares.flatten(0, 1), count, replacement=True, generator=rng)
        shape = (len(shares), self.space.groups, count)
        return drawn.view(shape).mT.to(self.space.dtype).contiguous()

    def _by_group(self) -> Float64[Tensor, "levels groups categories"]:
        """The numbers of each group, filled up with minus infinity."""
        most = int(self.space.sizes.max())
        table = self.table.cpu().double()
        padded = torch.full((len(table), self.space.groups, most), float("-inf")).double()
        groups = self.space.group_of_entry
        padded[:, groups, torch.arange(self.space.entries) - self.space.offsets[groups]] = table
        return padded

    @property
    def dtype(self) -> torch.dtype:
        return self.table.dtype

    def _entries(self, values: Values) -> Tensor:
        return values.long() + self.space.offsets.to(values.device)

    def evaluate(self, values: Values) -> Scores:
        rows = self.table[:, None].expand(-1, values.shape[1], -1)
        return rows.gather(2, self._entries(values)).sum(-1)

    def evaluate_with_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        slopes = self.table[:, None].expand(*values.shape[:2], -1)
        return self.evaluate(values), slopes.clone()

    def evaluate_alternatives(self, values: Values, groups: Groups) -> Alternatives:
        most = int(self.space.sizes.max())
        category = torch.arange(most, device=values.device)
        first = self.space.offsets.to(values.device)[groups][..., None]
        exists = category < self.space.sizes.to(values.device)[groups][..., None]
        rows = self.table[:, None].expand(-1, values.shape[1], -1)
        entry = (first + category).clamp(max=self.space.entries - 1)
        now = values.gather(2, groups[..., None]).long() + first
        change = rows.gather(2, entry) - rows.gather(2, now)
        whole = self.evaluate(values)[..., None] + change
        return whole.masked_fill(~exists, float("-inf"))

    def evaluate_changes(self, values: Values, groups: Int64[Tensor, " some"]) -> Changes:
        most = int(self.space.sizes.max())
        groups = groups.to(values.device)
        category = torch.arange(most, device=values.device)
        first = self.space.offsets.to(values.device)[groups][:, None]
        exists = category < self.space.sizes.to(values.device)[groups][:, None]
        numbers = self.table[:, (first + category).clamp(max=self.space.entries - 1)]
        now = numbers[:, None].expand(-1, values.shape[1], -1, -1)
        current = now.gather(3, values[..., groups].long()[..., None])
        return (now - current).masked_fill(~exists, float("-inf"))

    def stand_in(self) -> StandIn:
        return StandIn(self.space, doubled(self.table))

    def ties(self, free: Bool[Tensor, " groups"]) -> Ties:
        return torch.zeros(2, 0, dtype=torch.int64)


def _kinds(space: Space) -> list[tuple[Block, slice]]:
    """The blocks of a space, each with its places among the categories of all attributes."""
    found, first = [], 0
    for block in space.blocks:
        found.append((block, slice(first, first + block.size)))
        first += block.size
    return found


def _counts(space: Space) -> tuple[int, ...]:
    return tuple(len(names) for names in space.domain.values())


def _pooled(
    parts: Sequence[Float[Tensor, "levels kinds"]], weights: Sequence[float]
) -> Float[Tensor, "levels kinds"]:
    """The logarithms of the weighted mean of marginals; those of a single domain as they are."""
    if len(parts) == 1:
        return parts[0]
    shares = torch.tensor(weights, dtype=torch.float64)
    logs = torch.stack(list(parts)).double() + (shares / shares.sum()).log()[:, None, None]
    return logs.logsumexp(0).to(parts[0].dtype)


def _between(
    known: Sequence[_Marginals], attribute: Attribute, kinds: slice, sizes: Sizes
) -> Float[Tensor, "levels categories"]:
    """The marginals of an attribute on a domain of other sizes, as log-probabilities.

    A domain in which the attribute has no groups shows nothing about it, so its numbers are used only
    if all are such.
    """
    there = _log_tuples(attribute, sizes)
    shown = [one for one in known if _has_groups(attribute, one.sizes)] or known
    places = sorted(
        ((_log_tuples(attribute, one.sizes), one.numbers[:, kinds]) for one in shown),
        key=lambda one: one[0],
    )
    odds = [(place, _odds(numbers, attribute.null)) for place, numbers in places]
    below = [one for one in odds if one[0] <= there]
    above = [one for one in odds if one[0] >= there]
    if below and above:
        (low, first), (high, second) = below[-1], above[0]
        share = 0.0 if high == low else (there - low) / (high - low)
        found = (1 - share) * first + share * second
    else:
        place, nearest = below[-1] if below else above[0]
        found = nearest + (there - place) * _slope(attribute, nearest)
    return found.log_softmax(-1)


def _log_tuples(attribute: Attribute, sizes: Sizes) -> float:
    return log(max(1, prod(sizes[sort] for sort in attribute.sorts)))


def _has_groups(attribute: Attribute, sizes: Sizes) -> bool:
    return count_tuples(attribute, [sizes[sort] for sort in attribute.sorts]) > 0


def _odds(numbers: Tensor, null: int | None) -> Tensor:
    return numbers if null is None else numbers - numbers[:, null, None]


def _slope(attribute: Attribute, like: Tensor) -> Tensor:
    """How log-odds change with the logarithm of the number of tuples, where nothing is known."""
    slope = torch.zeros_like(like[0])
    if attribute.null is not None and attribute.arity > 1:
        slope += 1 / attribute.arity - 1
        slope[attribute.null] = 0
    return slope
