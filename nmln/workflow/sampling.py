"""Worlds from a trained model, written as they were read, with a page about the chains."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import torch
from torch import Generator

from nmln import checkpoint
from nmln.diagnostics import diagnose
from nmln.evidence import Evidence
from nmln.files import InputError
from nmln.formats.db import read_evidence
from nmln.model import Model
from nmln.recording import Recorder
from nmln.report.summary import write_summary
from nmln.workflow import sources
from nmln.workflow.training import read_head


@dataclass(frozen=True)
class Sampled:
    """What sampling gave."""

    count: int
    quality: dict[str, float]
    findings: list[str]
    written: tuple[Path, ...]


def sweeps_for(count: int, chains: int, burn_in: int, thin: int) -> int:
    """How many sweeps give so many samples."""
    return burn_in + thin * ceil(count / chains)


def load(folder: Path) -> Model:
    """The model of a finished run, or what a run has come to so far."""
    if (folder / "model").exists():
        return Model.load(folder / "model")
    kept = checkpoint.load(folder)
    model = Model.described(kept.content, str(kept.path))
    tree = checkpoint.unflatten(kept.tensors, kept.content["tree"])
    model.potential.load_state_dict(tree["average"] or tree["potential"])
    return model


def run(
    folder: Path,
    count: int,
    output: Path | None = None,
    *,
    evidence: Path | None = None,
    chains: int = 100,
    burn_in: int = 300,
    thin: int = 1,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Sampled:
    """Sample worlds from the target level of the model in a folder, and write them."""
    head = read_head(folder)
    model = load(folder)
    known: Evidence | None = None
    if evidence is not None:
        known = read_evidence(evidence, model.space)
    recorder = Recorder()
    found = []
    sweeps = sweeps_for(count, chains, burn_in, thin)
    for sweep in model.sample(
        sweeps,
        Generator().manual_seed(seed),
        chains=chains,
        burn_in=burn_in,
        thin=thin,
        evidence=known,
        recorder=recorder,
    ):
        found.append(sweep.state.values[-1])
        if progress is not None:
            progress(sweep.number, sweeps)
    if not found:
        raise InputError("nothing was sampled: ask for at least one sample.")
    worlds = torch.cat(found)[:count]
    kind: sources.Kind = head["kind"]
    stem = output or folder / "samples"
    written = [sources.write(kind, stem, model.space, worlds)]
    findings: list[str] = []
    if recorder.seen > 1:
        diagnostics = diagnose(recorder, model.method.ladder)
        findings = diagnostics.findings()
        page = stem.with_name(f"{stem.name}-chains.html")
        written += write_summary(page, diagnostics, f"Chains of {folder.name}")
    quality = sources.Quality.of(kind, model.space).measure(worlds)
    return Sampled(len(worlds), quality, findings, tuple(written))
