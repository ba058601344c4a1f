"""Findings from the curves of a training run, in sentences."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from nmln.report.curves import OF_WORLDS, Levels
from nmln.report.history import Curve, History
from nmln.report.ladder import percent, swap_sentences

STILL = 0.02
"""Below this, chains can be called frozen."""

_DRIFT_BLOCKS = 10
_DRIFT_NATS = 0.5


class Finding(NamedTuple):
    """A sentence, and whether it asks for action."""

    text: str
    warning: bool = False


def findings_of(history: History, levels: Levels, clip: float = 0.0) -> list[Finding]:
    """All findings, from the last fifth of a run unless a sentence says otherwise."""
    found = [Finding(note, True) for note in history.notes]
    curves = history.curves
    if "swaps" in curves:
        found += _swaps(curves["swaps"], levels)
    if "acceptance" in curves:
        found += _acceptance(curves["acceptance"], levels)
    if "gap" in curves:
        found += _gap(curves["gap"], levels)
    if "gradient" in curves and clip > 0:
        found += _clipped(curves["gradient"], levels, clip)
    for name in OF_WORLDS:
        if name in curves and not curves[name].listed:
            found += _share(curves[name])
    return found + [one for curve in curves.values() for one in _missing(curve)]


def _swaps(curve: Curve, levels: Levels) -> list[Finding]:
    if curve.width != len(levels.chains) - 1:
        return []
    fine, rare = swap_sentences(levels, means(curve))
    return [*(Finding(text) for text in fine), *(Finding(text, True) for text in rare)]


def _acceptance(curve: Curve, levels: Levels) -> list[Finding]:
    *above, target = means(curve)
    names = levels.names(curve)
    found = []
    if target == target:
        text = f"The chains at the target ({names[-1]}) accept {percent(target)} of moves"
        found.append(
            Finding(
                f"{text}: they hardly move. Take more moves per step or a smaller step size.", True
            )
            if target < STILL
            else Finding(f"{text}.")
        )
    return found + [
        Finding(f"The chains at {name} accept {percent(mean)} of moves: they hardly move.", True)
        for name, mean in zip(names[:-1], above, strict=True)
        if mean < STILL
    ]


def _gap(curve: Curve, levels: Levels) -> list[Finding]:
    names = levels.names(curve)
    found = []
    target = means(curve)[-1]
    if target == target:
        side = "above" if target >= 0 else "below"
        found.append(
            Finding(
                f"At the target ({names[-1]}) data score {abs(target):.2f} nats {side} the chains on "
                "average; at the maximum of the likelihood the gap is 0."
            )
        )
    for name, numbers in zip(names, curve.numbers.T, strict=True):
        if (drift := drifted(numbers)) is not None:
            found.append(
                Finding(
                    f"The gap at {name} drifts away from 0, from {drift[0]:+.2f} to {drift[1]:+.2f} "
                    "nats over the second half. Take a smaller learning rate or more moves per step.",
                    True,
                )
            )
    return found


def drifted(numbers: Float[np.ndarray, " points"]) -> tuple[float, float] | None:
    """The ends of the second half of a curve, if it moved away from 0 by more than its noise.

    A straight line through the means of ten blocks must rise by half a nat and by four times the error
    of its slope.
    """
    half = numbers[len(numbers) // 2 :]
    half = half[np.isfinite(half)]
    if len(half) < 2 * _DRIFT_BLOCKS:
        return None
    blocks = np.array([block.mean() for block in np.array_split(half, _DRIFT_BLOCKS)])
    at = np.arange(_DRIFT_BLOCKS) - (_DRIFT_BLOCKS - 1) / 2
    slope = (at * blocks).sum() / (at**2).sum()
    left = blocks - blocks.mean() - slope * at
    error = np.sqrt((left**2).sum() / (_DRIFT_BLOCKS - 2) / (at**2).sum())
    first, last = (float(blocks.mean() + slope * place) for place in (at[0], at[-1]))
    away = abs(last) - abs(first)
    return (first, last) if away > _DRIFT_NATS and abs(slope) > 4 * error else None


def _clipped(curve: Curve, levels: Levels, clip: float) -> list[Finding]:
    """Report gradients that are nearly always clipped, so that their size no longer matters."""
    late = curve.late()
    finite = np.isfinite(late)
    cut = (np.where(finite, late, 0) > clip).sum(0).tolist()
    shares = [one / max(1, count) for one, count in zip(cut, finite.sum(0).tolist(), strict=True)]
    return [
        Finding(
            f"The gradient at {name} is longer than {clip:g} and cut in {percent(share)} of the steps.",
            share > 0.5,
        )
        for name, share in zip(levels.names(curve), shares, strict=True)
        if share > 0.1
    ]


def _share(curve: Curve) -> list[Finding]:
    numbers = curve.numbers[:, 0]
    finite = np.flatnonzero(np.isfinite(numbers))
    if not len(finite):
        return []
    top = finite[np.argmax(numbers[finite])]
    last, best = float(numbers[finite[-1]]), float(numbers[top])
    name = curve.name.replace("_", " ")
    text = f"Of the chains' worlds at the target {percent(last)} are {name} in the end"
    if best > last:
        text += f", {percent(best)} at best (step {curve.steps[top]:,})"
    return [Finding(f"{text}.")]


def _missing(curve: Curve) -> list[Finding]:
    rows = int((~np.isfinite(curve.numbers)).any(1).sum())
    name = curve.name.replace("_", " ")
    steps = f"{rows:,} of {len(curve.numbers):,} steps"
    text = f"At {steps} {name} is not a finite number: gaps in its curve."
    return [Finding(text, True)] if rows else []


def means(curve: Curve) -> list[float]:
    """The mean of every column over the last fifth of a run; NaN where nothing is finite."""
    late = curve.late()
    finite = np.isfinite(late)
    count = finite.sum(0)
    total = np.where(finite, late, 0).sum(0)
    return [float(t / c) if c else float("nan") for t, c in zip(total, count, strict=True)]
