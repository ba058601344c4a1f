"""The network of the graph potential written with PyTorch Geometric, to compare with."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor, nn
from torch_geometric.nn import FastRGCNConv, RGCNConv, global_add_pool

from nmln.potentials.graph import GraphPotential
from nmln.potentials.layers import LevelLinear


class Batch(NamedTuple):
    """Worlds as one graph of many components."""

    features: Float[Tensor, "nodes features"]
    edge_index: Int64[Tensor, "two edges"]
    edge_type: Int64[Tensor, " edges"]
    world: Int64[Tensor, " nodes"]


class GeometricNetwork(nn.Module):
    """One level of a graph potential, with its weights, in the layers of PyTorch Geometric."""

    def __init__(self, potential: GraphPotential, level: int, fast: bool) -> None:
        super().__init__()
        kind = FastRGCNConv if fast else RGCNConv
        hidden, relations = potential.hidden, potential.wiring.relations
        self.hear, self.update = nn.ModuleList(), nn.ModuleList()
        for layer in range(potential.layers):
            weight = potential.hear[layer][level].detach()
            conv = kind(len(weight), hidden, relations - 1, aggr="add")
            parts = weight.view(len(weight), relations, hidden).permute(1, 0, 2)
            conv.load_state_dict(
                {"weight": parts[1:], "root": parts[0], "bias": potential.hear_bias[layer][level]}
            )
            self.hear.append(conv)
            self.update.append(
                _linear(potential.update[layer][level], potential.update_bias[layer][level])
            )
        layers = [layer for layer in potential.readout.layers if isinstance(layer, LevelLinear)]
        self.readout = nn.ModuleList(_linear(x.weight[level], x.bias[level]) for x in layers)

    def forward(self, batch: Batch) -> Float[Tensor, " worlds"]:
        state, pools = batch.features, []
        for hear, update in zip(self.hear, self.update, strict=True):
            state = update(hear(state, batch.edge_index, batch.edge_type).relu()).relu()
            pools.append(global_add_pool(state, batch.world))
        result = torch.cat(pools, dim=1)
        for index, layer in enumerate(self.readout):
            result = layer(result.relu() if index else result)
        return result.squeeze(1)


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[0], weight.shape[1])
    layer.load_state_dict({"weight": weight.T, "bias": bias})
    return layer


def batch_of(potential: GraphPotential, worlds: Integer[Tensor, "worlds groups"]) -> Batch:
    """The same worlds for PyTorch Geometric, through the dense adjacency."""
    onehot = potential.space.one_hot(worlds)
    nodes = potential.wiring.nodes
    world, target, source, relation = potential.wiring.adjacency(onehot)[..., 1:].nonzero().T
    edge_index = torch.stack([world * nodes + source, world * nodes + target])
    features = potential.wiring.node_features(onehot).flatten(0, 1)
    return Batch(features, edge_index, relation, torch.arange(len(worlds)).repeat_interleave(nodes))
