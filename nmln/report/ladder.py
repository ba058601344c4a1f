"""Swaps of neighbouring levels, predicted and measured, in words and as a table."""

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite

from nmln.report import page
from nmln.report.curves import Levels
from nmln.report.page import Html

RARE_SWAPS = 0.15
"""Below this, worlds hardly travel between two levels."""

_FEW = 0.25  # a prediction below this says that the levels are too far apart, whatever the training
_SHOWN = 4  # pairs in a sentence


def ladder_in_words(rates: Sequence[float], predicted: Sequence[float]) -> str:
    """The levels of a run before it starts, and the predicted swaps of neighbours."""
    if len(rates) < 2:
        return f"ladder: one level, at the corruption rate {rates[0]:g}"
    shown = [f"{rate:g}" for rate in rates]
    if len(shown) > 12:
        shown = [*shown[:3], "...", shown[-1]]
    return (
        f"ladder: {len(rates)} levels with corruption rates {', '.join(shown)}; neighbours swap in "
        f"{share_range(predicted)} of the attempts, if the levels learn to be exactly noised data"
    )


def swap_sentences(levels: Levels, measured: Sequence[float]) -> tuple[list[str], list[str]]:
    """Sentences about the pairs that swap, and warnings about those that hardly do.

    Pairs whose swaps were not measured (NaN) are left out.
    """
    found = [place for place, one in enumerate(measured) if isfinite(one)]
    rare = [place for place in found if measured[place] < RARE_SWAPS]
    fine = [place for place in found if place not in rare]
    return _fine(levels, measured, fine, bool(rare)), _rare(levels, measured, rare)


def _fine(
    levels: Levels, measured: Sequence[float], places: Sequence[int], others: bool
) -> list[str]:
    if not places:
        return []
    if len(places) == 1:
        who = "between {} and {}".format(*levels.chains[places[0] : places[0] + 2])
    else:
        who = f"between {'the other' if others else 'neighbouring'} levels"
    taken = share_range([measured[place] for place in places])
    return [f"Swaps {who} are taken {taken} of the time{_predicted(levels, places)}."]


def _rare(levels: Levels, measured: Sequence[float], places: Sequence[int]) -> list[str]:
    if not places:
        return []
    pairs = list(pairwise(levels.chains))
    between = [f"between {one} and {other}" for one, other in (pairs[place] for place in places)]
    if len(places) == 1:
        place = places[0]
        what = (
            f"Swaps {between[0]} are taken {percent(measured[place])} of the time"
            f"{_predicted(levels, places)}"
        )
    else:
        each = [
            f"{name} ({percent(measured[place])})"
            for name, place in zip(between, places, strict=True)
        ]
        more = f" and {len(each) - _SHOWN} more pairs" if len(each) > _SHOWN else ""
        what = (
            f"Swaps are taken less than {percent(RARE_SWAPS)} of the time {', '.join(each[:_SHOWN])}"
            f"{more}{_predicted(levels, places)}"
        )
    cure = cure_of(
        [levels.predicted[place] for place in places] if levels.predicted else [], levels.predicted
    )
    return [f"{what}: worlds hardly travel there. {cure}"]


def _predicted(levels: Levels, places: Sequence[int]) -> str:
    if not levels.predicted:
        return ""
    return f" (predicted {share_range([levels.predicted[place] for place in places])})"


def cure_of(predicted: Sequence[float], of_all: Sequence[float]) -> str:
    """What to do about pairs that seldom swap, by their predictions; none are known for temperatures.

    The mean prediction of all pairs is about the swap probability that a ladder was made for.
    """
    if not predicted:
        return "Put a level between them."
    if min(predicted) < _FEW:
        return (
            "They are too far apart for these worlds: train with the levels that are chosen for them "
            "(--set ladder.rates=auto), or put a level between them."
        )
    closer = min(0.9, round(sum(of_all) / len(of_all) + 0.1, 1))
    return (
        "Train longer, or take closer levels in a new run that starts with these weights "
        f"(--from, --set ladder.rates=auto --set ladder.swap={closer:g})."
    )


def ladder_html(levels: Levels, measured: Sequence[float]) -> Html:
    """A table of the pairs of neighbours, with their predicted and measured swaps."""
    hint = (
        f"Mean probability of a swap in the last fifth of the training. Below {percent(RARE_SWAPS)} "
        "worlds hardly travel between two levels."
    )
    head = ["levels", "measured"]
    rows = [
        [f"{one} and {other}", percent(mean) if isfinite(mean) else "unknown"]
        for (one, other), mean in zip(pairwise(levels.chains), measured, strict=True)
    ]
    if levels.predicted:
        head.insert(1, "predicted")
        for row, share in zip(rows, levels.predicted, strict=True):
            row.insert(1, percent(share))
        hint += (
            f" Predicted: the least for exactly noised data with {levels.groups:,} groups per world"
            f"{', the largest of the data' if levels.several else ''}; trained levels swap less."
        )
    return page.joined(page.paragraph(hint), page.table(head, rows))


def share_range(shares: Sequence[float]) -> str:
    """The least and the largest of some shares: `14 to 42 %`."""
    low, high = percent(min(shares)), percent(max(shares))
    return low if low == high else f"{low.removesuffix(' %')} to {high}"


def percent(share: float) -> str:
    """Whole percent, with one more digit for small shares."""
    return f"{100 * share:.1f} %" if 0 < share < 0.01 else f"{100 * share:.0f} %"
