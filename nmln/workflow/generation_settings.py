"""What decides the molecules that come out of sampling, in a form that can be kept and compared."""

import hashlib
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import torch

from nmln.evidence import Evidence
from nmln.files import InputError
from nmln.formats.mln import parse_formula
from nmln.model import Model
from nmln.space import Space
from nmln.workflow.conditions import Conditions


@dataclass(frozen=True)
class Settings:
    """All that decides what comes out: the same settings give the same rows, to the bit."""

    samples: int
    chains: int = 100
    burn_in: int = 300
    thin: int = 1
    moves: int = 0  # of a sweep; 0: as the model is set up
    kernel: str = ""  # empty: that which the model is set up with
    seed: int = 0
    all_levels: bool = False
    parts: int = 1
    allowed: str = ""  # the evidence: one bit for every entry, in hexadecimal digits
    formulas: tuple[str, ...] = ()
    model: str = ""  # a hash of its parameters

    def __post_init__(self) -> None:
        least = {"samples": 1, "chains": 1, "burn_in": 0, "thin": 1, "moves": 0, "parts": 1}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise InputError(f"{name} must be at least {number}, but is {getattr(self, name)}.")

    @staticmethod
    def of(
        model: Model, conditions: Conditions, samples: int, parts: int = 1, **numbers: Any
    ) -> "Settings":
        """What is asked of a model; there are no more parts than chains, nor chains than samples."""
        settings = Settings(
            samples,
            **numbers,
            allowed="" if conditions.evidence is None else _digits(conditions.evidence),
            formulas=tuple(map(str, conditions.formulas)),
            model=fingerprint(model),
        )
        chains = min(settings.chains, samples)
        return replace(settings, chains=chains, parts=min(parts, chains))

    @property
    def sweeps(self) -> int:
        return self.burn_in + self.thin * ceil(self.samples / self.chains)

    def conditions(self, space: Space) -> Conditions:
        """What samples must agree with."""
        domain = {sort: tuple(names) for sort, names in space.domain.items()}
        formulas = [parse_formula(text, space.language, domain) for text in self.formulas]
        evidence = _from_digits(space, self.allowed) if self.allowed else None
        return Conditions(evidence, tuple(formulas))


def fingerprint(model: Model) -> str:
    """A hash of the parameters, by which a model is recognised when sampling goes on."""
    digest = hashlib.sha256(model.describe()["program"].encode())
    for name, tensor in sorted(model.potential.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _digits(evidence: Evidence) -> str:
    return np.packbits(evidence.allowed.numpy()).tobytes().hex()


def _from_digits(space: Space, digits: str) -> Evidence:
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(digits), dtype=np.uint8), count=space.entries)
    return Evidence(space, torch.from_numpy(bits.astype(bool)))
