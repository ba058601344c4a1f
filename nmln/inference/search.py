"""The most probable world: annealed chains with restarts, then single changes as long as they help."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Integer
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.inference.answers import lost_digits
from nmln.inference.chains import kernel_for
from nmln.inference.exact import Progress
from nmln.kernels.repair import repair
from nmln.noise import uniform
from nmln.potentials.base import BasePotential
from nmln.potentials.scaled import ScaledPotential
from nmln.types import Values

_HOT, _COLD = 0.1, 20.0
_CHANGES_AT_ONCE = 2**22  # numbers held at a time while all single changes are looked at


@dataclass(frozen=True)
class Best:
    """The most probable world that was found, and its score.

    `exact` says that every world was scored; otherwise a better one may exist. `agreed` is the share
    of the restarts that ended at this score.
    """

    world: Integer[Tensor, " groups"]
    score: float
    exact: bool
    agreed: float = 1.0
    warnings: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        if self.exact:
            return "Exact: every world was looked at."
        return f"Searched: {self.agreed:.0%} of the restarts ended at this score."


@torch.no_grad()
def searched(
    target: BasePotential,
    crossable: BasePotential,
    evidence: Evidence,
    rng: Generator,
    *,
    restarts: int = 50,
    steps: int = 200,
    progress: Progress | None = None,
) -> Best:
    """Anneal from pure noise, repair what a hard formula forbids, then climb.

    `crossable` is the target with hard formulas softened, so that chains can cross what is forbidden;
    what comes back satisfies them. If no restart finds such a world, an error names a formula.
    """
    if restarts < 1 or steps < 1:
        raise InputError(f"restarts and steps must be at least 1, got {restarts} and {steps}.")
    space = target.space
    values = uniform(space, 1, restarts, rng, evidence)
    kernel = kernel_for(crossable, evidence, None)
    for step in range(steps):
        beta = _HOT * (_COLD / _HOT) ** (step / max(1, steps - 1))
        scaled = ScaledPotential(crossable, [beta])
        state, _ = kernel.step(scaled, kernel.init(scaled, values), rng)
        values = state.values
        if progress is not None:
            progress(step + 1, steps)
    worlds = _satisfying(target, values, rng, evidence)
    worlds, scores = climb(target, worlds.cpu(), evidence)
    best = int(scores[0].argmax())
    highest = float(scores[0, best])
    agreed = float((scores[0] >= highest - 1e-6 * (1 + abs(highest))).sum()) / restarts
    warned = tuple(lost_digits(abs(highest), target.dtype))
    return Best(worlds[0, best], highest, exact=False, agreed=agreed, warnings=warned)


def _satisfying(
    target: BasePotential, values: Values, rng: Generator, evidence: Evidence
) -> Values:
    """Worlds that satisfy all hard formulas, repaired where need be; those beyond repair left out."""
    possible = target.violations_of(values)[0] == 0
    found = [values[:, possible]]
    failure: InputError | None = None
    for chain in torch.nonzero(~possible).flatten().tolist():
        if failure is not None and found[0].shape[1]:
            break  # other worlds are there, and one repair has failed already
        try:
            found.append(repair(target, values[:, chain : chain + 1], rng, evidence))
        except InputError as error:
            failure = error
    worlds = torch.cat(found, dim=1)
    if not worlds.shape[1] and failure is not None:
        world = values[0, int(target.violations_of(values)[0].argmin())]
        names = target.forbidden_by(0, world)
        shown = f" The nearest violates {names[0]}" if names else ""
        raise InputError(
            f"no world was found that satisfies all hard formulas, in {values.shape[1]} restarts."
            f"{shown} Take more restarts and steps, or check the evidence.",
            kind="conflict",
        )
    return worlds


@torch.no_grad()
def climb(
    target: BasePotential, values: Values, evidence: Evidence
) -> tuple[Values, Float[Tensor, "1 chains"]]:
    """Make the best single change of every world until no change helps."""
    space = target.space
    free = torch.nonzero(evidence.free).flatten()
    most = int(space.sizes.max())
    allowed = evidence.allowed
    values = values.clone()
    tolerance = 1e-6
    moving = torch.arange(values.shape[1])
    while len(moving) and len(free):
        some = values[:, moving]
        size = max(1, _CHANGES_AT_ONCE // (len(moving) * most))
        best = torch.full((len(moving),), float("-inf"), dtype=torch.float64)
        group = torch.zeros(len(moving), dtype=torch.int64)
        category = torch.zeros(len(moving), dtype=torch.int64)
        for groups in free.split(size):
            entry = space.offsets[groups][:, None] + torch.arange(most)
            open_ = allowed[entry.clamp(max=space.entries - 1)]
            changes = target.score_changes(some, groups)[0].double()
            changes = changes.masked_fill(~open_, float("-inf")).flatten(1)
            gain, place = changes.max(1)
            better = gain > best
            best = torch.where(better, gain, best)
            group = torch.where(better, groups[place.div(most, rounding_mode="floor")], group)
            category = torch.where(better, place % most, category)
        helps = best > tolerance
        moving, group, category = moving[helps], group[helps], category[helps]
        values[0, moving, group] = category.to(values.dtype)
    return values, target.score(values)
