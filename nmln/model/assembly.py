"""From a description to a potential and back: language, domain, formulas and configuration."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from nmln.buckets import Bucket, shares_of
from nmln.config import Config, ModelConfig, configure
from nmln.errors import InputError, placed
from nmln.formats.mln import Program, parse_mln
from nmln.logic import WeightedFormula
from nmln.marginals import SMOOTHING
from nmln.model.domains import Domain, domains_in_json, read_domains
from nmln.potentials.base import BasePotential, by_level, refuse_complex
from nmln.potentials.bounded import BoundedPotential
from nmln.potentials.formula import FormulaPotential
from nmln.potentials.independent import IndependentPotential
from nmln.potentials.local import LocalPotential
from nmln.potentials.pieces import PiecesPotential
from nmln.potentials.registry import POTENTIALS
from nmln.potentials.total import TotalPotential
from nmln.space import Space
from nmln.training.method import Method
from nmln.training.sizes import check_model, dealt, step_memory

_COPIES = 2000  # corrupted worlds at the least that the base term is fitted to
_MOST_BYTES = 2**30  # of all of them


class Assembled(NamedTuple):
    """The parts of a model, whose parameters are not filled in yet."""

    space: Space
    potential: TotalPotential
    config: Config
    formulas: tuple[WeightedFormula, ...]
    domains: tuple[Domain, ...] = ()


def describe(
    space: Space,
    formulas: Sequence[WeightedFormula],
    config: Config,
    domains: Sequence[Domain] = (),
) -> dict[str, Any]:
    """Everything but the numbers of a model, in JSON form; domains only if it has several."""
    program = Program(space.language, dict(space.domain), tuple(formulas))
    several = {"domains": domains_in_json(domains)} if domains else {}
    return {"program": str(program), "config": config.to_dict(), **several}


def from_description(content: Mapping[str, Any], source: str | None = None) -> Assembled:
    """The parts of the model that `describe` described; errors name `source`."""
    text, settings = content.get("program"), content.get("config")
    if not isinstance(text, str) or not isinstance(settings, dict):
        raise InputError("this is not the description of a model.", source, kind="damaged")
    program = parse_mln(text, source or "model")
    with placed(source):
        space = Space(program.language, program.domain)
        domains: tuple[Domain, ...] = ()
        if "domains" in content:
            domains = read_domains(program.language, content["domains"])
            if domains[0].space != space:
                raise InputError("its first domain is not that of its program.", kind="damaged")
        config = configure(settings, source)
        potential = empty_potential(space, config, program.formulas, len(domains))
    return Assembled(space, potential, config, program.formulas, domains)


def empty_potential(
    space: Space, config: Config, formulas: Sequence[WeightedFormula], domains: int = 0
) -> TotalPotential:
    """The potential of a model whose base term is still zero everywhere.

    `domains` is the number of domains if there are several.
    """
    learned = _learned(space, Method.of(config.ladder).trained_levels, config, formulas)
    table = torch.zeros(learned.levels, space.entries)
    return _completed(learned, config, IndependentPotential(space, table, domains))


def new_potential(
    buckets: Sequence[Bucket], config: Config, formulas: Sequence[WeightedFormula]
) -> TotalPotential:
    """The potential that training starts from, on the first domain.

    Its base term and its local part are fitted to corrupted data.
    """
    space, method = buckets[0].space, Method.of(config.ladder)
    step_memory(dealt(buckets, config, max(1, config.training.blocks)), config)
    learned = _learned(space, method.trained_levels, config, formulas)
    if config.optimiser.common:
        _make_alike(learned)
    base, local = None, None
    if config.model.base:
        rng = Generator().manual_seed(config.model.seed)
        base, corrupted = _fitted_base(buckets, method, rng)
        if config.model.local:
            local = LocalPotential(space, learned.levels)
            spaces = [bucket.space for bucket in buckets]
            pairs = list(zip(spaces, corrupted, strict=True))
            local.fit(pairs, base, shares_of(buckets))
    return _completed(learned, config, base, local)


def _fitted_base(
    buckets: Sequence[Bucket], method: Method, rng: Generator
) -> tuple[IndependentPotential, list[Tensor]]:
    """The base term, and corrupted data of every domain.

    The base term has the marginals of the corrupted data. With noise by marginals it has instead, at
    every level, the frequencies that groups are redrawn from, which are nearly the same.
    """
    if not method.marginal:  # random numbers in the order of earlier versions: old runs continue
        corrupted = [
            method.corrupt(bucket.space, _chosen(bucket, method, rng), rng, None)
            for bucket in buckets
        ]
        return _independent(buckets, corrupted), corrupted
    chosen = [_chosen(bucket, method, rng) for bucket in buckets]
    clean = [worlds.expand(method.trained_levels, -1, -1) for worlds in chosen]
    base = _independent(buckets, clean, SMOOTHING)
    corrupted = [
        method.corrupt(bucket.space, worlds, rng, method.shares(base.on(bucket.space)))
        for bucket, worlds in zip(buckets, chosen, strict=True)
    ]
    return base, corrupted


def _independent(
    buckets: Sequence[Bucket], values: Sequence[Tensor], smoothing: float = 0.0
) -> IndependentPotential:
    """The marginals of worlds of every domain."""
    if len(buckets) == 1:
        return IndependentPotential.fit(buckets[0].space, values[0], smoothing=smoothing)
    spaces = [bucket.space for bucket in buckets]
    return IndependentPotential.fit_all(
        spaces, values, shares=shares_of(buckets), smoothing=smoothing
    )


def _chosen(bucket: Bucket, method: Method, rng: Generator) -> Tensor:
    """Worlds of a bucket to be corrupted, fewer where they take much memory."""
    count = len(bucket.worlds)
    fitting = _MOST_BYTES // (method.trained_levels * bucket.space.groups)
    copies = max(1, min(max(_COPIES, count), fitting))
    return bucket.worlds[torch.randint(count, (copies,), generator=rng)]


def take(potential: BasePotential, tensors: Mapping[str, Tensor], source: str) -> None:
    """Fill a potential with saved parameters; refuses those of another model."""
    refuse_complex(tensors, source)
    try:
        potential.load_state_dict(tensors)
    except (RuntimeError, KeyError, TypeError, AttributeError):
        raise InputError(
            "its tensors are not those of the model that it describes. Save the model again, or fetch "
            "another copy.",
            source,
            kind="damaged",
        ) from None


def networks_of(model: ModelConfig) -> int:
    """How many networks a model has; they are the first parts of its potential."""
    return 0 if POTENTIALS.named(model.potential).network is None else model.networks


def _learned(
    space: Space, levels: int, config: Config, formulas: Sequence[WeightedFormula]
) -> TotalPotential:
    """The parts that training changes: networks and formulas."""
    check_model(space, levels, config.model)
    parts = _networks(space, levels, config.model)
    if not parts and not formulas:
        raise InputError(
            "a formula model needs formulas: name a .mln file that has some (data.language).",
            kind="missing",
        )
    if formulas:
        parts.append(FormulaPotential(space, formulas, levels))
    total = TotalPotential(parts)
    with torch.no_grad():
        for beta in total.betas[: config.model.networks]:
            beta.div_(config.model.networks)
    return total


def _networks(space: Space, levels: int, model: ModelConfig) -> list[BasePotential]:
    build = POTENTIALS.named(model.potential).network
    if build is None:
        return []
    networks = [
        build(space, levels, model, Generator().manual_seed(model.seed + number))
        for number in range(model.networks)
    ]
    if model.bound:
        return [BoundedPotential(network, model.bound) for network in networks]
    return networks


def _completed(
    potential: TotalPotential,
    config: Config,
    base: IndependentPotential | None,
    local: LocalPotential | None = None,
) -> TotalPotential:
    """Add the base term and the local part, then the count of pieces, which a model may get later."""
    if config.model.base and base is not None:
        potential = potential.add(base)
    if config.model.local:
        local = local or LocalPotential(potential.space, potential.levels)
        potential = potential.add(local)
    if config.model.pieces:
        potential = potential.add(PiecesPotential(potential.space, potential.levels))
    return potential


@torch.no_grad()
def _make_alike(potential: BasePotential) -> None:
    """Start with the same weights at every level, so that a common step has the same effect on all."""
    for parameter in potential.parameters():
        if by_level(parameter, potential.levels):
            parameter.copy_(parameter[-1:].expand_as(parameter).clone())
