"""Worlds of `.db` text in which every world has constants of its own."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from nmln.buckets import size_of, sorted_out
from nmln.errors import InputError
from nmln.formats.db import Facts, infer_domain
from nmln.formats.mln import Program
from nmln.formats.registry import Parsed
from nmln.language import Domain, Language
from nmln.logic import Atom, Constant, Equal, Formula, WeightedFormula, parts
from nmln.space import Space
from nmln.worlds import World, from_atoms

_Constants = dict[str, tuple[str, ...]]


def encode_for(
    program: Program, path: str | Path, worlds: Sequence[Facts], *, by_file: bool = False
) -> Parsed:
    """`encode_each` for the formulas of a program; those that name a constant are placed in its file."""
    try:
        return encode_each(
            program.language, worlds, program.domain, program.formulas, by_file=by_file
        )
    except InputError as error:
        if error.source is None and error.index is not None and program.lines:
            raise error.at(str(path), program.lines[error.index]) from None
        raise


def encode_each(
    language: Language,
    worlds: Sequence[Facts],
    domain: Domain | None = None,
    formulas: tuple[WeightedFormula, ...] = (),
    *,
    by_file: bool = False,
) -> Parsed:
    """Closed worlds, each over the constants that it names, with a bucket for every size.

    With `by_file`, a world has the constants that all worlds of its file name. Sorts in `domain` have
    the same constants in all worlds. Where two worlds of a size have different constants of a sort,
    these are numbered in the order in which each world, or its file, names them: a potential does not
    see names. A formula that names a constant which one of several domains does not have is refused.
    """
    buckets: dict[tuple[int, ...], _Bucket] = {}
    rows: list[World] = []
    keys: list[tuple[int, ...]] = []
    peers: dict[str | int, list[Facts]] = {}
    homes = [facts.source if by_file else number for number, facts in enumerate(worlds)]
    for facts, home in zip(worlds, homes, strict=True):
        peers.setdefault(home, []).append(facts)
    domains = {home: infer_domain(some, language, domain) for home, some in peers.items()}
    for facts, home in zip(worlds, homes, strict=True):
        own = domains[home]
        key = tuple(len(names) for names in own.values())
        bucket = buckets.setdefault(key, _Bucket(own))
        try:
            rows.append(from_atoms(bucket.space_of(language, own), facts.literals))
        except InputError as error:
            raise facts.place(error) from None
        keys.append(key)
    made = {key: Space(language, bucket.names) for key, bucket in buckets.items()}
    if len(domains) > 1:
        _refuse_constants(formulas, list(made.values()))
    order = sorted(made, key=lambda key: size_of(made[key]))
    numbers = {key: number for number, key in enumerate(order)}
    spaces = [made[key] for key in order]
    return Parsed(*sorted_out(spaces, rows, [numbers[key] for key in keys]), formulas)


class _Bucket:
    """The constants of the worlds of one size: those of the first, and whether all others have them."""

    def __init__(self, first: _Constants) -> None:
        self.first, self.shared = first, dict.fromkeys(first, True)
        self._spaces: dict[tuple[tuple[str, ...], ...], Space] = {}

    def space_of(self, language: Language, own: _Constants) -> Space:
        """The space of one world: shared constants in the order of the first one."""
        mine = {}
        for sort, names in own.items():
            same = set(names) == set(self.first[sort])
            self.shared[sort] &= same
            mine[sort] = self.first[sort] if same else names
        key = tuple(mine.values())
        if key not in self._spaces:
            self._spaces = {key: Space(language, mine)}  # the last one only: there may be many
        return self._spaces[key]

    @property
    def names(self) -> dict[str, tuple[str, ...] | int]:
        """The constants of the bucket, or their number where worlds name different ones."""
        return {
            sort: names if self.shared[sort] else len(names) for sort, names in self.first.items()
        }


def _refuse_constants(formulas: Sequence[WeightedFormula], spaces: Sequence[Space]) -> None:
    """Refuse the first formula that names a constant which is not in all domains."""
    for number, one in enumerate(formulas):
        for constant in _constants(one.formula):
            names = [space.domain.get(constant.sort, (constant.name,)) for space in spaces]
            if all(constant.name in some for some in names):
                continue
            raise InputError(
                f"formulas over several domains cannot name constants, but {one.formula} names "
                f"{constant.name}. Write a variable, or declare the constants of all worlds: "
                f"{constant.sort} = {{{constant.name}, ...}}.",
                index=number,
                token=constant.name,
                kind="conflict",
            )


def _constants(formula: Formula) -> Iterator[Constant]:
    """The constants in a formula, values of attributes included."""
    terms = formula.arguments if isinstance(formula, Atom) else ()
    if isinstance(formula, Equal):
        terms = (formula.left, formula.right)
    yield from (term for term in terms if isinstance(term, Constant))
    for part in parts(formula):
        yield from _constants(part)
