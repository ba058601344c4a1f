"""GRU (ours): a recurrent network on plain characters or SELFIES symbols.

    p(s) = product over places i of softmax(W h_i + b)[s_i],    h_i = GRU(h_(i-1), embedding of s_(i-1)).

An embedding of 128, three layers of 512 with dropout 0.2 between them, Adam on the mean nats of batches
of 64 strings, gradients clipped at norm 5, and early stopping on a held-out tenth. The code of the end
also stands before the first token. Layers may be LSTM instead.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nmln.baselines.base import BASELINES, Named, check_settings
from nmln.baselines.notations import END, Codes
from nmln.baselines.strings import State, StringBaseline, StringNetwork, StringSettings
from nmln.errors import InputError

Cell = Literal["gru", "lstm"]
CELLS: dict[str, type[nn.GRU] | type[nn.LSTM]] = {"gru": nn.GRU, "lstm": nn.LSTM}


@dataclass(frozen=True, kw_only=True)
class GRUSettings(StringSettings):
    notation: str = "plain"
    batch: int = 64
    epochs: int = 1000
    rate: float = 1e-3
    longest: int = 100
    held_out: float = 0.1
    cell: Cell = "gru"
    layers: int = 3
    units: int = 512
    embedded: int = 128
    dropout: float = 0.2
    clip: float = 5.0  # norm of the gradients

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(
            self, {"layers": 1, "units": 1, "embedded": 1}, ("dropout",), positive=("clip",)
        )
        if self.cell not in CELLS:
            raise InputError(
                f"there is no cell {self.cell!r}. Take one of {', '.join(CELLS)}.",
                token=self.cell,
                kind="unknown",
            )


class GRUNetwork(StringNetwork):
    """Probabilities of the next token, by a stack of recurrent layers."""

    def __init__(
        self,
        tokens: int,
        cell: str = "gru",
        layers: int = 3,
        units: int = 512,
        embedded: int = 128,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        between = dropout if layers > 1 else 0.0
        self.embedding = nn.Embedding(tokens + 1, embedded)
        self.recurrent = CELLS[cell](embedded, units, layers, dropout=between, batch_first=True)
        self.readout = nn.Linear(units, tokens + 1)

    def forward(self, codes: Codes) -> Float[Tensor, "strings places codes"]:
        """The logits of every place, each after the places before it."""
        fed = torch.cat([torch.full_like(codes[:, :1], END), codes[:, :-1]], 1)
        hidden, _ = self.recurrent(self.embedding(fed))
        return self.readout(hidden)

    def nats(self, codes: Codes) -> Float[Tensor, " strings"]:
        codes = codes[:, : 1 + int((codes != END).sum(1).max())]
        each = cross_entropy(self(codes).transpose(1, 2), codes, reduction="none")
        ends = (codes == END).long()
        return (each * (ends.cumsum(1) - ends == 0)).sum(1)  # up to the first end, and with it

    def first(self, count: int) -> tuple[Int64[Tensor, " strings"], State]:
        shape = self.recurrent.num_layers, count, self.recurrent.hidden_size
        parts = 2 if isinstance(self.recurrent, nn.LSTM) else 1
        state = tuple(self.readout.weight.new_zeros(shape) for _ in range(parts))
        return torch.full((count,), END), state

    def step(
        self, last: Int64[Tensor, " strings"], state: State
    ) -> tuple[Float[Tensor, "strings codes"], State]:
        before: Any = state if isinstance(self.recurrent, nn.LSTM) else state[0]
        hidden, after = self.recurrent(self.embedding(last)[:, None], before)
        return self.readout(hidden[:, 0]), after if isinstance(after, tuple) else (after,)


class GRU(StringBaseline):
    """Our recurrent model of strings."""

    settings_type = GRUSettings
    settings: GRUSettings

    def new_network(self, tokens: int) -> StringNetwork:
        one = self.settings
        return GRUNetwork(tokens, one.cell, one.layers, one.units, one.embedded, one.dropout)

    def optimiser(self) -> torch.optim.Optimizer:
        parameters = list(self.network.parameters())
        made = torch.optim.Adam(parameters, self.settings.rate)

        def clip(*_: Any) -> None:
            nn.utils.clip_grad_norm_(parameters, self.settings.clip)

        made.register_step_pre_hook(clip)
        return made

    def loss(self, chosen: Int64[Tensor, " molecules"], update: int) -> Float[Tensor, ""]:
        return self.network.nats(self.codes(chosen)).mean()


BASELINES.add(
    "gru",
    Named(
        "GRU (ours)",
        GRU,
        GRUSettings(),
        "Our recurrent network on characters until a held-out tenth stops improving.",
    ),
)
