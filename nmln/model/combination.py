"""Several models as one, whose score is the mean of theirs, and weights fitted to its networks.

The potential of a model has its networks first, then the parts that are linear in their numbers
(weights of formulas, the base term), then a beta for every part. The combination has all networks
side by side, each with its share of the mean, and the mean of the linear parts.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Integer
from torch import Tensor

from nmln.config import Config, override
from nmln.errors import InputError
from nmln.logic import WeightedFormula
from nmln.model.assembly import empty_potential, networks_of, take
from nmln.model.domains import Domain
from nmln.model.replicas import Replicas
from nmln.potentials.base import BasePotential
from nmln.potentials.total import TotalPotential
from nmln.space import Space
from nmln.training import Metrics, Return, Trainer, train

Report = Callable[[Metrics | Return], None]
"""Called after every training step."""

WEIGHING = {
    "optimiser.method": "adam",
    "optimiser.learning_rate": 0.01,
    "optimiser.schedule": "cosine",
    "optimiser.warm_up": 20,
    "optimiser.common": 0.0,
    "optimiser.weight_decay": 0.0,
    "optimiser.energy_penalty": 0.0,
    "optimiser.spread": 0.0,
    "optimiser.average": 0.95,
    "chains.weighted": False,
    "training.warm_start": 0,
    "training.minutes": None,
}
"""Settings for fitting betas: they are few, so that no regularisation is needed."""

_OWN = ("seed", "networks")  # settings of a model that may differ


@runtime_checkable
class Combinable(Protocol):
    """The parts of a model that a combination needs."""

    @property
    def space(self) -> Space: ...

    @property
    def potential(self) -> BasePotential: ...

    @property
    def domains(self) -> tuple[Domain, ...]: ...

    @property
    def formulas(self) -> tuple[WeightedFormula, ...]: ...

    @property
    def config(self) -> Config: ...


def mean_potential(
    models: Sequence[Combinable], *, pieces: bool = False, names: Sequence[str] = ()
) -> tuple[Config, BasePotential]:
    """The configuration and the potential of the model whose score is the mean of these.

    With `pieces` it counts the pieces of a world too, with a weight of zero that `fit_betas` learns.
    Errors use `names` for the models.
    """
    check_alike(models, names)
    first, networks = models[0], [networks_of(model.config.model) for model in models]
    known = first.config.model.pieces
    changes = {"model.networks": max(1, sum(networks)), "model.pieces": pieces or known}
    config = override(first.config, changes)
    potential = empty_potential(first.space, config, first.formulas)
    mean = mean_of([model.potential.state_dict() for model in models], networks)
    if pieces and not known:  # a new last part, without effect
        mean = {**potential.state_dict(), **mean}
    take(potential, mean, "the combination")
    return config, potential


def check_alike(models: Sequence[Combinable], names: Sequence[str] = ()) -> None:
    """Refuse models that cannot be averaged; the error says which one differs, and in what."""
    if not models:
        raise InputError("there are no models to combine. Name at least one.", kind="empty")
    first = models[0]
    for number, model in enumerate(models):
        name = names[number] if names else None
        if model.domains:
            raise InputError(
                "models of several domains cannot be combined. Combine models of one domain each.",
                name,
                kind="unsupported",
            )
        if model.space != first.space or model.formulas != first.formulas:
            raise InputError(
                "the models are over different languages, domains or formulas. Combine models that were "
                "trained on the same data.",
                name,
                kind="conflict",
            )
        for section in ("ladder", "model"):
            one, other = (
                asdict(getattr(first.config, section)),
                asdict(getattr(model.config, section)),
            )
            for key, value in one.items():
                if key not in _OWN and other[key] != value:
                    raise InputError(
                        f"the models differ in {section}.{key}: {value} and {other[key]}. Combine "
                        "models that were trained with the same settings.",
                        name,
                        token=f"{section}.{key}",
                        kind="conflict",
                    )


def mean_of(states: Sequence[Mapping[str, Tensor]], networks: Sequence[int]) -> dict[str, Tensor]:
    """The tensors of the whole; `networks` is the number of networks of each model."""
    whole: dict[str, Tensor] = {}
    before, share = 0, 1 / len(states)
    for state, own in zip(states, networks, strict=True):
        for name, tensor in state.items():
            kind, number, *rest = name.split(".")
            part = int(number)
            if part < own:
                new = ".".join([kind, str(before + part), *rest])
                whole[new] = tensor * share if kind == "betas" else tensor.clone()
                continue
            new = ".".join([kind, str(sum(networks) + part - own), *rest])
            if kind == "betas":
                whole[new] = torch.ones_like(tensor)
            else:
                beta = state[f"betas.{part}"].view(-1, *[1] * (tensor.ndim - 1))
                whole[new] = whole.get(new, 0) + share * beta * tensor
        before += own
    return whole


def fit_betas(
    model: Combinable,
    worlds: Integer[Tensor, "worlds groups"],
    steps: int,
    report: Report | None = None,
) -> tuple[BasePotential, Replicas | None]:
    """The potential of a model with the betas of its networks fitted by likelihood, and replicas of it.

    The cost of a further piece is fitted too, where pieces are counted; nothing else changes. The
    replicas are those of the fit, as at the end of any training.
    """
    networks, pieces = networks_of(model.config.model), model.config.model.pieces
    if not networks and not pieces:
        raise InputError(
            "a formula model has no networks to weigh. Combine without fitting.", kind="unsupported"
        )
    potential = deepcopy(model.potential).requires_grad_(False)
    assert isinstance(potential, TotalPotential)
    for beta in potential.betas[:networks]:
        beta.requires_grad_(True)
    if pieces:
        potential.parts[-1].requires_grad_(True)
    trainer = Trainer(
        potential, worlds, override(model.config, {**WEIGHING, "training.steps": steps})
    )
    for metrics in train(trainer):
        if report is not None:
            report(metrics)
    fitted = trainer.average or trainer.potential
    for new, own in zip(fitted.parameters(), model.potential.parameters(), strict=True):
        new.requires_grad_(own.requires_grad)  # so that further training changes all of it
    return fitted, Replicas.mixed(trainer)
