"""What models of strings have in common.

A molecule is written in a notation; a network gives every next token a probability, that of the end
included. So the probability of a string is exact, and that of a molecule is at least the sum over
some of its strings:

    log p(molecule) >= log sum over known distinct spellings s of p(s).

With a held-out share the training stops when the nats of the held-out strings have not improved for
`patience` epochs, and returns to the best parameters.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from nmln.baselines.base import Generator, LogProb, check_settings, seeded
from nmln.baselines.notations import END, Codes, Notation, Vocabulary, notation_named
from nmln.dropped import DropCounter, Dropped
from nmln.errors import InputError
from nmln.molecules.chemistry import Refusal
from nmln.molecules.chemistry.spelling import random_spellings

State = tuple[Tensor, ...]
"""What a network remembers of the strings so far; they are on the second axis of every tensor."""

_SCORED = 512  # strings whose nats are computed together
_SEEDS = 2**31 - 2


@dataclass(frozen=True, kw_only=True)
class StringSettings:
    """Settings of every model of strings."""

    notation: str
    batch: int
    epochs: int
    rate: float
    longest: int  # places of a sampled string; one that has not ended then is not a molecule
    held_out: float = 0.0  # share of the training molecules that decides when to stop
    patience: int = 5  # epochs without improvement of the held-out nats
    randomised: bool = False  # a new random spelling of each molecule in every epoch
    spellings: int = 16  # random spellings that a molecule's probability is summed over
    tokens: tuple[str, ...] = ()  # known beside those of the training molecules

    def __post_init__(self) -> None:
        least = {"batch": 1, "epochs": 1, "longest": 1, "patience": 1, "spellings": 0}
        check_settings(self, least, ("held_out",), ("rate",))


class StringNetwork(nn.Module):
    """Probabilities of the next token; codes are those of a `Vocabulary`."""

    @abstractmethod
    def nats(self, codes: Codes) -> Float[Tensor, " strings"]:
        """Minus the log-probability of each string, its end included, or an estimate of it."""

    @abstractmethod
    def first(self, count: int) -> tuple[Int64[Tensor, " strings"], State]:
        """The code before the first token, and the state there."""

    @abstractmethod
    def step(
        self, last: Int64[Tensor, " strings"], state: State
    ) -> tuple[Float[Tensor, "strings codes"], State]:
        """The logits of the next code after one more code."""


@torch.no_grad()
def draw_codes(network: StringNetwork, count: int, longest: int, temperature: float = 1.0) -> Codes:
    """Strings from the network's distribution; those that have ended leave the batch."""
    codes = torch.full((count, longest), END)
    going = torch.arange(count)
    last, state = network.first(count)
    for place in range(longest):
        logits, state = network.step(last, state)
        last = torch.multinomial((logits / temperature).softmax(-1), 1)[:, 0]
        codes[going, place] = last
        (on,) = torch.nonzero(last != END, as_tuple=True)
        if not len(on):
            break
        if len(on) < len(last):
            going, last, state = going[on], last[on], tuple(part[:, on] for part in state)
    return codes


class StringBaseline(Generator):
    """A model of strings; a subclass names its settings and makes its network."""

    settings: Any
    network: Any  # a StringNetwork
    vocabulary: Vocabulary

    def __init__(self, name: str, settings: Any) -> None:
        super().__init__(name, settings)
        self.notation: Notation = notation_named(settings.notation)
        self.molecules: list[str] = []  # those that it learns from
        self.strings: list[Sequence[str]] = []  # the same in its notation
        self.held_out: list[Sequence[str]] = []

    @abstractmethod
    def new_network(self, tokens: int) -> StringNetwork:
        """An untrained network for a number of tokens."""

    def build(self, train: Sequence[str]) -> tuple[Dropped, ...]:
        written = {smiles: self.notation.split(smiles) for smiles in train}
        self.vocabulary = self._vocabulary(
            tokens for tokens in written.values() if not isinstance(tokens, Refusal)
        )
        counter = DropCounter()
        kept: list[str] = []
        for line, smiles in enumerate(train, 1):
            found = self._tokens(smiles)
            if isinstance(found, Refusal):
                counter.add(line, found.reason, smiles)
            else:
                kept.append(smiles)
        order = [kept[place] for place in torch.randperm(len(kept)).tolist()]
        held = self._held(len(order))
        self.molecules = order[held:]
        self.strings = [self._written(smiles) for smiles in self.molecules]
        self.held_out = [self._spelled(smiles) for smiles in order[:held]]
        self.network = self.new_network(len(self.vocabulary.tokens))
        return counter.dropped()

    def _vocabulary(self, strings: Iterable[Sequence[str]]) -> Vocabulary:
        if self.notation.published is not None:
            return Vocabulary(
                tuple(dict.fromkeys((*self.notation.published, *self.settings.tokens)))
            )
        return Vocabulary.of((*strings, self.settings.tokens))

    def _held(self, molecules: int) -> int:
        if not self.settings.held_out or not molecules:
            return 0
        if molecules == 1:
            raise InputError(
                "1 molecule is too few to train on and hold a part out. Give more.", kind="empty"
            )
        return min(molecules - 1, max(1, round(self.settings.held_out * molecules)))

    @property
    def size(self) -> int:
        return len(self.molecules)

    @property
    def epochs(self) -> int:
        return self.settings.epochs

    def describe(self) -> dict[str, Any]:
        return {"tokens": list(self.vocabulary.tokens)}

    def rebuild(self, content: Mapping[str, Any]) -> None:
        self.vocabulary = Vocabulary(tuple(content["tokens"]))
        self.network = self.new_network(len(self.vocabulary.tokens))

    # Molecules as strings.

    def _tokens(self, smiles: str) -> Sequence[str] | Refusal:
        found = self.notation.split(smiles)
        if isinstance(found, Refusal):
            return found
        if len(found) >= self.settings.longest:
            return Refusal("too long", f"{smiles} has {len(found)} tokens, which are too many.")
        return self.vocabulary.refuse(smiles, found) or found

    def _written(self, smiles: str) -> Sequence[str]:
        found = self._tokens(smiles)
        assert not isinstance(found, Refusal), found.detail
        return found

    def _spelled(self, smiles: str) -> Sequence[str]:
        """The tokens of a molecule, by a random spelling where the settings say so."""
        if self.settings.randomised:
            seed = int(torch.randint(_SEEDS, ()))
            found = self._tokens(random_spellings(smiles, 1, seed)[0])
            if not isinstance(found, Refusal):
                return found
        return self._written(smiles)

    def codes(self, chosen: Int64[Tensor, " molecules"]) -> Codes:
        """Some training molecules as they are written in this epoch."""
        places: list[int] = chosen.tolist()
        if self.settings.randomised:
            return self.vocabulary.encode(
                [self._spelled(self.molecules[place]) for place in places]
            )
        return self.vocabulary.encode([self.strings[place] for place in places])

    # Early stopping.

    def end_epoch(
        self, epoch: int, loss: float, optimiser: torch.optim.Optimizer, memory: dict[str, Any]
    ) -> bool:
        if not self.held_out:
            return False
        self._compare(epoch, memory)
        return epoch - memory["best_epoch"] >= self.settings.patience

    def finish(self, memory: Mapping[str, Any]) -> None:
        last = dict(memory)
        if self.held_out:
            self._compare(-1, last)  # the rest of an epoch that the budget cut off counts too
        if "parameters" in last:
            self.network.load_state_dict(last["parameters"])

    def _compare(self, epoch: int, memory: dict[str, Any]) -> None:
        """Keep the parameters of now if they are the best so far."""
        with seeded(0, "held out", 0):  # the same draws every time, where nats are an estimate
            found = float(self.string_nats(self.held_out).mean())
        if found < memory.get("best", float("inf")):
            memory.update(best=found, best_epoch=epoch, parameters=self._parameters())

    def _parameters(self) -> dict[str, Tensor]:
        return {name: part.clone() for name, part in self.network.state_dict().items()}

    # Probabilities and samples.

    @torch.no_grad()
    def string_nats(self, strings: Sequence[Sequence[str]]) -> Float64[Tensor, " strings"]:
        """Minus the log-probability of strings of known tokens."""
        self.network.eval()
        order = sorted(range(len(strings)), key=lambda place: len(strings[place]))
        found = torch.zeros(len(strings), dtype=torch.float64)
        for start in range(0, len(order), _SCORED):
            part = order[start : start + _SCORED]
            codes = self.vocabulary.encode([strings[place] for place in part])
            found[part] = self.network.nats(codes).double()
        return found

    def log_prob(self, molecules: Sequence[str], seed: int = 0) -> LogProb | None:
        """A lower bound: only the canonical and some random spellings are summed over."""
        values = torch.full((len(molecules),), -torch.inf, dtype=torch.float64)
        known = [self.spellings(smiles) for smiles in molecules]
        nats = self.string_nats([string for strings in known for string in strings])
        parts = nats.split([len(strings) for strings in known])
        for place, part in enumerate(parts):
            if len(part):
                values[place] = (-part).logsumexp(0)
        return LogProb(values, exact=False)

    def spellings(self, smiles: str) -> list[tuple[str, ...]]:
        """Distinct strings of a molecule: the canonical one, and those that a fixed seed draws."""
        texts = [smiles]
        if self.settings.spellings:
            texts += random_spellings(smiles, self.settings.spellings, seed=0)
        found = [self._tokens(text) for text in dict.fromkeys(texts)]
        return list(dict.fromkeys(tuple(one) for one in found if not isinstance(one, Refusal)))

    def draw(self, count: int) -> list[str | None]:
        codes = draw_codes(self.network, count, self.settings.longest, self.temperature)
        return [None if one is None else self.notation.join(one) or None
                for one in self.vocabulary.decode(codes)]  # fmt: skip

    @property
    def temperature(self) -> float:
        """Of sampling."""
        return 1.0
