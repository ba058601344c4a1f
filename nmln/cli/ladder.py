"""What training says of its ladder: its levels before the first step, its swaps after the last."""

from typing import TYPE_CHECKING

from nmln.errors import InputError

if TYPE_CHECKING:
    from nmln.runs.train import TrainingJob


def before(job: "TrainingJob") -> tuple[str, list[str]]:
    """The levels in words, and notes on those that will seldom swap."""
    from nmln.report.ladder import RARE_SWAPS, cure_of, ladder_in_words
    from nmln.training.rates import predicted_of

    noise, predicted = job.trainer.method.noise, predicted_of(job.trainer)
    rare = bool(predicted) and min(predicted) < RARE_SWAPS
    notes = [f"some levels will seldom swap. {cure_of(predicted, predicted)}"] if rare else []
    return ladder_in_words(noise.rates, predicted), notes


def after(job: "TrainingJob") -> tuple[list[str], list[str]]:
    """How often neighbouring levels swapped, as in the report, and notes on those that seldom did."""
    from nmln.report.ladder import swap_sentences
    from nmln.runs.pages import read_run

    try:
        run = read_run(job.folder)
    except InputError:  # no step was recorded, or its record was lost
        return [], []
    return swap_sentences(run.levels, run.swaps or ())
