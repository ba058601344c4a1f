"""The behaviour of the chains behind samples, as a part of a page, made from chains.json."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from nmln.report import page
from nmln.report.figures import literal
from nmln.report.ladder import RARE_SWAPS
from nmln.report.page import Html

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS, _ORANGE, _GREY = ("#0072B2", "#D55E00", "#009E73", "#CC79A7"), "#D55E00", "#888888"


def chains_html(
    findings: Sequence[str],
    judged: Mapping[str, Any],
    names: Sequence[str],
    predicted: Sequence[float] = (),
) -> Html:
    """The behaviour of the chains in words, numbers and two plots; `judged` is from chains.json.

    Of several sizes each has its numbers and plots. `predicted` are the swap probabilities of
    neighbours for the largest size, and are drawn where that is the only one.
    """
    if not judged:
        return page.paragraph("There were too few sweeps to judge the chains.")
    verdict = (
        page.bad(map(_sentence, findings))
        if findings
        else page.good("No problem was found: chains mix and walkers travel.")
    )
    if "sizes" not in judged:
        return page.joined(verdict, _numbers(judged, names, predicted))
    parts = [
        page.joined(Html(f"<h3>Size {page.markup(size)}</h3>"), _numbers(one, names))
        for size, one in judged["sizes"].items()
    ]
    return page.joined(verdict, *parts)


def _numbers(
    judged: Mapping[str, Any], names: Sequence[str], predicted: Sequence[float] = ()
) -> Html:
    facts = [
        ("chains", f"{judged['chains']} replicas of {judged['levels']} levels"),
        ("sweeps", f"{judged['sweeps']:,} after the burn-in"),
    ]
    if judged["levels"] > 1:
        facts.append(("round trips from noise to target and back", f"{judged['round_trips']:,.0f}"))
    if score := judged.get("mixing", {}).get("score"):
        facts += [
            (f"{name} of the score at the target", f"{score[-1][key]:,.{digits}f}")
            for name, key, digits in (("effective size", "ess", 0), ("R-hat", "rhat", 3))
            if score[-1].get(key) is not None
        ]
    swaps, acceptance = judged["swap_probability"], judged["acceptance"]
    paints = [partial(_paint_acceptance, names=names, by_kernel=acceptance, moved=judged["moved"])]
    if swaps:
        paint = partial(_paint_swaps, names=names, swaps=swaps, predicted=predicted)
        paints.insert(0, paint)
    return page.joined(page.facts(facts), page.panels(paints))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _paint_swaps(
    axes: "Axes",
    names: Sequence[str],
    swaps: Sequence[float | None],
    predicted: Sequence[float],
) -> None:
    chances = [0.0 if chance is None else chance for chance in swaps]
    pairs = range(len(chances))
    colours = [_ORANGE if chance < RARE_SWAPS else _COLOURS[0] for chance in chances]
    axes.bar(pairs, chances, color=colours, width=0.65, label="measured")
    if len(predicted) == len(chances):
        axes.plot(pairs, predicted, "_", color=_GREY, markersize=22, label="predicted")
        axes.legend()
    labels = [f"{literal(names[at])}\n{literal(names[at + 1])}" for at in pairs]
    axes.set_xticks(pairs, labels)
    axes.set_ylim(0, 1)
    axes.set_xlabel("neighbouring levels")
    axes.set_title("Mean probability of a swap")


def _paint_acceptance(
    axes: "Axes",
    names: Sequence[str],
    by_kernel: Mapping[str, Sequence[float | None]],
    moved: Sequence[float | None],
) -> None:
    across = range(len(names))
    lines = {**by_kernel, "moved": moved}
    for number, (name, shares) in enumerate(lines.items()):
        last = name == "moved"
        axes.plot(
            across, [float("nan") if one is None else one for one in shares],
            color=_GREY if last else _COLOURS[number % len(_COLOURS)],
            linestyle="--" if last else "-", marker="o", label=literal(name),
        )  # fmt: skip
    axes.set_xticks(across, [literal(name) for name in names])
    axes.set_xlim(-0.3, len(names) - 0.7)
    axes.set_ylim(0, 1.03)
    axes.set_xlabel("level, the target last")
    axes.set_title("Acceptance of moves, and share that changed the world")
    axes.legend()
