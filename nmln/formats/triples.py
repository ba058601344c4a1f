"""Tab-separated triples: head, relation, tail, one triple per line."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from jaxtyping import Integer
from torch import Tensor

from nmln.errors import InputError
from nmln.files import read_lines, write_lines
from nmln.formats.db import Facts, encode_facts
from nmln.formats.registry import Format, Parsed, register
from nmln.language import Language, predicate
from nmln.logic import Literal
from nmln.space import Space
from nmln.worlds import Spaces, paired, true_atoms

ENTITY = "entity"


def read_triples(
    *paths: str | Path, space: Space | None = None
) -> tuple[Space, Integer[Tensor, "files groups"]]:
    """One world per file, over the entities and relations of all of them.

    Every relation becomes a Boolean predicate over the sort `entity`; both come in alphabetical
    order. Give the files of all splits at once, or the `space` of an earlier call.
    """
    worlds = [_read_facts(path) for path in paths]
    if space is None:
        relations = sorted({literal.predicate for facts in worlds for literal in facts.literals})
        entities = sorted({n for facts in worlds for lit in facts.literals for n in lit.arguments})
        if not entities:
            raise InputError(
                f"no triples in {', '.join(map(str, paths)) or 'no files'}. Give files with triples.",
                kind="empty",
            )
        language = Language(*(predicate(name, ENTITY, ENTITY) for name in relations))
        space = Space(language, {ENTITY: entities})
    return space, encode_facts(space, worlds)


def _read_facts(path: str | Path) -> Facts:
    facts = Facts(str(path))
    shared: dict[str, str] = {}
    for number, line in read_lines(path):
        if not line.strip():
            continue
        fields = [shared.setdefault(part, part) for part in map(str.strip, line.split("\t"))]
        if len(fields) != 3 or not all(fields):
            found = f"{len(fields)}" if all(fields) else "an empty one"
            raise InputError(
                f"a line must have three fields separated by tabs (head, relation, tail), but this one "
                f"has {found}: {line[:60]!r}.",
                str(path),
                number,
                kind="syntax",
            )
        head, relation, tail = fields
        facts.literals.append(Literal(relation, (head, tail)))
        facts.lines.append(number)
    return facts


def write_triples(path: str | Path, space: Space, world: Integer[Tensor, " groups"]) -> None:
    """Write the true atoms of a world as triples; only Boolean binary predicates can be written.

    A symmetric predicate is written both ways round.
    """
    _check(space)
    rows = [
        (atom.arguments[0], atom.predicate, atom.arguments[1]) for atom in true_atoms(space, world)
    ]
    mirrored = [(t, r, h) for h, r, t in rows if space.language[r].symmetric and h != t]
    for row in rows:
        if any("\t" in name or "\n" in name or name != name.strip() for name in row):
            raise InputError(
                f"{row} has a tab or a line end in a name, which triples cannot hold. Rename it.",
                kind="unsupported",
            )
    write_lines(path, ("\t".join(row) for row in rows + mirrored))


def _check(space: Space) -> None:
    for attribute in space.language:
        if attribute.arity != 2 or not attribute.boolean:
            raise InputError(
                f"{attribute.declaration()} is not a Boolean binary predicate, so it has no triples. "
                "Write a .db file instead.",
                token=attribute.name,
                kind="unsupported",
            )


def _gather(paths: Sequence[Path], language: Path | None, place: Path) -> Parsed:
    return Parsed.of(*read_triples(*paths))


def _write(path: Path, space: Spaces, worlds: Iterable[Integer[Tensor, " groups"]]) -> None:
    given = list(paired(space, worlds))
    if len(given) != 1:
        raise InputError(
            f"a .tsv file holds one world, not {len(given)}. Write a .db file.", kind="unsupported"
        )
    write_triples(path, *given[0])


register(
    Format(
        "triples", "db", (".tsv",), lambda config: Parsed.of(*read_triples(config.source)), _write,
        check=_check, gather=_gather, learnable=False,
    )
)  # fmt: skip
