"""Parts of a page about generated molecules: numbers, pictures, levels and recall.

Molecules are drawn as inline SVG on white, so that their colours hold in the dark too.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import isnan
from typing import TYPE_CHECKING, Any

from nmln.evaluation import (
    Estimate,
    Evaluation,
    LevelEvaluation,
    Ranking,
    RecallCurve,
    ahead,
    fallen,
)
from nmln.molecules.chemistry.drawing import draw_svg
from nmln.report import page
from nmln.report.figures import level_colours, literal
from nmln.report.page import Html, Section, markup
from nmln.report.recall import BY_COUNT, BY_PROBABILITY, longest_ranking, paint_curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOVEL, IN_TEST, IN_TRAIN = "novel", "in test set", "trained on"
_CLASSES = {NOVEL: "novel", IN_TEST: "test", IN_TRAIN: "train"}
_WIDTH, _HEIGHT = 200, 150  # proportions of a drawing

STYLE = """
.tiles { display: grid; gap: 0.8rem; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr));
  margin: 1rem 0 }
.tiles > div { background: var(--soft); border: 1px solid var(--line); border-radius: 10px;
  padding: 0.8rem 1rem }
.tiles b { display: block; font-size: 1.9rem; line-height: 1.15; font-weight: 650;
  letter-spacing: -0.02em }
.tiles span { display: block; font-weight: 600 }
.tiles small { color: var(--quiet); font-size: 0.82rem; line-height: 1.35; display: block }
.gallery { display: grid; gap: 0.8rem; grid-template-columns: repeat(auto-fill, minmax(9.6rem, 1fr)) }
.molecule { border: 1px solid var(--line); border-radius: 10px; overflow: hidden; display: flex;
  flex-direction: column; background: var(--soft); break-inside: avoid }
.molecule svg { display: block; width: 100%; height: auto; background: #ffffff;
  border-bottom: 1px solid var(--line) }
.molecule p { display: flex; justify-content: space-between; align-items: baseline; gap: 0.4rem;
  margin: 0.45rem 0.6rem 0; font-size: 0.85rem; font-variant-numeric: tabular-nums }
.molecule code { margin: 0.15rem 0.6rem 0.55rem; color: var(--quiet); overflow-wrap: anywhere;
  font: 0.72rem/1.4 ui-monospace, Menlo, Consolas, monospace }
.badge { border-radius: 99px; padding: 0 0.55rem; font-size: 0.75rem; font-weight: 600;
  white-space: nowrap }
.badge.test { background: #0072b2; color: #ffffff }
.badge.novel { background: transparent; color: var(--ink); box-shadow: inset 0 0 0 1px var(--quiet) }
.badge.train { background: var(--line); color: var(--ink) }
td small { color: var(--quiet); display: block; font-size: 0.8rem; line-height: 1.2 }
tr.target td { font-weight: 650 }
tr.target td small { font-weight: 400 }
.legend { display: flex; flex-wrap: wrap; gap: 0.2rem 1.1rem; margin: 0.6rem 0; padding: 0;
  list-style: none; font-size: 0.88rem }
.legend i { display: inline-block; width: 1.6rem; height: 0; border-top: 3px solid; margin-right: 0.4rem;
  vertical-align: middle }
.note { color: var(--quiet); font-size: 0.88rem; max-width: 54rem }
.panels + .note, .wide + .panels { margin-top: 1rem }
@media (prefers-color-scheme: dark) {
  .legend i { filter: invert(1) hue-rotate(180deg) brightness(1.1) }
}
"""
"""The style that a page with these parts adds to the common style."""


@dataclass(frozen=True)
class Shown:
    """A molecule of a gallery: its count, and the set that contains it."""

    smiles: str
    count: int
    where: str


def most_frequent(
    counts: Mapping[str, int],
    train: Collection[str],
    test: Collection[str],
    most: int,
    *,
    new: bool = False,
) -> list[Shown]:
    """The most frequent molecules, or the most frequent ones outside the training set."""

    def where(smiles: str) -> str:
        if smiles in train:
            return IN_TRAIN
        return IN_TEST if smiles in test else NOVEL

    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    chosen = (pair for pair in ranked if not (new and pair[0] in train))
    return [Shown(smiles, count, where(smiles)) for smiles, count in islice(chosen, most)]


def gallery(molecules: Sequence[Shown]) -> Html:
    """Molecules side by side, each with its count and whether it is known."""
    if not molecules:
        return page.paragraph("There are none.")
    return Html(f"<div class='gallery'>{''.join(map(_card, molecules))}</div>")


def _card(one: Shown) -> str:
    return (
        f"<div class='molecule'>{draw_svg(one.smiles, _WIDTH, _HEIGHT)}"
        f"<p>{one.count:,}&times;"
        f"<span class='badge {_CLASSES[one.where]}'>{markup(one.where)}</span></p>"
        f"<code>{markup(one.smiles)}</code></div>"
    )


# The main numbers.


def tiles(target: LevelEvaluation) -> Html:
    """The quality of the target level's samples, in four numbers with their denominators."""
    found = target.found
    known = found.known_train
    shown = [
        (
            percent(target.valid.value),
            "valid",
            f"of {found.samples.attempts:,} attempts {interval(target.valid)}",
        ),
        (
            percent(found.unique.value),
            "unique",
            f"{found.samples.unique:,} different of {found.samples.valid:,} valid ones",
        ),
        (
            percent(found.novelty.value),
            "novel",
            f"of the different ones are not in the training set; {percent(known.value)} of all valid "
            "samples are",
        ),
        (
            f"{found.coverage_test.count:,.0f}",
            f"of {found.coverage_test.total:,} test molecules",
            f"found, though never shown in training: {percent(found.coverage_test.value)}; an ideal "
            f"sampler would find {percent(found.ideal)}",
        ),
    ]
    parts = (
        f"<div><b>{markup(number)}</b><span>{markup(name)}</span><small>{markup(note)}</small></div>"
        for number, name, note in shown
    )
    return Html(f"<div class='tiles'>{''.join(parts)}</div>")


def level_findings(levels: Sequence[LevelEvaluation]) -> tuple[list[str], list[str]]:
    """Findings on the levels: the good ones, and the problems."""
    well: list[str] = []
    wrong: list[str] = []
    target = levels[-1]
    if len(levels) < 2:
        return well, wrong
    first = levels[0]
    low, high = percent(first.valid.value), percent(target.valid.value)
    if drops := fallen(levels):
        for one, other in drops:
            wrong.append(
                f"Validity falls from {percent(one.valid.value)} at {one.name} to "
                f"{percent(other.valid.value)} at {other.name}, beyond the intervals."
            )
    else:
        well.append(
            f"Validity goes from {low} at {first.name} to {high} at the target, and falls nowhere "
            "beyond the intervals."
        )
    shown = (
        f"{target.recall.value:,.1f} test molecules among its {target.rank:,} most frequent ones"
    )
    if better := ahead(levels):
        names = " and ".join(one.name for one in better)
        wrong.append(f"The target finds {shown}: fewer than {names}, beyond the intervals.")
    else:
        well.append(f"The target finds {shown}; no other level finds more beyond the intervals.")
    return well, wrong


# Levels.


def levels_html(levels: Sequence[LevelEvaluation]) -> Html:
    """A table of all levels with intervals, and plots of the two numbers that should rise."""
    rank = levels[-1].rank
    names = [one.name for one in levels]
    paints = [
        partial(
            _paint_estimates, names=names, found=[one.valid for one in levels], share=True,
            title="Valid, with 95 % intervals",
        ),
        partial(
            _paint_estimates, names=names, found=[one.recall for one in levels],
            title=f"Test molecules among the {rank:,} most frequent",
        ),
    ]  # fmt: skip
    note = (
        "Valid: of all attempts. Recall: molecules of a set among the most frequent different ones. "
        "Unique: different ones, of the valid. In training or test set: of the valid, repeats included. "
        "Intervals are at 95 % and over chains, which are independent of each other, while samples of "
        "one chain are not. Shares: Wilson's, for as many draws as the spread between chains is worth. "
        "Recall: the jackknife over groups of chains. They compare levels on this test set, and do "
        "not cover chains that have not converged yet: see Chains."
    )
    return page.joined(_level_table(levels), page.panels(paints), _note(note))


def _level_table(levels: Sequence[LevelEvaluation]) -> Html:
    rank = levels[-1].rank
    head = (
        "level", "valid", f"test recall at {rank:,}", "unique", "in training set", "in test set",
        "test set covered", f"training recall at {rank:,}",
    )  # fmt: skip
    rows = []
    for one in levels:
        found = one.found
        cells = (
            _named(one, target=one is levels[-1]),
            _with_interval(one.valid),
            _small(f"{one.recall.value:,.1f}", _range(one.recall, 1, 1)),
            _small(percent(found.unique.value), f"{found.samples.unique:,}"),
            _with_interval(one.known_train),
            _with_interval(one.known_test),
            _small(percent(found.coverage_test.value), f"{found.coverage_test.count:,.0f}"),
            f"{found.train.at(rank):,.1f}",
        )
        kind = " class='target'" if one is levels[-1] else ""
        rows.append(f"<tr{kind}>{''.join(f'<td>{markup(cell)}</td>' for cell in cells)}</tr>")
    top = "".join(f"<th scope='col'>{markup(name)}</th>" for name in head)
    return Html(
        f"<div class='wide'><table><thead><tr>{top}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _named(one: LevelEvaluation, target: bool) -> Html:
    return _small(one.name, "target" if target else f"level {one.number}")


def _with_interval(found: Estimate) -> Html:
    return _small(percent(found.value), _range(found, 100, 1))


def _small(text: str, below: str) -> Html:
    return Html(f"{markup(text)}<small>{markup(below)}</small>")


def _note(text: str) -> Html:
    return Html(f"<p class='note'>{markup(text)}</p>")


def percent(share: float) -> str:
    return "none" if isnan(share) else f"{100 * share:.1f} %"


def interval(found: Estimate, scale: float = 100) -> str:
    """A range in brackets, or an empty string if there is none."""
    shown = _range(found, scale, 1)
    return f"[{shown}]" if shown else ""


def _range(found: Estimate, scale: float, digits: int) -> str:
    if isnan(found.low):
        return ""
    return f"{scale * found.low:,.{digits}f} to {scale * found.high:,.{digits}f}"


def _paint_estimates(
    axes: "Axes", names: Sequence[str], found: Sequence[Estimate], title: str, share: bool = False
) -> None:
    across = range(len(found))
    for at, one, colour in zip(across, found, level_colours(len(found)), strict=True):
        if isnan(one.value):
            continue
        if not isnan(one.low):
            axes.plot([at, at], [one.low, one.high], color=colour, linewidth=2.2)
        axes.plot([at], [one.value], "o", color=colour, markersize=6)
    axes.set_xticks(across, [literal(name) for name in names])
    axes.set_xlim(-0.5, len(found) - 0.5)
    axes.set_xlabel("level, the target last")
    axes.set_title(title)
    axes.set_ylim(bottom=0)
    if share:
        axes.set_ylim(0, 1.03)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")


# Recall.


def recall_html(levels: Sequence[LevelEvaluation], known: int) -> Html:
    """The recall curves of all levels; `known` is the number of molecules in both sets together."""
    test, train = levels[-1].found.test.size, levels[-1].found.train.size
    colours = level_colours(len(levels))
    longest = longest_ranking(one.found for one in levels)
    probable = levels[-1].found.by_probability
    shown: list[tuple[str, Callable[[Evaluation | Ranking], RecallCurve], int]] = [
        (f"Test molecules (of {test:,})", lambda one: one.test, known),
        ("The same, training molecules not ranked", lambda one: one.new, test),
        (f"Training molecules (of {train:,})", lambda one: one.train, known),
    ]

    def paint(
        axes: "Axes", title: str, curve: Callable[[Evaluation | Ranking], RecallCurve], ranked: int
    ) -> None:
        lines = [(one.name, curve(one.found)) for one in levels]
        second = {} if probable is None else {levels[-1].name: curve(probable)}
        paint_curves(axes, lines, ranked, longest, colours, second)
        axes.set_title(title)

    paints = [
        partial(paint, title=title, curve=curve, ranked=ranked) for title, curve, ranked in shown
    ]
    names = [one.name for one in levels]
    names[-1] += " (target)"
    entries = [(name, _hex(colour), "solid") for name, colour in zip(names, colours, strict=True)]
    if probable is not None:
        name, colour, line = entries.pop()
        entries += [
            (f"{name}, {BY_COUNT}", colour, line),
            (f"{name}, {BY_PROBABILITY}", colour, "dashed"),
        ]
    entries += [
        ("all that can be found", "#777777", "dotted"),
        ("drawing from training and test set", "#777777", "dashed"),
    ]
    said = [
        page.paragraph(
            "Rank the different valid molecules by how often they came: how many of the first t are "
            "known? Those of equal count have no order and count at their expected value."
        )
    ]
    if probable is not None:
        said.append(_by_probability(levels[-1].found, probable))
    return page.joined(*said, _legend(entries), page.panels(paints))


def _by_probability(found: Evaluation, probable: Ranking) -> Html:
    """What the second ranking is, and both of them in numbers."""
    exact = "" if probable.exact else " (a lower bound of it)"
    marks = [mark for mark in found.test.marks if mark <= found.test.ranks[-1]]
    rows = [
        [name, *(f"{curve.at(mark):,.0f}" for mark in marks)]
        for name, curve in (
            ("by count", found.test),
            ("by probability", probable.test),
            ("by count, training molecules not ranked", found.new),
            ("by probability, training molecules not ranked", probable.new),
        )
    ]
    said = page.paragraph(
        "By probability, the same molecules of the target are ranked by the model's own "
        f"log-probability{exact} instead: as they would be by the counts of infinitely many samples."
    )
    if not marks:  # fewer molecules than the least rank
        return said
    head = ["test molecules among the first", *(f"{mark:,}" for mark in marks)]
    return page.joined(said, page.table(head, rows))


def _legend(entries: Sequence[tuple[str, str, str]]) -> Html:
    items = (
        f"<li><i style='border-top: 3px {line} {colour}'></i>{markup(name)}</li>"
        for name, colour, line in entries
    )
    return Html(f"<ul class='legend'>{''.join(items)}</ul>")


def _hex(colour: Any) -> str:
    from matplotlib.colors import to_hex

    return to_hex(colour)


# Sections for pages.


def sections(
    levels: Sequence[LevelEvaluation],
    train: Collection[str],
    test: Collection[str],
    *,
    new: int = 28,
    overall: int = 7,
) -> list[Section]:
    """All sections about the samples themselves, the main numbers first."""
    target = levels[-1]
    well, wrong = level_findings(levels)
    verdict = [page.bad(wrong)] if wrong else []
    verdict += [page.good(" ".join(well))] if well else []
    counts = target.found.samples.counts
    said = page.paragraph(
        "The most frequent molecules at the target level that were not trained on, and how often they "
        "came. Those in the test set are real ones that the model has never seen; novel ones are in "
        "neither set."
    )
    fresh = gallery(most_frequent(counts, train, test, new, new=True))
    common = gallery(most_frequent(counts, train, test, overall))
    return [
        Section("In short", page.joined(tiles(target), *verdict)),
        Section("New molecules", page.joined(said, fresh)),
        Section("The most frequent of all", common),
        Section("Levels, from the noisiest to the target", levels_html(levels)),
        Section("Recall", recall_html(levels, len(frozenset(train) | frozenset(test)))),
    ]
