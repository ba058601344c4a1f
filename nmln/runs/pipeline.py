"""The main job, `nmln run`: from a file of molecules to a model, new molecules and a report.

Its stages are functions: read, train, sample, conclude. All work in one folder, which is that of the
training run, so that an interrupted job continues where it stopped. `Performer` decides in how many
processes a stage is performed and what is shown meanwhile.
"""

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from nmln.devices import generator
from nmln.dropped import dropped_lines
from nmln.errors import InputError
from nmln.files import only_one
from nmln.model import Model
from nmln.runs import data as sources
from nmln.runs import job_page, pages, stream
from nmln.runs import sample as sampling
from nmln.runs import train as training
from nmln.runs.data import Source
from nmln.runs.folder import RunFolder
from nmln.runs.job import JobSettings, begin, repeating, write_settings
from nmln.runs.job_page import JobOutcome, read_summary
from nmln.runs.sample import OpenedRun
from nmln.runs.specification import THIN, SamplingSettings
from nmln.runs.workspace import SETTINGS, SUMMARY, SamplePlace, only_sampler, tidy

SHARE = 0.35
"""The time for generating as a share of the training time, if no number of samples is given."""

LEAST, MOST = 10_000, 200_000
"""The range of the number of samples per level, if none is given."""

_LOCK = ".main.lock"
_PILOT = 20  # sweeps of the timing

Say = Callable[[str], None]


class Performer:
    """Performs stages in this process, without a display.

    The command line has a subclass with several processes and a display.
    """

    command = "nmln run"
    """The command that the summary of the samples records."""

    def on_stage(self, number: int, text: str) -> None:
        """Called when a stage starts, or is skipped because it is finished."""

    def on_note(self, text: str) -> None:
        """Called with a remark about a stage."""

    def train(self, folder: Path, job: "JobSettings", source: Source | None, count: int) -> None:
        """Train in a folder, or continue its training; `count` is the number of processes."""
        if RunFolder(folder).is_run:
            training.run(training.resume(folder))
        else:
            start = job.begun()
            training.run(training.begin(folder, job.config(1, start), source=source, start=start))

    def draw(self, job: stream.SamplingJob, folder: Path, count: int) -> None:
        """Draw all samples; `count` is the number of processes."""
        stream.work(job)

    @contextmanager
    def showing(self) -> Iterator[Say]:
        """A function that is called with the current activity."""
        yield lambda _: None


STAGES = 4


def run(
    folder: Path, settings: JobSettings, processes: int = 1, by: Performer | None = None
) -> JobOutcome:
    """Perform all stages that are not finished.

    Args:
        folder: the folder of the results.
        settings: the settings of the job.
        processes: the largest number of processes.
        by: performs the stages and shows their progress.
    """
    by = by or Performer()
    check_kind(settings.data)
    start = None if RunFolder(folder).is_run else settings.begun()
    config = settings.config(1, start)  # refuses wrong settings before anything is read
    count = min(processes, config.chains.replicas, config.training.batch)
    with ExitStack() as held:
        settings, source = read(folder, settings, held, by)
        train(folder, settings, source, count, by)
        sample(folder, settings, count, by)
        by.on_stage(4, "Evaluating every level and writing the report: one or two minutes.")
        with by.showing() as say:
            return conclude(folder, say)


def read(
    folder: Path, settings: JobSettings, held: ExitStack, by: Performer
) -> tuple[JobSettings, Source | None]:
    """The first stage: read the data, unless the run exists; `held` holds the lock of the job."""
    if RunFolder(folder).is_run:
        held.enter_context(alone(folder))
        settings = begin(folder, settings)
        by.on_stage(1, f"{settings.data} was read earlier: continuing in {folder}")
        return settings, None
    by.on_stage(1, f"Reading {settings.data}: some thousand molecules per second.")
    source = load(settings)
    held.enter_context(alone(folder))
    settings = begin(folder, settings)
    by.on_note(
        f"{len(source.names):,} molecules: {len(source.train):,} to learn from, "
        f"{len(source.test):,} held out. All results go to {folder}"
    )
    if len(source.buckets) > 1:
        by.on_note(f"of several sizes, {source.domains_in_words}")
    if source.dropped:
        by.on_note(f"note: {dropped_lines(source.dropped)}")
    return settings, source


def train(
    folder: Path, settings: JobSettings, source: Source | None, count: int, by: Performer
) -> None:
    """The second stage: train the model."""
    if trained(folder):
        by.on_stage(2, "Training is already finished.")
        return
    length = settings.config().training.minutes
    limit = "" if length is None else f" for {length:g} minutes in all"
    begun = RunFolder(folder).is_run
    by.on_stage(
        2,
        f"{'Continuing the training' if begun else 'Training'}{limit}, in {count} "
        f"process{'es' if count > 1 else ''}.",
    )
    by.train(folder, settings, source, count)


def sample(folder: Path, settings: JobSettings, count: int, by: Performer) -> None:
    """The third stage: draw molecules at every level."""
    if sampled(folder):
        by.on_stage(3, "Generating is already finished.")
        return
    opened = sampling.open_run(folder)
    settings = settle(folder, opened, settings, count)
    with only_sampler(sampling.place_of(opened)):
        job = sample_job(opened, settings, by.command)
        count = min(count, len(job.blocks))
        seconds = job.left * seconds_a_sweep(opened, settings, count)
        by.on_stage(
            3,
            f"Generating {settings.samples:,} molecules at each of {len(job.levels)} levels: about "
            f"{seconds // 60:.0f}:{seconds % 60:02.0f} minutes.",
        )
        by.draw(job, folder, count)
        stream.finish(job, count)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock of the main job in a folder; its stages have locks of their own."""
    with only_one(folder / _LOCK, "running nmln run"):
        yield


# The settings of a job.


def check_kind(data: str) -> None:
    """Refuse data other than molecules, and name the commands for them."""
    if (kind := sources.kind_of(data)) != "molecules":
        source = shlex.quote(data)
        name = shlex.quote(str(Path("runs") / Path(data).name.split(".")[0]))
        what = "graphs" if kind == "graphs" else "worlds of other kinds"
        raise InputError(
            f"the main job is for molecules, but this holds {what}. Train on them with: nmln train "
            f"{source}, then nmln sample {name}",
            data,
            kind="unsupported",
        )


def load(settings: JobSettings) -> Source:
    """The molecules, split; refuses too few for a training and a test set."""
    source = sources.load(settings.config().data)
    if not len(source.train) or not len(source.test):
        raise InputError(
            f"{len(source.names)} molecules cannot be split into a training and a test set. Give more "
            "of them.",
            settings.data,
            kind="empty",
        )
    return source


# Stages.


def trained(folder: Path) -> bool:
    return RunFolder(folder).model.exists()


def sampled(folder: Path) -> bool:
    """Whether all samples are in place and no sampling is unfinished."""
    place = SamplePlace("molecules", RunFolder(folder).samples)
    return (place.home / SUMMARY).exists() and not (place.work / SETTINGS).exists()


def settle(folder: Path, opened: OpenedRun, settings: JobSettings, processes: int) -> JobSettings:
    """Settings with a number of samples: as given, or as many as fit the time, which is recorded."""
    if settings.samples is None:
        minutes = pages.read_run(folder).seconds / 60
        chosen = fitting_samples(opened, settings, SHARE * minutes, processes)
        settings = replace(settings, samples=chosen)
        write_settings(folder, settings)
    return settings


def fitting_samples(
    opened: OpenedRun, settings: JobSettings, minutes: float, processes: int
) -> int:
    """The number of samples that fit a time, by a timing of the model; in whole thousands."""
    each = seconds_a_sweep(opened, settings, processes)
    told = sampling.beginning(opened.model, opened.conditions(), "auto", settings.burn_in_asked)
    draws = (60 * minutes / each - told.burn_in) / THIN
    thousands = int(draws * settings.chains) // 1000
    return min(MOST, max(LEAST, 1000 * thousands))


def seconds_a_sweep(opened: OpenedRun, settings: JobSettings, processes: int) -> float:
    """The measured time of one sweep of all blocks of a process, in seconds."""
    count = settings.samples or LEAST
    asked = SamplingSettings.of(
        opened.model, opened.conditions(), count, chains=settings.chains, seed=settings.seed
    )
    there = opened.model.to(settings.config().training.device)
    each = sum(
        own.parts * _seconds_of(model, -(-own.chains // own.parts), settings.seed)
        for model, own in zip(asked.models(there), asked.sections, strict=True)
        if own.parts
    )
    return each / asked.parts * -(-asked.parts // processes)


def _seconds_of(model: Model, chains: int, seed: int) -> float:
    """The measured time of one sweep of some chains, in seconds."""
    sweeps = model.sample(
        1 + _PILOT, generator(model.potential.device, seed), chains=chains, burn_in=0
    )
    next(sweeps)  # the first one warms up
    start = time.perf_counter()
    for _ in sweeps:
        pass
    return (time.perf_counter() - start) / _PILOT


def sample_job(
    opened: OpenedRun, settings: JobSettings, command: str = Performer.command
) -> stream.SamplingJob:
    """Sampling at all levels into the folder of the run, started or resumed."""
    assert settings.samples is not None
    about = {"command": command, "resume": "the same command again"}
    return sampling.begin(
        opened,
        opened.conditions(),
        settings.samples,
        about=about,
        chains=settings.chains,
        burn_in=settings.burn_in_asked,
        seed=settings.seed,
        all_levels=True,
        device=settings.config().training.device,
    )


def conclude(folder: Path, say: Say = lambda _: None) -> JobOutcome:
    """Evaluate the samples of every level and write the report."""
    place = SamplePlace("molecules", RunFolder(folder).samples)
    with only_sampler(place):
        tidy(place)  # a kill may have left a part of the working folder behind
    attempts = read_summary(place.home / SUMMARY)["attempts"]
    return job_page.conclude(folder, repeating(folder, attempts), say)
