"""Knowledge bases with files: train, rank, complete."""

import csv
import io
import re
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Generator

from nmln import checkpoint
from nmln.errors import InputError
from nmln.files import refuse_links, write_json, write_lines
from nmln.knowledge import completion, ranking
from nmln.knowledge.data import KnowledgeBase
from nmln.knowledge.potential import KnowledgePotential
from nmln.knowledge.ranking import scorer
from nmln.knowledge.settings import KnowledgeSettings, check_memory, recommended
from nmln.knowledge.storing import TrainedBase, load_training, save_training
from nmln.knowledge.training import DivergedError, Progress, Result, Training
from nmln.runs.folder import RunFolder, foreign, writing
from nmln.runs.train import interruption

SUMMARY, HISTORY = "training.json", "history.csv"
SAVE_EVERY = 60.0  # seconds between two checkpoints


@dataclass(frozen=True)
class KnowledgeJob:
    """A training that is ready to start or to continue: data are read and the memory is checked."""

    folder: Path
    training: Training
    bytes_expected: int
    resumed: bool = False

    @property
    def base(self) -> KnowledgeBase:
        return self.training.base

    @property
    def settings(self) -> KnowledgeSettings:
        return self.training.settings

    @property
    def description(self) -> str:
        """The sizes, the expected memory, the objective and the folder."""
        after = f", continuing after epoch {len(self.training.history)}" if self.resumed else ""
        return (
            f"{self.base.sizes}\nabout {self.bytes_expected / 2**20:,.0f} MiB of memory, "
            f"objective: {self.settings.objective}, kept in {self.folder}{after}"
        )


def begin(
    where: str, folder: Path | None, shape: Mapping[str, Any], settings: Mapping[str, Any]
) -> KnowledgeJob:
    """Read a knowledge base, and check the memory that the run needs and the folder.

    Values that `shape` and `settings` leave out are chosen for the data.
    """
    base = KnowledgeBase.read(where)
    of, by = recommended(base, shape, settings)
    folder = folder or Path("runs") / f"kb-{base.name}"
    _check_new(folder)
    needed = check_memory(base, of, by)
    potential = KnowledgePotential(base.space, of, rng=Generator().manual_seed(by.seed))
    return KnowledgeJob(folder, Training(potential, base, by), needed)


def _check_new(folder: Path) -> None:
    """Refuse a folder that holds a run, or a file that a run would replace."""
    refuse_links(folder)
    if RunFolder(folder).is_run or RunFolder(folder).is_baseline:
        raise InputError(
            "this folder holds a run of nmln train or a baseline. Name another one with --output.",
            str(folder),
            kind="exists",
        )
    if (folder / SUMMARY).exists() and not _is_own_summary(folder / SUMMARY):
        raise foreign(folder / SUMMARY)
    if checkpoint.saved_steps(folder) and not finished(folder):
        raise InputError(
            f"this folder holds an unfinished run. Continue it ({resuming(folder)}), or name another "
            "one with --output.",
            str(folder),
            kind="exists",
        )
    RunFolder(folder).check_model()
    if RunFolder(folder).model.exists():
        raise InputError(
            "this folder holds a trained model. Name another one with --output, or remove it.",
            str(folder),
            kind="exists",
        )
    if (folder / HISTORY).exists() and not (folder / SUMMARY).exists():
        raise foreign(folder / HISTORY)
    _check_checkpoints(RunFolder(folder).checkpoints)


def _is_own_summary(path: Path) -> bool:
    with suppress(InputError):
        return {"interrupted", "settings", "shape"} <= checkpoint.read_json(path).keys()
    return False


def _check_checkpoints(folder: Path) -> None:
    """Refuse a folder of checkpoints with anything else in it."""
    if folder.exists() and not folder.is_dir():
        raise foreign(folder)
    for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not re.fullmatch(r"\.?step-[0-9]{9,}(\.partial|\.replaced)?", entry.name):
            raise foreign(entry)


def finished(folder: Path) -> bool:
    """Whether the run in a folder is finished."""
    refuse_links(folder)
    path = folder / SUMMARY
    return path.exists() and checkpoint.read_json(path).get("interrupted") is False


def resuming(folder: Path) -> str:
    """The command that resumes a run."""
    return shlex.join(["nmln", "kb", "train", "--resume", str(folder)])


def _check_unfinished(folder: Path) -> None:
    if finished(folder):
        raise InputError(
            "this run is finished: there is nothing to continue.", str(folder), kind="missing"
        )


def resume(folder: Path) -> KnowledgeJob:
    """Continue a run from its newest intact checkpoint."""
    _check_unfinished(folder)
    if not checkpoint.saved_steps(folder):
        raise InputError(
            "there is no checkpoint of nmln kb train in this folder. Start a run: nmln kb train nations",
            str(folder),
            kind="missing",
        )
    with RunFolder(folder).locked():  # refused before everything is read
        RunFolder(folder).check_model()
    training = load_training(folder)
    needed = check_memory(training.base, training.potential.shape, training.settings)
    return KnowledgeJob(folder, training, needed, resumed=True)


def run(
    job: KnowledgeJob,
    watch: Callable[[Progress], None] = lambda progress: None,
    save_every: float = SAVE_EVERY,
) -> Result:
    """Train, and write model/, history.csv and training.json into the folder of the run.

    The training is saved as a checkpoint every `save_every` seconds and when a signal stops it; then the
    files hold the best parameters so far. At the end the checkpoints are removed.
    """
    with RunFolder(job.folder).locked(), interruption(True) as interrupted:
        # Checked again, because another process may have written here in the meantime.
        if job.resumed:
            _check_unfinished(job.folder)
        else:
            _check_new(job.folder)
            _drop_checkpoints(job.folder)
            for name in (HISTORY, SUMMARY):  # of a run whose model has been removed
                (job.folder / name).unlink(missing_ok=True)
            save_training(job.training, job.folder)
        try:
            _train(job.training, job.folder, watch, interrupted, save_every)
        except DivergedError:
            _drop_checkpoints(job.folder)  # a continued run would diverge again
            raise
        result = job.training.result()
        _write(job, result)
        if not result.interrupted:
            _drop_checkpoints(job.folder)
    return result


def _drop_checkpoints(folder: Path) -> None:
    checkpoint.discard_after(folder, -1)
    with suppress(OSError):  # it does not exist, or holds other files
        RunFolder(folder).checkpoints.rmdir()


def _train(
    training: Training,
    folder: Path,
    watch: Callable[[Progress], None],
    interrupted: Callable[[], bool],
    save_every: float,
) -> None:
    """Train to the end, or until a signal asks to stop."""
    saved = time.monotonic()
    for progress in training.steps():
        if progress is not None:
            watch(progress)
        stop = interrupted() and not training.ended
        if stop or time.monotonic() - saved >= save_every:
            save_training(training, folder)
            saved = time.monotonic()
        if stop:
            return


def _write(job: KnowledgeJob, result: Result) -> None:
    """Write the files of a run, training.json last: it records whether the run is finished."""
    base, potential = job.base, job.training.potential
    TrainedBase(base, potential, asdict(job.settings)).save(RunFolder(job.folder).model)
    rows = [step._asdict() for step in result.history]
    with writing(job.folder / HISTORY, resuming(job.folder)):
        _write_csv(job.folder / HISTORY, Progress._fields, rows)
    content = {
        "name": base.name,
        "source": base.source,
        "notes": base.notes,
        "shape": asdict(potential.shape),
        "settings": asdict(job.settings),
        "epoch": result.epoch,
        "epochs": result.epochs,
        "seconds": result.seconds,
        "interrupted": result.interrupted,
        "valid": None if result.valid is None else asdict(result.valid),
    }
    with writing(job.folder / SUMMARY, resuming(job.folder)):
        write_json(job.folder / SUMMARY, content, ascii_only=False)


def load(folder: Path) -> TrainedBase:
    """The model of a run."""
    refuse_links(folder)
    if not RunFolder(folder).model.exists():
        if checkpoint.saved_steps(folder):
            raise InputError(
                "this run is not finished, so it has no model yet. Continue it: "
                f"{resuming(folder)}",
                str(folder),
                kind="exists",
            )
        raise InputError(
            "there is no trained knowledge base in this folder. Train one: nmln kb train nations",
            str(folder),
            kind="missing",
        )
    return TrainedBase.load(RunFolder(folder).model)


def ranked_splits(trained: TrainedBase) -> dict[str, int]:
    """The splits that can be ranked, with the number of triples in each."""
    counts = {split: len(getattr(trained.base, split)) for split in ("valid", "test")}
    counts = {split: count for split, count in counts.items() if count}
    if not counts:
        raise InputError(
            "there is nothing to rank: this knowledge base was trained without valid.tsv and test.tsv. "
            "Add one of them to its folder and train again.",
            trained.base.source or None,
            kind="missing",
        )
    return counts


def rank(
    trained: TrainedBase,
    folder: Path,
    *,
    batch: int = 64,
    tick: Callable[[int], None] = lambda done: None,
) -> dict[str, ranking.Ranking]:
    """Rank both sides of the validation and test triples; write ranking.json and ranks.csv."""
    base = trained.base
    found: dict[str, ranking.Ranking] = {}
    with torch.no_grad():
        asked = scorer(trained.potential, base)
        for split in ranked_splits(trained):
            triples = getattr(base, split)
            found[split] = ranking.rank(asked, triples, base.known, batch=batch, tick=tick)
    summary = {split: one.summary() for split, one in found.items()}
    write_json(folder / "ranking.json", {"name": base.name, **summary}, ascii_only=False)
    rows = (row for split, one in found.items() for row in _rank_rows(base, split, one))
    columns = ("split", "head", "relation", "tail", "head_rank", "tail_rank")
    _write_csv(folder / "ranks.csv", columns, rows)
    return found


def _rank_rows(
    base: KnowledgeBase, split: str, found: ranking.Ranking
) -> Iterable[dict[str, object]]:
    sides = zip(found.triples.tolist(), found.heads.tolist(), found.tails.tolist(), strict=True)
    for (head, relation, tail), head_rank, tail_rank in sides:
        names = base.text((head, relation, tail))
        ranks = {"head_rank": f"{head_rank:g}", "tail_rank": f"{tail_rank:g}"}
        yield {
            "split": split,
            **dict(zip(("head", "relation", "tail"), names, strict=True)),
            **ranks,
        }


def complete(
    trained: TrainedBase,
    path: Path,
    *,
    top: int,
    relations: tuple[str, ...] = (),
    unseen: bool = True,
    surprising: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> list[completion.MissingTriple]:
    """Find the most probable missing triples, and write them as CSV."""
    found = completion.complete(
        trained.potential,
        trained.base,
        top=top,
        relations=relations,
        unseen=unseen,
        surprising=surprising,
        tick=tick,
    )
    columns = [field.name for field in fields(completion.MissingTriple)]
    rows = [{**asdict(one), "surprise": f"{one.surprise:.4f}"} for one in found]
    for row in rows:
        row |= {name: f"{row[name]:.6g}" for name in ("probability", "log_odds", "base_rate")}
    _write_csv(path, (*columns, "surprise"), rows)
    return found


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[dict[str, object]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_lines(path, text.getvalue().removesuffix("\n").split("\n"))
