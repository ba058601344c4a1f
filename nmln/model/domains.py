"""The domains of a model: the sizes of its data, with their shares, and the choice of some."""

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isclose
from typing import Any, NamedTuple

import torch
from torch import Generator

from nmln.buckets import (
    Bucket,
    domain_in_json,
    name_of,
    names_of,
    shares_of,
    size_of,
    space_in_json,
)
from nmln.errors import InputError
from nmln.language import Language
from nmln.memory import in_digits
from nmln.model.constants import names_for, refuse_misspelled
from nmln.space import Space, measure

_FAR = 4  # times the largest size of the data, beyond which the time is not what a user knows


class Domain(NamedTuple):
    """One domain of a model of several, and the share of the data that it had."""

    space: Space
    share: float


def domains_of(buckets: Sequence[Bucket]) -> tuple[Domain, ...]:
    """The domains of data; none for data of one domain, whose model has it as its space.

    Refuses a domain that occurs twice, with the same constants in the same order.
    """
    if len(buckets) == 1:
        return ()
    for space, times in Counter(one.space for one in buckets).items():
        if times > 1:
            raise InputError(
                f"every bucket must have a domain of its own, but {times} have the same one of "
                f"{name_of(space)}. Put their worlds into one bucket: torch.cat.",
                kind="twice",
            )
    shares = shares_of(buckets)
    return tuple(Domain(one.space, share) for one, share in zip(buckets, shares, strict=True))


def domains_in_json(domains: Sequence[Domain]) -> list[dict[str, Any]]:
    """Domains and their shares as JSON values."""
    return [{"domain": domain_in_json(one.space), "share": one.share} for one in domains]


def read_domains(language: Language, content: Any) -> tuple[Domain, ...]:
    """The domains that `domains_in_json` wrote; refuses anything else."""
    found = []
    for one in content if isinstance(content, list) else [None]:
        if not isinstance(one, dict) or type(one.get("share")) is not float:
            raise InputError("every domain must have its constants and its share.", kind="damaged")
        found.append(Domain(space_in_json(language, one.get("domain")), one["share"]))
    shares = [one.share for one in found]
    if len(found) < 2 or min(shares) < 0 or not isclose(sum(shares), 1, rel_tol=1e-6):
        raise InputError(
            "the shares of at least two domains must add up to 1, but they do not.", kind="damaged"
        )
    return tuple(found)


def of_size(domains: Sequence[Domain], space: Space, size: int) -> Space:
    """The language on a domain of one size: the first of the model that has it, or a new one.

    Of a new one a warning says that no data had this size, and how much larger it is, before anything is
    computed.
    """
    known = [space, *(one.space for one in domains)]
    if len(space.domain) != 1:
        raise InputError(
            f"a size is that of one sort, but this language has {', '.join(space.domain)}. Choose a "
            "domain with model.on(space).",
            kind="unsupported",
        )
    if size < 1:
        raise InputError(f"a size must be at least 1, got {size}.", token=str(size))
    (sort,) = space.domain
    for one in known:
        if len(one.domain[sort]) == size:
            return one
    names = names_of([one.space for one in domains] or [space])
    most = max(known, key=lambda one: one.groups)
    large = ""
    if size > _FAR * len(most.domain[sort]):
        groups = measure(space.language, {sort: size}).groups
        large = (
            f" A world of size {size} has {in_digits(groups)} groups, the largest of the data "
            f"{in_digits(most.groups)}: this may take very long."
        )
    warnings.warn(
        f"this model has not seen worlds of size {size}: it was trained on {names}. What it gives for "
        f"other sizes is an extrapolation.{large}",
        stacklevel=2,
    )
    return Space(space.language, {sort: size})


def holding(
    domains: Sequence[Domain], space: Space, named: Mapping[str, Sequence[str]]
) -> tuple[Space, bool]:
    """The language on the domain that some constants, by sort, belong to; and whether it is a new one.

    It is the domain of the model that has them all. If none has, it is their own: exactly these
    constants, and those of the model for sorts of which none is named, or only constants that it has.
    Constants of which the model has only some, and those that may be misspelt, are refused.
    """
    known = [one.space for one in domains] or [space]
    fitting = [
        one
        for one in known
        if all(set(names) <= set(one.domain[sort]) for sort, names in named.items())
    ]
    if len(fitting) == 1:
        return fitting[0], False
    if fitting:
        raise InputError(
            f"the constants do not determine one of the domains of this model ({names_of(fitting)}). "
            "Choose one: --size N, or evidence on the space model.domains[n].space.",
            kind="missing",
        )
    for sort, names in named.items():
        last = known[-1].domain[sort]
        beyond = [name for name in names if name.isdigit() and name not in last]
        if beyond and isinstance(domain_in_json(known[-1])[sort], int):
            raise InputError(
                f"the constants of sort {sort} are numbered from 0 to {len(last) - 1} in this model, "
                f"got {beyond[0]}. Choose a larger domain with --size, or correct the number.",
                token=beyond[0],
                kind="unknown",
            )
    refuse_misspelled(known, named)
    own = {sort: names_for(known, sort, named.get(sort, ())) for sort in space.domain}
    return Space(space.language, own), True


def choose(domains: Sequence[Domain], space: Space, sizes: Sequence[int]) -> tuple[Domain, ...]:
    """Some sizes with the shares that they have among each other in the data.

    If one of them was not in the data, all are equally probable. A size that several domains have is
    drawn with the constants of the first of them.
    """
    if not sizes or len(set(sizes)) < len(sizes):
        raise InputError(
            f"sizes must be different numbers, got {list(sizes)}. Give at least one.", kind="empty"
        )
    spaces = [of_size(domains, space, size) for size in sizes]
    known: dict[tuple[int, ...], float] = {}
    for one in domains or (Domain(space, 1.0),):
        known[size_of(one.space)] = known.get(size_of(one.space), 0.0) + one.share
    shares = [known.get(size_of(one), 0.0) for one in spaces]
    if not all(shares):
        shares = [1.0] * len(spaces)
    return among([Domain(one, share) for one, share in zip(spaces, shares, strict=True)])


def asked_for(
    domains: Sequence[Domain], space: Space, size: int | None, sizes: Sequence[int] | None
) -> tuple[Domain, ...]:
    """The domains to draw from: those of one size or of several, or else those of the model."""
    if size is not None and sizes is not None:
        raise InputError("size and sizes both choose sizes. Give one of them.", kind="conflict")
    chosen = (size,) if size is not None else sizes
    return tuple(domains) if chosen is None else choose(domains, space, chosen)


def among(domains: Sequence[Domain]) -> tuple[Domain, ...]:
    """Some domains with the shares that they have among each other."""
    total = sum(one.share for one in domains)
    return tuple(Domain(one.space, one.share / total) for one in domains)


def draw(domains: Sequence[Domain], count: int, seed: int) -> list[int]:
    """The numbers of the domains of `count` worlds, each drawn by its share."""
    shares = torch.tensor([one.share for one in domains], dtype=torch.float64)
    rng = Generator().manual_seed(stream(seed, "sizes"))
    return torch.multinomial(shares, count, replacement=True, generator=rng).tolist()


def draw_counts(domains: Sequence[Domain], count: int, seed: int) -> list[int]:
    """How many of `count` worlds each domain has, drawn by the shares, in constant memory."""
    rng = Generator().manual_seed(stream(seed, "counts"))
    found, left, rest = [], count, 1.0
    for one in domains[:-1]:
        share = torch.tensor([min(1.0, one.share / rest)], dtype=torch.float64)
        number = torch.binomial(torch.tensor([left], dtype=torch.float64), share, generator=rng)
        found.append(int(number))
        left, rest = left - found[-1], max(rest - one.share, 1e-300)
    return [*found, left]


def by_shares(
    domains: Sequence[Domain],
    count: int,
    seed: int,
    attempts: int | None,
    results: Callable[[Space, int, int, int | None], list[Any]],
) -> list[Any]:
    """Results of some domains: of one with the seed itself, of several by their shares.

    `results` gives those of one domain, by its space, their number, a seed and the most attempts.
    """
    if len(domains) == 1:
        return results(domains[0].space, count, seed, attempts)
    if count < 1:
        raise InputError(f"n must be at least 1, got {count}.")
    drawn = draw(domains, count, seed)
    found = {}
    for number in sorted(set(drawn)):
        own, some = stream(seed, str(number)), drawn.count(number)
        tries = None if attempts is None else max(1, attempts * some // count)
        found[number] = iter(results(domains[number].space, some, own, tries))
    return [next(found[number]) for number in drawn]


def refuse_conditions(domains: Sequence[Domain], given: bool) -> None:
    """Refuse conditions, which are about one domain, where several are drawn from."""
    if given and len(domains) > 1:
        raise InputError(
            "evidence and added potentials are about one domain, but this draws from several "
            f"({names_of([one.space for one in domains])}). Choose one with size.",
            kind="conflict",
        )


def stream(seed: int, what: str) -> int:
    """The seed of a random stream of its own: those of different domains are unrelated."""
    found = hashlib.sha256(f"nmln generate {seed} {what}".encode()).digest()
    return int.from_bytes(found[:8], "big") >> 1


def refuse_several(domains: Sequence[Domain], what: str) -> None:
    """Refuse a model of several domains where one is needed."""
    if domains:
        names = names_of([one.space for one in domains])
        raise InputError(
            f"{what} needs a model of one domain, but this one has several ({names}). Choose one: "
            f"model.on(model.domains[0].space) is that of {name_of(domains[0].space)}.",
            kind="unsupported",
        )
