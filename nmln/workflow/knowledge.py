"""Knowledge bases from files to files: train, rank, complete."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Generator

from nmln.files import InputError, only_one, plain, write_lines
from nmln.knowledge import completion, ranking
from nmln.knowledge.data import KnowledgeBase
from nmln.knowledge.defaults import recommended
from nmln.knowledge.potential import KnowledgePotential, Shape
from nmln.knowledge.scoring import scorer
from nmln.knowledge.sizes import check_memory
from nmln.knowledge.storing import TrainedBase
from nmln.knowledge.training import Progress, Result, Settings, train

MODEL = "model"


@dataclass(frozen=True)
class Job:
    """A training that is ready to begin: everything is read and checked, and it fits."""

    base: KnowledgeBase
    shape: Shape
    settings: Settings
    folder: Path
    bytes_expected: int

    @property
    def description(self) -> str:
        """What is about to be done, and what it takes."""
        return (
            f"{self.base.sizes}\nabout {self.bytes_expected / 2**20:,.0f} MiB of memory, "
            f"objective: {self.settings.objective}, kept in {self.folder}"
        )


def begin(
    where: str, folder: Path | None, shape: Mapping[str, Any], settings: Mapping[str, Any]
) -> Job:
    """Read a knowledge base and check that there is room for the run, in memory and on disk.

    What `shape` and `settings` leave out is chosen by the data.
    """
    base = KnowledgeBase.read(where)
    of, by = recommended(base, shape, settings)
    folder = folder or Path("runs") / f"kb-{base.name}"
    if (folder / MODEL).exists():
        raise InputError(
            "there is a trained model in this folder. Name another one with --output, or remove it.",
            str(folder),
        )
    return Job(base, of, by, folder, check_memory(base, of, by))


def run(job: Job, watch: Callable[[Progress], None] = lambda progress: None) -> Result:
    """Train, and write model/, history.csv and training.json into the folder of the run."""
    with only_one(job.folder / ".lock", "training"):
        rng = Generator().manual_seed(job.settings.seed)
        potential = KnowledgePotential(job.base.space, job.shape, rng=rng)
        result = train(potential, job.base, job.settings, watch)
        TrainedBase(job.base, potential, asdict(job.settings)).save(job.folder / MODEL)
        rows = [step._asdict() for step in result.history]
        _write_csv(job.folder / "history.csv", Progress._fields, rows)
        content = {
            "name": job.base.name,
            "source": job.base.source,
            "notes": job.base.notes,
            "shape": asdict(job.shape),
            "settings": asdict(job.settings),
            "epoch": result.epoch,
            "epochs": result.epochs,
            "seconds": result.seconds,
            "interrupted": result.interrupted,
            "valid": None if result.valid is None else asdict(result.valid),
        }
        _write_json(job.folder / "training.json", content)
    return result


def load(folder: Path) -> TrainedBase:
    """The model of a run."""
    if not (folder / MODEL).exists():
        raise InputError(
            "there is no trained knowledge base in this folder. Train one: nmln kb train nations",
            str(folder),
        )
    return TrainedBase.load(folder / MODEL)


def ranked_splits(trained: TrainedBase) -> dict[str, int]:
    """The splits that can be ranked, and how many triples each has."""
    counts = {split: len(getattr(trained.base, split)) for split in ("valid", "test")}
    counts = {split: count for split, count in counts.items() if count}
    if not counts:
        raise InputError(
            "there is nothing to rank: this knowledge base was trained without valid.tsv and test.tsv.",
            trained.base.source or None,
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
    _write_json(folder / "ranking.json", {"name": base.name, **summary})
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
) -> list[completion.Missing]:
    """The most probable missing triples, written as CSV."""
    found = completion.complete(
        trained.potential,
        trained.base,
        top=top,
        relations=relations,
        unseen=unseen,
        surprising=surprising,
        tick=tick,
    )
    columns = [field.name for field in fields(completion.Missing)]
    rows = [{**asdict(one), "surprise": f"{one.surprise:.4f}"} for one in found]
    for row in rows:
        row |= {name: f"{row[name]:.6g}" for name in ("probability", "log_odds", "base_rate")}
    _write_csv(path, (*columns, "surprise"), rows)
    return found


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_lines(path, [json.dumps(plain(content), indent=2, ensure_ascii=False)])


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[dict[str, object]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_lines(path, text.getvalue().splitlines())
