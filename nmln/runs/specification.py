"""The settings that determine the samples, in a form that can be saved and compared."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from math import inf
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Int64
from torch import Generator, Tensor

from nmln.buckets import deal, domain_in_json, space_in_json
from nmln.distributed import Ranks
from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.formats.mln import parse_formula
from nmln.formats.registry import Kind
from nmln.kernels.registry import kernel_named
from nmln.model import Model
from nmln.model.chains import check_sharpening
from nmln.model.domains import draw_counts, stream
from nmln.model.replicas import chosen
from nmln.runs.conditions import Conditions
from nmln.space import Space

BLOCK = 50
"""Chains per block: smaller blocks are slower, see benchmarks/blocks.py."""

THIN = 4
"""The default number of sweeps from one sample of a chain to the next."""

_MOST_BLOCKS = 256  # all their files are open at once while they are merged
_LEAST = 4  # chains of a domain, where there are enough
_LATER: dict[str, Any] = {"domains": (), "device": "cpu", "sharpen": 1, "start": "", "minutes": 0}
"""Settings that samplings of earlier versions do not have, with what holds for those."""

_STEP = 0x9E3779B97F4A7C15  # between the seeds of parts in samplings of format 1


@dataclass(frozen=True, repr=False)
class DomainSettings:
    """What one of several domains has of a sampling.

    Args:
        domain: the constants of every sort, as `domain_in_json` gives them.
        share: the probability of the domain.
        samples: the number of samples of this domain, drawn by the shares.
        allowed: the evidence, as in `SamplingSettings`.
    """

    domain: dict[str, Any]
    share: float
    samples: int
    allowed: str = ""

    def __repr__(self) -> str:
        return f"{self.domain} ({self.share:.3g})"

    @staticmethod
    def read(content: Any) -> "DomainSettings":
        """A domain from JSON; a `ValueError` if it is none."""
        known = {"domain": dict, "share": float, "samples": int, "allowed": str}
        if not isinstance(content, Mapping) or content.keys() != known.keys():
            raise ValueError("a domain must have its constants, share, samples and evidence")
        for name, kind in known.items():
            if type(content[name]) is not kind:
                raise ValueError(f"{name} of a domain must be of type {kind.__name__}")
        if not 0 <= content["share"] <= 1 or content["samples"] < 0:
            raise ValueError("the numbers of a domain do not fit together")
        return DomainSettings(**content)


class Section(NamedTuple):
    """The chains of one domain: how many, and the numbers of its first chain and its first block."""

    samples: int
    chains: int
    parts: int
    first_chain: int = 0
    first_block: int = 0

    @property
    def draws(self) -> int:
        """Samples per chain; some of the last ones are left out."""
        return -(-self.samples // self.chains) if self.chains else 0


@dataclass(frozen=True)
class SamplingSettings:
    """All settings of a sampling: the same settings give the same files, bit for bit.

    A sampling of several `domains` has chains of its own for each, in the order of the domains.
    """

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
    domains: tuple[DomainSettings, ...] = ()  # empty: that of the model
    start: str = ""  # a hash of the replicas of the model that chains start from; empty: noise
    device: str = "cpu"
    sharpen: float = 1.0  # multiplies the model's scores at the target
    minutes: float = 0.0  # most minutes of processor time, shared by the blocks; 0: no limit

    def __post_init__(self) -> None:
        least = {
            "samples": 1, "chains": 1, "burn_in": 0, "thin": 1, "moves": 0, "seed": 0, "parts": 1,
            "block": 0,
        }  # fmt: skip
        for name, number in least.items():
            if getattr(self, name) < number:
                raise InputError(f"{name} must be at least {number}, got {getattr(self, name)}.")
        check_sharpening(self.sharpen)
        if not 0 <= self.minutes < inf:
            raise InputError(f"minutes must be at least 0 and finite, got {self.minutes}.")

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

        Of several domains each has at least one chain, if it has a sample.

        Args:
            model: the model.
            conditions: sizes, evidence and formulas.
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
            allowed=_digits(conditions.evidence),
            formulas=tuple(map(str, conditions.formulas)),
            model=fingerprint(model),
            domains=_domains(conditions, samples, given.get("seed", 0)),
        )
        if block < 1:
            raise InputError(f"a block must have at least one chain, got {block}.")
        used = sum(one.samples > 0 for one in settings.domains)
        chains = min(max(settings.chains, used), samples)
        block = max(block, -(-chains // _MOST_BLOCKS))
        settings = replace(settings, chains=chains, block=block, parts=-(-chains // block))
        return replace(settings, parts=sum(one.parts for one in settings.sections))

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The chains of every domain; of a domain without samples none."""
        if not self.domains:
            return (Section(self.samples, self.chains, self.parts),)
        counts = [one.samples for one in self.domains]
        used = [count for count in counts if count]
        least = min(_LEAST, *used, max(1, self.chains // (2 * len(used))))
        dealt = iter(deal(self.chains, [count / self.samples for count in used], least))
        found, chain, block = [], 0, 0
        for count in counts:
            chains = next(dealt) if count else 0
            found.append(Section(count, chains, -(-chains // self.block), chain, block))
            chain, block = chain + chains, block + found[-1].parts
        return tuple(found)

    def home(self, block: int) -> int:
        """The number of the domain of a block."""
        return max(
            number
            for number, one in enumerate(self.sections)
            if one.parts and one.first_block <= block
        )

    @property
    def sweeps(self) -> int:
        """The sweeps of the block that has the most."""
        return self.burn_in + self.thin * self.draws

    @property
    def seconds_of_block(self) -> float:
        """The processor time after which a block ends, with at least one sample of every chain."""
        return 60 * self.minutes / self.parts if self.minutes else inf

    def sweeps_of(self, block: int) -> int:
        """The sweeps of a block, those of the burn-in included."""
        return self.burn_in + self.thin * self.sections[self.home(block)].draws

    @property
    def draws(self) -> int:
        """The most samples of a chain; some of the last ones are left out."""
        return max(one.draws for one in self.sections)

    def described(self) -> dict[str, Any]:
        """All settings for JSON; those of later versions only where they are not the defaults."""
        found = asdict(self)
        for name, default in _LATER.items():
            if found[name] == default:
                del found[name]
        return found

    @property
    def digest(self) -> str:
        """A hash of all settings, which assigns checkpoints to their sampling."""
        text = json.dumps(self.described(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def slice(self, block: int) -> tuple[int, int]:
        """The first chain of a block, and the number of its chains."""
        own = self.sections[self.home(block)]
        first, count = Ranks(block - own.first_block, own.parts).slice(own.chains)
        return own.first_chain + first, count

    def wanted(self, block: int, draw: int) -> range:
        """The numbers of the samples in one draw of a block: sample s of chain c is s * chains + c.

        Domains end at different draws, so that of several domains some of the last numbers are not
        used.
        """
        own, (first, chains) = self.sections[self.home(block)], self.slice(block)
        left = own.samples - draw * own.chains - (first - own.first_chain)
        number = draw * self.chains + first
        return range(number, number + max(0, min(chains, left)))

    def stream(self, block: int) -> int:
        """The seed of a block's random numbers.

        The first 63 bits of SHA-256 of the seed and the number of the block: the streams of blocks and
        of neighbouring seeds are unrelated.
        """
        if not self.block:
            return (self.seed + block * _STEP) % 2**63
        found = hashlib.sha256(f"nmln sampling {self.seed} {block}".encode()).digest()
        return int.from_bytes(found[:8], "big") >> 1

    def replicas_of(self, block: int, replicas: int) -> Int64[Tensor, " chains"]:
        """The replicas of the model that the chains of a block start from, of so many there are."""
        number = self.home(block)
        own, (first, count) = self.sections[number], self.slice(block)
        rng = Generator().manual_seed(stream(self.seed, f"replicas {number}"))
        first -= own.first_chain
        return chosen(replicas, own.chains, rng)[first : first + count]

    def models(self, model: Model) -> tuple[Model, ...]:
        """The model on every domain that is sampled."""
        if not self.domains:
            return (model,)
        language = model.space.language
        spaces = [space_in_json(language, one.domain) for one in self.domains]
        return tuple(model.on(space, warn=False) for space in spaces)  # the command has warned

    def conditions(self, space: Space, number: int = 0) -> Conditions:
        """The evidence and the formulas for the domain of this number, which `space` is."""
        domain = {sort: tuple(names) for sort, names in space.domain.items()}
        formulas = [parse_formula(text, space.language, domain) for text in self.formulas]
        allowed = self.domains[number].allowed if self.domains else self.allowed
        evidence = _from_digits(space, allowed) if allowed else None
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
            if name not in content and name not in _LATER:
                raise ValueError(f"{name} is missing")
            if name not in known:
                raise ValueError(f"{name} is not a setting")
        for name, entry in known.items():
            if name not in content:
                continue
            value = content[name]
            kind = list if name in ("formulas", "domains") else entry.type
            fits = type(value) is kind  # True is not a number here
            if name == "formulas":
                fits = fits and all(type(one) is str for one in value)
            if not fits:
                raise ValueError(f"{name} must be of type {getattr(kind, '__name__', kind)}")
        domains = tuple(map(DomainSettings.read, content.get("domains", [])))
        settings = SamplingSettings(
            **{**content, "formulas": tuple(content["formulas"]), "domains": domains}
        )
        if settings.device not in ("cpu", "cuda", "mps"):
            raise ValueError("its device is unknown")
        if settings.chains > settings.samples or settings.seed >= 2**63:
            raise ValueError("its numbers do not fit together")
        parts = settings.chains if by_processes else -(-settings.chains // max(1, settings.block))
        if domains and not by_processes:
            if sum(one.samples for one in domains) != settings.samples or settings.block < 1:
                raise ValueError("its numbers do not fit together")
            parts = sum(one.parts for one in settings.sections)
            if any(one.samples and not one.chains for one in settings.sections):
                raise ValueError("its numbers do not fit together")
        if not by_processes and (settings.block < 1 or settings.parts != parts):
            raise ValueError("its numbers do not fit together")
        if settings.parts > parts or settings.kind not in get_args(Kind):
            raise ValueError("its numbers do not fit together")
        return settings

    def check(self, model: Model) -> None:
        """Refuse settings that do not fit a model; nothing is sampled."""
        for number, one in enumerate(self.models(model)):
            conditions = self.conditions(one.space, number)
            kernel_named(self.kernel or one.config.sampling.kernel, one.space, conditions.evidence)
            if self.start and one.replicas is None:
                raise ValueError("the model has no chains to start from")
        if self.start and self.start != start_of(model):
            raise ValueError("the chains of the model are others")


def start_of(model: Model) -> str:
    """A hash of the replicas that come with a model; empty if there are none."""
    return "" if model.replicas is None else model.replicas.digest


def fingerprint(model: Model) -> str:
    """A hash of the parameters, which identifies the model when a sampling is continued."""
    content = model.describe()
    digest = hashlib.sha256(content["program"].encode())
    if "domains" in content:
        digest.update(json.dumps(content["domains"], sort_keys=True).encode())
    for name, tensor in sorted(model.potential.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _domains(conditions: Conditions, samples: int, seed: int) -> tuple[DomainSettings, ...]:
    """The domains of a sampling, with the numbers of their samples."""
    domains = [one for one, _ in conditions.domains]
    counts = draw_counts(domains, samples, seed) if domains else []
    return tuple(
        DomainSettings(domain_in_json(one.space), one.share, count, _digits(evidence))
        for (one, evidence), count in zip(conditions.domains, counts, strict=True)
    )


def _digits(evidence: Evidence | None) -> str:
    if evidence is None:
        return ""
    return np.packbits(evidence.allowed.numpy()).tobytes().hex()


def _from_digits(space: Space, digits: str) -> Evidence:
    known = np.frombuffer(bytes.fromhex(digits), dtype=np.uint8)
    if len(known) != -(-space.entries // 8):
        raise ValueError("the evidence does not fit this model")
    bits = np.unpackbits(known, count=space.entries)
    return Evidence(space, torch.from_numpy(bits.astype(bool)))
