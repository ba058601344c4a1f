"""First-order languages without functions: predicates and exclusive attributes over sorts."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nmln.errors import InputError

BOOLEAN = ("false", "true")
NONE = "none"
MOST_ARGUMENTS = (
    32  # the table of groups has one axis per argument, and arrays have at most 32 axes
)
Domain = Mapping[str, Sequence[str]]
"""The constants of every sort, in their order."""

# The syntax of names in text files, for every reader and writer.
NAME_PATTERN = r"[^\W\d][\w+\-]*"
NUMERAL_PATTERN = r"\d[\w+\-]*"
STRING_PATTERN = r'"(?:[^"\\\n]|\\.)*"'
RESERVED = re.compile(r"v|exists?|forall", re.IGNORECASE)


def quote(name: str) -> str:
    """A predicate or sort as it is written in text: bare if it reads back so, otherwise quoted."""
    plain = re.fullmatch(NAME_PATTERN, name) and not RESERVED.fullmatch(name)
    return name if plain else json.dumps(name, ensure_ascii=False)


def quote_constant(name: str) -> str:
    """A constant as it is written in text; unlike a predicate it may start with a digit."""
    return name if re.fullmatch(NUMERAL_PATTERN, name) else quote(name)


def unquote(text: str) -> str:
    """The name that a token of a text file stands for."""
    if not text.startswith('"'):
        return text
    try:
        return json.loads(text, strict=False)
    except json.JSONDecodeError as error:
        message = f"{text} is not a well-formed quoted name: {error.msg}."
        raise InputError(message, kind="syntax") from None


@dataclass(frozen=True)
class Attribute:
    """A property of a tuple of constants that takes exactly one of its categories.

    With the default values it is a Boolean predicate. With `values` of its own it is exclusive:
    exactly one value holds for each tuple, or at most one if `optional` (then the category `none`
    comes first). `symmetric` makes one group of an unordered pair; without `reflexive` no tuple
    repeats a constant. `value_sort` names the values in `.mln` text.
    """

    name: str
    sorts: tuple[str, ...]
    values: tuple[str, ...] = BOOLEAN
    symmetric: bool = False
    reflexive: bool = True
    optional: bool = False
    value_sort: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.sorts, str) or isinstance(self.values, str):
            raise InputError(
                f"the sorts and values of {self.name} must be tuples of names, got a single string. "
                "Write ('node',) for one.",
                token=self.name,
            )
        object.__setattr__(self, "sorts", tuple(self.sorts))
        object.__setattr__(self, "values", tuple(self.values))
        if not self.name:
            raise InputError("an attribute needs a name, got an empty string. Give it one.")
        if not self.value_sort and (self.values != BOOLEAN or self.optional):
            object.__setattr__(self, "value_sort", f"{self.name}_value")
        if not self.values:
            raise InputError(
                f"attribute {self.name} needs at least one value, but has none. List its values.",
                token=self.name,
                kind="empty",
            )
        if len(set(self.values)) < len(self.values):
            twice = next(value for value in self.values if self.values.count(value) > 1)
            raise InputError(
                f"attribute {self.name} lists the value {twice} twice. Remove one.",
                token=twice,
                kind="twice",
            )
        if self.optional and NONE in self.values:
            raise InputError(
                f"attribute {self.name} is at-most-one, which adds the category {NONE} by itself. "
                f"Remove {NONE} from its values, or declare exactly one ('!').",
                token=self.name,
                kind="conflict",
            )
        if self.arity > MOST_ARGUMENTS:
            raise InputError(
                f"a predicate has at most {MOST_ARGUMENTS} arguments, but {self.name} has "
                f"{self.arity:,}. Split it into several predicates.",
                token=self.name,
                kind="size",
            )
        if self.symmetric and (self.arity != 2 or self.sorts[0] != self.sorts[1]):
            raise InputError(
                f"only a binary predicate over one sort can be symmetric, but {self.name} is over "
                f"({', '.join(self.sorts)}). Remove 'symmetric'.",
                token=self.name,
                kind="conflict",
            )

    @property
    def arity(self) -> int:
        """The number of constants in a tuple; the value of an exclusive attribute does not count."""
        return len(self.sorts)

    @property
    def boolean(self) -> bool:
        return not self.value_sort

    @property
    def categories(self) -> tuple[str, ...]:
        """The categories of a group of this attribute, in the order of its one-hot entries."""
        return (NONE, *self.values) if self.optional else self.values

    @property
    def null(self) -> int | None:
        """The category false or none, if there is one.

        A closed world assumes it for a tuple that is not mentioned.
        """
        if self.boolean or self.optional:
            return 0
        return self.values.index(NONE) if NONE in self.values else None

    @property
    def silent(self) -> int | None:
        """The category without a ground atom of its own: false, or the none of at-most-one."""
        return 0 if self.boolean or self.optional else None

    def declaration(self) -> str:
        """The line that declares this attribute in a `.mln` file."""
        arguments = [quote(sort) for sort in self.sorts]
        if not self.boolean:
            arguments.append(quote(self.value_sort) + ("?" if self.optional else "!"))
        flags = (" symmetric" if self.symmetric else "") + (
            "" if self.reflexive else " irreflexive"
        )
        return f"{quote(self.name)}({', '.join(arguments)}){flags}"


def predicate(name: str, *sorts: str, symmetric: bool = False, reflexive: bool = True) -> Attribute:
    """A Boolean predicate: `predicate("friends", "person", "person", symmetric=True)`.

    Args:
        name: of the predicate.
        sorts: the sort of each argument.
        symmetric: whether both orders of a pair are one ground atom.
        reflexive: whether a constant can be paired with itself.
    """
    return Attribute(name, sorts, symmetric=symmetric, reflexive=reflexive)


@dataclass(frozen=True, init=False)
class Language:
    """The attributes that describe a world, in the order of their groups."""

    attributes: tuple[Attribute, ...]
    _by_name: dict[str, Attribute] = field(repr=False, compare=False)

    def __init__(self, *attributes: Attribute) -> None:
        by_name: dict[str, Attribute] = {}
        value_sorts: dict[str, Attribute] = {}
        for attribute in attributes:
            if attribute.name in by_name:
                raise InputError(
                    f"{attribute.name} is declared twice. Remove or rename one of them.",
                    token=attribute.name,
                    kind="twice",
                )
            by_name[attribute.name] = attribute
            if attribute.boolean:
                continue
            other = value_sorts.setdefault(attribute.value_sort, attribute)
            if other.values != attribute.values:
                raise InputError(
                    f"{other.name} and {attribute.name} share the value sort {attribute.value_sort} "
                    "but list different values. Give one of them a value sort of its own.",
                    token=attribute.value_sort,
                    kind="conflict",
                )
        object.__setattr__(self, "attributes", attributes)
        object.__setattr__(self, "_by_name", by_name)

    def __getitem__(self, name: str) -> Attribute:
        if name not in self._by_name:
            known = ", ".join(sorted(self._by_name)) or "none"
            raise InputError(
                f"unknown predicate {name}. Declare it, or take one of: {known}.",
                token=name,
                kind="unknown",
            )
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Attribute]:
        return iter(self.attributes)

    def __len__(self) -> int:
        return len(self.attributes)

    @property
    def sorts(self) -> tuple[str, ...]:
        """The sorts of the tuples, in order of first use."""
        return tuple(dict.fromkeys(sort for attribute in self for sort in attribute.sorts))

    @property
    def value_sorts(self) -> dict[str, tuple[str, ...]]:
        """The values of every exclusive attribute, by the name of their sort."""
        return {a.value_sort: a.values for a in self if not a.boolean}

    def argument_sorts(self, name: str) -> tuple[str, ...]:
        """The sorts of all arguments of a ground atom, the value of an exclusive attribute last."""
        attribute = self[name]
        return attribute.sorts if attribute.boolean else (*attribute.sorts, attribute.value_sort)

    def header(self, domain: Domain | None = None) -> str:
        """The language, and the domain if given, as the header of a `.mln` file."""
        sets = {**(domain or {}), **self.value_sorts}
        lines = [
            f"{quote(s)} = {{{', '.join(map(quote_constant, names))}}}" for s, names in sets.items()
        ]
        return "\n".join([*lines, *(attribute.declaration() for attribute in self)])


def difference(one: Language, other: Language, names: tuple[str, str]) -> str | None:
    """The first declaration that only one of two languages has; None if they have the same ones.

    `names` say what has the one and the other, such as "that model" and "the data set". The order of
    the declarations may differ, and so may the values of attributes, but not the order of the sorts.
    """
    mine, theirs = ({attribute.declaration() for attribute in some} for some in (one, other))
    for found, name in ((theirs - mine, names[1]), (mine - theirs, names[0])):
        if found:
            return f"only {name} has {min(found)}."
    if one.sorts != other.sorts:
        return f"{names[1]} has the sorts {', '.join(other.sorts)}, in another order."
    return None


def new_values(one: Language, other: Language) -> list[str]:
    """The values that attributes have in the other language only, such as `atom Br`."""
    return [
        f"{attribute.name} {value}"
        for attribute in other
        if attribute.name in one
        for value in attribute.values
        if value not in one[attribute.name].values
    ]


def misplaced(
    constant: str, where: object, sort: str, names: Sequence[str], homes: Sequence[str]
) -> str:
    """The message about a constant that its sort does not have; `homes` are sorts that have it."""
    if homes:
        return (
            f"{constant} in {where} is of sort {homes[0]}, but must be of sort {sort}. Name a constant "
            "of that sort."
        )
    shown = ", ".join(map(quote_constant, names[:8])) + (", …" if len(names) > 8 else "")
    return (
        f"undeclared constant {constant} in {where}: the sort {sort} has {shown}. Declare it there, "
        "or correct the name."
    )
