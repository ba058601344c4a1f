"""The graph transformer of DiGress, for graphs of one fixed number of nodes.

A graph has features x_i of its nodes, e_ij of its ordered pairs and y of the whole. A layer compares
nodes channel by channel. With q, k, v linear in x and d channels per head,

    s_ij = (q_i * k_j / sqrt d) (1 + A e_ij) + B e_ij,
    x_i <- L(film_y(sum_j softmax_j(s_ij) * v_j)),
    e_ij <- L(film_y(s_ij)),
    y <- MLP(L y + L stats(x) + L stats(e)),

where film_y(u) = C y + (1 + D y) u, `stats` are mean, minimum, maximum and standard deviation, and the
softmax is taken separately in every channel. Each result is added to its input and normalised, and
so is that of a network of two layers after it. All graphs have the same size, so there are no
masks, and projections of one input are one matrix product.
"""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from nmln.baselines.base import check_settings
from nmln.errors import InputError

Nodes = Float[Tensor, "graphs nodes node_width"]
Edges = Float[Tensor, "graphs nodes nodes edge_width"]
Whole = Float[Tensor, "graphs whole_width"]
_ROOM = 500_000  # channels of pairs at a time without gradients: they stay in the cache


@dataclass(frozen=True)
class NetworkSettings:
    """The size of the network; as given here, that of the published default.

    `*_width` is the number of channels in the layers, `*_feedforward` that inside their networks of
    two layers, `*_hidden` that inside the networks before the first layer and after the last one.
    """

    layers: int = 5
    heads: int = 8
    node_width: int = 256
    edge_width: int = 64
    whole_width: int = 64
    node_feedforward: int = 256
    edge_feedforward: int = 128
    whole_feedforward: int = 2048
    node_hidden: int = 256
    edge_hidden: int = 128
    whole_hidden: int = 128
    dropout: float = 0.1

    def __post_init__(self) -> None:
        sizes = [entry.name for entry in fields(NetworkSettings) if entry.name != "dropout"]
        check_settings(self, dict.fromkeys(sizes, 1), ("dropout",))
        if self.node_width % self.heads:
            raise InputError(
                f"node_width must be a multiple of heads, got node_width={self.node_width} and "
                f"heads={self.heads}."
            )


class GraphTransformer(nn.Module):
    """Noisy graphs to one vector of outputs per node and per pair; equivariant under renumbering.

    Outputs of pairs are symmetric and zero on the diagonal. The first inputs of nodes and of pairs,
    as many as there are outputs, are added to the outputs.
    """

    def __init__(
        self,
        settings: NetworkSettings,
        inputs: tuple[int, int, int],
        outputs: tuple[int, int],
    ) -> None:
        """`inputs` are the numbers of features of nodes, pairs and the whole."""
        super().__init__()
        node, edge, whole = inputs
        self.outputs, self.width = outputs, settings.node_width
        self.nodes_in = _mlp(node, settings.node_hidden, settings.node_width, nn.ReLU())
        self.edges_in = _mlp(edge, settings.edge_hidden, settings.edge_width, nn.ReLU())
        self.whole_in = _mlp(whole, settings.whole_hidden, settings.whole_width, nn.ReLU())
        self.layers = nn.ModuleList(Layer(settings) for _ in range(settings.layers))
        self.nodes_out = _mlp(settings.node_width, settings.node_hidden, outputs[0])
        self.edges_out = _mlp(settings.edge_width, settings.edge_hidden, outputs[1])
        # The published network also computes a prediction for the whole graph, of no numbers. Its
        # weights learn nothing; they are kept so that networks have the published sizes.
        self.whole_out = nn.Linear(settings.whole_width, settings.whole_hidden)

    def forward(
        self,
        x: Float[Tensor, "graphs nodes node_inputs"],
        e: Float[Tensor, "graphs nodes nodes edge_inputs"],
        y: Float[Tensor, "graphs whole_inputs"],
    ) -> tuple[
        Float[Tensor, "graphs nodes node_outputs"],
        Float[Tensor, "graphs nodes nodes edge_outputs"],
    ]:
        room = x.shape[1] ** 2 * self.width
        parts = -(-len(x) * room // _ROOM)
        if parts < 2 or torch.is_grad_enabled():
            return self._pass(x, e, y)
        size = -(-len(x) // parts)
        found = [
            self._pass(*some)
            for some in zip(*(whole.split(size) for whole in (x, e, y)), strict=True)
        ]
        nodes, pairs = zip(*found, strict=True)
        return torch.cat(nodes), torch.cat(pairs)

    def _pass(self, x: Tensor, e: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        raw_x, raw_e = x[..., : self.outputs[0]], e[..., : self.outputs[1]]
        x, e, y = self.nodes_in(x), symmetric(self.edges_in(e)), self.whole_in(y)
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            x, e, y = layer(x, e, y, number < last)
        x, e = self.nodes_out(x) + raw_x, self.edges_out(e) + raw_e
        others = 1 - torch.eye(x.shape[1], dtype=x.dtype)
        return x, symmetric(e) * others[:, :, None]


class Layer(nn.Module):
    """One layer of the transformer."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        x, e, y = settings.node_width, settings.edge_width, settings.whole_width
        self.scale = (x // settings.heads) ** -0.5
        self.qkv = nn.Linear(x, 3 * x)
        self.edge_film = nn.Linear(e, 2 * x)
        self.whole_film = nn.Linear(y, 4 * x)
        self.nodes_out, self.edges_out = nn.Linear(x, x), nn.Linear(x, e)
        self.whole_to_whole = nn.Linear(y, y)
        self.nodes_to_whole = nn.Linear(4 * x, y)
        self.edges_to_whole = nn.Linear(4 * e, y)
        self.whole_out = _mlp(y, y, y)
        self.nodes_after = After(x, settings.node_feedforward, settings.dropout)
        self.edges_after = After(e, settings.edge_feedforward, settings.dropout)
        self.whole_after = After(y, settings.whole_feedforward, settings.dropout)

    def forward(self, x: Nodes, e: Edges, y: Whole, whole: bool) -> tuple[Nodes, Edges, Whole]:
        """The next features; those of the whole graph stay as they are without `whole`."""
        queries, keys, values = self.qkv(x).chunk(3, -1)
        factor, shift = self.edge_film(e).chunk(2, -1)
        scores = (self.scale * queries)[:, :, None] * keys[:, None]
        scores = torch.addcmul(scores + shift, scores, factor)

        films = self.whole_film(y)[:, None].chunk(4, -1)
        seen = (scores.softmax(2) * values[:, None]).sum(2)
        next_x = self.nodes_out(_film(seen, films[0], films[1]))
        next_e = self.edges_out(_film(scores, films[2][:, None], films[3][:, None]))
        next_x, next_e = self.nodes_after(x, next_x), self.edges_after(e, next_e)
        if not whole:
            return next_x, next_e, y
        next_y = self.whole_to_whole(y) + self.nodes_to_whole(_statistics(x))
        next_y = self.whole_out(next_y + self.edges_to_whole(_statistics(e.flatten(1, 2))))
        return next_x, next_e, self.whole_after(y, next_y)


class After(nn.Module):
    """Adds a change to features, normalises, and does the same with a network of two layers."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm_first, self.norm_second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = dropout

    def forward(
        self, old: Float[Tensor, "*places width"], change: Float[Tensor, "*places width"]
    ) -> Float[Tensor, "*places width"]:
        features = self.norm_first(old + self._drop(change))
        inner = self._drop(self.first(features).relu())
        return self.norm_second(features + self._drop(self.second(inner)))

    def _drop(self, features: Float[Tensor, "*places width"]) -> Float[Tensor, "*places width"]:
        return functional.dropout(features, self.dropout, self.training)


def symmetric(
    e: Float[Tensor, "graphs nodes nodes channels"],
) -> Float[Tensor, "graphs nodes nodes channels"]:
    """The mean of a pair and its mirror image."""
    return (e + e.transpose(1, 2)) / 2


def _film(
    features: Float[Tensor, "*places width"],
    shift: Float[Tensor, "*ones width"],
    factor: Float[Tensor, "*ones width"],
) -> Float[Tensor, "*places width"]:
    return torch.addcmul(features + shift, features, factor)


def _statistics(
    features: Float[Tensor, "graphs places width"],
) -> Float[Tensor, "graphs 4*width"]:
    lowest, highest = features.aminmax(dim=1)
    mean = features.mean(1)
    squares = (features - mean[:, None]).square().sum(1)  # several times as fast as std
    deviation = (squares / (features.shape[1] - 1)).clamp(min=1e-12).sqrt()
    return torch.cat((mean, lowest, highest, deviation), -1)


def _mlp(inputs: int, hidden: int, outputs: int, last: nn.Module | None = None) -> nn.Sequential:
    layers = [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs)]
    return nn.Sequential(*layers, *([] if last is None else [last]))
