"""Kernels by name, each made so that it reaches every world."""

from collections.abc import Callable

from nmln.evidence import Evidence
from nmln.files import InputError
from nmln.kernels.balanced import BalancedMetropolis
from nmln.kernels.combined import Lazy
from nmln.kernels.gibbs import BlockedGibbs, Gibbs, SystematicGibbs
from nmln.kernels.gradient import GibbsWithGradients
from nmln.kernels.langevin import DiscreteLangevin
from nmln.kernels.metropolis import Metropolis
from nmln.kernels.metropolised import MetropolisedGibbs
from nmln.kernels.moves import free_groups
from nmln.kernels.path import PathAuxiliary
from nmln.space import Space
from nmln.types import Kernel


def _free(space: Space, evidence: Evidence | None) -> int:
    return len(free_groups(space, evidence))


KERNELS: dict[str, Callable[[Space, Evidence | None], Kernel]] = {
    "gibbs": Gibbs,
    "systematic": SystematicGibbs,
    "blocked": lambda space, evidence: BlockedGibbs(
        space, evidence, min(2, _free(space, evidence))
    ),
    "metropolis": lambda space, evidence: Lazy(Metropolis(space, evidence)),
    "balanced": lambda space, evidence: Lazy(BalancedMetropolis(space, evidence)),
    "metropolised": lambda space, evidence: Lazy(MetropolisedGibbs(space, evidence)),
    "gradients": lambda space, evidence: Lazy(GibbsWithGradients(space, evidence)),
    "langevin": DiscreteLangevin,
    "path": lambda space, evidence: Lazy(
        PathAuxiliary(space, evidence, mean_length=1 + (_free(space, evidence) > 2))
    ),
}


def kernel_named(name: str, space: Space, evidence: Evidence | None = None) -> Kernel:
    """The kernel of this name, ergodic also on two-valued groups under a flat target.

    Those that would keep the parity of their moves there let each chain rest now and then.
    """
    if name not in KERNELS:
        raise InputError(f"there is no kernel {name!r}. Take one of {', '.join(KERNELS)}.")
    return KERNELS[name](space, evidence)
