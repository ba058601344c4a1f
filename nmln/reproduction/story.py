"""The page about the claims as blocks, made from result files alone; `pages` writes them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nmln.evaluation import MARKS
from nmln.reproduction.budgets import BUDGETS
from nmln.reproduction.claims import ABOVE, CLAIMS
from nmln.reproduction.datasets import DATA_SETS
from nmln.reproduction.figures import has_ranking
from nmln.reproduction.verdicts import MISSING, Claim, Judgement, Results


@dataclass(frozen=True)
class Heading:
    level: int
    text: str


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Bullets:
    items: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Code:
    text: str


@dataclass(frozen=True)
class Picture:
    """A figure by the name of its result; those of experiments belong to no budget."""

    budget: str | None
    name: str
    caption: str
    second: bool = False  # that ranks by probability


Block = Heading | Text | Bullets | Table | Code | Picture

Recorded = Mapping[str, Results]
"""The results of every budget, by its name. Those of experiments are in each of them."""

TITLE = "The claims of the paper"
_ORDER = list(reversed(BUDGETS))
_OF_EXPERIMENTS = ("C1", "C2", "C3", "C4")
_EXPERIMENTS = ("two-peaks", "toy-tracking", "n-queens")

_LEAD = (
    "Every claim of the paper with what the recorded numbers say about it. The verdicts are computed by "
    "the rules that stand beside them; where no run is recorded, the page says so.",
    "The molecules are not those of the paper: its filter is not known, and sets may be incomplete (see "
    "the table of data sets). So curves are compared between methods, never with the paper's own. All "
    "methods of a figure learned from the same four fifths of the molecules and are cut to the same "
    "number of samples. The baselines are re-implemented; below the budget `paper` some of them and the "
    "networks of the ablations are scaled down.",
)


def story(recorded: Recorded) -> list[Block]:
    """The whole page."""
    budgets = [name for name in _ORDER if name in recorded]
    judged = {claim.name: _judged(claim, recorded, budgets) for claim in CLAIMS}
    blocks: list[Block] = [Heading(1, TITLE), *map(Text, _LEAD)]
    rows = [
        (claim.name, claim.sentence, judgement.verdict, budget or "-")
        for claim in CLAIMS
        for budget, judgement in judged[claim.name][:1]
    ]
    blocks.append(Table(("claim", "what the paper says", "here", "budget"), tuple(rows)))
    blocks += [Text(ABOVE), Text(_budgets())]
    for claim in CLAIMS:
        blocks += _claim(claim, judged[claim.name], recorded)
    blocks += _data_sets(recorded, budgets)
    for budget in budgets:
        blocks += _figures(budget, recorded[budget])
    return blocks


def _judged(
    claim: Claim, recorded: Recorded, budgets: Sequence[str]
) -> list[tuple[str | None, Judgement]]:
    """The judgements of a claim, that of the largest budget first; experiments have one only."""
    found = [(name, claim.judge(recorded[name])) for name in budgets]
    there = [(name, one) for name, one in found if one.verdict != MISSING]
    if not there:
        return [(None, claim.judge({}))]
    if claim.name in _OF_EXPERIMENTS:
        return [(None, there[0][1])]
    return list(there)


def _budgets() -> str:
    """What the budgets allow."""
    parts = []
    for one in BUDGETS.values():
        limit = f"{one.sampling:g} of sampling and " if one.sampling else ""
        parts.append(
            f"`{one.name}`: {one.minutes:,g} minutes of training, {limit}{one.samples:,} samples per "
            f"cell, or {one.updates:,} updates"
        )
    return "Budgets, in minutes of one processor core: " + "; ".join(parts) + "."


def _claim(
    claim: Claim, judged: Sequence[tuple[str | None, Judgement]], recorded: Recorded
) -> Iterator[Block]:
    yield Heading(2, f"{claim.name}: {judged[0][1].verdict}")
    yield Text(claim.sentence)
    yield Text(f"Rule: {claim.rule}")
    for place, (budget, judgement) in enumerate(judged):
        if budget is not None:
            yield Text(f"Budget `{budget}`: {judgement.verdict}.")
        if judgement.why:
            yield Text(judgement.why)
        if judgement.numbers:
            yield Bullets(judgement.numbers)
        if place == 0:
            for name in judgement.figures:
                if name in _EXPERIMENTS:
                    yield Picture(None, name, f"{name.capitalize().replace('-', ' ')}.")
                elif budget is not None and name in recorded[budget]:
                    yield Picture(budget, name, recorded[budget][name]["title"] + ".")
        if budget is not None:
            spent = _minutes(
                [recorded[budget][name] for name in judgement.figures if name in recorded[budget]]
            )
            yield Text(
                f"The cells of these figures took {spent:.0f} CPU minutes of training and sampling."
            )
    verb = claim.command.split()[2]
    for results in list(recorded.values())[:1]:
        if claim.name in _OF_EXPERIMENTS and verb in results:
            yield Text(f"The run took {results[verb]['seconds']:,.0f} seconds.")
    command = claim.command
    if (budget := judged[0][0]) is not None:
        command += f" --budget {budget}"
    yield Code(command)


def _minutes(results: Sequence[Mapping[str, Any]]) -> float:
    """The CPU minutes of all cells in some figures, each counted once."""
    cells = {row["cell"]: sum(row["minutes"].values()) for one in results for row in one["rows"]}
    return sum(cells.values())


def _data_sets(recorded: Recorded, budgets: Sequence[str]) -> Iterator[Block]:
    """The sizes of the data sets beside those of the paper."""
    sizes: dict[str, tuple[int, int]] = {}
    for budget in reversed(budgets):
        for one in recorded[budget].get("tables", {}).get("rows", ()):
            sizes[one["data"]] = (one["train"], one["test"])
        for one in recorded[budget].values():
            if one.get("rows") and "train" in one:
                sizes[one["data"]] = (one["train"], one["test"])
    papers = {one.key: one for one in DATA_SETS}
    rows = []
    for key in [*papers, *sorted(sizes.keys() - papers.keys())]:
        known = papers.get(key)
        paper = "-" if known is None or known.paper is None else f"{known.paper:,}"
        here = ("not run yet", "-", "-")
        if key in sizes:
            train, test = sizes[key]
            here = (f"{train + test:,}", f"{train:,}", f"{test:,}")
        rows.append((str(known or key), paper, *here))
    yield Heading(2, "Data sets")
    yield Table(("data set", "molecules in the paper", "here", "training", "test"), tuple(rows))
    yield Code("nmln reproduce tables")


def _figures(budget: str, results: Results) -> Iterator[Block]:
    """All figures of a budget with the numbers of their rows."""
    drawn = [one for one in results.values() if one.get("rows") and "layout" in one]
    if drawn:
        yield Heading(2, f"All figures at the budget {budget}")
    for one in sorted(drawn, key=lambda one: one["figure"]):
        yield Heading(3, one["title"])
        yield Picture(budget, one["figure"], one["title"] + ".")
        if has_ranking(one):
            text = "The same with NMLNs ranked by probability, the others by count."
            yield Picture(budget, one["figure"], text, second=True)
        yield Text(_terms(one))
        yield rows_of_figure(one)
        if one["missing"]:
            yield Text(f"Not run yet: {', '.join(one['missing'])}.")
        if one["left_out"]:
            yield Text(
                f"Left out, because a cell would take too long: {', '.join(one['left_out'])}."
            )


def _terms(numbers: Mapping[str, Any]) -> str:
    return (
        f"{numbers['samples']:,} samples of each, {numbers['train']:,} training and {numbers['test']:,} "
        "test molecules. Intervals of 95 % over the test set are drawn around the curves."
    )


def rows_of_figure(numbers: Mapping[str, Any]) -> Table:
    """The table below a figure."""
    marks = [str(mark) for mark in MARKS]
    head = (
        "method", "valid", "different", "test set generated",
        "test molecules among the first " + ", ".join(f"{mark:,}" for mark in MARKS),
        "by probability", "CPU min: training, sampling", "updates", "drawn",
    )  # fmt: skip
    rows = []
    for row in numbers["rows"]:
        second = row.get("by_probability")
        rows.append(
            (
                _name(row, numbers["layout"]),
                _share(row["valid"]),
                f"{row['unique']:,}",
                _share(row["covered"]),
                _curve(row["recall"], marks),
                _curve(second, marks) if second else "-",
                f"{row['minutes']['training']:.1f}, {row['minutes']['sampling']:.1f}",
                f"{row['updates']:,}",
                f"{row['drawn']:,}",
            )
        )
    return Table(head, tuple(rows))


def _name(row: Mapping[str, Any], layout: str) -> str:
    if layout == "levels":
        return f"rate {row['rate']:.3g}"
    return f"{row['title']}, seed {row['seed']}" if row["seed"] else row["title"]


def _share(one: Mapping[str, float]) -> str:
    return f"{one['value']:.1%} ({100 * one['low']:.1f} to {100 * one['high']:.1f})"


def _curve(one: Mapping[str, Any], marks: Sequence[str]) -> str:
    return ", ".join(f"{one['at'][mark]:.0f}" for mark in marks)
