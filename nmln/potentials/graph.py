"""The graph potential: a relational graph convolutional network over the whole world.

    h_v' = ReLU(U ReLU(W_0 h_v + sum_r sum_{u in N_r(v)} W_r h_u + b) + c)

Every layer is summed over the nodes, the sums are concatenated, and three linear layers with ReLU
between them give the score. Each level has weights of its own.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Generator, Tensor, nn

from nmln.config import ModelConfig
from nmln.errors import InputError
from nmln.potentials import compiled
from nmln.potentials.base import BasePotential, Labels, sharing
from nmln.potentials.compiled import Kernel, Library
from nmln.potentials.layers import LevelLinear, LevelMLP, uniform_weights
from nmln.potentials.messages import (
    Weights,
    Workspace,
    affine,
    relu_backward,
    sums,
    transform,
    transform_back,
)
from nmln.potentials.recomputed import Recomputed
from nmln.potentials.registry import POTENTIALS, NamedPotential
from nmln.potentials.rings import RingsPotential
from nmln.potentials.wiring import Bags, Graphs, Wiring
from nmln.space import Space
from nmln.types import OneHot, Scores, Slopes, Values

PRESETS = {"paper": {"layers": 10, "hidden": 128}, "small": {"layers": 4, "hidden": 64}}
_TOGETHER = 3000  # nodes of all levels: so many rows of width 64 still fit the cache as one batch
_ROWS = 1000  # nodes at a time: (node, relation) rows of width 128 just fit a 2 MiB cache


class GraphPotential(BasePotential):
    """Scores a world by message passing over all of its constants; invariant under relabelling.

    Unary attributes are node features, the categories of binary attributes are relations (except
    none and false, unless `include_null`). `residual` adds each layer's input to its output,
    `mean_messages` divides what a node hears along a relation by the number of its neighbours there,
    `pool_scale` multiplies the sums over nodes, `initial_scale` the first weights of messages:
    neighbours are alike, so that k of them add up to k times one of them, layer after layer. Predicates
    of arity 3 and more are refused.

    Worlds are scored in batches that fit the cache, whatever their number; by the compiled kernel
    (compiled.py) where it was built and the numbers are of single precision on the processor.
    """

    def __init__(
        self,
        space: Space,
        levels: int,
        layers: int = 4,
        hidden: int = 64,
        *,
        include_null: bool = False,
        residual: bool = False,
        mean_messages: bool = False,
        pool_scale: float = 1.0,
        initial_scale: float = 1.0,
        rng: Generator | None = None,
    ) -> None:
        super().__init__(space, levels)
        if layers < 1 or hidden < 1:
            raise InputError(
                f"a graph potential needs at least one layer and one hidden unit, but has "
                f"layers={layers} and hidden={hidden}."
            )
        rng = rng or Generator().manual_seed(0)
        self.wiring, self.include_null = Wiring(space, include_null), include_null
        self.layers, self.hidden = layers, hidden
        self.residual, self.mean_messages, self.pool_scale = residual, mean_messages, pool_scale
        self._rooms: dict[int, Workspace] = {}
        self._views: tuple[tuple[int, ...], list[Weights]] | None = None
        self._kernel: Kernel | None = None
        self._compact = hidden >= 96  # below, leaving rows out costs as much as it saves
        relations = self.wiring.relations
        inputs = [self.wiring.features] + [hidden] * (layers - 1)
        # A node hears itself and a few neighbours: their sum has three times the variance of one.
        self.hear = nn.ParameterList(
            uniform_weights(
                (levels, size, relations * hidden), size, rng, initial_scale * (2 / 3) ** 0.5
            )
            for size in inputs
        )
        self.hear_bias = nn.ParameterList(torch.zeros(levels, hidden) for _ in inputs)
        self.update = nn.ParameterList(
            uniform_weights((levels, hidden, hidden), hidden, rng, 2**0.5) for _ in inputs
        )
        self.update_bias = nn.ParameterList(torch.zeros(levels, hidden) for _ in inputs)
        self.readout = LevelMLP(levels, (layers * hidden, hidden, hidden, 1), rng, last_gain=0.1)

    @staticmethod
    def preset(name: str, space: Space, levels: int, **options: Any) -> "GraphPotential":
        """A named size: `paper` (10 layers of 128) or `small` (4 layers of 64)."""
        if name not in PRESETS:
            raise InputError(
                f"unknown preset {name!r}. Choose one of {', '.join(PRESETS)}.",
                token=name,
                kind="unknown",
            )
        return GraphPotential(space, levels, **{**PRESETS[name], **options})

    def grounded(self, space: Space) -> "GraphPotential":
        new = sharing(self, space)
        new.wiring = Wiring(space, self.include_null).to(self.hear_bias[0])
        new._rooms, new._views, new._kernel = {}, None, None
        return new

    def labels(self) -> dict[str, dict[int, Labels]]:
        columns = [
            (name, unit) for name in self.wiring.relation_names for unit in range(self.hidden)
        ]
        found: dict[str, dict[int, Labels]] = {
            f"hear.{n}": {2: columns} for n in range(self.layers)
        }
        found["hear.0"] |= {1: self.wiring.feature_names}
        return found

    def weight_products(self) -> int:
        """Floating-point operations of the weight products for one world."""
        nodes, hidden = self.wiring.nodes, self.hidden
        inputs = self.wiring.features + (self.layers - 1) * hidden
        per_node = inputs * self.wiring.relations * hidden + self.layers * hidden * hidden
        return 2 * (nodes * per_node + self.layers * hidden * hidden + hidden * hidden + hidden)

    def _stacks(self) -> list[list[Tensor]]:
        """All parameters in the order of `Weights`, each with a leading axis for the levels."""
        layers = [layer for layer in self.readout.layers if isinstance(layer, LevelLinear)]
        return [
            list(self.hear),
            list(self.hear_bias),
            list(self.update),
            list(self.update_bias),
            [layer.weight for layer in layers],
            [layer.bias for layer in layers],
        ]

    def _tensors(self) -> list[Tensor]:
        return [tensor for stack in self._stacks() for tensor in stack]

    def _weights(self, level: int) -> Weights:
        return Weights(*([tensor[level] for tensor in stack] for stack in self._stacks()))

    # Scores: batches that fit the cache, no graph; gradients by parameters compute a batch again.

    def evaluate(self, values: Values) -> Scores:
        if torch.is_grad_enabled():
            stacks = self._tensors()
            if any(tensor.requires_grad for tensor in stacks):
                return Recomputed.apply(self, values, *stacks)
        return self._score_batches(values)

    def _compiled(self, values: Values) -> tuple[Kernel, Library] | None:
        """The compiled kernel, where there is one that serves these worlds."""
        library = compiled.library()
        if library is None or self.mean_messages or not compiled.usable(self.hear_bias[0], values):
            return None
        if self._kernel is None:
            shape = (self.layers, self.hidden, self.residual, self.pool_scale)
            self._kernel = Kernel(self.wiring, *shape)
        return self._kernel, library

    @torch.no_grad()
    def _score_batches(self, values: Values) -> Scores:
        if found := self._compiled(values):
            kernel, library = found
            return kernel.score(library, self._tensors(), values)
        together = len(values) * values.shape[1]
        small = 0 < together * self.wiring.nodes <= _TOGETHER
        if small and not (self.mean_messages or self._compact):
            return self._score_together(values.reshape(1, together, -1))
        scores = torch.empty(values.shape[:2], dtype=self.dtype, device=values.device)
        size, weights = self._batch_size(values), self._all_weights()
        if self.mean_messages:
            for level, some in self._batches(values):
                onehot = self._one_hot(values[level, some])
                scores[level, some] = self._densely(onehot, weights[level])
            return scores
        room = self._workspace(size, 1)
        for level, some, graphs in self.wiring.batches(values, size, self._compact):
            pools = self._pass_messages(weights[level], graphs, room)
            scores[level, some] = self._read_out(weights[level], pools)[-1]
        return scores

    def _score_together(self, worlds: Integer[Tensor, "one worlds groups"]) -> Scores:
        """All levels as one batch: on few worlds, the number of operations determines the cost."""
        weights, room = Weights(*self._stacks()), self._workspace(worlds.shape[1], 1)
        ((_, _, graphs),) = self.wiring.batches(worlds, worlds.shape[1], compact=False)
        pools = self._pass_messages(weights, graphs, room)
        return self._read_out(weights, pools.view(self.levels, -1, pools.shape[1]))[-1]

    def _batch_size(self, values: Values) -> int:
        """Chains at a time: equal shares, so that no batch is small."""
        chains = values.shape[1]
        shares = max(1, round(chains * self.wiring.nodes / _ROWS))
        return max(1, -(-chains // shares))

    def _batches(self, values: Values) -> Iterator[tuple[int, slice]]:
        chains, size = values.shape[1], self._batch_size(values)
        for level in range(self.levels):
            for start in range(0, chains, size):
                yield level, slice(start, min(chains, start + size))

    def _all_weights(self) -> list[Weights]:
        """Views of all levels, kept as long as the parameters stay where they are."""
        where = tuple(tensor.data_ptr() for tensor in self._tensors())
        if self._views is None or self._views[0] != where:
            with torch.inference_mode(False):
                views = [
                    Weights(
                        *([tensor.detach()[level] for tensor in stack] for stack in self._stacks())
                    )
                    for level in range(self.levels)
                ]
            self._views = (where, views)
        return self._views[1]

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle or copy, without the buffers that only serve speed."""
        return {**self.__dict__, "_rooms": {}, "_views": None, "_kernel": None}

    def _one_hot(self, worlds: Integer[Tensor, "worlds groups"]) -> Float[Tensor, "worlds entries"]:
        return self.space.one_hot(worlds, self.dtype)

    def _workspace(self, worlds: int, layers: int) -> Workspace:
        like, nodes = self.hear_bias[0], worlds * self.wiring.nodes
        rows = max(1, nodes * (self.wiring.relations - 1))
        shapes = ((layers, rows), (layers, nodes), (max(2, layers), nodes), (rows,), (2, nodes))
        kept = self._rooms.get(layers)  # one for scores, one for slopes
        fits = kept is not None and kept.heard.shape[1] >= nodes
        if (
            kept is None
            or not fits
            or (kept.rows.dtype, kept.rows.device) != (like.dtype, like.device)
        ):
            with torch.inference_mode(False):
                kept = Workspace(*(like.detach().new_empty(*s, self.hidden) for s in shapes))
            self._rooms[layers] = kept
        return kept

    def _pass_messages(
        self,
        weights: Weights,
        graphs: Graphs,
        room: Workspace,
    ) -> Float[Tensor, "worlds pools"]:
        """Transform first, then let every node sum up what it hears; gives the sums over nodes.

        With room for all layers every row is transformed, heard or not, because the slopes ask what
        each node would hear along each relation.
        """
        state, hidden, keep = graphs.features, self.hidden, len(room.rows) > 1
        nodes, count = len(state), len(state) // self.wiring.nodes
        bags = Bags(graphs.all_heard, None) if keep else graphs.heard
        pools = room.rows.new_empty(count, self.layers * hidden)
        for layer in range(self.layers):
            weight, rows = weights.hear[layer], room.rows[layer if keep else 0]
            heard = room.heard[layer if keep else 0, :nodes]
            updated = room.updated[layer if keep else layer % 2, :nodes]
            affine(state, weight[..., :hidden], weights.hear_bias[layer], heard)
            if self.wiring.relations > 1:
                transform(state, weight[..., hidden:], bags.rows, rows, room.gathered)
            heard += sums(rows, bags.indices, graphs.starts)
            heard.relu_()
            affine(heard, weights.update[layer], weights.update_bias[layer], updated)
            updated.relu_()
            state = updated + state if self.residual and layer else updated
            pool = pools[:, layer * hidden : (layer + 1) * hidden]
            torch.sum(state.view(count, -1, hidden), 1, out=pool)
        return pools.mul_(self.pool_scale) if self.pool_scale != 1 else pools

    def _read_out(
        self, weights: Weights, pools: Float[Tensor, "*levels worlds pools"]
    ) -> list[Tensor]:
        """The activations of the final network; the last one holds the scores."""
        activations = [pools]
        for weight, bias in zip(weights.readout, weights.readout_bias, strict=True):
            previous = activations[-1]
            previous = previous.relu_() if len(activations) > 1 else previous
            activations.append(affine(previous, weight, bias))
        activations[-1] = activations[-1].squeeze(-1)
        return activations

    # Slopes: the way back through the same batch.

    @torch.no_grad()
    def evaluate_with_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        shape, device = values.shape[:2], values.device
        scores = torch.empty(shape, dtype=self.dtype, device=device)
        slopes = torch.zeros(*shape, self.space.entries, dtype=self.dtype, device=device)
        if found := self._compiled(values):
            kernel, library = found
            return kernel.slopes(library, self._tensors(), values, slopes), slopes
        size, weights = self._batch_size(values), self._all_weights()
        if self.mean_messages:
            for level, some in self._batches(values):
                found = self._slopes_by_autograd(values[level, some], weights[level])
                scores[level, some], slopes[level, some] = found
            return scores, slopes
        room = self._workspace(size, self.layers + 1)
        for level, some, graphs in self.wiring.batches(values, size, self._compact):
            pools = self._pass_messages(weights[level], graphs, room)
            *activations, scores[level, some] = self._read_out(weights[level], pools)
            gradient = self._back_to_pools(weights[level], activations)
            self._back_to_entries(weights[level], graphs, gradient, room, slopes[level, some])
        return scores, slopes

    def _back_to_pools(self, weights: Weights, activations: list[Tensor]) -> Tensor:
        gradient = weights.readout[-1].T.repeat(len(activations[0]), 1)
        for weight, activation in zip(weights.readout[-2::-1], activations[:0:-1], strict=True):
            gradient = relu_backward(gradient, activation) @ weight.T
        return gradient * self.pool_scale if self.pool_scale != 1 else gradient

    def _back_to_entries(
        self,
        weights: Weights,
        graphs: Graphs,
        by_pool: Float[Tensor, "worlds pools"],
        room: Workspace,
        slopes: Float[Tensor, "worlds entries"],
    ) -> None:
        """From the sums over nodes back to node features and adjacency, layer by layer."""
        count, nodes, kinds = len(slopes), self.wiring.nodes, self.wiring.relations - 1
        hidden = self.hidden
        by_adjacency = slopes.new_zeros(count, nodes * kinds, nodes)
        by_state = room.spare[0, : count * nodes].zero_()
        for layer in reversed(range(self.layers)):
            heard, updated = (
                room.heard[layer, : len(by_state)],
                room.updated[layer, : len(by_state)],
            )
            pool = by_pool[:, None, layer * hidden : (layer + 1) * hidden]
            by_state.view(count, nodes, -1).add_(pool)
            through = relu_backward(by_state.clone() if self.residual else by_state, updated)
            by_heard = room.spare[1, : count * nodes]
            torch.mm(through, weights.update[layer].T, out=by_heard)
            relu_backward(by_heard, heard)
            messages = room.rows[layer, : count * nodes * kinds].view(count, nodes * kinds, hidden)
            by_adjacency += torch.bmm(messages, by_heard.view(count, nodes, -1).mT)
            weight = weights.hear[layer]
            size = len(weight)
            spare = room.rows[-1]
            table = spare if size == hidden else spare.new_empty(len(spare), size)
            if kinds:
                transform_back(by_heard, weight[:, hidden:], graphs.told.rows, table, room.gathered)
            arrived = by_state
            if size == hidden and not self.residual:
                torch.mm(by_heard, weight[:, :hidden].T, out=by_state)
            else:
                by_state = by_heard @ weight[:, :hidden].T
            by_state += sums(table, graphs.told.indices, graphs.starts)
            if self.residual and layer:
                by_state += arrived
        self.wiring.spread_features(slopes, by_state.view(count, nodes, -1))
        self.wiring.spread_adjacency(slopes, by_adjacency.flatten(1))

    # The same network in plain operations that autograd can follow.

    def forward(self, onehot: OneHot) -> Scores:
        """Scores of one-hot or relaxed worlds, differentiable in entries and parameters."""
        return torch.stack([self._densely(x, self._weights(i)) for i, x in enumerate(onehot)])

    def _densely(
        self, onehot: Float[Tensor, "worlds entries"], weights: Weights
    ) -> Float[Tensor, " worlds"]:
        count, nodes, hidden = len(onehot), self.wiring.nodes, self.hidden
        adjacency = self.wiring.adjacency(onehot)
        if self.mean_messages:
            adjacency = adjacency / adjacency.sum(2, keepdim=True).clamp(min=1)
        adjacency = adjacency.flatten(2)
        state = self.wiring.node_features(onehot)
        pools = []
        for layer in range(self.layers):
            rows = (state.flatten(0, 1) @ weights.hear[layer]).view(
                count, adjacency.shape[2], hidden
            )
            heard = (torch.bmm(adjacency, rows) + weights.hear_bias[layer]).relu()
            flat = heard.view(count * nodes, hidden)
            updated = torch.addmm(weights.update_bias[layer], flat, weights.update[layer]).relu()
            updated = updated.view(count, nodes, hidden)
            state = updated + state if self.residual and layer else updated
            pools.append(state.sum(1))
        result = torch.cat(pools, dim=1) * self.pool_scale
        for index, (weight, bias) in enumerate(
            zip(weights.readout, weights.readout_bias, strict=True)
        ):
            result = torch.addmm(bias, result.relu() if index else result, weight)
        return result.squeeze(1)

    def _slopes_by_autograd(
        self, worlds: Integer[Tensor, "worlds groups"], weights: Weights
    ) -> tuple[Tensor, Tensor]:
        with torch.inference_mode(False), torch.enable_grad():
            onehot = self._one_hot(worlds.clone()).requires_grad_()
            scores = self._densely(onehot, weights)
            (slopes,) = torch.autograd.grad(scores.sum(), onehot)
        return scores.detach(), slopes


def _network(space: Space, levels: int, model: ModelConfig, rng: Generator) -> BasePotential:
    def build(seen: Space) -> GraphPotential:
        return GraphPotential(
            seen,
            levels,
            model.layers,
            model.hidden,
            residual=model.residual,
            initial_scale=model.initial_scale,
            rng=rng,
        )

    return RingsPotential(space, build) if model.rings else build(space)


def _fewest(space: Space, model: ModelConfig) -> int:
    return (2 * model.layers + 1) * model.hidden**2


POTENTIALS.add("graph", NamedPotential(GraphPotential, _network, _fewest))
