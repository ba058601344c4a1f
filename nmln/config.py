"""The configuration of a run: frozen dataclasses, read from TOML, with every key checked."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from nmln.errors import InputError, placed
from nmln.files import check_readable
from nmln.memory import in_digits
from nmln.presets import PRESETS
from nmln.ranges import check_ranges

SEEDS = ("data.split_seed", "model.seed", "training.seed")
_DEEP_KEY = re.compile(r"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){100}")
_WHOLE = 2**63  # whole numbers must be smaller than this in size

# The comment above a setting is its meaning in docs/reference/settings.md.


def _in_json(settings: Any, later: Sequence[str]) -> dict[str, Any]:
    """Settings as JSON values, `later` ones only where they are not the defaults.

    So the files of runs that do not use them are those of earlier versions.
    """
    default, found = type(settings)(), json.loads(json.dumps(asdict(settings)))
    for name in later:
        if getattr(settings, name) == getattr(default, name):
            del found[name]
    return found


@dataclass(frozen=True)
class DataConfig:
    """The data, and how they are split into training and test worlds."""

    # the worlds to train on: a built-in name, the name of a set in NMLN_DATA, or a file
    source: str = "pubchem-10"
    # a .mln file that declares the predicates; needed for .db worlds, and may hold formulas
    language: str | None = None
    # heavy atoms per molecule, where only molecules of one size are wanted
    nodes: int | None = None
    # share of the worlds used for training, from 0 to 1; the others are held out for the test
    train_share: float = 0.8
    # seed of the random split; change it to repeat an experiment on another split
    split_seed: int = 0
    # numbers of heavy atoms of the molecules, all of which one model learns; without it all sizes
    # that are common enough (`least_share`)
    sizes: tuple[int, ...] | None = None
    # largest number of heavy atoms; larger molecules are left out
    max_size: int | None = None
    # share of the molecules that a size must hold to be learned, from 0 to 1, where `sizes` does
    # not name it; lower it to learn rare sizes too
    least_share: float = 0.01
    # the constants of .db worlds: those of all worlds together (`common`), or of `each` world its own,
    # where they are not declared; then worlds may be of different sizes
    domains: Literal["common", "each"] = "common"

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values; those of several domains only where they are not the defaults."""
        return _in_json(self, ("sizes", "max_size", "least_share", "domains"))


@dataclass(frozen=True)
class LadderConfig:
    """The levels, and how they differ."""

    # `noising`: one potential per corruption rate, as in the paper; `tempering`: one potential at
    # several temperatures; `single`: one potential at one level. The last two are for comparison,
    # and learn from data corrupted at the last rate
    method: Literal["noising", "tempering", "single"] = "noising"
    # probability that a group is corrupted, per level, noisiest first, the target last. `auto`: as many
    # levels as the largest worlds need for `swap`, from 0.08 to 0.001; with `noise` = `marginals` from
    # 0.25 to where 0.03 groups of a world change. The rates are chosen when a run starts, and recorded.
    # A list of numbers is taken as it is
    rates: tuple[float, ...] | Literal["auto"] = "auto"
    # temperatures for `tempering`, hottest first, the last one 1; not used by the other methods
    temperatures: tuple[float, ...] = (1.360489, 1.259712, 1.1664, 1.08, 1.0)
    # swap probability of neighbouring levels that `rates` = `auto` aims at, above 0 and below 1,
    # predicted for exactly noised levels; trained ones swap less. Raise it where pairs seldom swap; a
    # step takes time in proportion to the levels
    swap: float = 0.4
    # how a corrupted group changes. `uniform`: to one of its other categories, all equally likely, as in
    # the paper; `marginals`: it is redrawn from the frequencies of its categories in the data, so that
    # sparse worlds stay sparse (needs `model.base`)
    noise: Literal["uniform", "marginals"] = "uniform"

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return _in_json(self, ("swap", "noise"))


@dataclass(frozen=True)
class ModelConfig:
    """The potential that scores the worlds."""

    # `graph`: message passing over the whole world; `fragment` and `deepset`: tuples of constants,
    # for predicates of any arity; `image`: one binary predicate as a picture; `formula`: the
    # formulas of `data.language` only
    potential: Literal["graph", "fragment", "deepset", "image", "formula"] = "graph"
    # layers of each network; a step takes time in proportion
    layers: int = 4
    # units per layer (channels of `image`); more units fit better, cost more and learn by heart
    # sooner
    hidden: int = 64
    # units of each hidden layer of `fragment` and `deepset`, in place of `layers` and `hidden`
    sizes: tuple[int, ...] | None = None
    # constants per fragment, for `fragment` and `deepset`; the cost grows with this power of the
    # number of constants
    width: int = 2
    # networks that are trained together; the score is their mean. `nmln combine` instead joins
    # runs that were trained apart
    networks: int = 1
    # experimental, no results on molecules so far: residual connections in the `graph` network
    residual: bool = False
    # factor of the initial weights of messages in the `graph` network. A node sums what it hears from
    # its neighbours, and with many layers the sums grow from layer to layer unless it is below 1
    initial_scale: float = 1.0
    # soft bound on the score of each network, in nats; 0: no bound. Keeps worlds that no chain
    # visits from running away
    bound: float = 50.0
    # add independent groups with the marginals of the corrupted data, which the network corrects;
    # without it training on molecules diverged
    base: bool = True
    # count the connected pieces of the graph, with one learned weight per level; set it where
    # samples fall apart into pieces
    pieces: bool = False
    # show the `graph` network the rings, which messages between neighbours cannot find: for every node
    # the size of the smallest ring that it lies on, and how many of its links lie on rings
    rings: bool = False
    # add a local part: a number for every kind of node with the numbers of its neighbours, and for every
    # tie with the kinds of its ends. They are first fitted to the data and then learned, per level, so
    # that the network learns only what is not local (needs `model.base`, and a symmetric attribute)
    local: bool = False
    # seed of the first parameters of the networks; change it for an independent run
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return _in_json(self, ("initial_scale", "local", "rings"))


@dataclass(frozen=True)
class ChainConfig:
    """The persistent chains of the negative phase."""

    # how the chains move at each level: `balanced`, `structural`, `screened`, `metropolis`, `gibbs`,
    # `metropolised`, `systematic`, `blocked`, `gradients`, `langevin` or `path`; `screened` is
    # meant for models with a local part (`model.local`)
    kernel: str = "balanced"
    # chains per level; more make the gradient less noisy, and a step takes time in proportion
    replicas: int = 100
    # sweeps between two updates; take more where the chains lag behind the model
    sweeps: int = 2
    # moves per sweep, after which neighbouring levels swap; fewer moves mean more swaps
    moves: int = 6
    # changed groups per chain and sweep to reach at the target, by up to four times as many
    # moves; a walk of `screened` counts as one. 0: always `moves`. Set it where the acceptance falls
    # during training
    changes: float = 0.0
    # swaps after each sweep: `both` tries the even, then the odd pairs of levels, as in the
    # paper; `alternate` tries them in turn, which costs half as many swaps
    phases: Literal["both", "alternate"] = "both"
    # first worlds of the chains: corrupted `data`, uniform `noise`, or draws of the untrained
    # `model`; with `noise` or `model` the chains must find the data by themselves
    start: Literal["data", "noise", "model"] = "data"
    # experimental, only for `noising`: share of the noisiest chains, from 0 to 1, that restart
    # from corrupted data at every step
    renewal: float = 0.0
    # experimental, not worth it on molecules so far: resample the chains by Jarzynski's weights
    # after every update
    weighted: bool = False


@dataclass(frozen=True)
class SamplingConfig:
    """How chains move when samples are drawn; independent of training."""

    # how the chains move at each level: a name as in `chains.kernel`
    kernel: str = "balanced"
    # moves per sweep, after which neighbouring levels swap; more moves per sweep make samples less
    # alike, and cost time in proportion
    moves: int = 6


@dataclass(frozen=True)
class OptimiserConfig:
    """How parameters are updated."""

    # `adam`, or `sgd`: plain gradient ascent, to repeat the paper
    method: Literal["adam", "sgd"] = "adam"
    # step size after the warm-up; take a smaller one if training diverges
    learning_rate: float = 2e-3
    # length of a step along the mean gradient of all levels, relative to that along a level's own
    # gradient (`adam` only); 0: each level by itself, as in the paper
    common: float = 1.0
    # draws the parameters of neighbouring levels together, by this number times the learning rate at
    # every step; raise it where they seldom swap, or where the target learns by heart
    smooth: float = 0.0
    # the learning rate after the warm-up: `cosine` falls to 0 at the last step, `constant` stays
    schedule: Literal["cosine", "constant"] = "cosine"
    # number of first steps, during which the learning rate grows from 0; 0: none
    warm_up: int = 50
    # smallest effective share of a level's chains that an update may leave, below 1; otherwise the
    # level takes shorter steps; 0: no limit
    trust: float = 0.5
    # largest norm of a level's gradient; larger gradients are scaled down; 0: no limit
    clip: float = 20.0
    # shrinks all parameters by this number times the learning rate at every step; raise it where
    # the test likelihood falls behind that of the training data
    weight_decay: float = 0.0
    # factor of a penalty on the mean squared score of both phases, per nat squared; raise it
    # where scores grow without bounds
    energy_penalty: float = 0.0
    # data that score above 95 % of their level's chains are pulled down, so many nats above as strongly
    # as the likelihood pulls them up; keeps rare kinds of data from running away; 0: none
    spread: float = 2.0
    # decay per step of the moving average of the parameters that samples are drawn from, below 1;
    # 0: no average
    average: float = 0.998

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values; `smooth` only if it is not 0."""
        return _in_json(self, ("smooth",))


@dataclass(frozen=True)
class TrainingConfig:
    """The length of training, its batches, checkpoints and processes."""

    # number of updates; more fit better, until the model knows the training data by heart
    steps: int = 3000
    # length of training in minutes, instead of `steps`: a short pilot turns it into a number of
    # steps, which is recorded
    minutes: float | None = None
    # most passes over the data that `minutes` is turned into; time that is left goes to more sweeps in
    # each step, up to 8. More passes learn the data by heart; 0: no limit
    passes: float = 0.0
    # what `minutes` are minutes of: the `wall` clock, or the `processor` time of every process, which
    # does not depend on what else the machine does
    clock: Literal["wall", "processor"] = "wall"
    # corrupted worlds per step and level; raise it together with `chains.replicas`
    batch: int = 100
    # experimental, no gain on molecules so far: number of first steps that learn by
    # pseudo-likelihood, without chains
    warm_start: int = 0
    # corrupt the data again at every `step`, or once per `epoch` as in the original NMLN
    corruption: Literal["step", "epoch"] = "step"
    # seed of minibatches, corruption and chains; change it for an independent run
    seed: int = 0
    # seconds between two checkpoints; an interrupted run loses at most this much
    checkpoint_seconds: float = 60.0
    # number of latest checkpoints that are kept; lower it where a disk is small
    keep: int = 3
    # returns to the last good state, each with half the learning rate, before a run that diverges
    # gives up
    retries: int = 3
    # processes on this machine; 0: one per core. Take fewer beside other work
    processes: int = 0
    # blocks of replicas, each with its own random streams; the same number gives the same run on
    # any number of processes up to it; 0: one per process at the start
    blocks: int = 0
    # where tensors live: `cpu`, `cuda`, `mps`, or `auto`: a CUDA device if there is one, else the CPU. A
    # run records a device other than the CPU, and continues on it
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values; those of later versions only if they are named."""
        return _in_json(self, ("device", "passes", "clock"))


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
        check_ranges(lambda name: _value(self, name))

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values: tuples become lists."""
        found = json.loads(json.dumps(asdict(self)))
        later = ("data", "ladder", "model", "optimiser", "training")
        changed = {name: getattr(self, name).to_dict() for name in later}
        return {**found, **changed}


def configure(
    content: Mapping[str, Any],
    source: str | None = None,
    preset: str = "small",
    base: Config | None = None,
) -> Config:
    """A configuration from nested tables, on top of a preset; unknown keys are refused.

    Args:
        content: the settings, by section.
        source: the file that they are from, for messages.
        preset: the name of the preset.
        base: the settings that neither of them names, in place of the defaults.
    """
    if preset not in PRESETS:
        raise InputError(
            f"unknown preset {preset!r}. Take one of {', '.join(PRESETS)}.",
            source,
            token=preset,
            kind="unknown",
        )
    base = base or Config()
    sections = {entry.name: getattr(base, entry.name) for entry in fields(Config)}
    made = {}
    for name in [*sections, *content]:
        if name not in sections:
            raise _unknown("table", name, list(sections), source)
        given = content.get(name, {})
        if not isinstance(given, Mapping):
            raise InputError(f"[{name}] must be a table, got {given!r}.", source, token=name)
        made[name] = fill(sections[name], {**PRESETS[preset].get(name, {}), **given}, name, source)
    with placed(source):
        return Config(**made)


def read_config(path: str | Path, preset: str | None = None, base: Config | None = None) -> Config:
    """The configuration in a TOML file; its key `preset` names what it builds on.

    `base` is as in `configure`.
    """
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
            f"preset must be the name of a preset, got {named!r}.", str(path), token="preset"
        )
    config = configure(content, str(path), preset or named, base)
    for name in SEEDS:
        _check_seed(name, _value(config, name), str(path))
    return config


def override(config: Config, changes: Mapping[str, Any]) -> Config:
    """The configuration with some keys changed, named as `chains.moves`, and checked at the end."""
    changed: dict[str, Any] = {}
    for name, value in changes.items():
        section, _, key = name.partition(".")
        if not hasattr(config, section) or not key:
            known = [entry.name for entry in fields(Config)]
            raise _unknown("table", section, known, None)
        part = changed.get(section, getattr(config, section))
        changed[section] = part = fill(part, {key: value}, section, None)
        if name in SEEDS:
            _check_seed(name, getattr(part, key), None)
    return replace(config, **changed)


def _value(config: Config, name: str) -> Any:
    section, _, key = name.partition(".")
    return getattr(getattr(config, section), key)


def _check_seed(name: str, seed: int, source: str | None) -> None:
    """Seeds of a new run have the range of the flags; those of older runs may be negative."""
    if not 0 <= seed < _WHOLE:
        raise InputError(f"{name} must be between 0 and 2^63 - 1, got {seed}.", source, token=name)


def fill(default: Any, given: Mapping[str, Any], section: str, source: str | None) -> Any:
    """A frozen dataclass with some fields changed, in their types; unknown names are refused."""
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
        *words, hint = sorted(
            (option for option in get_args(hint) if option is not type(None)),
            key=lambda option: get_origin(option) is not Literal,
        )
        named = [word for option in words for word in get_args(option)]
        if named and type(value) is str:
            if value in named:
                return value
            raise InputError(
                f"{name} must be {' or '.join(map(repr, named))} or a list of numbers, got {value!r}.",
                source,
                token=name,
            )
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
            return tuple(_coerce(one, get_args(hint)[0], name, source) for one in value)
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
                f"{name} must be between {least} and 2^63 - 1, got {in_digits(value)}.",
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
