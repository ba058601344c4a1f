"""The command line. Nothing heavy is imported before a verb needs it."""

from contextlib import nullcontext
from typing import Annotated

import typer

from nmln import __version__
from nmln.cli.combine import combine
from nmln.cli.common import alone, reporting_errors
from nmln.cli.data import data
from nmln.cli.evaluate import evaluate
from nmln.cli.infer import infer
from nmln.cli.kb import kb
from nmln.cli.learn import learn
from nmln.cli.likelihood import likelihood
from nmln.cli.report import report
from nmln.cli.reproduce import reproduce
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
    epilog="Examples:  nmln run  |  nmln run --data mine.smi --size 9 --minutes 30  |  "
    "nmln run --minutes 2 --num-samples 10000 --output runs/quick"
)(run)
app.command(
    epilog="Examples:  nmln train pubchem-10 --minutes 15  |  nmln train worlds.db --language my.mln"
    "  |  nmln train --resume runs/pubchem-10  |  nmln train graphs/ --set chains.moves=5"
)(train)
app.command(
    epilog="Examples:  nmln sample --pretrained pubchem-10  |  "
    "nmln sample runs/pubchem-10 --num-samples 10000  |  "
    'nmln sample runs/pubchem-10 --scaffold "c1ccccc1*"  |  '
    "nmln sample runs/mine --evidence known.db --seed 3"
)(sample)
app.command(
    epilog="Examples:  nmln infer -i smokers.mln -e evidence.db -q 'Cancer,Friends/2' -o result.db  |  "
    "nmln infer -i smokers.mln -e evidence.db --map  |  "
    "nmln infer -i runs/mine -i extra.mln -q 'Smokes(Anna) ^ Smokes(Bob)' --closed '*'"
)(infer)
app.command(
    epilog="Examples:  nmln learn -i smokers.mln -t train.db -o learned.mln  |  "
    "nmln learn -i smokers.mln -t train.db --set model.potential=fragment -o runs/smokers"
)(learn)
app.command(epilog="Example:  nmln combine runs/one runs/two --output runs/both")(combine)
app.command(epilog="Example:  nmln likelihood runs/pubchem-10 --steps 10000")(likelihood)
app.command(epilog="Example:  nmln report runs/pubchem-10")(report)
app.command(
    epilog="Examples:  nmln evaluate runs/pubchem-10  |  nmln evaluate mine.smi theirs.csv "
    "--train train.smi --test test.smi  |  nmln evaluate counts.csv --run runs/pubchem-10 --no-fcd"
)(evaluate)
app.add_typer(data, name="data")
app.add_typer(kb, name="kb")
app.add_typer(reproduce, name="reproduce")


def main() -> None:
    """Run the command line; a user's mistake ends in one line, not in a traceback."""
    # One of several processes that has nothing to keep yet ends at once.
    with reporting_errors(), raising() if alone() else nullcontext():
        app(prog_name="nmln")


def _version(wanted: bool | None) -> bool | None:
    if wanted:
        typer.echo(f"nmln {__version__}")
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

    Worlds are sets of true ground atoms; text files hold them one literal a line.
    """
