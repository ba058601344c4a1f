"""Names for the shapes that travel through the package, and the protocols of potentials and kernels."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Float64, Int64, Integer
from torch import Generator, Tensor

Values = Integer[Tensor, "levels chains groups"]
"""The category of each group: no illegal world can be written down."""

OneHot = Float[Tensor, "levels chains entries"]
"""The concatenated one-hot encoding of every group."""

Scores = Float[Tensor, "levels chains"]
"""Unnormalised log-probabilities, the paper's rho."""

Slopes = Float[Tensor, "levels chains entries"]
"""The derivative of the score by every entry of the one-hot encoding."""

Worlds = Integer[Tensor, "*batch groups"]
"""Values with any leading axes: one world, a data set, or levels of chains."""

Entries = Float[Tensor, "*batch entries"]
"""One-hot encodings with any leading axes."""

Allowed = Bool[Tensor, " entries"]
"""One bit per entry: the categories that evidence leaves open."""

Groups = Int64[Tensor, "levels chains"]
"""One chosen group for every chain."""

Walkers = Int64[Tensor, "levels chains"]
"""The label of the state at each level of a replica."""

Alternatives = Float[Tensor, "levels chains most"]
"""The score of every category of a chosen group; minus infinity beyond the group's size."""

Changes = Float[Tensor, "levels chains some most"]
"""How much the score grows when each of some groups, alone, takes each category; minus infinity where
that is forbidden or beyond the group's size."""

Ties = Int64[Tensor, "2 ties"]
"""Pairs of groups that occur together in a term of the score."""


@runtime_checkable
class Potential(Protocol):
    """An unnormalised log-probability for every level, each with parameters of its own.

    A score is finite, or minus infinity for a world that a hard formula forbids; anything else is an
    error. Slopes are meaningful up to a constant per group: what matters is how much larger the slope
    of one category is than that of another.
    """

    @property
    def levels(self) -> int: ...

    def score(self, values: Values) -> Scores:
        """The score of every world, differentiable in the parameters."""
        ...

    def score_and_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        """The score and its derivative by every entry, for use in kernels: no graph is kept."""
        ...

    def score_alternatives(self, values: Values, groups: Groups) -> Alternatives:
        """The score of every category of one chosen group per chain, the rest as it is."""
        ...


class State(NamedTuple):
    """What a kernel carries from move to move: worlds, their scores, and slopes if it uses them."""

    values: Values
    scores: Scores
    slopes: Slopes | None = None


class Info(NamedTuple):
    """Diagnostics of one move; not needed to continue the chain.

    `acceptance` is the mean probability that the move is accepted, `moved` the share of the worlds that
    changed. A kernel made of kernels reports the acceptance of each in `parts`, NaN where one had no
    turn. A kernel that redraws every group from its conditional distribution can report these
    probabilities in `expected`: their mean over a run estimates a marginal, with less noise than the
    worlds do.
    """

    acceptance: Float[Tensor, " levels"]
    moved: Float[Tensor, " levels"]
    parts: Float[Tensor, "kernels levels"] | None = None
    moves: int = 1  # the number of moves that these are means over
    expected: Float[Tensor, "levels chains entries"] | None = None

    @property
    def by_kernel(self) -> Float[Tensor, "kernels levels"]:
        """The acceptance of every simple kernel."""
        return self.acceptance[None] if self.parts is None else self.parts


class SwapInfo(NamedTuple):
    """Diagnostics of one exchange phase: the probability of a swap for each pair of levels and replica,
    and whether it happened. `pairs` holds the upper level of each pair.
    """

    pairs: tuple[int, ...]
    probabilities: Float[Tensor, "pairs chains"]
    swapped: Bool[Tensor, "pairs chains"]


class Evaluations(NamedTuple):
    """How many worlds were scored, how many with slopes, and how long that took."""

    scores: int = 0
    slopes: int = 0
    seconds: float = 0.0


class Tuning(NamedTuple):
    """The state of the search for step sizes: their logarithms, and how many moves each has seen.

    One row for every simple kernel, one column for every level; NaN for kernels without a size.
    """

    log_sizes: Float64[Tensor, "kernels levels"]
    seen: Int64[Tensor, " kernels"]


class Sweep(NamedTuple):
    """The chains after a sweep, and the diagnostics of that sweep."""

    number: int  # counted from the start of the run, burn-in included
    state: State
    walkers: Walkers
    moves: Info  # mean over the moves of the sweep
    swaps: tuple[SwapInfo, ...]
    evaluations: Evaluations  # since the start of the run
    tuning: Tuning
    kernels: tuple[str, ...]  # the names of the simple kernels, in the order of `moves.by_kernel`


@runtime_checkable
class Kernel(Protocol):
    """A move that leaves the distribution of every level invariant and never changes observed groups.

    The scores (and slopes) in the state are those of the potential that `step` is given; after a change
    of parameters the state must be made again by `init`.
    """

    def init(self, potential: Potential, values: Values) -> State:
        """The state of chains at these worlds."""
        ...

    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        """One move of every chain."""
        ...


@runtime_checkable
class Tunable(Kernel, Protocol):
    """A kernel with a step size, which is adapted to a target acceptance; larger sizes move further."""

    @property
    def step_sizes(self) -> tuple[float, ...]:
        """One size for all levels, or one for each."""
        ...

    def with_step_sizes(self, sizes: Sequence[float]) -> Kernel:
        """The same kernel with these sizes, or the nearest ones that it can have."""
        ...
