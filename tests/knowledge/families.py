"""A small knowledge base with rules to find: two camps, and who leads whom in each."""

import csv
from pathlib import Path

import torch
from torch import Generator

from nmln.knowledge.data import KnowledgeBase


def write_family(folder: Path, people: int = 12, seed: int = 0) -> Path:
    """Triples in three files; a tenth each is kept for validation and test.

    `ally` holds within a camp and `rival` between the two, both ways; `leads` and `follows` mirror each
    other.
    """
    triples = []
    for a in range(people):
        for b in range(people):
            if a == b:
                continue
            same = a % 2 == b % 2
            triples += [(f"p{a:02}", "ally" if same else "rival", f"p{b:02}")]
            if same and a < b:
                triples += [(f"p{a:02}", "leads", f"p{b:02}"), (f"p{b:02}", "follows", f"p{a:02}")]
    order = torch.randperm(len(triples), generator=Generator().manual_seed(seed)).tolist()
    tenth = len(triples) // 10
    parts = {"valid": order[:tenth], "test": order[tenth : 2 * tenth], "train": order[2 * tenth :]}
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in parts.items():
        lines = ["\t".join(triples[row]) for row in sorted(rows)]
        (folder / f"{split}.tsv").write_text("".join(f"{line}\n" for line in lines))
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    return list(csv.DictReader(path.read_text().splitlines()))


def family(folder: Path) -> KnowledgeBase:
    return KnowledgeBase.read(write_family(folder))
