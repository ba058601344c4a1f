"""`nmln kb`: complete knowledge bases of triples."""

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmln.cli.common import (
    Overwrite,
    Resume,
    check_output,
    examples,
    one_thread,
    progress,
    seed_option,
    warn,
)
from nmln.errors import InputError, InterruptedRunError

if TYPE_CHECKING:
    from nmln.knowledge.ranking import Ranking
    from nmln.knowledge.training import Progress
    from nmln.runs.knowledge import KnowledgeJob

kb = typer.Typer(
    help="Complete knowledge bases of triples: train, rank, list missing triples.",
    no_args_is_help=True,
)
Run = Annotated[Path, typer.Argument(help="Folder of a run of nmln kb train.")]


@kb.command(
    epilog=examples(
        "nmln kb train nations --minutes 5",
        "nmln kb train my_triples/ --seed 3",
        "nmln kb train nations --width 3 --output runs/nations-triples",
        "nmln kb train --resume runs/kb-nations",
    )
)
def train(
    source: Annotated[
        str | None,
        typer.Argument(
            help="nations, kinship, umls, or a folder with train.tsv (and valid.tsv, test.tsv). Each "
            "line has head, relation and tail, separated by tabs."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the run.", show_default="runs/kb-NAME")
    ] = None,
    resume: Resume = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after this many minutes.")] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many epochs.", show_default="300")
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="conditional (predicts the missing head or tail) or likelihood (uses persistent "
            "chains).",
            show_default="conditional",
        ),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(help="Constants per fragment: 2 or 3; 3 is slower.", show_default="2"),
    ] = None,
    hidden: Annotated[
        int | None,
        typer.Option(min=0, help="Hidden units of the fragment network; 0 leaves it out."),
    ] = None,
    embedding: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Length of a constant's vector in the fragment network.",
            show_default="16",
        ),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Length of the complex vectors that score single triples; 0 leaves them out.",
            show_default="64",
        ),
    ] = None,
    paths: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of features over two-step paths; 0 leaves them out.",
            show_default="0",
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Queries per training step.", show_default="256")
    ] = None,
    negatives: Annotated[
        int | None,
        typer.Option(min=0, help="Wrong answers sampled per fact; 0 uses all.", show_default="0"),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Learning rate.", show_default="0.015")] = None,
    hide: Annotated[
        float | None, typer.Option(help="Fraction of the facts hidden in each step, 0 to 1.")
    ] = None,
    dropout: Annotated[
        float | None, typer.Option(help="Fraction of the features dropped in each step, 0 to 1.")
    ] = None,
    penalty: Annotated[
        float | None, typer.Option(help="Weight of the regulariser on the vectors of --rank.")
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Stop after this many validations without improvement.",
            show_default="20",
        ),
    ] = None,
    seed: Annotated[int | None, seed_option("Random seed.", show_default="0")] = None,
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds between checkpoints.")
    ] = 60,
) -> None:
    """Train an embedding model on the triples of train.tsv.

    Keeps the parameters that rank valid.tsv best. Ctrl-C saves the run; --resume continues it, after a
    crash from the last checkpoint. Sizes and regularisation that you do not set depend on the number
    of facts per pair of constants. Writes model/, history.csv and training.json.
    """
    one_thread()
    from nmln.runs import knowledge

    parts = {"width": width, "hidden": hidden, "embedding": embedding, "rank": rank, "paths": paths}
    wishes: dict[str, Any] = {
        "minutes": minutes, "epochs": epochs, "objective": objective, "batch": batch,
        "negatives": negatives, "rate": rate, "hide": hide, "dropout": dropout,
        "penalty": penalty, "patience": patience, "seed": seed,
    }  # fmt: skip
    parts, wishes = _given(parts), _given(wishes)
    if resume is not None:
        if source is not None or output is not None or parts or wishes:
            raise InputError(
                "--resume continues a run with its recorded settings. The only other option allowed is "
                "--checkpoint-seconds.",
                kind="conflict",
            )
        if knowledge.finished(resume):
            typer.echo(f"This run is finished. Next: {_next(resume)}")
            return
        job = knowledge.resume(resume)
    elif source is None:
        raise InputError(
            "there is nothing to train on. Name a folder of triples or a known base (nmln kb train "
            "nations), or continue a run (--resume).",
            kind="missing",
        )
    else:
        job = knowledge.begin(source, output, parts, wishes)
    _train(job, checkpoint_seconds)


def _train(job: "KnowledgeJob", checkpoint_seconds: float) -> None:
    from nmln.runs import knowledge

    typer.echo(job.description)
    for note in job.base.notes:
        warn(note)
    with KnowledgeDisplay(job) as watch:
        result = knowledge.run(job, watch, checkpoint_seconds)
    if result.valid is not None:
        typer.echo(
            f"validation MRR {result.valid.mrr:.3f}, Hits@1 {result.valid.hits_at_1:.3f}, "
            f"Hits@10 {result.valid.hits_at_10:.3f} at epoch {result.epoch} of {result.epochs}, "
            f"{result.seconds:.0f} s"
        )
    else:
        unjudged = (
            "before the first validation" if len(job.base.valid) else "without validation triples"
        )
        typer.echo(f"{result.epochs} epochs in {result.seconds:.0f} s, {unjudged}")
    typer.echo(f"Written: {job.folder}/model, history.csv, training.json")
    if result.interrupted:
        raise InterruptedRunError(
            f"stopped after {result.epochs} epochs. The run is kept; its model is the best so far.",
            knowledge.resuming(job.folder),
        )
    typer.echo(f"Next: {_next(job.folder)}")


def _next(folder: Path) -> str:
    name = shlex.quote(str(folder))
    return f"nmln kb rank {name}, or nmln kb complete {name}"


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


class KnowledgeDisplay:
    """A progress bar on a terminal, otherwise a line every 20 seconds."""

    def __init__(self, job: "KnowledgeJob") -> None:
        from rich.console import Console
        from rich.progress import Progress

        self.console = Console(stderr=True, highlight=False)
        self.live = self.console.is_terminal
        self.bar = Progress(console=self.console, transient=True, disable=not self.live)
        self.minutes, self.epochs = job.settings.minutes, job.settings.epochs
        self.shown_at = time.monotonic()

    def __enter__(self) -> "KnowledgeDisplay":
        self.bar.__enter__()
        self.task = self.bar.add_task("training", total=1.0)
        return self

    def __exit__(self, *error: Any) -> None:
        self.bar.__exit__(*error)

    def __call__(self, step: "Progress") -> None:
        share = max(step.epoch / self.epochs, step.seconds / 60 / self.minutes)
        best = "" if step.best is None else f", best validation MRR {step.best:.3f}"
        text = f"epoch {step.epoch}, loss {step.loss:.3f}{best}"
        self.bar.update(self.task, completed=min(1.0, share), description=text)
        if not self.live and time.monotonic() - self.shown_at > 20:
            self.shown_at = time.monotonic()
            self.console.print(f"{text}, {step.seconds:.0f} s", markup=False)


@kb.command(epilog=examples("nmln kb rank runs/kb-nations"))
def rank(
    run: Run,
    batch: Annotated[int, typer.Option(min=1, help="Queries ranked together.")] = 64,
) -> None:
    """Rank the head and the tail of every validation and test triple among all constants.

    Candidates that give another known triple are left out (filtered ranks); equal scores share their
    mean rank. Writes ranking.json and ranks.csv.
    """
    one_thread()
    from nmln.runs import knowledge

    trained = knowledge.load(run)
    typer.echo(trained.base.sizes)
    counts = knowledge.ranked_splits(trained)
    begun = time.monotonic()
    with progress("ranking", 2 * sum(counts.values())) as tick:

        def advance(done: int) -> None:
            for _ in range(done):
                tick()

        found = knowledge.rank(trained, run, batch=batch, tick=advance)
    _show_ranking(found)
    typer.echo(f"{time.monotonic() - begun:.1f} s")
    typer.echo(f"Written: {run / 'ranking.json'}, {run / 'ranks.csv'}")


def _show_ranking(found: "dict[str, Ranking]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("triples", "side")
    for name in ("MRR", "Hits@1", "Hits@3", "Hits@10", "mean rank", "queries"):
        table.add_column(name, justify="right")
    for split, one in found.items():
        for side, quality in one.summary().items():
            shares = [quality[n] for n in ("mrr", "hits_at_1", "hits_at_3", "hits_at_10")]
            numbers = [f"{share:.3f}" for share in shares]
            queries = f"{int(quality['queries']):,}"
            table.add_row(split, side, *numbers, f"{quality['mean_rank']:.2f}", queries)
    Console(highlight=False).print(table)


@kb.command(
    epilog=examples(
        "nmln kb complete runs/kb-nations --top 20",
        "nmln kb complete runs/kb-nations --relation embassy --surprising",
    )
)
def complete(
    run: Run,
    top: Annotated[int, typer.Option(min=1, help="Number of triples to list.")] = 20,
    relation: Annotated[
        list[str] | None,
        typer.Option(help="List only triples of this relation. May be repeated."),
    ] = None,
    surprising: Annotated[
        bool,
        typer.Option(
            help="Sort by how far the log-odds exceed those of the relation's base rate.",
            show_default=False,
        ),
    ] = False,
    held_out: Annotated[
        bool,
        typer.Option(
            help="Also list triples of valid.tsv and test.tsv, and mark them.", show_default=False
        ),
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="CSV file to write.", show_default="RUN/missing.csv")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """List the most probable missing triples, with probabilities given all training triples."""
    one_thread()
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from nmln.knowledge.completion import batches
    from nmln.runs import knowledge

    trained = knowledge.load(run)
    if output is not None and output.absolute() != (run / "missing.csv").absolute():
        check_output(output, overwrite)
    path = output or run / "missing.csv"
    kinds = len(set(relation)) if relation else len(trained.base.relations)
    with progress("scoring all pairs", batches(trained.base, kinds)) as tick:
        found = knowledge.complete(
            trained,
            path,
            top=top,
            relations=tuple(relation or ()),
            unseen=not held_out,
            surprising=surprising,
            tick=tick,
        )
    table = Table("head", "relation", "tail")
    for name in ("probability", "base rate"):
        table.add_column(name, justify="right")
    if held_out:
        table.add_column("known from")
    for one in found:
        names = (escape(name) for name in (one.head, one.relation, one.tail))
        known = [one.split] if held_out else []
        table.add_row(*names, f"{one.probability:.3f}", f"{one.base_rate:.3f}", *known)
    Console(highlight=False).print(table)
    typer.echo(f"Written: {path}")
