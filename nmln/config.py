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

from nmln.errors import InputError, placed
from nmln.files import check_readable
from nmln.memory import told

SEEDS = ("data.split_seed", "model.seed", "training.seed")
_FASTEST = 1e6  # the largest learning rate; far smaller ones already diverge
_LONGEST = 1e7  # minutes of training: 19 years
_DEEP_KEY = re.compile(r"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){100}")
_WHOLE = 2**63  # whole numbers must be smaller than this in size
PAPER_RATES = (0.1, 0.01, 0.005, 0.0025, 0.001)
RATES = (
    0.08,
    0.045,
    0.02,
    0.006,
    0.001,
)  # equal swap rates between neighbours on molecules of 10 atoms


@dataclass(frozen=True)
class DataConfig:
    """The data, and their split."""

    source: str = "pubchem-10"  # a built-in name, a name in NMLN_DATA, or a file
    language: str | None = None  # a .mln file with declarations, for .db worlds
    nodes: int | None = None  # heavy atoms, where a file holds several sizes
    train_share: float = 0.8
    split_seed: int = 0


@dataclass(frozen=True)
class LadderConfig:
    """The levels, and how they differ.

    `noising`: a potential for each rate. `tempering`: one potential at several temperatures, fitted to
    data corrupted at the last rate. `single`: one potential at one level, the same data.
    """

    method: Literal["noising", "tempering", "single"] = "noising"
    rates: tuple[float, ...] = RATES
    temperatures: tuple[float, ...] = (1.360489, 1.259712, 1.1664, 1.08, 1.0)


@dataclass(frozen=True)
class ModelConfig:
    """The potential that scores the worlds."""

    potential: Literal["graph", "fragment", "deepset", "image", "formula"] = "graph"
    layers: int = 4
    hidden: int = 64
    width: int = 2  # constants per fragment
    networks: int = 1  # the score is their mean; `nmln combine` makes several runs one model
    residual: bool = False  # experimental: no results on molecules so far
    bound: float = 50.0  # soft bound on the network's score in nats; 0 for none
    base: bool = True  # add independent groups with the marginals of the corrupted data
    pieces: bool = False  # count the connected pieces of the graph, with a learned weight
    seed: int = 0


@dataclass(frozen=True)
class ChainConfig:
    """The persistent chains of the negative phase."""

    kernel: str = "balanced"
    replicas: int = 100
    sweeps: int = 2  # between two updates
    moves: int = 6  # per sweep, after which neighbouring levels swap
    changes: float = 0.0  # if above 0: more moves, until a chain changes so often per sweep
    phases: Literal["both", "alternate"] = "both"
    start: Literal["data", "noise", "model"] = "data"  # model: draws of the untrained model
    # experimental: share of the noisiest chains that restart from corrupted data at every step
    renewal: float = 0.0
    # experimental: resample the chains by Jarzynski's weights after every update (not worth it
    # on molecules so far)
    weighted: bool = False


@dataclass(frozen=True)
class SamplingConfig:
    """How chains move when samples are drawn; independent of training."""

    kernel: str = "balanced"
    moves: int = 6  # per sweep, after which chains swap


@dataclass(frozen=True)
class OptimiserConfig:
    """How parameters are updated."""

    method: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 2e-3
    common: float = 1.0  # step by the mean gradient of all levels, relative to a level's own
    schedule: Literal["cosine", "constant"] = "cosine"
    warm_up: int = 50  # steps with a growing rate
    trust: float = 0.5  # least effective share of a level's chains after an update; 0: none
    clip: float = 20.0  # largest norm of a level's gradient; 0 for none
    weight_decay: float = 0.0
    energy_penalty: float = 0.0  # times the mean squared score of both phases
    spread: float = 4.0  # nats above the mean beyond which data are pulled down; 0: none
    average: float = 0.998  # decay of the moving average used for sampling; 0 for none


@dataclass(frozen=True)
class TrainingConfig:
    """The length of training, its batches, checkpoints and processes."""

    steps: int = 3000
    minutes: float | None = None  # instead of steps: measured by a pilot, then fixed and recorded
    batch: int = 100
    warm_start: int = 0  # experimental: first steps, by pseudo-likelihood, without chains
    corruption: Literal["step", "epoch"] = "step"
    seed: int = 0
    checkpoint_seconds: float = 60.0
    keep: int = 3
    retries: int = 3  # returns to the last good checkpoint before giving up
    processes: int = 0  # 0: one per core
    blocks: int = 0  # of replicas, each with its own random stream; 0: one per process at the start


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

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
        """The settings as JSON values: tuples become lists."""
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
"""Named starting points; values in a file or by flags replace theirs."""


def configure(
    content: Mapping[str, Any], source: str | None = None, preset: str = "small"
) -> Config:
    """A configuration from nested tables, on top of a preset; unknown keys are refused."""
    if preset not in PRESETS:
        raise InputError(
            f"unknown preset {preset!r}. Take one of {', '.join(PRESETS)}.",
            source,
            token=preset,
            kind="unknown",
        )
    sections = {entry.name: entry.default_factory for entry in fields(Config)}
    made = {}
    for name in [*sections, *content]:
        if name not in sections:
            raise _unknown("table", name, list(sections), source)
        given = content.get(name, {})
        if not isinstance(given, Mapping):
            raise InputError(f"[{name}] must be a table, got {given!r}.", source, token=name)
        default = sections[name]()  # pyright: ignore[reportCallIssue]
        made[name] = _fill(default, {**PRESETS[preset].get(name, {}), **given}, name, source)
    with placed(source):
        return Config(**made)


def read_config(path: str | Path, preset: str | None = None) -> Config:
    """The configuration in a TOML file; its key `preset` names what it builds on."""
    path = Path(path)
    check_readable(path)
    try:
        text = path.read_text(encoding="utf-8")
        if _DEEP_KEY.search(text):  # the parser would take hours
            raise RecursionError
        content = tomllib.loads(text)
    except UnicodeDecodeError:
        raise InputError(
            "this is not UTF-8 text. Is it a TOML file?", str(path), kind="encoding"
        ) from None
    except RecursionError:
        raise InputError(
            "this is nested too deeply to be settings. Is it a TOML file?", str(path), kind="syntax"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"this is not TOML: {error}.", str(path), kind="syntax") from None
    except ValueError:
        raise InputError("this has a number with too many digits. Correct it.", str(path)) from None
    named = content.pop("preset", "small")
    if not isinstance(named, str):
        raise InputError(
            f"preset must be the name of one, got {named!r}.", str(path), token="preset"
        )
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
            raise _unknown("table", section, known, None)
        part = _fill(getattr(config, section), {key: value}, section, None)
        if name in SEEDS:
            _check_seed(name, getattr(part, key), None)
        config = replace(config, **{section: part})
    return config


def _value(config: Config, name: str) -> Any:
    section, _, key = name.partition(".")
    return getattr(getattr(config, section), key)


def _check_seed(name: str, seed: int, source: str | None) -> None:
    """Seeds of a new run have the range of the flags; those of older runs may be negative."""
    if not 0 <= seed < _WHOLE:
        raise InputError(f"{name} must be between 0 and 2^63 - 1, got {seed}.", source, token=name)


def _fill(default: Any, given: Mapping[str, Any], section: str, source: str | None) -> Any:
    hints = get_type_hints(type(default))
    values = {}
    for key, value in given.items():
        if key not in hints:
            raise _unknown(f"key in [{section}]", key, list(hints), source)
        values[key] = _coerce(value, hints[key], f"{section}.{key}", source)
    return replace(default, **values)


def _coerce(value: Any, hint: Any, name: str, source: str | None) -> Any:
    """The value in the type of a key; whole numbers are taken as numbers, lists as tuples."""
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
            f"{name} must be one of {', '.join(map(repr, get_args(hint)))}, got {value!r}.",
            source,
            token=name,
        )
    if origin is tuple:
        if isinstance(value, list | tuple) and value:
            return tuple(_coerce(one, float, name, source) for one in value)
        raise InputError(f"{name} must be a list of numbers, got {value!r}.", source, token=name)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, int) and abs(value) >= 10**300:
            raise InputError(
                f"{name} must be a finite number, got more than 300 digits.", source, token=name
            )
        if not isfinite(value):
            raise InputError(f"{name} must be a finite number, got {value}.", source, token=name)
        return float(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        if hint is int and not -_WHOLE <= value < _WHOLE:
            least = "0" if name in SEEDS else "-2^63"
            raise InputError(
                f"{name} must be between {least} and 2^63 - 1, got {told(value)}.",
                source,
                token=name,
            )
        return value
    kind = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}[hint]
    raise InputError(f"{name} must be {kind}, got {value!r}.", source, token=name)


def _unknown(what: str, name: str, known: list[str], source: str | None) -> InputError:
    near = get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Available: {', '.join(known)}."
    return InputError(f"unknown {what}: {name!r}. {hint}", source, token=name, kind="unknown")


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
            raise InputError(f"{name} must be at least 1, got {value}.", token=name)
    for name, value in shares.items():
        if not 0 <= value <= 1 or (value == 1 and name in ("optimiser.average", "optimiser.trust")):
            raise InputError(f"{name} must be between 0 and 1, got {value}.", token=name)
    for name, value in not_negative.items():
        if not value >= 0:
            raise InputError(f"{name} must not be negative, got {value}.", token=name)
    if config.model.potential == "formula" and config.model.networks > 1:
        raise InputError(
            "a formula model has no networks: leave model.networks at 1.",
            token="model.networks",
            kind="conflict",
        )
    rate = config.optimiser.learning_rate
    if not 0 < rate <= _FASTEST:
        bound = "positive" if not rate > 0 else f"at most {_FASTEST:g}"
        name = "optimiser.learning_rate"
        raise InputError(f"{name} must be {bound}, got {rate}.", token=name)
    if config.training.warm_start and config.chains.weighted:
        raise InputError(
            "chains.weighted follows log Z from the untrained model on, which steps without chains "
            "(training.warm_start) interrupt. Set one of them to its default.",
            token="training.warm_start",
            kind="conflict",
        )
    if config.optimiser.common > _FASTEST:
        raise InputError(
            f"optimiser.common must be at most {_FASTEST:g}, got {config.optimiser.common}.",
            token="optimiser.common",
        )
    minutes = config.training.minutes
    if minutes is not None and not 0 < minutes <= _LONGEST:
        bound = "positive" if not minutes > 0 else f"at most {_LONGEST:g}"
        raise InputError(
            f"training.minutes must be {bound}, got {minutes}.", token="training.minutes"
        )
