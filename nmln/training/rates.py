"""The rates of a ladder that are chosen for the worlds: as many levels as the largest world needs."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from nmln.buckets import Bucket
from nmln.config import Config
from nmln.errors import InputError
from nmln.ladders import TARGET, Ladder, swap_with, too_many_levels
from nmln.marginals import SMOOTHING, Shares, changes_of, shares_of, swap_prediction
from nmln.memory import bytes_text, machine_memory
from nmln.potentials.independent import IndependentPotential
from nmln.space import Space
from nmln.training.sizes import Dealt, dealt, step_memory
from nmln.training.trainer import Trainer

MOST_REDRAWN, LEAST_REDRAWN = 0.25, 0.003
"""The first rate of ladders that redraw groups from their frequencies, and the largest last one."""

CHANGES = 0.03
"""Changed groups per world at the last rate: as many data are damaged there, whatever their size."""

SPACING = 0.45
"""The power of the rate that these levels are even in.

Trained levels swap less than exactly noised ones, and the less the nearer they are to the target: with
this spacing the pairs were seen to swap about equally often.
"""

_SEEN = 10_000  # worlds that the frequencies are counted in


def with_rates(config: Config, buckets: Sequence[Bucket]) -> Config:
    """The configuration with the rates of its ladder, chosen for the largest space if they are `auto`.

    Rates that serve the largest world serve the smaller ones too, whose levels swap more often. Methods
    with one level learn from data at the last rate, and have no other. A ladder whose chains or weights
    cannot fit in memory is refused.
    """
    if config.ladder.rates != "auto":
        return config
    marginal = config.ladder.noise == "marginals"
    target, overlap = TARGET, None
    if marginal:
        space, shares = _frequencies(buckets)
        target, overlap = _target(space, shares), partial(swap_prediction, space, shares)
    if config.ladder.method != "noising":
        return _having(config, (target,))
    groups = free_groups(bucket.space for bucket in buckets)
    if marginal:
        ends = MOST_REDRAWN, target
        ladder = Ladder.even(groups, config.ladder.swap, *ends, overlap=overlap).respaced(SPACING)
    else:
        ladder = Ladder.even(groups, config.ladder.swap)
    chosen = _having(config, ladder.rates)
    if _fits(chosen, buckets):
        return chosen
    fewest, levels = 1, len(ladder)  # the first fits or nothing does, the second does not
    while levels - fewest > 1:
        middle = (fewest + levels) // 2
        fits = _fits(_having(config, ladder.rates[-middle:]), buckets)
        fewest, levels = (middle, levels) if fits else (fewest, middle)
    if fewest == 1:  # no ladder would fit: the error names what is too large
        step_memory(_dealt(chosen, buckets), chosen)
    raise too_many_levels(
        config.ladder.swap,
        groups,
        len(ladder),
        f"the memory of the machine ({bytes_text(machine_memory())}) allows {fewest} with this model "
        "and these chains",
        swap_with(fewest, config.ladder.swap, len(ladder))
        if marginal
        else ladder.swap_of(groups, fewest),
    )


def free_groups(spaces: Iterable[Space]) -> int:
    """The number of groups of the largest space that noise can change."""
    return max(sum(block.count for block in space.blocks if block.size > 1) for space in spaces)


def predicted_of(trainer: Trainer) -> tuple[float, ...]:
    """The predicted swap probabilities of neighbouring levels, on the largest domain of a training."""
    if trainer.method.temperatures is not None:
        return ()
    largest = max(
        (one.potential for one in trainer.domains), key=lambda one: free_groups([one.space])
    )
    shares, overlap = trainer.method.shares(largest), None
    if shares is not None:
        overlap = partial(swap_prediction, largest.space, shares)
    return trainer.method.noise.predicted_swaps(free_groups([largest.space]), overlap)


def _frequencies(buckets: Sequence[Bucket]) -> tuple[Space, Shares]:
    """The largest space, and the frequencies that its groups are redrawn from."""
    largest = max(buckets, key=lambda bucket: free_groups([bucket.space]))
    base = IndependentPotential.fit(
        largest.space, largest.worlds[:_SEEN][None], smoothing=SMOOTHING
    )
    return largest.space, shares_of(largest.space, base.table[0])


def _target(space: Space, shares: Shares) -> float:
    """The last rate of a ladder that redraws groups: few worlds are damaged there."""
    return float(f"{min(LEAST_REDRAWN, CHANGES / max(changes_of(space, shares), CHANGES)):.2g}")


def _having(config: Config, rates: tuple[float, ...]) -> Config:
    return replace(config, ladder=replace(config.ladder, rates=rates))


def _fits(config: Config, buckets: Sequence[Bucket]) -> bool:
    try:
        step_memory(_dealt(config, buckets), config)
    except InputError as error:
        if error.kind != "size":
            raise
        return False
    return True


def _dealt(config: Config, buckets: Sequence[Bucket]) -> list[Dealt]:
    return dealt(buckets, config, max(1, config.training.blocks))
