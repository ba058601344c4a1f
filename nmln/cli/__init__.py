"""The command line. Nothing heavy is imported before a verb needs it."""

import warnings
from typing import Annotated

import typer

from nmln import __version__
from nmln.cli.common import fail, warn
from nmln.cli.data import data
from nmln.cli.likelihood import likelihood
from nmln.cli.reproduce import reproduce
from nmln.cli.run import run
from nmln.cli.sample import sample
from nmln.cli.train import train
from nmln.files import InputError, InterruptedRunError, LostProcessError

app = typer.Typer(
    help="Neural Markov Logic Networks with parallel noising.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(
    epilog="Examples:  nmln run  |  nmln run --rates 0.2,0.05,0.01 --seed 7 --output runs/mine"
)(run)
app.command(
    epilog="Examples:  nmln train pubchem-10 --minutes 15  |  nmln train worlds.db --language my.mln"
    "  |  nmln train --resume runs/pubchem-10  |  nmln train graphs/ --set chains.moves=5"
)(train)
app.command(
    epilog="Examples:  nmln sample runs/pubchem-10 --num-samples 10000  |  "
    "nmln sample runs/mine --evidence known.db --seed 3"
)(sample)
app.command(epilog="Example:  nmln likelihood runs/pubchem-10 --steps 2000")(likelihood)
app.add_typer(data, name="data")
app.add_typer(reproduce, name="reproduce")


def main() -> None:
    """Run the command line; a user's mistake ends in one line, not in a traceback."""
    warnings.showwarning = warn
    try:
        app(prog_name="nmln")
    except InputError as error:
        fail(str(error))
    except InterruptedRunError as error:
        fail(str(error), code=130)
    except LostProcessError:
        raise SystemExit(3) from None  # the process that started all says what happened
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        fail(f"{where}{error.strerror or error}.")
    except MemoryError:
        fail("this does not fit into the memory of the machine. Ask for less at a time.")
    except KeyboardInterrupt:
        fail("interrupted.", code=130)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nmln {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Neural Markov Logic Networks with parallel noising.

    Worlds are sets of true ground atoms; text files hold them one literal a line.
    """
