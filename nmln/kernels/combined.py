"""Kernels made of kernels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.kernels.moves import Proposal, Proposing, accept, draw, log_ratio
from nmln.types import Info, Kernel, Potential, State, Values


@dataclass(frozen=True)
class Composition:
    """One kernel after the other; its acceptance is the mean over them."""

    kernels: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        if not self.kernels:
            raise InputError("a composition needs at least one kernel.", kind="empty")

    def init(self, potential: Potential, values: Values) -> State:
        return self.kernels[0].init(potential, values)

    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        before, infos = state.values, []
        for kernel in self.kernels:
            state, info = _hand_over(kernel, potential, state, rng)
            infos.append(info)
        moved = (state.values != before).any(-1).to(state.scores.dtype).mean(1)
        acceptance = torch.stack([info.acceptance for info in infos]).mean(0)
        return state, Info(acceptance, moved, torch.cat([info.by_kernel for info in infos]))


@dataclass(frozen=True)
class Mixture:
    """One of several kernels, drawn for every move independently of the worlds."""

    kernels: tuple[Kernel, ...]
    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        weights = self.weights if self.weights is not None else [1.0] * len(self.kernels)
        if len(weights) != len(self.kernels) or not self.kernels or not all(w > 0 for w in weights):
            raise InputError(
                f"a mixture needs a positive weight for every kernel, but {len(self.kernels)} kernels "
                f"have the weights {self.weights}."
            )

    def init(self, potential: Potential, values: Values) -> State:
        return self.kernels[0].init(potential, values)

    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        weights = self.weights if self.weights is not None else [1.0] * len(self.kernels)
        chances = torch.tensor(weights, dtype=torch.float64, device=rng.device)
        chosen = int(torch.multinomial(chances, 1, generator=rng))
        state, info = _hand_over(self.kernels[chosen], potential, state, rng)
        counts = [len(simple_kernels(kernel)) for kernel in self.kernels]
        parts = [info.acceptance.new_full((count, potential.levels), torch.nan) for count in counts]
        parts[chosen] = info.by_kernel
        return state, Info(info.acceptance, info.moved, torch.cat(parts))


@dataclass(frozen=True)
class ByLevel:
    """One of several proposals, drawn for every chain by itself with weights that its level sets.

    `weights` has a row for every level, the target last, and in it a weight for every kernel. Rows count
    from the target: where there are more levels than rows, the levels above take the first row; where
    there are fewer, the last rows count. One score per move serves all chains, whatever they propose.
    """

    kernels: tuple[Proposing, ...]
    weights: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        for row in self.weights or ((),):
            if len(row) != len(self.kernels) or not sum(row) > 0 or not all(w >= 0 for w in row):
                raise InputError(
                    f"every level needs a weight of at least 0 for each of the {len(self.kernels)} "
                    f"kernels, and one above 0, got {tuple(row)}."
                )

    def init(self, potential: Potential, values: Values) -> State:
        return self.kernels[0].init(potential, values)

    @torch.no_grad()
    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        shares = self.shares(potential.levels).to(state.values.device)
        chosen = draw(shares.log()[:, None].expand(-1, state.values.shape[1], -1), rng)
        proposal = self.propose(state.values, chosen, rng)
        proposed = State(proposal.values, potential.score(proposal.values))
        ratio = log_ratio(state.scores, proposed.scores, proposal.factor)
        state, info = accept(state, proposed, ratio, rng)
        probability = ratio.clamp(max=0).exp()
        empty = shares.new_zeros(shares.shape)
        turns = empty.scatter_add(1, chosen, torch.ones_like(probability))
        parts = empty.scatter_add(1, chosen, probability) / turns  # NaN where one had no turn
        return state, Info(info.acceptance, info.moved, parts.T.to(info.acceptance.dtype))

    def shares(self, levels: int) -> Float64[Tensor, "levels kernels"]:
        """The probability of each kernel at each level."""
        first = len(self.weights) - levels
        rows = [self.weights[max(0, first + level)] for level in range(levels)]
        weights = torch.tensor(rows, dtype=torch.float64)
        return weights / weights.sum(1, keepdim=True)

    def propose(
        self, values: Values, chosen: Int64[Tensor, "levels chains"], rng: Generator
    ) -> Proposal:
        """What the chosen kernel of every chain proposes."""
        changed = values.clone()
        factor = torch.zeros(chosen.shape, dtype=torch.float64, device=values.device)
        for number, kernel in enumerate(self.kernels):
            level, chain = torch.nonzero(chosen == number, as_tuple=True)
            if len(level):
                one = kernel.propose(values[level, chain][None], rng)
                changed[level, chain], factor[level, chain] = one.values[0], one.factor[0]
        return Proposal(changed, factor)


@dataclass(frozen=True)
class Lazy:
    """A kernel that every chain skips with probability `rest`, independently of the others.

    Costs only that share of the moves, and removes the parity that some kernels keep on two-valued
    groups. It reports the acceptance of the kernel.
    """

    kernel: Kernel
    rest: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.rest < 1:
            raise InputError(f"rest must be a probability between 0 and 1, got {self.rest}.")

    def init(self, potential: Potential, values: Values) -> State:
        return self.kernel.init(potential, values)

    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        new, info = self.kernel.step(potential, state, rng)
        shape, device = state.scores.shape, state.scores.device
        resting = torch.rand(shape, generator=rng, dtype=torch.float64, device=device) < self.rest
        values = torch.where(resting[..., None], state.values, new.values)
        slopes = None
        if new.slopes is not None and state.slopes is not None:
            slopes = torch.where(resting[..., None], state.slopes, new.slopes)
        moved = (values != state.values).any(-1).to(info.moved.dtype).mean(1)
        kept = State(values, torch.where(resting, state.scores, new.scores), slopes)
        return kept, Info(info.acceptance, moved, info.parts)


def simple_kernels(kernel: Kernel) -> tuple[Kernel, ...]:
    """The kernels that a kernel is made of, in the order of `Info.parts`; itself if it is simple."""
    if isinstance(kernel, Lazy):
        return simple_kernels(kernel.kernel)
    if isinstance(kernel, Composition | Mixture | ByLevel):
        return tuple(one for part in kernel.kernels for one in simple_kernels(part))
    return (kernel,)


def evidence_of(kernel: Kernel) -> Evidence | None:
    """The evidence that a kernel keeps to; None if it has none."""
    return next((found for one in simple_kernels(kernel) if (found := _evidence(one))), None)


def _evidence(kernel: Kernel) -> Evidence | None:
    found = getattr(kernel, "evidence", None)
    return found if isinstance(found, Evidence) else None


def mean_info(infos: Sequence[Info]) -> Info:
    """The mean over several moves of one kernel; for a part of a mixture, over its own moves."""
    parts: list[Float[Tensor, "kernels levels"]] = [info.by_kernel for info in infos]
    return Info(
        torch.stack([info.acceptance for info in infos]).mean(0),
        torch.stack([info.moved for info in infos]).mean(0),
        torch.stack(parts).nanmean(0),
        len(infos),
        _mean_expected(infos),
    )


def _mean_expected(infos: Sequence[Info]) -> Float[Tensor, "levels chains entries"] | None:
    """The mean of `expected` over the moves; None if one of them has none."""
    known = [info.expected for info in infos if info.expected is not None]
    return torch.stack(known).mean(0) if known and len(known) == len(infos) else None


def _hand_over(
    kernel: Kernel, potential: Potential, state: State, rng: Generator
) -> tuple[State, Info]:
    """Let a kernel continue from the state of another, which may lack the slopes that it needs."""
    if state.slopes is None:
        state = kernel.init(potential, state.values)
    return kernel.step(potential, state, rng)
