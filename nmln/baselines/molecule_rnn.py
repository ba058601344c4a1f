"""Molecule-RNN: a recurrent network that writes a molecule token by token.

    p(s) = product over places i of softmax(W h_i + b)[s_i],    h_i = GRU(h_(i-1), embedding of s_(i-1)).

An embedding of 256, three GRU layers of 512 and a linear layer to all codes but start and pad, which are
never written. Published schedule: Adam with amsgrad, the cross-entropy summed over a batch of 512
strings, 10 epochs, the rate halved when the training loss stalls, and the epoch kept whose 1,024 samples
have the largest valid share. On a set of some thousand molecules these are about 50 updates.

"To convergence" is ours: batches of 64, so that an epoch has enough updates, until the nats of a
held-out tenth of the training molecules stop improving. "Randomised" does the same with a new random
spelling of every molecule in every epoch, which multiplies a small set.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from nmln.baselines.base import BASELINES, Named, check_settings
from nmln.baselines.notations import END, Codes
from nmln.baselines.strings import State, StringBaseline, StringNetwork, StringSettings
from nmln.molecules.chemistry import Molecule, parse_all

_STALLS, _RESTS, _FACTOR, _LOWEST, _BETTER = 5, 10, 0.5, 1e-4, 1e-4  # of the plateau


@dataclass(frozen=True, kw_only=True)
class MoleculeRNNSettings(StringSettings):
    """The published settings, as defaults."""

    notation: str = "char"
    batch: int = 512
    epochs: int = 10
    rate: float = 1e-3
    longest: int = 141
    embedded: int = 256
    units: int = 512
    layers: int = 3
    decay: float = 1e-4
    judged: int = 1024  # samples whose validity chooses the epoch; 0 for the last epoch

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, {"embedded": 1, "units": 1, "layers": 1, "decay": 0, "judged": 0})


class MoleculeRNNNetwork(StringNetwork):
    """The codes are the end, the tokens, the start and the pad; the first two are written."""

    def __init__(self, tokens: int, embedded: int, units: int, layers: int) -> None:
        super().__init__()
        self.start, pad = tokens + 1, tokens + 2
        self.embedding = nn.Embedding(tokens + 3, embedded, padding_idx=pad)
        self.recurrent = nn.GRU(embedded, units, layers, batch_first=True)
        self.readout = nn.Linear(units, tokens + 1)

    def nats(self, codes: Codes) -> Float[Tensor, " strings"]:
        lengths = (codes != END).sum(1) + 1
        codes = codes[:, : int(lengths.max())]
        fed = torch.cat([codes.new_full((len(codes), 1), self.start), codes[:, :-1]], 1)
        packed = self._packed(self.embedding(fed), lengths)
        hidden, _ = self.recurrent(packed)
        targets = self._packed(codes, lengths).data
        each = cross_entropy(self.readout(hidden.data), targets, reduction="none")
        rows, _ = pad_packed_sequence(
            PackedSequence(
                each, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices
            ),
            batch_first=True,
        )
        return rows.sum(1)

    def _packed(self, rows: Tensor, lengths: Int64[Tensor, " strings"]) -> PackedSequence:
        return pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)

    def first(self, count: int) -> tuple[Int64[Tensor, " strings"], State]:
        shape = self.recurrent.num_layers, count, self.recurrent.hidden_size
        return torch.full((count,), self.start), (self.readout.weight.new_zeros(shape),)

    def step(
        self, last: Int64[Tensor, " strings"], state: State
    ) -> tuple[Float[Tensor, "strings codes"], State]:
        hidden, after = self.recurrent(self.embedding(last)[:, None], state[0])
        return self.readout(hidden[:, 0]), (after,)


class MoleculeRNN(StringBaseline):
    """The published model; with a held-out share it is trained to convergence."""

    settings_type = MoleculeRNNSettings
    settings: MoleculeRNNSettings

    def new_network(self, tokens: int) -> StringNetwork:
        one = self.settings
        return MoleculeRNNNetwork(tokens, one.embedded, one.units, one.layers)

    def optimiser(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            self.network.parameters(),
            self.settings.rate,
            weight_decay=self.settings.decay,
            amsgrad=True,
        )

    def loss(self, chosen: Int64[Tensor, " molecules"], update: int) -> Float[Tensor, ""]:
        return self.network.nats(self.codes(chosen)).sum()

    def end_epoch(
        self, epoch: int, loss: float, optimiser: torch.optim.Optimizer, memory: dict[str, Any]
    ) -> bool:
        slow_down(loss, optimiser, memory.setdefault("plateau", {}))
        if self.held_out:
            return super().end_epoch(epoch, loss, optimiser, memory)
        if self.settings.judged:
            valid = self._valid()
            if valid >= memory.get("valid", 0):
                memory.update(valid=valid, best_epoch=epoch, parameters=self._parameters())
        return False

    def _valid(self) -> int:
        """The number of valid molecules among some samples."""
        self.network.eval()
        texts = [text for text in self.draw(self.settings.judged) if isinstance(text, str)]
        return sum(isinstance(found, Molecule) for found in parse_all(texts))


def slow_down(loss: float, optimiser: torch.optim.Optimizer, memory: dict[str, Any]) -> None:
    """Halve the learning rate when the loss of an epoch has not fallen for some epochs.

    The same rule as torch's ReduceLROnPlateau, with its state in the memory of the training.
    """
    best = memory.get("best", float("inf"))
    stalled = 0 if loss < best * (1 - _BETTER) else memory.get("stalled", 0) + 1
    resting = memory.get("resting", 0)
    if resting:
        stalled, resting = 0, resting - 1
    if stalled > _STALLS:
        for group in optimiser.param_groups:
            group["lr"] = max(group["lr"] * _FACTOR, _LOWEST)
        stalled, resting = 0, _RESTS
    memory.update(best=loss if loss < best * (1 - _BETTER) else best)
    memory.update(stalled=stalled, resting=resting)


_CONVERGED = MoleculeRNNSettings(batch=64, epochs=1000, held_out=0.1, judged=0)

for _notation, _title in (("char", "char"), ("regex", "regex"), ("selfies", "SELFIES")):
    BASELINES.add(
        f"rnn-{_notation}",
        Named(
            f"Molecule-RNN {_title}",
            MoleculeRNN,
            MoleculeRNNSettings(notation=_notation),
            f"Molecule-RNN on {_title} tokens with its published network and schedule.",
        ),
    )
    BASELINES.add(
        f"rnn-{_notation}-converged",
        Named(
            f"Molecule-RNN {_title}, to convergence",
            MoleculeRNN,
            replace(_CONVERGED, notation=_notation),
            f"Molecule-RNN on {_title} tokens until a held-out tenth stops improving.",
        ),
    )
BASELINES.add(
    "rnn-randomised",
    Named(
        "Molecule-RNN, randomised SMILES",
        MoleculeRNN,
        replace(_CONVERGED, randomised=True, patience=10, spellings=1000),
        "Molecule-RNN on a new random SMILES of each molecule in every epoch, to convergence.",
    ),
)
