"""The ranges of settings: which numbers, and which of them together, a configuration may hold."""

from collections.abc import Callable
from typing import Any

from nmln.errors import InputError

_FASTEST = 1e6  # the largest learning rate and initial scale; far smaller ones already diverge
_LONGEST = 1e7  # minutes of training: 19 years

_AT_LEAST_ONE = (
    "model.layers", "model.hidden", "model.width", "model.networks", "chains.replicas",
    "chains.sweeps", "chains.moves", "training.batch", "sampling.moves", "training.keep",
    "data.max_size",
)  # fmt: skip
_SHARES = (
    "data.train_share", "data.least_share", "chains.renewal", "optimiser.trust", "optimiser.average",
)  # fmt: skip
_CHOICES = ("data.nodes", "data.sizes", "data.max_size")  # of the sizes of molecules
_NOT_NEGATIVE = (
    "training.steps", "training.passes", "training.warm_start", "training.processes", "training.blocks",
    "training.retries", "training.checkpoint_seconds", "chains.changes", "model.bound",
    "optimiser.common", "optimiser.warm_up", "optimiser.clip", "optimiser.weight_decay",
    "optimiser.energy_penalty", "optimiser.spread", "optimiser.smooth",
)  # fmt: skip


def check_ranges(value: Callable[[str], Any]) -> None:
    """Refuse settings out of their ranges; `value` gives a setting by its name, as `chains.moves`."""
    for name in _AT_LEAST_ONE:
        number = value(name)
        if number is not None and number < 1:
            raise InputError(f"{name} must be at least 1, got {number}.", token=name)
    for name in _SHARES:
        number = value(name)
        if not 0 <= number <= 1 or (
            number == 1 and name in ("optimiser.average", "optimiser.trust")
        ):
            raise InputError(f"{name} must be between 0 and 1, got {number}.", token=name)
    if not 0 < value("ladder.swap") < 1:
        raise InputError(
            f"ladder.swap must be above 0 and below 1, got {value('ladder.swap')}.",
            token="ladder.swap",
        )
    for name in _NOT_NEGATIVE:
        number = value(name)
        if not number >= 0:
            raise InputError(f"{name} must not be negative, got {number}.", token=name)
    _check_sizes(value)
    potential, sizes = value("model.potential"), value("model.sizes")
    if value("model.rings") and potential != "graph":
        raise InputError(
            f"only the potential graph can be shown rings, but model.potential is {potential}. Set "
            "model.rings=false.",
            token="model.rings",
            kind="conflict",
        )
    if sizes is not None:
        if potential not in ("fragment", "deepset"):
            raise InputError(
                "model.sizes is for the potentials fragment and deepset, but model.potential is "
                f"{potential}. Leave it out, and set model.layers and model.hidden.",
                token="model.sizes",
                kind="conflict",
            )
        if min(sizes) < 1:
            raise InputError(
                f"model.sizes must be at least 1 each, got {list(sizes)}.",
                token="model.sizes",
            )
    if potential == "formula" and value("model.networks") > 1:
        raise InputError(
            "a formula model has no networks: leave model.networks at 1.",
            token="model.networks",
            kind="conflict",
        )
    if value("ladder.noise") == "marginals" and not value("model.base"):
        raise InputError(
            "noise by marginals takes the frequencies of the base term, but model.base is false. Set it "
            "to true, or ladder.noise to uniform.",
            token="ladder.noise",
            kind="conflict",
        )
    if value("model.local") and not value("model.base"):
        raise InputError(
            "the local part is fitted beside the base term, but model.base is false. Set it to true, or "
            "model.local to false.",
            token="model.local",
            kind="conflict",
        )
    for name in ("optimiser.learning_rate", "model.initial_scale"):
        number = value(name)
        if not 0 < number <= _FASTEST:
            bound = "positive" if not number > 0 else f"at most {_FASTEST:g}"
            raise InputError(f"{name} must be {bound}, got {number}.", token=name)
    if value("training.warm_start") and value("chains.weighted"):
        raise InputError(
            "chains.weighted follows log Z from the first step, but training.warm_start has first steps "
            "without chains. Set one of them to its default.",
            token="training.warm_start",
            kind="conflict",
        )
    common = value("optimiser.common")
    if common > _FASTEST:
        raise InputError(
            f"optimiser.common must be at most {_FASTEST:g}, got {common}.",
            token="optimiser.common",
        )
    minutes = value("training.minutes")
    if minutes is not None and not 0 < minutes <= _LONGEST:
        bound = "positive" if not minutes > 0 else f"at most {_LONGEST:g}"
        raise InputError(
            f"training.minutes must be {bound}, got {minutes}.", token="training.minutes"
        )


def _check_sizes(value: Callable[[str], Any]) -> None:
    """Refuse a choice of sizes of molecules that is none, or that is made twice."""
    given = [name for name in _CHOICES if value(name) is not None]
    if len(given) > 1:
        raise InputError(
            f"{' and '.join(given)} both choose the sizes of the molecules. Give one of them.",
            token=given[1],
            kind="conflict",
        )
    sizes = value("data.sizes")
    if sizes is not None and (min(sizes) < 1 or len(set(sizes)) < len(sizes)):
        raise InputError(
            f"data.sizes must be different numbers of at least 1, got {list(sizes)}.",
            token="data.sizes",
        )
