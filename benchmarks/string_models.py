"""Recurrent models of strings, as a comparison for models of molecular graphs.

A string is a row of tokens: the characters of a canonical SMILES, or SELFIES symbols. The network gives
every next token a probability, that of the end included, so that the probability of a string is exact.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import selfies
import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from nmln.checkpoint import load_model, save_model
from nmln.errors import InputError

Cell = Literal["gru", "lstm"]
Codes = Int64[Tensor, "strings places"]

END = 0  # the code before the first token and after the last, and of all places behind it
LONGEST = 100  # places of a sampled string; a longer one is discarded
BATCH = 1_000  # strings that are sampled together


# From molecules to tokens and back.


@dataclass(frozen=True)
class Notation:
    """How a SMILES is written as tokens (None: it cannot be), and how tokens are read as SMILES."""

    split: Callable[[str], Sequence[str] | None]
    join: Callable[[Sequence[str]], str]


def selfies_tokens(smiles: str) -> list[str] | None:
    """The SELFIES symbols of a molecule; None where the valences that SELFIES allows forbid it."""
    try:
        return list(selfies.split_selfies(selfies.encoder(smiles)))
    except selfies.EncoderError:
        return None


def from_selfies(tokens: Sequence[str]) -> str:
    """The SMILES of symbols; almost any row of symbols has one."""
    try:
        return str(selfies.decoder("".join(tokens)))
    except selfies.DecoderError:
        return ""


NOTATIONS = {"char": Notation(list, "".join), "selfies": Notation(selfies_tokens, from_selfies)}


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that strings are made of; the code of a token is its place, counted from 1."""

    tokens: tuple[str, ...]

    @staticmethod
    def of(strings: Iterable[Sequence[str]]) -> "Vocabulary":
        return Vocabulary(tuple(sorted({token for string in strings for token in string})))

    def encode(self, strings: Sequence[Sequence[str]]) -> Codes:
        """One row for every string, with at least one end."""
        places = {token: code for code, token in enumerate(self.tokens, 1)}
        codes = torch.full((len(strings), 1 + max(map(len, strings), default=0)), END)
        for row, string in zip(codes, strings, strict=True):
            row[: len(string)] = torch.tensor([places[token] for token in string], dtype=torch.long)
        return codes

    def decode(self, codes: Codes) -> list[list[str] | None]:
        """The tokens before the first end of every row; None for a row without an end."""
        names = ("", *self.tokens)
        rows: list[list[int]] = codes.tolist()
        return [[names[code] for code in row[: row.index(END)]] if END in row else None
                for row in rows]  # fmt: skip


# The network.


class StringModel(nn.Module):
    """Probabilities of the next token, by a stack of recurrent layers."""

    def __init__(
        self,
        tokens: int,
        cell: Cell = "gru",
        layers: int = 3,
        units: int = 512,
        embedded: int = 128,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.settings = {"tokens": tokens, "cell": cell, "layers": layers, "units": units,
                         "embedded": embedded, "dropout": dropout}  # fmt: skip
        kinds = {"gru": nn.GRU, "lstm": nn.LSTM}
        between = dropout if layers > 1 else 0.0
        self.embedding = nn.Embedding(tokens + 1, embedded)
        self.recurrent = kinds[cell](embedded, units, layers, dropout=between, batch_first=True)
        self.readout = nn.Linear(units, tokens + 1)

    def forward(self, codes: Codes) -> Float[Tensor, "strings places codes"]:
        """The logits of every place, each after the places before it."""
        hidden, _ = self.recurrent(self.embedding(codes.roll(1, 1).index_fill(1, _FIRST, END)))
        return self.readout(hidden)

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


_FIRST = torch.tensor([0])


def nats(model: StringModel, codes: Codes) -> Float[Tensor, " strings"]:
    """Minus the log-probability of each string, its end included, as a function of the parameters."""
    codes = codes[:, : 1 + int((codes != END).sum(1).max())]
    each = cross_entropy(model(codes).transpose(1, 2), codes, reduction="none")
    ends = (codes == END).long()
    return (each * (ends.cumsum(1) - ends == 0)).sum(1)  # up to the first end, and with it


@torch.no_grad()
def measure(model: StringModel, codes: Codes, batch: int = 256) -> Float[Tensor, " strings"]:
    """The nats of many strings, without dropout."""
    model.eval()
    return torch.cat([nats(model, part) for part in codes.split(batch)])


@torch.no_grad()
def draw(model: StringModel, count: int, rng: Generator, longest: int = LONGEST) -> Codes:
    """Strings from the model's distribution. Strings that have ended are not computed further."""
    model.eval()
    codes = torch.full((count, longest), END)
    going, last, state = torch.arange(count), codes[:, :1], None
    for place in range(longest):
        hidden, state = model.recurrent(model.embedding(last), state)
        chances = model.readout(hidden[:, 0]).softmax(-1)
        chosen = torch.multinomial(chances, 1, generator=rng)
        codes[going, place] = chosen[:, 0]
        (on,) = torch.nonzero(chosen[:, 0] != END, as_tuple=True)
        if not len(on):
            break
        going, last, state = going[on], chosen[on], _rows(state, on)
    return codes


def _rows(state: Any, rows: Int64[Tensor, " rows"]) -> Any:
    """The state of some strings; that of an LSTM is a pair."""
    if isinstance(state, tuple):
        return tuple(part[:, rows] for part in state)
    return state[:, rows]


# Training.


@dataclass(frozen=True)
class Fit:
    """The course of training; the parameters are those of the epoch with the best held-out nats.

    An epoch that was cut off by the time limit counts by its share.
    """

    epochs: float
    best_epoch: float
    held_out_nats: float
    cpu_minutes: float
    stopped: Literal["no better", "out of time"]


def train(
    model: StringModel,
    codes: Codes,
    minutes: float,
    seed: int = 0,
    batch: int = 64,
    rate: float = 1e-3,
    patience: int = 5,
    share: float = 0.1,
    report: Callable[[str], None] = lambda _: None,
) -> Fit:
    """Train until a held-out share has not improved for `patience` epochs, or the time is up.

    Dropout draws from torch's global generator, because torch offers no other; its state is restored.
    """
    rng = Generator().manual_seed(seed)
    order = torch.randperm(len(codes), generator=rng)
    held = max(1, round(share * len(codes)))
    kept, learnt = codes[order[:held]], codes[order[held:]]
    if not len(learnt):
        raise InputError(
            f"{len(codes)} strings are too few to train on and hold a part out. Use more.",
            kind="empty",
        )
    optimiser = torch.optim.Adam(model.parameters(), rate)
    begun = time.process_time()

    def used() -> float:
        return (time.process_time() - begun) / 60

    best, best_epoch, parameters, epoch, done = float("inf"), 0.0, {}, 0, 0.0
    stopped: Literal["no better", "out of time"] = "out of time"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        while done == epoch and used() < minutes:
            parts = torch.randperm(len(learnt), generator=rng).split(batch)
            model.train()
            for number, part in enumerate(parts, 1):
                optimiser.zero_grad()
                nats(model, learnt[part]).mean().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimiser.step()
                done = epoch + number / len(parts)
                if used() >= minutes:
                    break
            epoch += 1
            found = float(measure(model, kept).mean())
            report(f"{used():5.2f} min, epoch {done:.2f}: {found:.3f} nats held out")
            if found < best:
                best, best_epoch = found, done
                parameters = deepcopy(model.state_dict())
            elif done - best_epoch >= patience:
                stopped = "no better"
                break
    if parameters:
        model.load_state_dict(parameters)
    return Fit(done, best_epoch, best, used(), stopped)


# A network with its notation.


@dataclass(frozen=True)
class Writer:
    """Writes molecules as strings."""

    notation: str
    vocabulary: Vocabulary
    network: StringModel

    @staticmethod
    def build(
        notation: str, strings: Iterable[Sequence[str]], seed: int, **settings: Any
    ) -> "Writer":
        """An untrained one for the tokens of some strings."""
        vocabulary = Vocabulary.of(strings)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return Writer(notation, vocabulary, StringModel(len(vocabulary.tokens), **settings))

    def write(self, count: int, rng: Generator) -> list[str]:
        """SMILES, valid or not; empty where a string did not end or cannot be read."""
        join = NOTATIONS[self.notation].join
        found = []
        for start in range(0, count, BATCH):
            codes = draw(self.network, min(BATCH, count - start), rng)
            found += ["" if one is None else join(one) for one in self.vocabulary.decode(codes)]
        return found

    def save(self, folder: Path) -> None:
        content = {"notation": self.notation, "tokens": list(self.vocabulary.tokens),
                   "network": self.network.settings}  # fmt: skip
        save_model(folder, self.network.state_dict(), content)

    @staticmethod
    def load(folder: Path) -> "Writer":
        tensors, content = load_model(folder)
        if not {"notation", "tokens", "network"} <= set(content):
            raise InputError(
                "this is not a model of strings. Keep one: python -m benchmarks.strings char --keep.",
                str(folder),
                kind="unsupported",
            )
        network = StringModel(**content["network"])
        network.load_state_dict(tensors)
        return Writer(content["notation"], Vocabulary(tuple(content["tokens"])), network)
