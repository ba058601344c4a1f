"""The space of possible worlds of a language over a domain.

Groups are laid out in blocks, one for each attribute in the order of the language; inside a block
they follow the tuples of constants in row-major order, without the tuples that do not exist
(the mirror images of a symmetric pair, repeated constants where the attribute is irreflexive).
A world is one category per group, kept in the smallest integer type that holds it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import prod

import numpy as np
import torch
from jaxtyping import Float, Int64, Integer, UInt8
from torch import Tensor

from nmln.counting import count_up, number_of, refuse_overflow, strides
from nmln.errors import InputError
from nmln.language import Attribute, Language
from nmln.logic import GroundAtom
from nmln.memory import CONSTANT, in_digits, machine_memory
from nmln.types import Entries, Worlds

_CHUNK = 256  # worlds encoded at a time, so that the output stays in the cache


@dataclass(frozen=True)
class Block:
    """The groups of one attribute: the first, their number, and the constants per argument."""

    attribute: Attribute
    shape: tuple[int, ...]
    first_group: int
    count: int
    first_entry: int

    @property
    def size(self) -> int:
        """Categories per group."""
        return len(self.attribute.categories)

    @property
    def groups(self) -> slice:
        return slice(self.first_group, self.first_group + self.count)

    @property
    def entries(self) -> slice:
        return slice(self.first_entry, self.first_entry + self.count * self.size)

    @property
    def plain(self) -> bool:
        """Whether every tuple of constants has a group of its own."""
        return self.count == prod(self.shape)


@dataclass(frozen=True)
class Measure:
    """How large a space is, known before anything is allocated."""

    groups: int
    atoms: int
    entries: int
    bytes_per_world: int
    bytes_one_hot: int
    bytes_tables: int

    def __str__(self) -> str:
        return (
            f"{in_digits(self.groups)} groups, {in_digits(self.atoms)} ground atoms, "
            f"{in_digits(self.bytes_per_world)} bytes per world ({in_digits(self.bytes_one_hot)} as a "
            "one-hot vector)"
        )


def measure(language: Language, domain: Mapping[str, Sequence[str] | int]) -> Measure:
    """Count the groups, ground atoms and bytes of a space without building it."""
    counts = {s: int(c) if isinstance(c, int | np.integer) else len(c) for s, c in domain.items()}
    counts = {**counts, **{sort: len(values) for sort, values in language.value_sorts.items()}}
    groups = atoms = entries = 0
    tables = CONSTANT * sum(counts.values())
    for attribute in language:
        shape = [counts.get(sort, 0) for sort in attribute.sorts]
        count = count_tuples(attribute, shape)
        size = len(attribute.categories)
        groups += count
        entries += count * size
        atoms += count * (size - (attribute.silent is not None))
        tables += 8 * prod(shape) + 8 * count * (count != prod(shape))
    width = _value_dtype(language).itemsize
    tables += 16 * groups + 8 * entries
    return Measure(groups, atoms, entries, groups * width, 4 * entries, tables)


class Space:
    """All possible worlds of a language over a domain.

    `domain` gives the constants of every sort, or their number (then they are named 0, 1, …). A
    domain whose tables and one-hot vector would take more than `memory` bytes (half of the machine's
    by default) is refused before anything is allocated.
    """

    def __init__(
        self,
        language: Language,
        domain: Mapping[str, Sequence[str] | int],
        memory: int | None = None,
    ) -> None:
        self.language = language
        self.measure = measure(language, domain)
        self._refuse_size(machine_memory() // 2 if memory is None else memory)
        self.domain: dict[str, tuple[str, ...]] = _constants(language, domain)
        self.groups, self.entries = self.measure.groups, self.measure.entries
        if not self.groups:
            raise InputError(
                "there is only one world here: no predicate has a tuple that could be true or false. "
                "Declare predicates, or give irreflexive ones at least two constants.",
                kind="empty",
            )
        self.dtype = _value_dtype(language)
        self.codes = {s: {name: i for i, name in enumerate(c)} for s, c in self.domain.items()}
        self.blocks = tuple(self._lay_out())
        self._blocks = {block.attribute.name: block for block in self.blocks}
        self._tables: dict[str, np.ndarray] = {}
        self._existing: dict[str, np.ndarray] = {}
        self._indices: dict[tuple[str, torch.device], Tensor] = {}

    def _refuse_size(self, memory: int) -> None:
        size = self.measure
        needed = size.bytes_per_world + size.bytes_one_hot + size.bytes_tables
        if needed > memory:
            raise InputError(
                f"this domain is too large: {size}; {in_digits(needed)} bytes with the index tables, "
                f"but {memory:,} may be used. Take fewer constants, or split the world into parts.",
                kind="size",
            )

    def _lay_out(self) -> Iterator[Block]:
        group = entry = 0
        for attribute in self.language:
            shape = tuple(len(self.domain[sort]) for sort in attribute.sorts)
            count = count_tuples(attribute, shape)
            yield Block(attribute, shape, group, count, entry)
            group += count
            entry += count * len(attribute.categories)

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Space):
            return self is other
        return self.language == other.language and self.domain == other.domain

    def __hash__(self) -> int:
        return hash((self.language, tuple(self.domain.items())))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(names)} {sort}" for sort, names in self.domain.items())
        return f"Space({sizes}: {self.measure})"

    def block(self, name: str) -> Block:
        """The block of an attribute."""
        self.language[name]
        return self._blocks[name]

    @cached_property
    def sizes(self) -> Int64[Tensor, " groups"]:
        """The number of categories of every group."""
        counts = torch.tensor([block.count for block in self.blocks], dtype=torch.int64)
        sizes = torch.tensor([block.size for block in self.blocks], dtype=torch.int64)
        return sizes.repeat_interleave(counts)

    @cached_property
    def offsets(self) -> Int64[Tensor, " groups"]:
        """The first entry of every group in the one-hot vector."""
        return self.sizes.cumsum(0) - self.sizes

    # Tuples of constants and their groups.

    def table(self, name: str) -> np.ndarray:
        """The group of every tuple of constants, counted within its block; -1 where there is none.

        Has one axis for each argument. A symmetric pair has the same group both ways round.
        """
        if name not in self._tables:
            block = self.block(name)
            table = np.arange(prod(block.shape)).reshape(block.shape)
            if not block.plain:
                exists = _existing(block.attribute, block.shape)
                table = np.where(exists, exists.cumsum().reshape(block.shape) - 1, -1)
                if block.attribute.symmetric:
                    table = np.maximum(table, table.T)
            table.setflags(write=False)
            self._tables[name] = table
        return self._tables[name]

    def tuples(self, block: Block, groups: np.ndarray) -> tuple[np.ndarray, ...]:
        """The constants, as positions in their sorts, of groups counted within their block."""
        if not block.plain:
            name = block.attribute.name
            if name not in self._existing:
                self._existing[name] = np.flatnonzero(_existing(block.attribute, block.shape))
            groups = self._existing[name][groups]
        if not block.shape:
            return ()
        return np.unravel_index(groups, block.shape)

    def group_name(self, group: int) -> str:
        """A group as text: `bond(0, 3)`."""
        block = next(b for b in self.blocks if group < b.first_group + b.count)
        places = self.tuples(block, np.array([group - block.first_group]))
        names = [
            self.domain[s][int(p[0])] for s, p in zip(block.attribute.sorts, places, strict=True)
        ]
        return str(GroundAtom(block.attribute.name, tuple(names)))

    @cached_property
    def group_of_entry(self) -> Int64[Tensor, " entries"]:
        """The group that each entry belongs to."""
        return torch.arange(self.groups).repeat_interleave(self.sizes)

    # Worlds as tensors.

    def one_hot(
        self, values: Worlds, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "*batch entries"]:
        """The concatenated one-hot encoding of every group."""
        flat = values.reshape(-1, self.groups)
        onehot = torch.zeros(len(flat), self.entries, dtype=dtype, device=values.device)
        offsets = self.offsets.to(values.device)
        for start in range(0, len(flat), _CHUNK):
            rows = slice(start, start + _CHUNK)
            onehot[rows].scatter_(1, flat[rows] + offsets, 1.0)
        return onehot.view(*values.shape[:-1], self.entries)

    def categories(self, onehot: Entries) -> Integer[Tensor, "*batch groups"]:
        """The category with the largest entry in every group: the inverse of `one_hot`."""
        values = torch.empty(
            *onehot.shape[:-1], self.groups, dtype=self.dtype, device=onehot.device
        )
        for block in self.blocks:
            values[..., block.groups] = self.entries_of(onehot, block).argmax(-1).to(self.dtype)
        return values

    def entries_of(self, onehot: Tensor, block: Block) -> Tensor:
        """A view of one block of entries, with an axis for the groups and one for the categories."""
        return onehot[..., block.entries].unflatten(-1, (block.count, block.size))

    def unary(self, onehot: Entries) -> dict[str, Float[Tensor, "*batch constants size"]]:
        """The entries of every unary attribute as node features; views, nothing is copied."""
        return {
            block.attribute.name: self.entries_of(onehot, block)
            for block in self.blocks
            if block.attribute.arity == 1
        }

    def pairwise(self, onehot: Entries) -> dict[str, Float[Tensor, "*batch rows columns size"]]:
        """The entries of every binary attribute as dense relations.

        A view where every pair has a group of its own. Symmetric attributes are mirrored, pairs
        without a group (the diagonal of an irreflexive attribute) are zero in every category.
        """
        relations: dict[str, Tensor] = {}
        for block in self.blocks:
            if block.attribute.arity != 2:
                continue
            entries = self.entries_of(onehot, block)
            if not block.plain:
                table = self._index(block, onehot.device)
                if not block.count:
                    entries = entries.new_zeros(*entries.shape[:-2], 1, block.size)
                entries = entries.index_select(-2, table.clamp(min=0))
                entries = entries * (table >= 0)[:, None].to(onehot.dtype)
            relations[block.attribute.name] = entries.unflatten(-2, block.shape)
        return relations

    def _index(self, block: Block, device: torch.device) -> Int64[Tensor, " tuples"]:
        """The table of a block as a flat tensor on a device."""
        key = (block.attribute.name, device)
        if key not in self._indices:
            table = self.table(block.attribute.name).flatten()
            with torch.inference_mode(False):  # the cached tensor is used outside of it too
                self._indices[key] = torch.from_numpy(table).to(device)
        return self._indices[key]

    def pack(self, values: Worlds) -> UInt8[Tensor, "*batch bytes"]:
        """Worlds as bytes for hashing and storing: half a byte per group where 16 categories suffice."""
        if not self._half_bytes:
            return values.contiguous().view(torch.uint8)
        half = self.groups // 2  # the second half of the groups goes into the upper half bytes
        packed = torch.add(values[..., :half], values[..., self.groups - half :], alpha=16)
        if self.groups % 2:
            packed = torch.cat([packed, values[..., half : half + 1]], dim=-1)
        return packed

    def unpack(self, packed: UInt8[Tensor, "*batch bytes"]) -> Integer[Tensor, "*batch groups"]:
        """The inverse of `pack`."""
        if not self._half_bytes:
            return packed.contiguous().view(self.dtype)
        half = self.groups // 2
        return torch.cat([packed & 15, packed[..., :half] >> 4], dim=-1)

    @property
    def _half_bytes(self) -> bool:
        return all(block.size <= 16 for block in self.blocks)

    def relabel(self, values: Worlds, permutations: Mapping[str, Sequence[int]]) -> Worlds:
        """Rename the constants of some sorts: what was true of constant i becomes true of p[i]."""
        for sort in permutations:
            if sort not in self.domain:
                raise InputError(
                    f"there is no sort {sort} here, only {', '.join(self.domain)}.",
                    token=sort,
                    kind="unknown",
                )
        moved = torch.empty_like(values)
        orders = {
            sort: np.asarray(permutations.get(sort, range(len(names))), dtype=np.int64)
            for sort, names in self.domain.items()
        }
        for sort, order in orders.items():
            if sorted(order.tolist()) != list(range(len(self.domain[sort]))):
                raise InputError(
                    f"{order.tolist()} does not permute the {len(self.domain[sort])} constants of "
                    f"sort {sort}. Give each position once.",
                    token=sort,
                )
        for block in self.blocks:
            places = self.tuples(block, np.arange(block.count))
            images = tuple(orders[s][p] for s, p in zip(block.attribute.sorts, places, strict=True))
            targets = self.table(block.attribute.name)[images] if images else np.zeros(1, np.int64)
            source = torch.empty(block.count, dtype=torch.int64)
            source[torch.from_numpy(targets)] = torch.arange(block.count)
            moved[..., block.groups] = values[..., block.groups][..., source.to(values.device)]
        return moved

    # All worlds of a small space.

    @property
    def number_of_worlds(self) -> int:
        """The exact number of worlds, of any length: print it with `worlds_text(space.sizes)`."""
        return number_of(self.sizes)

    def enumerate(self, limit: int = 2**24) -> Integer[Tensor, "worlds groups"]:
        """Every world, in the order of `index`; refused if there are more than `limit`."""
        return count_up(self.sizes, limit, self.dtype)

    def index(self, values: Worlds) -> Int64[Tensor, "*batch"]:
        """The position of worlds in `enumerate`."""
        return (values.to(torch.int64) * self._strides.to(values.device)).sum(-1)

    @cached_property
    def _strides(self) -> Int64[Tensor, " groups"]:
        refuse_overflow(self.sizes)
        return strides(self.sizes)


def _constants(
    language: Language, domain: Mapping[str, Sequence[str] | int]
) -> dict[str, tuple[str, ...]]:
    """The constants of every sort that the language uses, checked."""
    named = {
        sort: tuple(map(str, range(names))) if isinstance(names, int | np.integer) else tuple(names)
        for sort, names in domain.items()
    }
    for sort, names in named.items():
        if wrong := next((name for name in names if not isinstance(name, str)), None):
            raise InputError(
                f"constants must be strings, but the sort {sort} has {wrong!r}. Convert them with "
                "str().",
                token=sort,
            )
    for sort, names in language.value_sorts.items():
        if named.setdefault(sort, names) != names and sort in language.sorts:
            raise InputError(
                f"the sort {sort} holds the values of an attribute, {', '.join(names)}, so its "
                f"constants cannot be {', '.join(named[sort])}. Remove {sort} from the domain.",
                token=sort,
                kind="conflict",
            )
    for sort in language.sorts:
        if not named.get(sort):
            raise InputError(
                f"the domain of sort {sort} is empty. Give its constants: {sort} = {{A, B}} in a .mln "
                f"file, {{{sort!r}: ('A', 'B')}} in Python, or data that name some.",
                token=sort,
                kind="empty",
            )
        if len(set(named[sort])) < len(named[sort]):
            twice = next(name for name in named[sort] if named[sort].count(name) > 1)
            raise InputError(
                f"the constant {twice} is listed twice in sort {sort}. Remove one.",
                token=twice,
                kind="twice",
            )
    return {sort: named[sort] for sort in language.sorts}


def _value_dtype(language: Language) -> torch.dtype:
    largest = max((len(attribute.categories) for attribute in language), default=1)
    if largest <= 256:
        return torch.uint8
    return torch.int16 if largest <= 2**15 else torch.int32


def count_tuples(attribute: Attribute, shape: Sequence[int]) -> int:
    """The number of tuples that have a group, without building them."""
    if attribute.symmetric:
        n = shape[0]
        return n * (n + 1) // 2 if attribute.reflexive else n * (n - 1) // 2
    if attribute.reflexive:
        return prod(shape)
    used: dict[str, int] = {}
    count = 1
    for sort, n in zip(attribute.sorts, shape, strict=True):
        count *= max(0, n - used.get(sort, 0))
        used[sort] = used.get(sort, 0) + 1
    return count


def _existing(attribute: Attribute, shape: tuple[int, ...]) -> np.ndarray:
    """Which tuples have a group of their own."""
    exists = np.ones(shape, dtype=bool)
    places = np.ogrid[tuple(slice(n) for n in shape)]
    if not attribute.reflexive:
        for i, j in combinations(range(attribute.arity), 2):
            if attribute.sorts[i] == attribute.sorts[j]:
                exists &= places[i] != places[j]
    if attribute.symmetric:
        exists &= places[0] <= places[1]
    return exists
