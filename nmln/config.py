"""The configuration of a run: frozen dataclasses, read from TOML, with every key checked."""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from nmln.errors import InputError
from nmln.files import check_readable
from nmln.memory import told

SEEDS = ("data.split_seed", "model.seed", "training.seed")
_FASTEST = 1e6  # a learning rate: nothing is learned long before
_LONGEST = 1e7  # minutes of training: 19 years
_DEEP_KEY = re.compile(r"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){100}")
_WHOLE = 2**63  # what a whole number must stay below, either way
PAPER_RATES = (0.1, 0.01, 0.005, 0.0025, 0.001)
RATES = (0.08, 0.045, 0.02, 0.006, 0.001)  # neighbours swap alike on molecules of 10 atoms


@dataclass(frozen=True)
class DataConfig:
    """What is learned from, and how it is split."""

    source: str = "pubchem-10"  # a built-in name, a name in NMLN_DATA, or a file
    language: str | None = None  # a .mln file with declarations, for .db worlds
    nodes: int | None = None  # heavy atoms, where a file holds several sizes
    train_share: float = 0.8
    split_seed: int = 0


@dataclass(frozen=True)
class LadderConfig:
    """The levels, and what makes them different.

    `noising`: a potential for each rate. `tempering`: one potential at several temperatures, fitted to
    data corrupted at the last rate. `single`: one potential at one level, the same data.
    """

    method: Literal["noising", "tempering", "single"] = "noising"
    rates: tuple[float, ...] = RATES
    temperatures: tuple[float, ...] = (1.360489, 1.259712, 1.1664, 1.08, 1.0)


@dataclass(frozen=True)
class ModelConfig:
    """What scores the worlds."""

    potential: Literal["graph", "fragment", "deepset", "image", "formula"] = "graph"
    layers: int = 4
    hidden: int = 64
    width: int = 2  # of fragments: how many constants they see
    networks: int = 1  # whose mean is the score; `nmln combine` makes several runs one model
    residual: bool = False
    bound: float = 50.0  # the network says at most so many nats, by a soft bound; 0 for none
    base: bool = (
        True  # independent groups with the marginals of the corrupted data, to be corrected
    )
    pieces: bool = False  # count the pieces that the graph falls into, with a learned weight
    seed: int = 0


@dataclass(frozen=True)
class ChainConfig:
    """The persistent chains of the negative phase."""

    kernel: str = "balanced"
    replicas: int = 100
    sweeps: int = 2  # between two updates
    moves: int = 6  # in a sweep, after which neighbouring levels swap
    changes: float = 0.0  # where above 0: more moves, until a chain changes so often in a sweep
    phases: Literal["both", "alternate"] = "both"
    start: Literal["data", "noise", "model"] = "data"  # model: draws of the untrained one
    renewal: float = (
        0.0  # share of the noisiest chains that start anew from corrupted data at a step
    )
    weighted: bool = False  # draw the chains anew by Jarzynski's weights after every update


@dataclass(frozen=True)
class SamplingConfig:
    """How chains move when samples are drawn, which need not be as in training."""

    kernel: str = "balanced"
    moves: int = 6  # in a sweep, after which chains swap


@dataclass(frozen=True)
class OptimiserConfig:
    """How parameters move."""

    method: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 2e-3
    common: float = 1.0  # step by the mean gradient of all levels, relative to a level's own
    schedule: Literal["cosine", "constant"] = "cosine"
    warm_up: int = 50  # steps with a growing rate
    trust: float = 0.5  # share of a level's chains that an update must leave counting; 0: any
    clip: float = 20.0  # largest norm of a level's gradient; 0 for none
    weight_decay: float = 0.0
    energy_penalty: float = 0.0  # times the mean squared score of both phases
    spread: float = 4.0  # nats above the mean beyond which data are pulled down; 0: none
    average: float = 0.998  # decay of the moving average used for sampling; 0 for none


@dataclass(frozen=True)
class TrainingConfig:
    """How long, and with what."""

    steps: int = 3000
    minutes: float | None = None  # instead of steps: measured by a pilot, then fixed and recorded
    batch: int = 100
    warm_start: int = 0  # so many steps of pseudo-likelihood first, which need no chains
    corruption: Literal["step", "epoch"] = "step"
    seed: int = 0
    checkpoint_seconds: float = 60.0
    keep: int = 3
    retries: int = 3  # returns to the last good checkpoint before giving up
    processes: int = 0  # 0: one for each core
    blocks: int = 0  # of replicas, each with its own random stream; 0: one per process at the start


@dataclass(frozen=True)
class Config:
    """All of a run."""

    data: DataConfig = field(default_factory=DataConfig)
    ladder: LadderConfig = field(default_factory=LadderConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    chains: ChainConfig = field(default_factory=ChainConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)

    def __post_init__(self) -> None:
        _check_ranges(self)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: tuples are lists."""
        return json.loads(json.dumps(asdict(self)))


PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "small": {},
    "molecules": {
        "model": {"pieces": True},
        "chains": {"replicas": 200},
        "optimiser": {"weight_decay": 0.5, "spread": 3.0},
        "training": {"batch": 200},
    },
    "paper": {
        "ladder": {"rates": PAPER_RATES},
        "model": {"layers": 10, "hidden": 128, "base": False, "bound": 0.0},
        "chains": {"kernel": "gradients", "replicas": 100, "sweeps": 1, "moves": 10},
        "optimiser": {
            "method": "sgd",
            "common": 0.0,
            "trust": 0.0,
            "spread": 0.0,
            "schedule": "constant",
            "average": 0.0,
        },
        "training": {"batch": 100},
    },
}
"""Named starting points; what is said in a file or by flags goes on top of them."""


def configure(
    content: Mapping[str, Any], source: str | None = None, preset: str = "small"
) -> Config:
    """A configuration from nested tables, on top of a preset; refuses what it does not know."""
    if preset not in PRESETS:
        raise InputError(
            f"there is no preset {preset!r}. Take one of {', '.join(PRESETS)}.", source
        )
    sections = {entry.name: entry.default_factory for entry in fields(Config)}
    made = {}
    for name in [*sections, *content]:
        if name not in sections:
            raise InputError(_unknown("table", name, list(sections)), source)
        given = content.get(name, {})
        if not isinstance(given, Mapping):
            raise InputError(f"[{name}] is a table, but {given!r} is given.", source)
        default = sections[name]()  # pyright: ignore[reportCallIssue]
        made[name] = _fill(default, {**PRESETS[preset].get(name, {}), **given}, name, source)
    try:
        return Config(**made)
    except InputError as error:
        raise InputError(error.message, source) from None


def read_config(path: str | Path, preset: str | None = None) -> Config:
    """The configuration in a TOML file; its key `preset` names what it builds on."""
    path = Path(path)
    check_readable(path)
    try:
        text = path.read_text(encoding="utf-8")
        if _DEEP_KEY.search(text):  # which takes the parser hours
            raise RecursionError
        content = tomllib.loads(text)
    except UnicodeDecodeError:
        raise InputError("this is not UTF-8 text. Is it a TOML file?", str(path)) from None
    except RecursionError:
        raise InputError(
            "this is nested too deeply to be settings. Is it a TOML file?", str(path)
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"this is not TOML: {error}.", str(path)) from None
    except ValueError:
        raise InputError("this has a number with too many digits. Correct it.", str(path)) from None
    named = content.pop("preset", "small")
    if not isinstance(named, str):
        raise InputError(f"preset must be the name of one, got {named!r}.", str(path))
    config = configure(content, str(path), preset or named)
    for name in SEEDS:
        _check_seed(name, _value(config, name), str(path))
    return config


def override(config: Config, changes: Mapping[str, Any]) -> Config:
    """The configuration with some keys changed, named as `chains.moves`."""
    for name, value in changes.items():
        section, _, key = name.partition(".")
        if not hasattr(config, section) or not key:
            known = [entry.name for entry in fields(Config)]
            raise InputError(_unknown("table", section, known))
        part = _fill(getattr(config, section), {key: value}, section, None)
        if name in SEEDS:
            _check_seed(name, getattr(part, key), None)
        config = replace(config, **{section: part})
    return config


def _value(config: Config, name: str) -> Any:
    section, _, key = name.partition(".")
    return getattr(getattr(config, section), key)


def _check_seed(name: str, seed: int, source: str | None) -> None:
    """A new run has a seed as the flags take it; older ones may have been given a negative one."""
    if not 0 <= seed < _WHOLE:
        raise InputError(f"{name} must be between 0 and 2^63 - 1, but is {seed}.", source)


def _fill(default: Any, given: Mapping[str, Any], section: str, source: str | None) -> Any:
    hints = get_type_hints(type(default))
    values = {}
    for key, value in given.items():
        if key not in hints:
            raise InputError(_unknown(f"key in [{section}]", key, list(hints)), source)
        values[key] = _coerce(value, hints[key], f"{section}.{key}", source)
    return replace(default, **values)


def _coerce(value: Any, hint: Any, name: str, source: str | None) -> Any:
    """The value as the type that a key has; whole numbers serve as numbers, lists as tuples."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        if value is None:
            return None
        (hint,) = (option for option in get_args(hint) if option is not type(None))
        origin = get_origin(hint)
    if origin is Literal:
        if value in get_args(hint):
            return value
        raise InputError(
            f"{name} is one of {', '.join(map(repr, get_args(hint)))}, but is {value!r}.", source
        )
    if origin is tuple:
        if isinstance(value, list | tuple) and value:
            return tuple(_coerce(one, float, name, source) for one in value)
        raise InputError(f"{name} is a list of numbers, but is {value!r}.", source)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, int) and abs(value) >= 10**300:
            raise InputError(f"{name} is a finite number, but has more than 300 digits.", source)
        if not isfinite(value):
            raise InputError(f"{name} is a finite number, but is {value}.", source)
        return float(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        if hint is int and not -_WHOLE <= value < _WHOLE:
            least = "0" if name in SEEDS else "-2^63"
            raise InputError(
                f"{name} must be between {least} and 2^63 - 1, but is {told(value)}.", source
            )
        return value
    kind = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}[hint]
    raise InputError(f"{name} is {kind}, but is {value!r}.", source)


def _unknown(what: str, name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(known)}."
    return f"unknown {what}: {name!r}. {hint}"


def _check_ranges(config: Config) -> None:
    at_least_one = {
        "model.layers": config.model.layers,
        "model.hidden": config.model.hidden,
        "model.width": config.model.width,
        "model.networks": config.model.networks,
        "chains.replicas": config.chains.replicas,
        "chains.sweeps": config.chains.sweeps,
        "chains.moves": config.chains.moves,
        "training.batch": config.training.batch,
        "sampling.moves": config.sampling.moves,
        "training.keep": config.training.keep,
    }
    shares = {
        "data.train_share": config.data.train_share,
        "chains.renewal": config.chains.renewal,
        "optimiser.trust": config.optimiser.trust,
        "optimiser.average": config.optimiser.average,
    }
    not_negative = {
        "training.steps": config.training.steps,
        "training.warm_start": config.training.warm_start,
        "training.processes": config.training.processes,
        "training.blocks": config.training.blocks,
        "training.retries": config.training.retries,
        "training.checkpoint_seconds": config.training.checkpoint_seconds,
        "chains.changes": config.chains.changes,
        "model.bound": config.model.bound,
        "optimiser.common": config.optimiser.common,
        "optimiser.warm_up": config.optimiser.warm_up,
        "optimiser.clip": config.optimiser.clip,
        "optimiser.weight_decay": config.optimiser.weight_decay,
        "optimiser.energy_penalty": config.optimiser.energy_penalty,
        "optimiser.spread": config.optimiser.spread,
    }
    for name, value in at_least_one.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1, but is {value}.")
    for name, value in shares.items():
        if not 0 <= value <= 1 or (value == 1 and name in ("optimiser.average", "optimiser.trust")):
            raise InputError(f"{name} must be between 0 and 1, but is {value}.")
    for name, value in not_negative.items():
        if not value >= 0:
            raise InputError(f"{name} must not be negative, but is {value}.")
    if config.model.potential == "formula" and config.model.networks > 1:
        raise InputError("a formula model has no networks: leave model.networks at 1.")
    rate = config.optimiser.learning_rate
    if not 0 < rate <= _FASTEST:
        bound = "positive" if not rate > 0 else f"at most {_FASTEST:g}"
        raise InputError(f"optimiser.learning_rate must be {bound}, but is {rate}.")
    if config.training.warm_start and config.chains.weighted:
        raise InputError(
            "chains.weighted follows log Z from the untrained model on, which steps without chains "
            "(training.warm_start) interrupt. Set one of them to its default."
        )
    if config.optimiser.common > _FASTEST:
        raise InputError(
            f"optimiser.common must be at most {_FASTEST:g}, but is {config.optimiser.common}."
        )
    minutes = config.training.minutes
    if minutes is not None and not 0 < minutes <= _LONGEST:
        bound = "positive" if not minutes > 0 else f"at most {_LONGEST:g}"
        raise InputError(f"training.minutes must be {bound}, but is {minutes}.")
