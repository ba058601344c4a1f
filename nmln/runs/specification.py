"""The settings that determine the samples, in a form that can be saved and compared."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_args

import numpy as np
import torch

from nmln.distributed import Ranks
from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.formats.mln import parse_formula
from nmln.formats.registry import Kind
from nmln.kernels.registry import kernel_named
from nmln.model import Model
from nmln.runs.conditions import Conditions
from nmln.space import Space

BLOCK = 50
"""Chains per block: smaller blocks are slower, see benchmarks/blocks.py."""

THIN = 4
"""The default number of sweeps from one sample of a chain to the next."""

_MOST_BLOCKS = 256  # all their files are open at once while they are merged
_STEP = 0x9E3779B97F4A7C15  # between the seeds of parts in samplings of format 1


@dataclass(frozen=True)
class SamplingSettings:
    """All settings of a sampling: the same settings give the same files, bit for bit."""

    samples: int
    chains: int = 100
    burn_in: int = 300
    thin: int = 1
    moves: int = 0  # per sweep; 0: the setting of the model
    kernel: str = ""  # empty: the setting of the model
    seed: int = 0
    all_levels: bool = False
    parts: int = 1  # blocks of chains, each with a random stream and files of its own
    block: int = 0  # the most chains per block; 0: divided by processes, as in earlier versions
    kind: str = "molecules"
    allowed: str = ""  # the evidence: one bit per entry, in hexadecimal digits
    formulas: tuple[str, ...] = ()
    model: str = ""  # a hash of its parameters

    def __post_init__(self) -> None:
        least = {
            "samples": 1, "chains": 1, "burn_in": 0, "thin": 1, "moves": 0, "seed": 0, "parts": 1,
            "block": 0,
        }  # fmt: skip
        for name, number in least.items():
            if getattr(self, name) < number:
                raise InputError(f"{name} must be at least {number}, got {getattr(self, name)}.")

    @staticmethod
    def of(
        model: Model,
        conditions: Conditions,
        samples: int,
        *,
        block: int = BLOCK,
        thin: int = THIN,
        **given: Any,
    ) -> "SamplingSettings":
        """The settings of a sampling of a model; there are no more chains than samples.

        Args:
            model: the model.
            conditions: evidence and formulas.
            samples: the number of samples.
            block: the number of chains that one process draws together.
            thin: sweeps from one sample of a chain to the next.
            given: any other field.
        """
        settings = SamplingSettings(
            samples,
            block=block,
            thin=thin,
            **given,
            allowed="" if conditions.evidence is None else _digits(conditions.evidence),
            formulas=tuple(map(str, conditions.formulas)),
            model=fingerprint(model),
        )
        if block < 1:
            raise InputError(f"a block must have at least one chain, got {block}.")
        chains = min(settings.chains, samples)
        block = max(block, -(-chains // _MOST_BLOCKS))
        return replace(settings, chains=chains, block=block, parts=-(-chains // block))

    @property
    def sweeps(self) -> int:
        return self.burn_in + self.thin * self.draws

    @property
    def draws(self) -> int:
        """Samples per chain; some of the last ones are left out."""
        return -(-self.samples // self.chains)

    @property
    def digest(self) -> str:
        """A hash of all settings, which assigns checkpoints to their sampling."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def slice(self, block: int) -> tuple[int, int]:
        """The first chain of a block, and the number of its chains."""
        return Ranks(block, self.parts).slice(self.chains)

    def wanted(self, block: int, draw: int) -> range:
        """The numbers of the samples in one draw of a block: sample s of chain c is s * chains + c."""
        first, chains = self.slice(block)
        number = draw * self.chains + first
        return range(number, max(number, min(number + chains, self.samples)))

    def stream(self, block: int) -> int:
        """The seed of a block's random numbers.

        The first 63 bits of SHA-256 of the seed and the number of the block: the streams of blocks and
        of neighbouring seeds are unrelated.
        """
        if not self.block:
            return (self.seed + block * _STEP) % 2**63
        found = hashlib.sha256(f"nmln sampling {self.seed} {block}".encode()).digest()
        return int.from_bytes(found[:8], "big") >> 1

    def conditions(self, space: Space) -> Conditions:
        """The evidence and the formulas."""
        domain = {sort: tuple(names) for sort, names in space.domain.items()}
        formulas = [parse_formula(text, space.language, domain) for text in self.formulas]
        evidence = _from_digits(space, self.allowed) if self.allowed else None
        return Conditions(evidence, tuple(formulas))

    @staticmethod
    def read(content: Any, by_processes: bool = False) -> "SamplingSettings":
        """Settings from JSON; a `ValueError` describes the first error. `by_processes`: of format 1."""
        known = {entry.name: entry for entry in fields(SamplingSettings)}
        if by_processes:
            known = {name: one for name, one in known.items() if name not in ("block", "kind")}
        if not isinstance(content, Mapping):
            raise ValueError("there are no settings")
        for name in (*known, *content):
            if name not in content:
                raise ValueError(f"{name} is missing")
            if name not in known:
                raise ValueError(f"{name} is not a setting")
        for name, entry in known.items():
            value = content[name]
            kind = list if name == "formulas" else entry.type
            fits = type(value) is kind  # True is not a number here
            if name == "formulas":
                fits = fits and all(type(one) is str for one in value)
            if not fits:
                raise ValueError(f"{name} must be of type {getattr(kind, '__name__', kind)}")
        settings = SamplingSettings(**{**content, "formulas": tuple(content["formulas"])})
        if settings.chains > settings.samples or settings.seed >= 2**63:
            raise ValueError("its numbers do not fit together")
        parts = settings.chains if by_processes else -(-settings.chains // max(1, settings.block))
        if not by_processes and (settings.block < 1 or settings.parts != parts):
            raise ValueError("its numbers do not fit together")
        if settings.parts > parts or settings.kind not in get_args(Kind):
            raise ValueError("its numbers do not fit together")
        return settings

    def check(self, model: Model) -> None:
        """Refuse settings that do not fit a model; nothing is sampled."""
        conditions = self.conditions(model.space)
        kernel_named(self.kernel or model.config.sampling.kernel, model.space, conditions.evidence)


def fingerprint(model: Model) -> str:
    """A hash of the parameters, which identifies the model when a sampling is continued."""
    digest = hashlib.sha256(model.describe()["program"].encode())
    for name, tensor in sorted(model.potential.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _digits(evidence: Evidence) -> str:
    return np.packbits(evidence.allowed.numpy()).tobytes().hex()


def _from_digits(space: Space, digits: str) -> Evidence:
    known = np.frombuffer(bytes.fromhex(digits), dtype=np.uint8)
    if len(known) != -(-space.entries // 8):
        raise ValueError("the evidence does not fit this model")
    bits = np.unpackbits(known, count=space.entries)
    return Evidence(space, torch.from_numpy(bits.astype(bool)))
