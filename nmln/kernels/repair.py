"""Repair of starts: chains in a forbidden world are moved to one that is allowed."""

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.potentials.base import BasePotential
from nmln.signals import give_way
from nmln.types import Values

_CANDIDATES = 32  # changes tried per world and round
_ANYWAY = 0.1  # how often the best of them is taken though it violates more


@torch.no_grad()
def repair(
    potential: BasePotential,
    values: Values,
    rng: Generator,
    evidence: Evidence | None = None,
    rounds: int | None = None,
) -> Values:
    """Worlds that no hard formula forbids, by greedy single changes with a little randomness.

    Allowed worlds stay as they are; so do observed groups. Every round tries some random changes of
    each forbidden world and makes the one that violates least. After `rounds` (ten
    times the number of groups) it ends with an error that names a formula which still fails.
    """
    rules = evidence or Evidence.none(potential.space)
    free = torch.nonzero(rules.counts > 1).flatten().to(values.device)
    values, violations = values.clone(), potential.violations_of(values)
    for _ in range(rounds if rounds is not None else 10 * potential.space.groups):
        give_way()
        broken = violations > 0
        chains = torch.nonzero(broken.any(0)).flatten()
        if not len(chains) or not len(free):
            break
        some = values[:, chains]
        tried = _changed(rules, free, some, rng)
        found = potential.violations_of(tried.flatten(1, 2)).unflatten(1, (len(chains), -1))
        uniform = torch.rand(found.shape, generator=rng, device=found.device)
        best = (found + 0.5 * uniform).argmin(-1, keepdim=True)  # ties are broken by chance
        fewer = found.gather(2, best).squeeze(2)
        now = violations[:, chains]
        reckless = torch.rand(now.shape, generator=rng, device=now.device) < _ANYWAY
        take: Bool[Tensor, "levels chains"] = broken[:, chains] & ((fewer <= now) | reckless)
        index = best[..., None].expand(-1, -1, 1, values.shape[2])
        values[:, chains] = torch.where(take[..., None], tried.gather(2, index).squeeze(2), some)
        violations[:, chains] = torch.where(take, fewer, now)
    _check(potential, values, violations, observed=len(free) < potential.space.groups)
    return values


def _changed(rules: Evidence, free: Tensor, worlds: Values, rng: Generator) -> Tensor:
    """Each world, several times over, with one free group set to one of its allowed categories."""
    shape, device = (*worlds.shape[:2], _CANDIDATES), worlds.device
    groups = free[torch.randint(len(free), shape, generator=rng, device=device)]
    uniform = torch.rand(shape, generator=rng, dtype=torch.float64, device=device)
    category = rules.choices(groups, (uniform * rules.counts.to(device)[groups]).long())
    copies = worlds[:, :, None].expand(-1, -1, _CANDIDATES, -1)
    return copies.scatter(3, groups[..., None], category[..., None].to(worlds.dtype))


def _check(
    potential: BasePotential,
    values: Values,
    violations: Float[Tensor, "levels chains"],
    observed: bool,
) -> None:
    left = torch.nonzero(violations > 0)
    if not len(left):
        return
    level, chain = left[0].tolist()
    names = potential.forbidden_by(level, values[level, chain])
    shown = f" Still violated: {names[0]}" if names else ""
    found, cure = "no world was found that satisfies all hard formulas", "Change one of them."
    if observed:
        found += " and agrees with the evidence or scaffold"
        cure = "Change a formula, or what is given."
    raise InputError(f"{found}: they seem to contradict each other.{shown} {cure}", kind="conflict")
