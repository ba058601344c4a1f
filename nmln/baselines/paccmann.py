"""PaccMann SVAE: a variational autoencoder of SELFIES whose networks have a stack.

Encoder and decoder are GRUs of two layers with a memory. Before every step, the top hidden state decides
what happens to the stack, whose top row then joins the one-hot code of the last symbol as input:

    push, pop, keep = softmax(A h),    value = tanh(B h)
    stack = push * (value, stack[:-1]) + pop * (stack[1:], 0) + keep * stack.

The encoder's last state gives mu and log sigma^2 of z, and the decoder starts from a linear function
of z. With KL = KL(N(mu, sigma^2) || N(0, 1)) of each molecule, the losses are

    published:     sum over places of the mean cross-entropy there + w * sum over the batch of KL,
                   w = 1 / (1 + exp(15 - 0.003 update)),
    per molecule:  mean over the batch of (cross-entropy summed over places + beta * KL),
                   beta from 0 to 1 over the first half of the run.

The published one weighs the KL of a molecule by the size of the batch in the end. In training, 15 % of
the decoder's inputs are zero. Samples are drawn at temperature 0.8, and log-probabilities are those of
that temperature: with z_k drawn from the encoder,

    log p(s) >= E log 1/K sum over k of p(s | z_k) p(z_k) / q(z_k | s).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, pi
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot, pad

from nmln.baselines.base import BASELINES, LogProb, Named, check_settings, seeded
from nmln.baselines.notations import END, Codes
from nmln.baselines.strings import State, StringBaseline, StringNetwork, StringSettings
from nmln.errors import InputError

Latent = Float[Tensor, "strings latent"]
Kl = Literal["published", "per molecule"]


@dataclass(frozen=True, kw_only=True)
class SVAESettings(StringSettings):
    """The published settings, as defaults."""

    notation: str = "selfies"
    batch: int = 256
    epochs: int = 51
    rate: float = 5e-4
    longest: int = 100
    spellings: int = 0
    units: int = 512
    layers: int = 2
    latent: int = 256
    width: int = 50  # of the stack
    depth: int = 50
    dropout: float = 0.2  # between layers
    word_dropout: float = 0.15
    temperature: float = 0.8
    kl: Kl = "published"
    draws: int = 32  # of z, for the bound on a log-probability

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = ("units", "layers", "latent", "width", "depth", "draws")
        check_settings(
            self, dict.fromkeys(sizes, 1), ("dropout", "word_dropout"), positive=("temperature",)
        )
        if self.kl not in (known := get_args(Kl)):
            raise InputError(
                f"kl must be one of {', '.join(map(repr, known))}, got {self.kl!r}.", token="kl"
            )


def moved(
    stack: Float[Tensor, "depth strings width"],
    value: Float[Tensor, "strings width"],
    controls: Float[Tensor, "strings 3"],
) -> Float[Tensor, "depth strings width"]:
    """A stack after a push, a pop and no move, weighted by the controls in this order."""
    push, pop, keep = controls.T[..., None]
    pushed = torch.cat([value[None], stack[:-1]])
    popped = torch.cat([stack[1:], torch.zeros_like(stack[:1])])
    return push * pushed + pop * popped + keep * stack


def kl_to_prior(mean: Latent, log_variance: Latent) -> Float[Tensor, " strings"]:
    """The KL divergence of a diagonal normal distribution from the standard one."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)


class StackGRU(nn.Module):
    """A GRU with a stack; the state is the hidden layers and the stack."""

    def __init__(self, codes: int, one: SVAESettings) -> None:
        super().__init__()
        self.codes, self.depth, self.width = codes, one.depth, one.width
        between = one.dropout if one.layers > 1 else 0.0
        self.controls = nn.Linear(one.units, 3)
        self.value = nn.Linear(one.units, one.width)
        self.recurrent = nn.GRU(codes + one.width, one.units, one.layers, dropout=between)

    def empty(self, strings: int) -> Float[Tensor, "depth strings width"]:
        return self.value.weight.new_zeros(self.depth, strings, self.width)

    def step(
        self, given: Float[Tensor, "strings codes"], state: State
    ) -> tuple[Float[Tensor, "strings units"], State]:
        hidden, stack = state
        top = hidden[-1]
        stack = moved(stack, self.value(top).tanh(), self.controls(top).softmax(-1))
        output, hidden = self.recurrent(torch.cat([given, stack[0]], -1)[None], hidden)
        return output[0], (hidden, stack)


class Rows(NamedTuple):
    """Strings, the longest first: what is fed, what follows, and how many go on to each place."""

    fed: Codes
    targets: Codes
    going: list[int]
    back: Int64[Tensor, " strings"]  # the order in which they were given


class SVAENetwork(StringNetwork):
    """The codes are the end, the tokens and the start, which is never written."""

    def __init__(self, tokens: int, one: SVAESettings) -> None:
        super().__init__()
        self.one, self.start, self.codes = one, tokens + 1, tokens + 2
        self.encoder, self.decoder = (StackGRU(self.codes, one) for _ in range(2))
        self.mean = nn.Linear(one.units, one.latent)
        self.log_variance = nn.Linear(one.units, one.latent)
        self.begin = nn.Linear(one.latent, one.units)
        self.readout = nn.Linear(one.units, self.codes)

    def rows(self, codes: Codes) -> Rows:
        lengths, order = ((codes != END).sum(1) + 1).sort(descending=True, stable=True)
        targets = codes[order, : int(lengths[0])]
        fed = torch.cat([targets.new_full((len(targets), 1), self.start), targets[:, :-1]], 1)
        going = [int((lengths > place).sum()) for place in range(targets.shape[1])]
        return Rows(fed, targets, going, order.argsort())

    def encode(self, rows: Rows) -> tuple[Latent, Latent]:
        """The mean and the log-variance of z, from each string's own last state."""
        inputs, strings = self._one_hot(rows.fed), len(rows.fed)
        layers, units = self.one.layers, self.one.units
        hidden = inputs.new_zeros(layers, strings, units)
        state: State = hidden, self.encoder.empty(strings)
        ended: list[Tensor] = []
        for place, count in enumerate(rows.going):
            if count < len(state[0][0]):
                ended.append(state[0][-1, count:])
            state = tuple(part[:, :count] for part in state)
            _, state = self.encoder.step(inputs[:count, place], state)
        last = torch.cat([state[0][-1], *reversed(ended)])
        return self.mean(last), self.log_variance(last)

    def decode(
        self, rows: Rows, z: Latent, temperature: float = 1.0
    ) -> Float[Tensor, "places strings"]:
        """The cross-entropy at each place of each string, zero behind its end."""
        inputs = self._one_hot(rows.fed)
        if self.training:
            kept = torch.rand(rows.fed.shape) >= self.one.word_dropout
            inputs = inputs * kept[..., None]
        state, each = self._from(z), []
        for place, count in enumerate(rows.going):
            state = tuple(part[:, :count] for part in state)
            output, state = self.decoder.step(inputs[:count, place], state)
            logits = self._logits(output) / temperature
            found = cross_entropy(logits, rows.targets[:count, place], reduction="none")
            each.append(pad(found, (0, len(rows.fed) - count)))
        return torch.stack(each)

    def log_weights(
        self, codes: Codes, draws: int, temperature: float = 1.0
    ) -> Float[Tensor, "draws strings"]:
        """log p(s | z) p(z) / q(z | s) for z drawn from the encoder."""
        rows = self.rows(codes)
        mean, log_variance = self.encode(rows)
        found = []
        for _ in range(draws):
            noise = torch.randn_like(mean)
            z = mean + (0.5 * log_variance).exp() * noise
            prior = -0.5 * (z.square() + log(2 * pi)).sum(-1)
            posterior = -0.5 * (noise.square() + log_variance + log(2 * pi)).sum(-1)
            found.append(prior - posterior - self.decode(rows, z, temperature).sum(0))
        return torch.stack(found)[:, rows.back]

    def nats(self, codes: Codes) -> Float[Tensor, " strings"]:
        weights = self.log_weights(codes, self.one.draws, self.one.temperature)
        return log(self.one.draws) - weights.logsumexp(0)

    def first(self, count: int) -> tuple[Int64[Tensor, " strings"], State]:
        z = torch.randn(count, self.one.latent)
        return torch.full((count,), self.start), self._from(z)

    def step(
        self, last: Int64[Tensor, " strings"], state: State
    ) -> tuple[Float[Tensor, "strings codes"], State]:
        output, state = self.decoder.step(self._one_hot(last), state)
        return self._logits(output), state

    def _from(self, z: Latent) -> State:
        hidden = self.begin(z).expand(self.one.layers, -1, -1).contiguous()
        return hidden, self.decoder.empty(len(z))

    def _one_hot(self, codes: Int64[Tensor, "*shape"]) -> Float[Tensor, "*shape codes"]:
        return one_hot(codes, self.codes).to(self.readout.weight.dtype)

    def _logits(self, output: Float[Tensor, "strings units"]) -> Float[Tensor, "strings codes"]:
        return self.readout(output).index_fill(1, torch.tensor([self.start]), -torch.inf)


class SVAE(StringBaseline):
    """The autoencoder with one of its two losses."""

    settings_type = SVAESettings
    settings: SVAESettings
    network: Any  # an SVAENetwork

    def new_network(self, tokens: int) -> StringNetwork:
        return SVAENetwork(tokens, self.settings)

    def optimiser(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.network.parameters(), self.settings.rate)

    def loss(self, chosen: Int64[Tensor, " molecules"], update: int) -> Float[Tensor, ""]:
        rows = self.network.rows(self.codes(chosen))
        mean, log_variance = self.network.encode(rows)
        z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        each, kl = self.network.decode(rows, z), kl_to_prior(mean, log_variance)
        if self.settings.kl == "per molecule":
            beta = min(1.0, 2 * update / max(1, self.updates))
            return (each.sum(0) + beta * kl).mean()
        weight = 1 / (1 + exp(15 - min(0.003 * update, 700.0)))
        return (each.sum(1) / torch.tensor(rows.going)).sum() + weight * kl.sum()

    def log_prob(self, molecules: Sequence[str], seed: int = 0) -> LogProb | None:
        """A bound in expectation, by importance sampling."""
        with seeded(seed, "log_prob", 0):
            return super().log_prob(molecules)

    @property
    def temperature(self) -> float:
        return self.settings.temperature


BASELINES.add(
    "svae",
    Named("PaccMann SVAE", SVAE, SVAESettings(), "PaccMann's autoencoder of SELFIES as published."),
)
BASELINES.add(
    "svae-per-molecule",
    Named(
        "PaccMann SVAE, KL per molecule",
        SVAE,
        SVAESettings(kl="per molecule"),
        "PaccMann's autoencoder of SELFIES with reconstruction and KL both per molecule.",
    ),
)
