"""What is in data files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nmln.errors import InputError, placed
from nmln.formats.db import encode_facts, infer_domain, infer_language, read_facts
from nmln.formats.mln import read_mln
from nmln.formats.triples import read_triples
from nmln.language import Attribute
from nmln.space import Space
from nmln.types import Worlds


@dataclass(frozen=True)
class Contents:
    """What data files hold."""

    space: Space
    worlds: Worlds
    formulas: int

    def true_atoms(self, attribute: Attribute) -> list[int]:
        """How many tuples of an attribute are neither false nor none, in every world."""
        block = self.space.block(attribute.name)
        if attribute.null is None:
            return [block.count] * len(self.worlds)
        values = self.worlds[:, block.groups]
        return [int(n) for n in (values != attribute.null).sum(1)]


def inspect(paths: Sequence[Path]) -> Contents:
    """Read data files together: at most one `.mln`, any number of `.db` and `.nl`, or `.tsv`."""
    kinds = {".mln", ".db", ".nl", ".tsv"}
    by_kind: dict[str, list[Path]] = {kind: [] for kind in kinds}
    for path in paths:
        if path.suffix.lower() not in kinds:
            raise InputError(
                f"files ending in {path.suffix or 'nothing'} are not known here. Give .mln, .db, .nl "
                "or .tsv files, or molecules as .smi or .csv (either may have .gz behind it).",
                str(path),
            )
        by_kind[path.suffix.lower()].append(path)
    if by_kind[".tsv"]:
        if len(by_kind[".tsv"]) < len(paths):
            raise InputError(
                "triples (.tsv) carry their own language. Give them without other files."
            )
        space, worlds = read_triples(*by_kind[".tsv"])
        return Contents(space, worlds, 0)
    if len(by_kind[".mln"]) > 1:
        raise InputError(
            f"one language at a time, but {len(by_kind['.mln'])} .mln files are given."
        )
    program = read_mln(by_kind[".mln"][0]) if by_kind[".mln"] else None
    facts = [world for path in paths if path.suffix.lower() != ".mln" for world in read_facts(path)]
    language = program.language if program else infer_language(facts)
    with placed(paths[0]):
        space = Space(language, infer_domain(facts, language, program.domain if program else None))
    return Contents(space, encode_facts(space, facts), len(program.formulas) if program else 0)
