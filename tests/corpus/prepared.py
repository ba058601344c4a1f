"""Files and finished runs that cases start from, each made once and copied for every case."""

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.runs.main_jobs import MOLECULES
from tests.warm import ROOT, Fault, Outcome, Warm

THREE = ("CCO", "CCN", "COC", "C=CO", "CC#N", "CC=O", "CCC", "C1CC1", "CNC", "OCO")
PEOPLE = ("Anna", "Bob", "Carl", "Dora")
CONFIG = """
[ladder]
rates = [0.2, 0.02]
[model]
layers = 1
hidden = 8
[chains]
moves = 2
replicas = 8
[optimiser]
warm_up = 5
[training]
steps = 3
batch = 8
processes = 1
checkpoint_seconds = 0
"""
GRAPH = """<?xml version="1.0" encoding="utf-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="undirected">
<node id="0"/><node id="1"/><node id="2"/><node id="3"/>{edges}</graph></graphml>
"""
SAMPLING = ("--num-samples", "24", "--chains", "4", "--burn-in", "2", "--thin", "1")
CHANGES = tuple(
    word
    for setting in (
        "ladder.rates=[0.2, 0.02]", "model.layers=1", "model.hidden=8", "chains.moves=2",
        "chains.replicas=8", "training.batch=8", "training.steps=3", "training.checkpoint_seconds=0",
    )
    for word in ("--set", setting)
)  # fmt: skip
MAIN = ("--size", "4", "--num-samples", "24", "--chains", "4", "--burn-in", "2")


class Shelf:
    """Prepared things by name; each is a folder whose content goes into a case's folder."""

    def __init__(self, call: Warm, folder: Path) -> None:
        self.call, self.folder = call, folder

    def take(self, name: str, into: Path) -> None:
        """Copy what a name stands for, made now if it was not made before."""
        place = self.folder / name
        if not place.exists():
            place.mkdir(parents=True)
            MAKERS[name](self, place)  # in place: a run names its data by their path
        shutil.copytree(place, into, symlinks=True, dirs_exist_ok=True)

    def run(self, folder: Path, *words: str, code: int = 0, **options: object) -> Outcome:
        done = self.call(*words, folder=folder, seconds=300, **options)
        assert done.code == code, (words, done)
        return done


def people(shelf: Shelf, folder: Path) -> None:
    """Worlds of people in a .db file, and settings of a tiny training."""
    worlds = []
    for number in range(24):
        one, other = PEOPLE[number % 4], PEOPLE[(number + 1 + number // 12) % 4]
        lines = [f"friends({one}, {other})", *(f"smokes({p})" for p in PEOPLE if p != one)]
        worlds.append("\n".join(lines))
    (folder / "people.db").write_text("\n---\n".join(worlds) + "\n")
    (folder / "run.toml").write_text(CONFIG)


def smokers(shelf: Shelf, folder: Path) -> None:
    """The friends and smokers, and some evidence."""
    for name in ("smokers.mln", "smokers.db"):
        shutil.copy(ROOT / "nmln" / "data" / name, folder / name)
    (folder / "evidence.db").write_text("smokes(Anna)\n!smokes(Bob)\n")


def molecules(shelf: Shelf, folder: Path) -> None:
    """Forty molecules of four atoms, plain and packed, and settings of a tiny training."""
    (folder / "mine.smi").write_text("\n".join(MOLECULES) + "\n")
    (folder / "mine.smi.gz").write_bytes(gzip.compress(("\n".join(MOLECULES) + "\n").encode()))
    (folder / "run.toml").write_text(CONFIG)


def graphs(shelf: Shelf, folder: Path) -> None:
    """Six graphs of four nodes."""
    (folder / "graphs").mkdir()
    pairs = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 3)]
    for number in range(6):
        chosen = [pairs[number], pairs[(number + 2) % 6]]
        edges = "".join(f'<edge source="{a}" target="{b}"/>' for a, b in chosen)
        (folder / "graphs" / f"{number}.graphml").write_text(GRAPH.format(edges=edges))
    (folder / "run.toml").write_text(CONFIG)


def triples(shelf: Shelf, folder: Path) -> None:
    """A knowledge base of a few constants."""
    names = [f"c{number}" for number in range(8)]
    facts = [(a, r, names[(i * k + k) % 8]) for k, r in ((3, "knows"), (5, "likes"))
             for i, a in enumerate(names)]  # fmt: skip
    (folder / "triples").mkdir()
    parts = {"train": facts[:10], "valid": facts[10:13], "test": facts[13:]}
    for name, rows in parts.items():
        lines = "".join("\t".join(row) + "\n" for row in rows)
        (folder / "triples" / f"{name}.tsv").write_text(lines)


def people_run(shelf: Shelf, folder: Path) -> None:
    """A finished training on people."""
    people(shelf, folder)
    shelf.run(folder, "train", "people.db", "--config", "run.toml", "--output", "people-run")


def graphs_run(shelf: Shelf, folder: Path) -> None:
    """A finished training on graphs."""
    graphs(shelf, folder)
    shelf.run(folder, "train", "graphs", "--config", "run.toml", "--output", "graphs-run")


def molecules_run(shelf: Shelf, folder: Path) -> None:
    """A finished training on molecules."""
    molecules(shelf, folder)
    shelf.run(folder, "train", "mine.smi", "--config", "run.toml", "--output", "molecules-run")


def sizes_run(shelf: Shelf, folder: Path) -> None:
    """A finished training on molecules of three and of four atoms."""
    molecules(shelf, folder)
    (folder / "mixed.smi").write_text("\n".join([*MOLECULES, *THREE]) + "\n")
    words = ("--config", "run.toml", "--output", "sizes-run")
    shelf.run(folder, "train", "mixed.smi", *words)


def baseline_run(shelf: Shelf, folder: Path) -> None:
    """A baseline, trained for a moment."""
    molecules(shelf, folder)
    words = ("--updates", "2", "--output", "baseline-run")
    sizes = ("--set", "units=8", "--set", "embedded=4", "--set", "layers=1")
    shelf.run(folder, "baseline", "train", "gru", "mine.smi", *words, *sizes)


def formula_run(shelf: Shelf, folder: Path) -> None:
    """A finished training with a language of its own."""
    smokers(shelf, folder)
    (folder / "run.toml").write_text(CONFIG)
    words = ("--language", "smokers.mln", "--config", "run.toml", "--output", "formula-run")
    shelf.run(folder, "train", "smokers.db", *words)


def samples(shelf: Shelf, folder: Path) -> None:
    """Molecules sampled to the end."""
    shelf.take("molecules_run", folder)
    shelf.run(folder, "sample", "molecules-run", *SAMPLING, "--processes", "1")


def sampling(shelf: Shelf, folder: Path) -> None:
    """Sampling of molecules that was killed when all was drawn, but not yet put together."""
    shelf.take("molecules_run", folder)
    words = ("sample", "molecules-run", *SAMPLING, "--processes", "1")
    place = Fault(str(folder / "molecules-run"), 40, "kill")
    shelf.run(folder, *words, code=-9, fault=place)


def kb_run(shelf: Shelf, folder: Path) -> None:
    """A finished training on triples."""
    triples(shelf, folder)
    words = ("--epochs", "3", "--minutes", "1", "--checkpoint-seconds", "0")
    shelf.run(folder, "kb", "train", "triples", *words, "--output", "kb-run")


def main_run(shelf: Shelf, folder: Path) -> None:
    """A finished main job."""
    molecules(shelf, folder)
    words = (
        "run",
        "--data",
        "mine.smi",
        *MAIN,
        "--processes",
        "1",
        *CHANGES,
        "--output",
        "main-run",
    )
    shelf.run(folder, *words)


MAKERS: dict[str, Callable[[Shelf, Path], None]] = {
    "people": people,
    "smokers": smokers,
    "molecules": molecules,
    "graphs": graphs,
    "triples": triples,
    "people_run": people_run,
    "graphs_run": graphs_run,
    "molecules_run": molecules_run,
    "sizes_run": sizes_run,
    "baseline_run": baseline_run,
    "formula_run": formula_run,
    "samples": samples,
    "sampling": sampling,
    "kb_run": kb_run,
    "main_run": main_run,
}
