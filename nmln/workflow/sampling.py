"""Worlds from a trained model, written as they were read, with a page about the chains."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import Generator

from nmln import checkpoint
from nmln.diagnostics import diagnose
from nmln.files import InputError
from nmln.kernels.defaults import kernel_named
from nmln.model import Model
from nmln.recording import Recorder
from nmln.report.summary import write_summary
from nmln.workflow import generation, sources
from nmln.workflow.conditions import Conditions, read_conditions
from nmln.workflow.heads import read_head

THIN = 4  # sweeps from one sample to the next, unless it is said


@dataclass(frozen=True)
class Run:
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

    @property
    def sweeps(self) -> int:
        return sweeps_for(self.count, self.chains, self.burn_in, self.thin)


def sweeps_for(count: int, chains: int, burn_in: int, thin: int) -> int:
    """How many sweeps give so many samples."""
    return burn_in + thin * ceil(count / chains)


def open_run(folder: Path) -> Run:
    """What a user names when asking for samples: the folder of a run."""
    return Run(folder.name, folder, load(folder), read_head(folder)["kind"])


def load(folder: Path) -> Model:
    """The model of a finished run, or what a run has come to so far."""
    if (folder / "model").exists():
        return Model.load(folder / "model")
    kept = checkpoint.load(folder)
    model = Model.described(kept.content, str(kept.path))
    try:
        tree = checkpoint.unflatten(kept.tensors, kept.content["tree"])
        weights = tree["average"] or tree["potential"]
        if not all(isinstance(tensor, torch.Tensor) for tensor in weights.values()):
            raise TypeError("weights are tensors")
    except checkpoint.FOREIGN as error:
        raise InputError(
            f"this checkpoint does not hold a model ({error}). Restore it from a copy.",
            str(kept.path),
        ) from None
    model.take(weights, str(kept.path))
    return model


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
    if opened.kind != "molecules":
        return sample_worlds(opened, wish, output, progress)
    job = begin_molecules(opened, wish, output, overwrite=overwrite)
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, job.settings.sweeps)

    generation.work(job, tick=tick)
    found = generation.finish(job)
    return Sampled(
        found.summary["attempts"],
        {"valid": found.valid},
        found.summary["findings"],
        found.written,
    )


def begin_molecules(
    opened: Run,
    wish: Wish,
    output: Path | None = None,
    *,
    parts: int = 1,
    overwrite: bool = False,
    about: dict[str, Any] | None = None,
) -> generation.Job:
    """Sampling of molecules, begun or gone on with; `generation.work` and `finish` do the rest."""
    if wish.count < 1:
        raise InputError("nothing was sampled: ask for at least one sample.")
    if wish.kernel:
        kernel_named(wish.kernel, opened.model.space)  # a wrong name is told before anything starts
    settings = generation.Settings.of(
        opened.model,
        _conditions(opened.model, wish),
        wish.count,
        parts,
        chains=wish.chains,
        burn_in=wish.burn_in,
        thin=wish.thin,
        moves=wish.moves,
        kernel=wish.kernel,
        seed=wish.seed,
        all_levels=wish.all_levels,
    )
    told = {
        "run": opened.name,
        **(about or {}),
        "scaffold": wish.scaffold,
        "evidence": None if wish.evidence is None else str(wish.evidence),
    }
    folder = output or samples_folder(opened)
    return generation.begin(folder, opened.model, settings, told, overwrite=overwrite)


def samples_folder(opened: Run) -> Path:
    """Where the samples of a run go, unless it is said."""
    return opened.folder / "samples"


def _conditions(model: Model, wish: Wish) -> Conditions:
    return read_conditions(
        model.space,
        evidence=wish.evidence,
        scaffold=wish.scaffold,
        formulas=wish.formulas,
        formula_files=wish.formula_files,
    )


def sample_worlds(
    opened: Run,
    wish: Wish,
    output: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Sampled:
    """Worlds of other kinds than molecules, all in memory until they are written."""
    if wish.all_levels or wish.scaffold is not None:
        raise InputError(
            f"scaffolds and rows of all levels are for molecules, but {opened.name} learned from "
            f"{'graphs' if opened.kind == 'graphs' else 'a .db file'}. Leave them out."
        )
    model, conditions = opened.model, _conditions(opened.model, wish)
    recorder = Recorder()
    found = []
    for sweep in model.sample(
        wish.sweeps,
        Generator().manual_seed(wish.seed),
        chains=wish.chains,
        burn_in=wish.burn_in,
        thin=wish.thin,
        moves=wish.moves,
        kernel=wish.kernel,
        evidence=conditions.evidence,
        recorder=recorder,
        added=conditions.added(model),
    ):
        found.append(sweep.state.values[-1])
        if progress is not None:
            progress(sweep.number, wish.sweeps)
    if not found:
        raise InputError("nothing was sampled: ask for at least one sample.")
    worlds = torch.cat(found)[: wish.count]
    stem = output or samples_folder(opened)
    written = [sources.write(opened.kind, stem, model.space, worlds)]
    findings: list[str] = []
    if recorder.seen > 1:
        diagnostics = diagnose(recorder, model.method.ladder)
        findings = diagnostics.findings()
        page = stem.with_name(f"{stem.name}-chains.html")
        written += write_summary(page, diagnostics, f"Chains of {opened.name}")
    return Sampled(len(worlds), {}, findings, tuple(written))
