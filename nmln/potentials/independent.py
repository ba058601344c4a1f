"""Independent groups: the base that a network corrects."""

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Generator, Tensor, nn

from nmln.memory import in_digits, refuse_size
from nmln.potentials.base import BasePotential
from nmln.space import Space
from nmln.types import Alternatives, Changes, Groups, Scores, Slopes, Ties, Values


class IndependentPotential(BasePotential):
    """A sum over groups: a fixed number for each category of each attribute.

    All groups of an attribute share their numbers, so that relabelling changes nothing. Nothing here is
    learned: `fit` takes the numbers from data.
    """

    def __init__(self, space: Space, table: Float[Tensor, "levels entries"]) -> None:
        super().__init__(space, len(table))
        self.precision = nn.Buffer(torch.zeros(0, dtype=table.dtype), persistent=False)
        self.table = nn.Buffer(table)

    @staticmethod
    def fit(space: Space, values: Values, prior: float = 1.0) -> "IndependentPotential":
        """The logarithms of the marginals of worlds at every level; `prior` is added to each count."""
        counts = space.one_hot(values, torch.float64).sum(1)
        table = torch.empty_like(counts)
        for block in space.blocks:
            found = space.entries_of(counts[:, None], block).sum(-2) + prior  # (levels, 1, size)
            logs = (found / found.sum(-1, keepdim=True)).log()
            view = space.entries_of(table[:, None], block)
            view.copy_(logs[..., None, :].expand_as(view))
        return IndependentPotential(space, table.float())

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
        shares = self._by_group().softmax(2)
        drawn = torch.multinomial(shares.flatten(0, 1), count, replacement=True, generator=rng)
        shape = (len(shares), self.space.groups, count)
        return drawn.view(shape).mT.to(self.space.dtype).contiguous()

    def _by_group(self) -> Float64[Tensor, "levels groups categories"]:
        """The numbers of each group, filled up with minus infinity."""
        most = int(self.space.sizes.max())
        table = self.table.double().cpu()
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
        category = torch.arange(most, device=values.device)
        first = self.space.offsets[groups].to(values.device)[:, None]
        exists = category < self.space.sizes[groups].to(values.device)[:, None]
        numbers = self.table[:, (first + category).clamp(max=self.space.entries - 1)]
        now = numbers[:, None].expand(-1, values.shape[1], -1, -1)
        current = now.gather(3, values[..., groups].long()[..., None])
        return (now - current).masked_fill(~exists, float("-inf"))

    def ties(self, free: Bool[Tensor, " groups"]) -> Ties:
        return torch.zeros(2, 0, dtype=torch.int64)
