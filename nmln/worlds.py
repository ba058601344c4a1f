"""Worlds as sets of true ground atoms and as text."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor

from nmln.errors import InputError
from nmln.language import misplaced, quote_constant
from nmln.logic import GroundAtom, Literal
from nmln.space import Block, Space

World = Integer[Tensor, " groups"]
Statement = Literal | GroundAtom
Spaces = Space | Iterable[Space]
"""The space of all worlds, or one for each of them."""


def paired(space: Spaces, worlds: Iterable[World]) -> Iterator[tuple[Space, World]]:
    """Every world with its space."""
    if isinstance(space, Space):
        return ((space, world) for world in worlds)
    return zip(space, worlds, strict=True)


def ground_atoms(space: Space, predicate: str | None = None) -> Iterator[tuple[int, GroundAtom]]:
    """Every ground atom of a space, or of one predicate, with its entry in the one-hot vector."""
    for block in space.blocks if predicate is None else (space.block(predicate),):
        silent = block.attribute.silent
        chosen = [category for category in range(block.size) if category != silent]
        groups = np.repeat(np.arange(block.count), len(chosen))
        categories = np.tile(np.array(chosen, dtype=np.int64), block.count)
        entries = block.first_entry + groups * block.size + categories
        yield from zip(entries.tolist(), _name(space, block, groups, categories), strict=True)


def true_atoms(space: Space, world: World, skip_null: bool = False) -> list[GroundAtom]:
    """The true ground atoms of a world, in the order of the groups.

    A symmetric pair appears once. `skip_null` leaves out the values named none, which a closed
    world assumes anyway.
    """
    found: list[GroundAtom] = []
    values = world.cpu().numpy()
    for block in space.blocks:
        categories = values[block.groups].astype(np.int64)
        hidden = block.attribute.null if skip_null else block.attribute.silent
        groups = np.arange(block.count) if hidden is None else np.flatnonzero(categories != hidden)
        found.extend(_name(space, block, groups, categories[groups]))
    return found


def to_text(space: Space, world: World) -> str:
    """A world as `.db` text: one true ground atom per line, without those named none."""
    return "\n".join(map(str, true_atoms(space, world, skip_null=True)))


def _name(
    space: Space, block: Block, groups: np.ndarray, categories: np.ndarray
) -> Iterator[GroundAtom]:
    """The ground atoms of groups (counted within their block) in given categories."""
    attribute = block.attribute
    columns = [
        map(space.domain[sort].__getitem__, places.tolist())
        for sort, places in zip(attribute.sorts, space.tuples(block, groups), strict=True)
    ]
    if not attribute.boolean:
        columns.append(map(attribute.categories.__getitem__, categories.tolist()))
    if not columns:
        return (GroundAtom(attribute.name, ()) for _ in range(len(groups)))
    return (GroundAtom(attribute.name, arguments) for arguments in zip(*columns, strict=True))


def from_atoms(space: Space, statements: Iterable[Statement]) -> World:
    """The world in which these literals hold and every other atom is false or none.

    Refuses contradictions, and groups for which a closed world has no default.
    """
    listed = list(statements)
    entries, positive = locate(space, listed)
    chosen = torch.from_numpy(entries[positive])
    groups = space.group_of_entry[chosen]
    values = torch.empty(space.groups, dtype=space.dtype)
    for block in space.blocks:
        values[block.groups] = block.attribute.null or 0
    values[groups] = (chosen - space.offsets[groups]).to(space.dtype)

    said = torch.zeros(space.groups, dtype=torch.bool)
    said[groups] = True
    for block in space.blocks:
        if block.attribute.null is None and not said[block.groups].all():
            group = block.first_group + int((~said[block.groups]).int().argmax())
            raise InputError(
                f"no value is given for {space.group_name(group)}, and {block.attribute.name} has no "
                f"value none to assume. State which of {', '.join(block.attribute.values[:8])} holds.",
                kind="missing",
            )
    denied = torch.from_numpy(entries[~positive])
    groups_denied = space.group_of_entry[denied]
    assumed = values[groups_denied] == (denied - space.offsets[groups_denied]).to(space.dtype)
    if bool(assumed.any()):
        row = int(np.flatnonzero(~positive)[int(assumed.int().argmax())])
        raise InputError(
            f"{listed[row]} denies the value that a closed world assumes, and no other value is given. "
            "State which value holds, or read the file as evidence.",
            index=row,
            kind="conflict",
        )
    return values


def locate(space: Space, statements: Sequence[Statement]) -> tuple[np.ndarray, np.ndarray]:
    """The entry of each literal, and whether the literal is positive.

    Literals outside the space and contradictions are refused; the error carries the
    position of the offending literal as `index`.
    """
    entries = np.empty(len(statements), dtype=np.int64)
    positive = np.fromiter(
        (getattr(s, "positive", True) for s in statements), bool, len(statements)
    )
    rows: dict[str, list[int]] = {}
    for row, statement in enumerate(statements):
        rows.setdefault(statement.predicate, []).append(row)
    for name, chosen in rows.items():
        try:
            entries[chosen] = _locate_block(space, name, [statements[i].arguments for i in chosen])
        except InputError as error:
            error.index = chosen[error.index or 0]
            raise
    _refuse_conflicts(space, statements, entries, positive)
    return entries, positive


def _locate_block(space: Space, name: str, arguments: list[tuple[str, ...]]) -> np.ndarray:
    attribute, sorts = space.language[name], space.language.argument_sorts(name)
    block = space.block(name)
    for row, names in enumerate(arguments):
        if len(names) != len(sorts):
            raise InputError(
                f"{GroundAtom(name, names)} has {len(names)} arguments, but {name} takes "
                f"{len(sorts)}: {name}({', '.join(sorts)}).",
                index=row,
                token=name,
                kind="conflict",
            )
    places = [_positions(space, name, place, arguments) for place in range(len(sorts))]
    groups = np.zeros(len(arguments), dtype=np.int64)
    if attribute.arity:
        groups = space.table(name)[tuple(places[: attribute.arity])]
    if (groups < 0).any():
        row = int(np.argmax(groups < 0))
        raise InputError(
            f"{GroundAtom(name, arguments[row])} repeats a constant, but {name} is irreflexive. "
            "Remove it, or declare the predicate without 'irreflexive'.",
            index=row,
            kind="conflict",
        )
    category = 1 if attribute.boolean else places[-1] + attribute.optional
    return block.first_entry + groups * block.size + category


def _positions(space: Space, name: str, place: int, arguments: list[tuple[str, ...]]) -> np.ndarray:
    """The positions in their sort of the constants at one argument."""
    sort = space.language.argument_sorts(name)[place]
    if place < space.language[name].arity:
        codes = space.codes[sort]
    else:
        codes = {value: i for i, value in enumerate(space.language.value_sorts[sort])}
    try:
        return np.fromiter((codes[names[place]] for names in arguments), np.int64, len(arguments))
    except KeyError:
        row = next(i for i, names in enumerate(arguments) if names[place] not in codes)
    constant, atom = arguments[row][place], GroundAtom(name, arguments[row])
    homes = [home for home, names in space.codes.items() if constant in names]
    message = misplaced(quote_constant(constant), atom, sort, list(codes), homes)
    kind = "conflict" if homes else "unknown"
    raise InputError(message, index=row, token=constant, kind=kind)


def _refuse_conflicts(
    space: Space, statements: Sequence[Statement], entries: np.ndarray, positive: np.ndarray
) -> None:
    """Refuse an atom that is stated both true and false, and two values of one group."""
    true = np.flatnonzero(positive)
    both = np.flatnonzero(~positive & np.isin(entries, entries[true]))
    if len(both):
        raise InputError(
            f"{statements[both[0]]} contradicts a literal that says the opposite. Keep one of them.",
            index=int(both[0]),
            kind="conflict",
        )
    groups = space.group_of_entry[torch.from_numpy(entries[true])].numpy()
    order = np.argsort(groups, kind="stable")
    groups, chosen, rows = groups[order], entries[true][order], true[order]
    clashes = np.flatnonzero((groups[1:] == groups[:-1]) & (chosen[1:] != chosen[:-1]))
    if len(clashes):
        one, other = int(rows[clashes[0]]), int(rows[clashes[0] + 1])
        raise InputError(
            f"{statements[one]} and {statements[other]} cannot both be true: "
            f"{statements[one].predicate} takes one value per tuple. Keep one of them.",
            index=other,
            kind="conflict",
        )
