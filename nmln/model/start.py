"""A model that starts from the weights of another: what must be alike, and what is taken over."""

from collections.abc import Sequence
from dataclasses import asdict, replace

import torch

from nmln.config import Config
from nmln.errors import InputError
from nmln.language import difference
from nmln.logic import WeightedFormula
from nmln.model.assembly import networks_of
from nmln.model.combination import Combinable
from nmln.potentials.base import BasePotential
from nmln.potentials.bounded import BoundedPotential
from nmln.potentials.inheritance import inherit, labels_of
from nmln.potentials.local import LocalPotential
from nmln.potentials.pieces import PiecesPotential
from nmln.potentials.rings import RingsPotential
from nmln.potentials.total import TotalPotential
from nmln.space import Space
from nmln.training.method import Method


def started_settings(start: Combinable) -> Config:
    """The settings that hold where nothing else is said: the potential of the other model."""
    return replace(Config(), model=replace(start.config.model, seed=Config().model.seed))


def check_settings(config: Config, start: Combinable) -> None:
    """Refuse another form of the potential than that of the other model.

    Pieces may be counted, a local part added, or rings shown where the other model did without: they
    start at 0.
    """
    wanted, known = asdict(config.model), asdict(start.config.model)
    for key, value in wanted.items():
        added = key in ("pieces", "local", "rings") and value
        if key != "seed" and value != known[key] and not added:
            raise InputError(
                f"model.{key} is {value}, but {known[key]} in the model whose weights are the start. "
                "Leave it out: the settings of the potential come from that model.",
                token=f"model.{key}",
                kind="conflict",
            )


def start_from(
    start: Combinable,
    potential: BasePotential,
    config: Config,
    formulas: Sequence[WeightedFormula] = (),
) -> None:
    """Give a new potential the weights of another model over the same language.

    The domains and the levels may be others: each level takes the weights of the level with the nearest
    rate. The base term and the start of the local part stay those of the new data, and so do weights of
    values and formulas that the other model does not have. Where the other model has no local part, its
    network has learned what is local: then the start is zero.
    """
    language = potential.space.language
    check_settings(config, start)
    if found := difference(start.space.language, language, ("that model", "the new data set")):
        raise InputError(
            f"the weights of another model need the same language, and this is another one: {found} "
            "Start from a model over the same predicates, or without one.",
            kind="conflict",
        )
    if bool(formulas) != bool(start.formulas):
        lacking = "the new data have none" if start.formulas else "it has none"
        raise InputError(
            f"a model with formulas can only start from another one with formulas, but {lacking}. "
            "Give both the same language file.",
            kind="conflict",
        )
    there = start.potential.on(Space(start.space.language, potential.space.domain))
    known, own = (Method.of(one.ladder).noise for one in (start.config, config))
    levels = [known.nearest(rate) for rate in own]
    inherit(potential, there, levels)
    if config.model.rings and not start.config.model.rings:
        for new, old in zip(
            _networks(potential, config), _networks(there, start.config), strict=True
        ):
            _blind(new, old, levels)
    if config.model.local and not start.config.model.local:
        _without_start(potential, there, levels if start.config.model.pieces else [])


def _networks(potential: BasePotential, config: Config) -> list[BasePotential]:
    """The networks of a model, without the bound on their scores."""
    assert isinstance(potential, TotalPotential)
    networks = list(potential.parts)[: networks_of(config.model)]
    found = [one.potential if isinstance(one, BoundedPotential) else one for one in networks]
    return [one for one in found if isinstance(one, BasePotential)]


def _blind(new: BasePotential, old: BasePotential, levels: Sequence[int]) -> None:
    """Give a network that sees rings the weights of one that does not, and rings no weight."""
    assert isinstance(new, RingsPotential)
    inherit(new.potential, old, levels)
    own = {one.name for one in new.space.language}
    rings = {one.name for one in new.potential.space.language} - own
    for name, axes in labels_of(new.potential).items():
        for axis, labels in axes.items():
            places = [
                place
                for place, label in enumerate(labels)
                if isinstance(label, tuple) and label[0] in rings
            ]
            with torch.no_grad():
                weight = new.potential.get_parameter(name)
                weight.index_fill_(axis, torch.tensor(places, dtype=torch.int64), 0.0)


def _without_start(potential: BasePotential, there: BasePotential, pieces: Sequence[int]) -> None:
    """Zero the start of a new local part; take over the count of pieces, now one place later."""
    assert isinstance(potential, TotalPotential)
    assert isinstance(there, TotalPotential)
    for part in potential.parts:
        if isinstance(part, LocalPotential):
            part.forget()
    new, old = potential.parts[-1], there.parts[-1]
    if pieces and isinstance(new, PiecesPotential) and isinstance(old, PiecesPotential):
        inherit(new, old, pieces)
