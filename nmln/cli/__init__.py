"""The command line. Heavy modules are imported only when a verb needs them."""

from contextlib import nullcontext
from inspect import getdoc
from typing import Annotated

import typer

from nmln import __version__
from nmln.cli.baseline import baseline
from nmln.cli.combine import combine
from nmln.cli.common import Verb, alone, examples, reporting_errors
from nmln.cli.data import data
from nmln.cli.evaluate import evaluate
from nmln.cli.infer import infer
from nmln.cli.kb import kb
from nmln.cli.learn import learn
from nmln.cli.likelihood import likelihood
from nmln.cli.report import report
from nmln.cli.reproduce import reproduce
from nmln.cli.reproduce_grid import add_commands
from nmln.cli.run import run
from nmln.cli.sample import sample
from nmln.cli.train import train
from nmln.signals import raising

app = typer.Typer(
    help="Neural Markov Logic Networks with parallel noising.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(
    epilog=examples(
        "nmln run",
        "nmln run --data mine.smi --size 9 --minutes 30",
        "nmln run --minutes 2 --num-samples 10000 --output runs/quick",
    )
)(run)
app.command(
    epilog=examples(
        "nmln train pubchem-10 --minutes 15",
        "nmln train worlds.db --language my.mln",
        "nmln train graphs/ --set chains.moves=5",
        "nmln train --resume runs/pubchem-10",
    )
)(train)
app.command(
    epilog=examples(
        "nmln sample --pretrained pubchem-10",
        "nmln sample runs/pubchem-10 --num-samples 10000",
        'nmln sample runs/pubchem-10 --scaffold "c1ccccc1*"',
        "nmln sample runs/mine --evidence known.db --seed 3",
    )
)(sample)
app.command(
    epilog=examples(
        "nmln infer -i smokers.mln -e known.db -q 'cancer,friends/2' -o result.db",
        "nmln infer -i smokers.mln -e known.db --map",
        "nmln infer -i runs/mine -i extra.mln -q 'smokes(Anna) ^ smokes(Bob)'",
    )
)(infer)
app.command(
    epilog=examples(
        "nmln learn -i smokers.mln -t train.db -o learned.mln",
        "nmln learn -i a.mln -t a.db --set model.potential=fragment -o runs/a",
    )
)(learn)
app.command(epilog=examples("nmln combine runs/one runs/two --output runs/both"))(combine)
app.command(epilog=examples("nmln likelihood runs/pubchem-10 --steps 10000"))(likelihood)
app.command(epilog=examples("nmln report runs/pubchem-10"))(report)
app.command(
    epilog=examples(
        "nmln evaluate runs/pubchem-10",
        "nmln evaluate mine.smi theirs.csv --train train.smi --test test.smi",
        "nmln evaluate counts.csv --run runs/pubchem-10 --no-fcd",
    )
)(evaluate)
app.add_typer(baseline, name="baseline")
app.add_typer(data, name="data")
app.add_typer(kb, name="kb")
add_commands(reproduce)
app.add_typer(reproduce, name="reproduce")


def _tidy_help(group: typer.Typer) -> None:
    """Make help texts fit 80 columns: join the lines of paragraphs, whose breaks typer would keep."""
    for command in group.registered_commands:
        command.cls = Verb
        if text := getdoc(command.callback):
            command.help = "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            _tidy_help(inner.typer_instance)


_tidy_help(app)


def main() -> None:
    """Run the command line; input errors are reported in one line, without a traceback."""
    # One of several processes keeps the default signal handlers until it has something to save.
    with reporting_errors(), raising() if alone() else nullcontext():
        app(prog_name="nmln")


def _version(wanted: bool | None) -> bool | None:
    if wanted:
        from nmln.potentials import compiled  # brings torch, which takes seconds

        typer.echo(f"nmln {__version__}\nThe compiled kernel is {compiled.state()}.")
        raise typer.Exit
    return wanted


@app.callback()
def common(
    version: Annotated[
        bool | None,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = None,
) -> None:
    """Neural Markov Logic Networks with parallel noising.

    Worlds are sets of true ground atoms; text files list one literal per line.
    """
