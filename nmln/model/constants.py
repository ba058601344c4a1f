"""The constants that a question names: those of the model, new ones, and mistakes."""

import warnings
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from nmln.buckets import name_of, names_of, size_of
from nmln.errors import InputError
from nmln.space import Space

_ALIKE = 0.8  # how similar two names are, from 0 to 1, if one may be a misspelling of the other
_COMPARED = 10**5  # pairs of names; more would take seconds


def warn_unseen(known: Sequence[Space], asked: Space) -> None:
    """Warn if no known domain has as many constants as a domain that is asked about."""
    if size_of(asked) not in map(size_of, known):
        warnings.warn(
            f"this model has not seen worlds of size {name_of(asked)}: it was trained on "
            f"{names_of(known)}. What it gives for other sizes is an extrapolation.",
            stacklevel=3,
        )


def names_for(known: Sequence[Space], sort: str, named: Sequence[str]) -> Sequence[str]:
    """The constants of one sort of a new domain: those that are named, or the model's if it has them."""
    if not named:
        return known[0].domain[sort]
    having = {one.domain[sort] for one in known if set(named) <= set(one.domain[sort])}
    if len(having) > 1:
        raise InputError(
            f"{named[0]} of sort {sort} is a constant of several domains of this model, and constants "
            f"of other sorts are new. Name constants of sort {sort} that one domain has, or new ones.",
            token=named[0],
            kind="missing",
        )
    return having.pop() if having else named


def refuse_misspelled(known: Sequence[Space], named: Mapping[str, Sequence[str]]) -> None:
    """Refuse constants of which the domains of a model have some, and names like those that they have.

    Both are mistakes more often than new domains. Numbered constants are not names.
    """
    for sort, names in named.items():
        numbered = tuple(names) == tuple(map(str, range(len(names))))
        if numbered or any(set(names) <= set(one.domain[sort]) for one in known):
            continue
        have = dict.fromkeys(name for one in known for name in one.domain[sort])
        unknown = [name for name in names if name not in have]
        old = next((name for name in names if name in have), None)
        if not unknown:
            raise InputError(
                f"no domain of this model has all of the constants {', '.join(names)} of sort {sort}: "
                "they belong to several. Ask about one domain at a time.",
                token=old,
                kind="conflict",
            )
        found, near = _misspelt(unknown, list(have)) or (unknown[0], None)
        if near is None and old is None:
            continue
        also = "" if old is None else f", but {old} is"
        meant = "" if near is None else f" Did you mean {near}?"
        raise InputError(
            f"{found} is not a constant of sort {sort} in this model{also}.{meant} For a new domain, "
            "give all of its constants new names, unlike those of the model, or number them with "
            "--size N; in Python, model.on(space).given(evidence) takes any names.",
            token=found,
            kind="unknown",
        )


def _misspelt(unknown: Sequence[str], known: Sequence[str]) -> tuple[str, str] | None:
    """The first unknown name that resembles a known one, and that one.

    Names that differ only in their digits are numbered, not misspelt.
    """
    if len(unknown) * len(known) > _COMPARED:
        return None
    spelt = {name.lower(): name for name in known}
    for name in unknown:
        for near in get_close_matches(name.lower(), spelt, 1, _ALIKE):
            if near == name.lower() or _letters(near) != _letters(name.lower()):
                return name, spelt[near]
    return None


def _letters(name: str) -> str:
    return "".join(letter for letter in name if not letter.isdigit())
