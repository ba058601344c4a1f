"""Samples of a trained model, written in the format of its data, with a page about the chains."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmln import devices
from nmln.errors import InputError
from nmln.extras import MissingExtraError
from nmln.kernels.registry import kernel_named
from nmln.model import Model, load_run
from nmln.model.domains import asked_for
from nmln.model.replicas import Decision, Start, decide
from nmln.runs import data as sources
from nmln.runs import stream
from nmln.runs.conditions import Conditions, read_conditions
from nmln.runs.folder import RunFolder
from nmln.runs.parts import check_part
from nmln.runs.specification import THIN, start_of
from nmln.runs.workspace import Part, SamplePlace
from nmln.runs.world_files import check_kind

CHAINS = 100
"""Chains of a sampling, unless another number is asked for or has to be smaller."""

QUICK, DRAWS, LEAST_CHAINS, QUICK_THIN = 1000, 10, 10, 2
"""Fewer samples from replicas are a quick look: so many per chain, so many chains at least, and thinned
less."""


@dataclass(frozen=True)
class OpenedRun:
    """A trained model, the kind of its data, and the folder of its run."""

    name: str
    folder: Path
    model: Model
    kind: sources.Kind

    def conditions(
        self, size: int | None = None, sizes: Sequence[int] | None = None, **given: Any
    ) -> Conditions:
        """The sizes to draw, and the conditions that a user gives, as `read_conditions` takes them."""
        if self.kind != "molecules" and given.get("scaffold") is not None:
            raise self.for_molecules()
        model = self.model
        domains = asked_for(model.domains, model.space, size, sizes)
        if not model.domains and all(one.space == model.space for one in domains):
            return read_conditions(model.space, **given)
        return read_conditions(domains, **given)

    def for_molecules(self) -> InputError:
        """The error for options that only runs on molecules support."""
        return InputError(
            f"--scaffold and --all-levels are for molecules, but {self.name} was trained on "
            f"{'graphs' if self.kind == 'graphs' else 'a .db file'}. Leave them out.",
            kind="unsupported",
        )


@dataclass(frozen=True)
class Sampled:
    """The results of a sampling."""

    count: int
    quality: dict[str, float]
    findings: list[str]
    written: tuple[Path, ...]


def open_run(folder: Path) -> OpenedRun:
    """Open the folder of a run for sampling."""
    opened = OpenedRun(folder.name, folder, load_run(folder), RunFolder(folder).read_head().kind)
    try:
        check_kind(opened.kind, opened.model.space)
    except MissingExtraError:
        raise
    except InputError as error:
        raise InputError(
            f"the kind of this run must fit its model, but is {opened.kind}: {error.message}",
            str(RunFolder(folder).head),
            kind=error.kind,
        ) from None
    return opened


def run(
    folder: Path,
    count: int,
    output: Path | None = None,
    *,
    evidence: Path | None = None,
    scaffold: str | None = None,
    formulas: Sequence[str] = (),
    formula_files: Sequence[Path] = (),
    size: int | None = None,
    sizes: Sequence[int] | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> Sampled:
    """Sample from the model in a folder, in this process, and write the samples.

    Molecules go into a folder, with one row per attempt; other worlds into a file in the format of the
    training data.

    Args:
        folder: the folder of a training run.
        count: the number of samples.
        output: the output; by default `samples` in the folder of the run.
        evidence: a `.db` file with literals that hold in every sample.
        scaffold: SMILES of a substructure of every molecule.
        formulas: weighted or hard formulas.
        formula_files: `.mln` files with more of them.
        size: the size of all samples; one that was not in the data is an extrapolation.
        sizes: several sizes, by their shares in the data. By default all sizes of the data.
        overwrite: whether older samples may be replaced, once the new ones are complete.
        progress: called with the number of sweeps done and their total.
        settings: other fields of `SamplingSettings`: chains, burn_in, thin, moves, kernel, seed,
            all_levels, block, device, sharpen, minutes; and `start`, see `begin`.
    """
    opened = open_run(folder)
    with stream.only_sampler(place_of(opened, output)):
        conditions = opened.conditions(
            evidence=evidence,
            scaffold=scaffold,
            formulas=formulas,
            formula_files=formula_files,
            size=size,
            sizes=sizes,
        )
        job = begin(opened, conditions, count, output, overwrite=overwrite, **settings)
        done, whole = 0, sum(map(job.settings.sweeps_of, job.blocks))

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
    conditions: Conditions,
    count: int,
    output: Path | None = None,
    *,
    part: Part | None = None,
    overwrite: bool = False,
    about: dict[str, Any] | None = None,
    start: Start = "auto",
    burn_in: int | None = None,
    chains: int | None = None,
    thin: int | None = None,
    **settings: Any,
) -> stream.SamplingJob:
    """Start a sampling, or continue the same one; `stream.work` and `finish` perform it.

    Args:
        opened: the run.
        conditions: sizes, evidence and formulas.
        count: the number of samples.
        output: the output; by default `samples` in the folder of the run.
        part: the part that is drawn here, if the sampling is divided.
        overwrite: whether older samples may be replaced, once the new ones are complete.
        about: entries for the summary, such as the command.
        start: where the chains start: `noise`, the replicas of the `model`, or `auto`, see `decide`.
        burn_in: sweeps before the first sample; by default as many as the start needs.
        chains: the number of chains; by default 100, or fewer for a quick look.
        thin: sweeps from one sample to the next; by default 4, or 2 for a quick look, which is fewer
            than 1,000 samples from replicas.
        settings: other fields of `SamplingSettings`.
    """
    if count < 1:
        raise InputError(f"the number of samples must be at least 1, got {count}.", kind="empty")
    if kernel := settings.get("kernel"):
        kernel_named(kernel, opened.model.space)  # a wrong name is refused before anything starts
    told = beginning(
        opened.model,
        conditions,
        start,
        burn_in,
        settings.get("moves", 0),
        settings.get("sharpen", 1.0),
    )
    quick = told.from_replicas and count < QUICK
    few = max(LEAST_CHAINS, count // DRAWS) if quick else CHAINS
    settings["device"] = devices.chosen(settings.get("device", "auto"))
    asked = stream.SamplingSettings.of(
        opened.model,
        conditions,
        count,
        kind=opened.kind,
        burn_in=told.burn_in,
        chains=few if chains is None else chains,
        thin=thin if thin is not None else QUICK_THIN if quick else THIN,
        start=start_of(opened.model) if told.from_replicas else "",
        **settings,
    )
    if opened.kind != "molecules" and asked.all_levels:
        raise opened.for_molecules()
    if asked.minutes:
        _check_limited(opened, asked, part)
    if part is not None:
        check_part(part, asked)
    described = {"run": opened.name, **(about or {}), "scaffold": None, "evidence": None}
    described["start"] = told.why
    place = place_of(opened, output, part)
    return stream.begin(
        place, opened.model, asked, {**described, **conditions.named}, overwrite=overwrite
    )


def _check_limited(opened: OpenedRun, asked: stream.SamplingSettings, part: Part | None) -> None:
    """Refuse a limit of time where samples of several sizes, parts or files would end unequally."""
    reason = None
    if opened.kind != "molecules":
        reason = "is for molecules, but this run has other worlds"
    elif part is not None:
        reason = "cannot be divided into parts: they would end at different samples"
    elif len(asked.domains) > 1:
        reason = "needs samples of one size: choose it with --size"
    if reason is not None:
        raise InputError(
            f"a sampling with --minutes {reason}. Give --num-samples alone otherwise.",
            str(opened.folder),
            token="--minutes",
            kind="unsupported",
        )


def beginning(
    model: Model,
    conditions: Conditions,
    start: Start,
    burn_in: int | None,
    moves: int = 0,
    sharpen: float = 1.0,
) -> Decision:
    """Where the chains of a sampling start, and how long they burn in."""
    models = [model.on(one.space, warn=False) for one, _ in conditions.domains] or [model]
    evidence = [conditions.evidence, *(one for _, one in conditions.domains)]
    reason = None
    if conditions.formulas:
        reason = "formulas are given"
    elif conditions.named.get("scaffold") is not None:
        reason = "a scaffold is given"
    elif any(one is not None for one in evidence):
        reason = "evidence is given"
    elif sharpen != 1:
        reason = "the target is sharpened"
    pace = moves / model.config.sampling.moves if moves else 1.0
    return decide(start, burn_in, [one.replicas for one in models], reason, pace)


def place_of(
    opened: OpenedRun, output: Path | None = None, part: Part | None = None
) -> SamplePlace:
    """The place of the samples of a run: `output`, or the default in the folder of the run."""
    return SamplePlace(opened.kind, output or samples_folder(opened), part)


def samples_folder(opened: OpenedRun) -> Path:
    """The default output of the samples of a run."""
    return RunFolder(opened.folder).samples
