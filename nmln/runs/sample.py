"""Worlds from a trained model, written as they were read, with a page about the chains."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmln.errors import InputError
from nmln.extras import MissingExtraError
from nmln.kernels.registry import kernel_named
from nmln.model import Model, load_run
from nmln.runs import data as sources
from nmln.runs import stream
from nmln.runs.conditions import Conditions, read_conditions
from nmln.runs.folder import RunFolder
from nmln.runs.parts import check_part
from nmln.runs.specification import BLOCK
from nmln.runs.workspace import Part, SamplePlace
from nmln.runs.world_files import check_kind

THIN = 4  # sweeps from one sample to the next, unless it is said


@dataclass(frozen=True)
class OpenedRun:
    """A trained model, what kind of worlds it knows, and the folder where its samples go."""

    name: str
    folder: Path
    model: Model
    kind: sources.Kind


@dataclass(frozen=True)
class Sampled:
    """What sampling gave."""

    count: int
    quality: dict[str, float]
    findings: list[str]
    written: tuple[Path, ...]


@dataclass(frozen=True)
class Wish:
    """How many samples, from how long chains, and what they must agree with."""

    count: int
    chains: int = 100
    burn_in: int = 300
    thin: int = THIN
    moves: int = 0  # of a sweep; 0: as the model is set up
    kernel: str = ""  # empty: that which the model is set up with
    seed: int = 0
    all_levels: bool = False
    evidence: Path | None = None
    scaffold: str | None = None
    formulas: Sequence[str] = ()
    formula_files: Sequence[Path] = ()
    block_size: int = BLOCK  # chains that one process draws together

    @property
    def sweeps(self) -> int:
        return sweeps_for(self.count, self.chains, self.burn_in, self.thin)


def sweeps_for(count: int, chains: int, burn_in: int, thin: int) -> int:
    """How many sweeps give so many samples."""
    return burn_in + thin * -(-count // chains)


def open_run(folder: Path) -> OpenedRun:
    """What a user names when asking for samples: the folder of a run."""
    opened = OpenedRun(folder.name, folder, load_run(folder), RunFolder(folder).read_head().kind)
    try:
        check_kind(opened.kind, opened.model.space)
    except MissingExtraError:
        raise
    except InputError as error:
        raise InputError(
            f"this run is said to be of {opened.kind}, but its model is not: {error.message}",
            str(RunFolder(folder).head),
            kind=error.kind,
        ) from None
    return opened


def run(
    folder: Path,
    count: int,
    output: Path | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    overwrite: bool = False,
    **wishes: Any,
) -> Sampled:
    """Sample from the model in a folder, in this process, and write what was found.

    `wishes` are the other fields of `Wish`. Molecules go into a folder, with one row for every attempt;
    other worlds into a file of the format that they were read in.
    """
    opened, wish = open_run(folder), Wish(count, **wishes)
    with stream.only_sampler(place_of(opened, output)):
        job = begin(opened, wish, output, overwrite=overwrite)
        done, whole = 0, job.settings.sweeps * job.settings.parts

        def tick() -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(done, whole)

        stream.work(job, tick=tick)
        found = stream.finish(job)
    quality = {"valid": found.valid} if opened.kind == "molecules" else {}
    return Sampled(found.summary["attempts"], quality, found.summary["findings"], found.written)


def begin(
    opened: OpenedRun,
    wish: Wish,
    output: Path | None = None,
    *,
    part: Part | None = None,
    overwrite: bool = False,
    about: dict[str, Any] | None = None,
) -> stream.SamplingJob:
    """Sampling, begun or gone on with; `stream.work` and `finish` do the rest."""
    if wish.count < 1:
        raise InputError("nothing was sampled: ask for at least one sample.", kind="empty")
    if opened.kind != "molecules" and (wish.all_levels or wish.scaffold is not None):
        raise InputError(
            f"scaffolds and rows of all levels are for molecules, but {opened.name} learned from "
            f"{'graphs' if opened.kind == 'graphs' else 'a .db file'}. Leave them out.",
            kind="unsupported",
        )
    if wish.kernel:
        kernel_named(wish.kernel, opened.model.space)  # a wrong name is told before anything starts
    settings = stream.SamplingSettings.of(
        opened.model,
        _conditions(opened.model, wish),
        wish.count,
        block=wish.block_size,
        chains=wish.chains,
        burn_in=wish.burn_in,
        thin=wish.thin,
        moves=wish.moves,
        kernel=wish.kernel,
        seed=wish.seed,
        all_levels=wish.all_levels,
        kind=opened.kind,
    )
    if part is not None:
        check_part(part, settings)
    told = {
        "run": opened.name,
        **(about or {}),
        "scaffold": wish.scaffold,
        "evidence": None if wish.evidence is None else str(wish.evidence),
    }
    place = place_of(opened, output, part)
    return stream.begin(place, opened.model, settings, told, overwrite=overwrite)


begin_molecules = begin  # the name of earlier versions


def place_of(
    opened: OpenedRun, output: Path | None = None, part: Part | None = None
) -> SamplePlace:
    """Where samples of a run go: to `output`, or beside the run's other files."""
    return SamplePlace(opened.kind, output or samples_folder(opened), part)


def samples_folder(opened: OpenedRun) -> Path:
    """Where the samples of a run go, unless it is said."""
    return RunFolder(opened.folder).samples


def _conditions(model: Model, wish: Wish) -> Conditions:
    return read_conditions(
        model.space,
        evidence=wish.evidence,
        scaffold=wish.scaffold,
        formulas=wish.formulas,
        formula_files=wish.formula_files,
    )
