"""`nmln evaluate`: compare samples of any origin with training and test molecules."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nmln.cli.common import Data, Seed, one_thread, spinner
from nmln.cli.processes import check_processes
from nmln.errors import InputError
from nmln.extras import require

if TYPE_CHECKING:
    from rich.table import Table

    from nmln.evaluation import Evaluation, Ranking, Share
    from nmln.molecules.metrics import Measured
    from nmln.runs.evaluate import Evaluated, EvaluationOutcome


_LAST = 10**12  # the largest rank; no more attempts can be evaluated


def evaluate(
    samples: Annotated[
        list[Path],
        typer.Argument(
            help="Files of SMILES (.smi, .txt), tables with a SMILES column (.csv) or counts "
            "(smiles,count), each also with .gz; or folders with samples.csv.gz or counts.csv."
        ),
    ],
    train: Annotated[
        str | None, typer.Option(help="Training molecules: a file, a named set, or a run's folder.")
    ] = None,
    test: Annotated[
        str | None, typer.Option(help="Test molecules: a file, a named set, or a run's folder.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Take the training and test molecules of this run.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for the results.")] = None,
    at: Annotated[
        str, typer.Option(help="Ranks t at which recall is reported, separated by commas.")
    ] = "100,300,1000,3000,10000",
    size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Heavy atoms that a valid sample must have. By default any number that training or "
            "test molecules have.",
        ),
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Name of the SMILES column in .csv files.")
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(
            help="For samples of several noise levels: the level's number, or all. By default the "
            "target."
        ),
    ] = None,
    probability: Annotated[
        bool | None,
        typer.Option(
            help="Rank molecules by the log-probability that their model gives them, too. About a "
            "second per thousand molecules for models; minutes for most baselines.",
            show_default="for models, not for baselines",
        ),
    ] = None,
    fcd: Annotated[bool, typer.Option(help="Compute the Fréchet ChemNet distance.")] = True,
    processes: Annotated[
        int, typer.Option(min=1, help="Number of processes that parse SMILES.")
    ] = 1,
    seed: Seed = 0,
    data: Data = None,
) -> None:
    """Compare samples with training and test molecules.

    Several files give one figure with one curve per file. Writes evaluation.json, recall.csv,
    recall.png and recall.svg: for samples of a run into RUN/evaluation, otherwise into evaluation/.
    Molecules are ranked by count; samples of a model also by its own log-probability, which goes to
    ranking.csv.

    After nmln likelihood RUN or nmln baseline likelihood RUN, nats per molecule are shown as well.
    """
    require("nmln evaluate", "rdkit", "pooch", "matplotlib", *(["fcd_torch"] if fcd else []))
    one_thread()
    check_processes(processes)
    marks, chosen = _marks(at), _level(level)
    from nmln.runs import evaluate as evaluation
    from nmln.runs.folder import RunFolder

    if run is None and train is None and test is None:
        home = RunFolder(samples[0])
        run = samples[0] if home.is_run or home.is_baseline else None
    with spinner() as say:
        outcome = evaluation.run(
            samples,
            output or _place(samples, run),
            train=train,
            test=test,
            folder=run,
            at=marks,
            size=size,
            column=column,
            level=chosen,
            with_fcd=fcd,
            seed=seed,
            processes=processes,
            progress=say,
            data=data,
            probability=probability,
        )
    for note in (*outcome.notes, *_reasons(outcome)):
        typer.secho("note: ", fg="yellow", nl=False, err=True)
        typer.echo(note, err=True)
    _show(outcome)
    typer.echo("Written: " + ", ".join(map(str, outcome.written)))


def _marks(text: str) -> tuple[int, ...]:
    try:
        marks = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        marks = ()
    if not marks or marks[0] < 1 or marks[-1] > _LAST:
        raise InputError(
            f"--at must be ranks from 1 to {_LAST:,}, separated by commas, got {text!r}. Write, for "
            "example, --at 100,1000."
        )
    return marks


def _place(samples: list[Path], run: Path | None) -> Path:
    """The default folder of the results: that of the run, if the samples are its own."""
    if run is None:
        return Path("evaluation")
    from nmln.runs.folder import RunFolder

    own = all(path.resolve().is_relative_to(run.resolve()) for path in samples)
    return RunFolder(run).evaluation if own else Path("evaluation")


def _level(text: str | None) -> int | Literal["all"] | None:
    if text is None or text == "all":
        return text
    if not text.isdecimal() or len(text) > 9:  # int refuses very many digits
        raise InputError(f"--level must be the number of a level or all, got {text[:40]!r}.")
    return int(text)


def _reasons(outcome: "EvaluationOutcome") -> list[str]:
    """The most frequent reason why the samples of a file are invalid, for files without a valid one."""
    shown = []
    for one in outcome.evaluated:
        if one.refused and not one.found.samples.valid:
            why = one.refused[0]
            share = f"{why.count:,} of {one.found.samples.attempts:,} attempts"
            shown.append(f"{one.source}:{why.line}: {why.reason} ({share}): {why.example}")
    return shown


def _show(outcome: "EvaluationOutcome") -> None:
    from rich.console import Console

    size = f" of {outcome.size} heavy atoms" if outcome.size else ""
    typer.echo(
        f"{len(outcome.train.smiles):,} training and {len(outcome.test.smiles):,} test molecules{size}, "
        f"{outcome.known:,} together"
    )
    console = Console(highlight=False)
    console.print(_numbers(outcome))
    console.print(_recall(outcome))
    if any(one.by_size for one in outcome.evaluated):
        console.print(_by_size(outcome))


def _by_size(outcome: "EvaluationOutcome") -> "Table":
    """The main measures of every size, file by file."""
    from rich.markup import escape
    from rich.table import Table

    last = max(outcome.evaluated[0].found.test.marks)
    table = Table(
        title="By size",
        title_justify="left",
        caption=f"test, train: share of the set that is covered; t = {last:,}: test molecules among "
        "the t most frequent",
        caption_justify="left",
    )
    table.add_column("", overflow="fold")
    for name in ("atoms", "attempts", "valid", "test", "train", f"t = {last:,}"):
        table.add_column(name, justify="right")
    for one in outcome.evaluated:
        table.add_section()
        for place, (size, part) in enumerate(one.by_size.items()):
            found = part.found
            table.add_row(
                "" if place else escape(one.name),
                str(size),
                f"{found.samples.attempts:,}" if part.attempts_known else "-",
                _interval(found.valid) if part.attempts_known else "-",
                _share(found.coverage_test),
                _share(found.coverage_train),
                f"{found.test.at(last):,.1f}",
            )
    return table


def _numbers(outcome: "EvaluationOutcome") -> "Table":
    """The table of all measures, one column per file, with the denominator of each."""
    from rich.markup import escape
    from rich.table import Table

    found = outcome.evaluated
    table = Table("", "of", caption_justify="left")
    for one in found:
        table.add_column(escape(one.name), justify="right", overflow="fold")

    def row(name: str, of: str, tell: Callable[["Evaluated"], str]) -> None:
        table.add_row(name, of, *map(tell, found))

    row("attempts", "", lambda one: f"{one.found.samples.attempts:,}")
    row("valid", "attempts", lambda one: _interval(one.found.valid))
    row("different", "", lambda one: f"{one.found.samples.unique:,}")
    for draws in sorted({each.draws for one in found for each in one.found.unique_at}):
        row(f"unique@{draws:,}", "k valid", _unique(draws))
    row("in train", "valid", lambda one: _interval(one.found.known_train))
    row("in test", "valid", lambda one: _interval(one.found.known_test))
    row("novelty", "different", lambda one: _share(one.found.novelty))
    row("V.U.N.", "attempts", lambda one: _share(one.found.vun))
    table.add_section()
    row("covered", "test", lambda one: _interval(one.found.coverage_test))
    row("covered", "train", lambda one: _interval(one.found.coverage_train))
    row("ideal sampler", "either", lambda one: f"{one.found.ideal:.1%}")
    table.add_section()
    row("diversity", "valid", lambda one: _measured(one.diversity, 3))
    captions = ["[95 % interval]; train, test: the two sets"]
    if outcome.diversity_test is not None:
        captions.append(f"diversity of the test set: {_measured(outcome.diversity_test, 3)}")
    if outcome.fcd_train is not None:
        row("FCD", "valid", lambda one: _measured(one.fcd, 2))
        captions.append(f"FCD of the training set: {_measured(outcome.fcd_train, 2)}")
    if any(one.likelihood for one in found):
        row("nats per molecule", "test", lambda one: _nats(one.likelihood))
        captions.append(
            "nats per molecule: mean log-probability of the test molecules, [range by that of log Z]"
        )
        if any((one.likelihood or {}).get("exact") is False for one in found):
            captions.append("at least: a lower bound, the log-probability itself may be higher")
    if any(not each.first for one in found for each in one.found.unique_at):
        captions.append("~ the order of the samples is unknown: mean over all choices of k")
    table.caption = escape("\n".join(captions))
    return table


def _recall(outcome: "EvaluationOutcome") -> "Table":
    """The recall curves at the chosen ranks; a row shows the length of the ranking if it is shorter."""
    from rich.markup import escape
    from rich.table import Table

    rankings = [each for one in outcome.evaluated for each in _rankings(one)]
    second = [one.found.by_probability for one in outcome.evaluated if one.found.by_probability]
    title = "Among the t most frequent different molecules"
    captions = ["* without training molecules in the ranking"]
    if second:
        title = "Among the first t different molecules, by count and by probability"
        captions.append("by probability: ranked by the log-probability that the model gives them")
    if not all(ranking.exact for ranking in second):
        captions.append("by bound: ranked by a lower bound of the log-probability")
    table = Table(
        title=title,
        title_justify="left",
        caption=escape("\n".join(captions)),
        caption_justify="left",
    )
    table.add_column("", overflow="fold")
    for name in ("t", "test", "[95 %]", "test*", "train"):
        table.add_column(escape(name), justify="right")
    for shown, curves in rankings:
        table.add_section()
        ranked = curves.test.ranks[-1]
        for place, mark in enumerate(curves.test.marks):
            share = curves.test.share(mark)
            table.add_row(
                "" if place else escape(shown),
                f"{mark:,}" if mark <= ranked else f"{mark:,} (only {ranked:,})",
                f"{curves.test.at(mark):,.1f}",
                escape(f"[{share.low * share.total:,.0f}, {share.high * share.total:,.0f}]"),
                f"{curves.new.at(mark):,.1f}",
                f"{curves.train.at(mark):,.1f}",
            )
    return table


def _rankings(one: "Evaluated") -> "list[tuple[str, Evaluation | Ranking]]":
    """The rankings of some samples, with what is shown for them."""
    rankings: list[tuple[str, Evaluation | Ranking]] = [(one.name, one.found)]
    if (probable := one.found.by_probability) is not None:
        by = "by probability" if probable.exact else "by bound"
        rankings.append((by, probable))
    return rankings


def _share(share: "Share") -> str:
    return f"{share.value:.1%}" if share.total else "-"


def _interval(share: "Share") -> str:
    from rich.markup import escape

    if not share.total:
        return "-"
    return escape(f"{share.value:.1%} [{100 * share.low:.1f}, {100 * share.high:.1f}]")


def _measured(measured: "Measured | None", digits: int) -> str:
    return "-" if measured is None else f"{measured.value:.{digits}f} ({measured.samples:,} drawn)"


def _nats(numbers: "dict[str, Any] | None") -> str:
    value = (numbers or {}).get("test_molecules")
    error = (numbers or {}).get("test_molecules_error")
    if (numbers or {}).get("test_molecules_impossible"):
        return "-inf"
    if not isinstance(value, int | float):
        return "-"
    bound = "at least " if (numbers or {}).get("exact") is False else ""
    shown = f"{bound}{value:.2f}" + (f" +- {error:.2f}" if isinstance(error, int | float) else "")
    ends = [(numbers or {}).get(name) for name in ("log_z", "log_z_least", "log_z_most")]
    if not all(isinstance(end, int | float) for end in ends):
        return shown
    from rich.markup import escape

    from nmln.runs.likelihood import by_log_z

    least, most = by_log_z(numbers or {}, "test_molecules")
    return escape(f"{shown} [{least:.2f}, {most:.2f}]")


def _unique(draws: int) -> Callable[["Evaluated"], str]:
    def tell(one: "Evaluated") -> str:
        for each in one.found.unique_at:
            if each.draws == draws:
                return f"{'' if each.first else '~'}{each.value:.1%}"
        return "-"

    return tell
