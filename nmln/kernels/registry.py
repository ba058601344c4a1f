"""Kernels by name. Each kernel's file registers a form of it that reaches every world."""

from collections.abc import Callable

from nmln.evidence import Evidence
from nmln.registry import Registry
from nmln.space import Space
from nmln.types import Kernel

KernelBuilder = Callable[[Space, Evidence | None], Kernel]

KERNELS: Registry[KernelBuilder] = Registry("kernel", "nmln.kernels")
"""The kernels that `chains.kernel` and `sampling.kernel` can name."""


def kernel_named(name: str, space: Space, evidence: Evidence | None = None) -> Kernel:
    """The kernel of this name, ergodic also on two-valued groups under a flat target.

    Kernels that would keep the parity of the number of moves there are made `Lazy`: each chain rests at
    a step with a small probability.
    """
    return KERNELS.named(name)(space, evidence)
