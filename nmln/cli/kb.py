"""`nmln kb`: complete knowledge bases of triples."""

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmln.cli.common import Overwrite, check_output, one_thread, progress, warn
from nmln.errors import InputError, InterruptedRunError

if TYPE_CHECKING:
    from nmln.knowledge.ranking import Ranking
    from nmln.knowledge.training import Progress
    from nmln.runs.knowledge import KnowledgeJob

kb = typer.Typer(
    help="Complete knowledge bases of triples: train, rank, list missing facts.",
    no_args_is_help=True,
)
Run = Annotated[Path, typer.Argument(help="The folder of a run of nmln kb train.")]


@kb.command(
    epilog="Examples:  nmln kb train nations --minutes 5  |  nmln kb train my_triples/ --seed 3  |  "
    "nmln kb train nations --width 3 --output runs/nations-triples  |  "
    "nmln kb train --resume runs/kb-nations"
)
def train(
    source: Annotated[
        str | None,
        typer.Argument(
            help="nations, kinship, umls, or a folder with train.tsv (and valid.tsv, test.tsv): head, "
            "relation, tail, separated by tabs."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The folder of the run; runs/kb-NAME by default.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue with the run in this folder.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="End after so many minutes, if not earlier.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="End after so many epochs.")] = None,
    objective: Annotated[
        str | None, typer.Option(help="conditional (default) or likelihood.")
    ] = None,
    width: Annotated[
        int | None, typer.Option(help="Constants of a fragment: 2 (default) or 3.")
    ] = None,
    hidden: Annotated[
        int | None, typer.Option(min=0, help="Hidden units of the fragment network; 0: none.")
    ] = None,
    embedding: Annotated[
        int | None, typer.Option(min=0, help="Numbers that the network sees of a constant.")
    ] = None,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Rank of the factors of single atoms; 0: none.")
    ] = None,
    paths: Annotated[
        int | None, typer.Option(min=0, help="Products along paths of two steps; 0: none.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Questions at a time.")] = None,
    negatives: Annotated[
        int | None, typer.Option(min=0, help="Wrong answers drawn for each fact; 0: all.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Step size of the optimiser.")] = None,
    hide: Annotated[
        float | None, typer.Option(help="Share of the facts hidden from each question.")
    ] = None,
    dropout: Annotated[float | None, typer.Option(help="Share of the features left out.")] = None,
    penalty: Annotated[float | None, typer.Option(help="Keeps the factors small.")] = None,
    patience: Annotated[
        int | None, typer.Option(min=1, help="Checks without a better one before it ends.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="Repeats a run exactly; 0 by default.")
    ] = None,
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, help="How often the whole run is kept, to go on from.")
    ] = 60,
) -> None:
    """Train a potential with embeddings of the constants on the triples of train.tsv.

    The parameters that rank the triples of valid.tsv best are kept. Ctrl-C keeps the best so far and
    the whole run, to go on with --resume; after a kill that goes on from the last checkpoint. What you
    do not say of sizes and regularisation is chosen by how many facts a pair of constants has. Writes
    model/, history.csv and training.json.
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
                "--resume goes on with a run as it is. Give nothing else with it but "
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
            "nations), or go on with a run (--resume).",
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
            f"stopped after {result.epochs} epochs, and kept; the best so far is the model.",
            knowledge.resuming(job.folder),
        )
    typer.echo(f"Next: {_next(job.folder)}")


def _next(folder: Path) -> str:
    name = shlex.quote(str(folder))
    return f"nmln kb rank {name}  |  nmln kb complete {name}"


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


class KnowledgeDisplay:
    """A bar on a terminal; a line now and then elsewhere."""

    def __init__(self, job: "KnowledgeJob") -> None:
        from rich.console import Console
        from rich.progress import Progress

        self.console = Console(stderr=True, highlight=False)
        self.live = self.console.is_terminal
        self.bar = Progress(console=self.console, transient=True, disable=not self.live)
        self.minutes, self.epochs = job.settings.minutes, job.settings.epochs
        self.told = time.monotonic()

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
        if not self.live and time.monotonic() - self.told > 20:
            self.told = time.monotonic()
            self.console.print(f"{text}, {step.seconds:.0f} s", markup=False)


@kb.command(epilog="Example:  nmln kb rank runs/kb-nations")
def rank(
    run: Run,
    batch: Annotated[int, typer.Option(min=1, help="Questions at a time.")] = 64,
) -> None:
    """Rank head and tail of every validation and test triple among all constants.

    Candidates that make another known triple are left out (filtered ranks); equal scores share the
    mean of their places. Writes ranking.json and ranks.csv.
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
    epilog="Examples:  nmln kb complete runs/kb-nations --top 20  |  "
    "nmln kb complete runs/kb-nations --relation embassy --surprising"
)
def complete(
    run: Run,
    top: Annotated[int, typer.Option(min=1, help="How many triples.")] = 20,
    relation: Annotated[
        list[str] | None, typer.Option(help="Only of this relation; may be repeated.")
    ] = None,
    surprising: Annotated[
        bool, typer.Option(help="First what is most above its relation's base rate.")
    ] = False,
    held_out: Annotated[
        bool, typer.Option(help="Also triples of valid.tsv and test.tsv, marked as such.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="The CSV file; RUN/missing.csv by default.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """List the most probable missing triples, with probabilities given all training facts."""
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
    with progress("looking at every pair", batches(trained.base, kinds)) as tick:
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
