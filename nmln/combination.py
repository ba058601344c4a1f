"""Several models as one, whose score is the mean of theirs.

Each has its networks first, then what is linear in its numbers (weights of formulas, the base term),
then a beta for every part. Networks stand side by side in the whole, each with its share of the mean;
of what is linear the mean itself is taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from nmln.config import Config
from nmln.files import InputError
from nmln.logic import WeightedFormula
from nmln.space import Space


@runtime_checkable
class Described(Protocol):
    """What makes a model of one form or another."""

    @property
    def space(self) -> Space: ...

    @property
    def formulas(self) -> tuple[WeightedFormula, ...]: ...

    @property
    def config(self) -> Config: ...


_OWN = ("seed", "networks")  # settings of a model that may differ


def check_alike(models: Sequence[Described], names: Sequence[str] = ()) -> None:
    """Refuse models that have no mean, and say which one differs from the first, and in what."""
    if not models:
        raise InputError("there are no models to combine.")
    first = models[0]
    for number, model in enumerate(models):
        name = names[number] if names else None
        if model.space != first.space or model.formulas != first.formulas:
            raise InputError(
                "the models are over different languages, domains or formulas. Combine models that were "
                "trained on the same data.",
                name,
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
                        "models that were trained with the same.",
                        name,
                    )


def mean_of(states: Sequence[Mapping[str, Tensor]], networks: Sequence[int]) -> dict[str, Tensor]:
    """The tensors of the whole; `networks` says how many of each model's parts come first."""
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
