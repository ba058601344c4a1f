"""Readers of the files that sampling and the completion of knowledge bases leave behind."""

import json
from pathlib import Path

from nmln.knowledge.data import KnowledgeBase
from nmln.knowledge.storing import TrainedBase, save_training
from nmln.model import load_run
from nmln.runs import knowledge, stream
from nmln.runs.workspace import SETTINGS
from tests.fuzz.mutations import texts, trees
from tests.fuzz.readers import Reader, forged, of_folder
from tests.knowledge.families import write_family
from tests.knowledge.test_resuming import CONDITIONAL, advance, new_training
from tests.runs.sampling_runs import TINY, begin, make_run

STEP = "checkpoints/step-000000003"


def other_readers(home: Path) -> dict[str, Reader]:
    """An interrupted sampling and an interrupted training, made now; each reader is given a copy."""
    run = make_run(home / "sampling" / "run")
    job = begin(run, "out", **TINY)
    marker = next(job.place.output.rglob(SETTINGS))
    model = load_run(run)
    base = KnowledgeBase.read(write_family(home / "family", people=5))
    training = advance(new_training(base, CONDITIONAL), 3)
    save_training(training, home / "knowledge")
    summary = {"interrupted": True, "epoch": 1, "seconds": 1.0}
    (home / "knowledge" / knowledge.SUMMARY).write_text(json.dumps(summary))
    TrainedBase(base, training.potential).save(home / "knowledge" / "model")

    def tree(path: Path) -> list[object]:
        return [json.loads(path.read_text())]

    name = str(marker.relative_to(home / "sampling"))
    kept, content = home / "knowledge" / STEP, f"{STEP}/content.json"
    return {
        "sampling settings": Reader(
            trees(tree(marker)),
            name,
            of_folder(lambda folder: stream.resume(folder / "out", model), name),
            0.5,
            base="sampling",
        ),
        "flipped settings": Reader(
            texts([marker.read_bytes()]),
            name,
            of_folder(lambda folder: stream.resume(folder / "out", model), name),
            0.5,
            base="sampling",
        ),
        "training.json": Reader(
            trees([summary]),
            knowledge.SUMMARY,
            of_folder(knowledge.resume, knowledge.SUMMARY),
            0.5,
            base="knowledge",
        ),
        "forged knowledge": Reader(
            trees(tree(kept / "content.json")),
            content,
            forged(of_folder(knowledge.resume, content)),
            0.3,
            base="knowledge",
        ),
        "forged base": Reader(
            trees(tree(home / "knowledge" / "model" / "content.json")),
            "model/content.json",
            forged(of_folder(knowledge.load, "model/content.json")),
            0.3,
            base="knowledge",
        ),
    }
