"""How much every cell may cost: minutes of the processor, samples and updates."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from nmln.errors import InputError


@dataclass(frozen=True)
class Budget:
    """The cost of a cell, the same for all methods.

    Args:
        name: its name, which is that of a folder in the grid.
        minutes: most minutes of training; a published schedule may end earlier.
        samples: most samples, invalid ones included.
        sampling: most minutes of sampling; 0: no limit.
        updates: the number of updates where methods are compared at equal numbers of them.
        full: whether networks have the size of the paper and schedules are not cut to a CPU.
    """

    name: str
    minutes: float
    samples: int
    sampling: float
    updates: int
    full: bool = False

    def __post_init__(self) -> None:
        least = {"minutes": 0.0, "samples": 1, "sampling": 0.0, "updates": 1}
        for name, number in least.items():
            value = getattr(self, name)
            if not number <= value < float("inf") or (name == "minutes" and value <= 0):
                raise InputError(f"{name} of a budget must be positive, got {value}.", token=name)

    @property
    def clock(self) -> str:
        """What minutes of training are measured by; at full size there may be a GPU."""
        return "wall" if self.full else "processor"

    def published(self, molecules: int | None, per_minute: int) -> bool:
        """Whether a published schedule ends within the minutes.

        Args:
            molecules: about how many molecules there are to learn from; None if it is not known.
            per_minute: how many molecules a minute carries through the whole schedule.
        """
        return self.full or molecules is None or molecules <= per_minute * self.minutes

    def described(self) -> dict[str, Any]:
        return asdict(self)


BUDGETS = {
    "quick": Budget("quick", minutes=10, samples=20_000, sampling=10, updates=1_000),
    "hour": Budget("hour", minutes=60, samples=200_000, sampling=60, updates=4_000),
    "paper": Budget(
        "paper", minutes=2_880, samples=2_000_000, sampling=0, updates=20_000, full=True
    ),
}


def budget(
    name: str,
    minutes: float | None = None,
    samples: int | None = None,
    updates: int | None = None,
) -> Budget:
    """A budget by its name, with some of its numbers changed; `minutes` are also those of sampling."""
    if name not in BUDGETS:
        raise InputError(
            f"--budget must be one of {', '.join(BUDGETS)}, got {name!r}.",
            token=name,
            kind="unknown",
        )
    found = BUDGETS[name]
    if minutes is not None:
        found = replace(found, minutes=minutes, sampling=minutes)
    if samples is not None:
        found = replace(found, samples=samples)
    return found if updates is None else replace(found, updates=updates)
