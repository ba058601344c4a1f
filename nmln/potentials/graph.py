"""The graph potential: a relational graph convolutional network over the whole world.

    h_v' = ReLU(U ReLU(W_0 h_v + sum_r sum_{u in N_r(v)} W_r h_u + b) + c)

Every layer is summed over the nodes, the sums are concatenated, and three linear layers with ReLU
between them give the score. Each level has weights of its own.
"""

from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float, Integer
from torch import Generator, Tensor, nn
from torch.nn.functional import embedding_bag

from nmln.files import InputError
from nmln.potentials.base import BasePotential, LevelLinear, LevelMLP, uniform_weights
from nmln.potentials.wiring import Edges, Wiring
from nmln.space import Space
from nmln.types import OneHot, Scores, Slopes, Values

PRESETS = {"paper": {"layers": 10, "hidden": 128}, "small": {"layers": 4, "hidden": 64}}
_ROWS = 1000  # nodes at a time: (node, relation) rows of width 128 just fit a 2 MiB cache


class Weights(NamedTuple):
    """The weights of one level, layer by layer."""

    hear: list[Tensor]
    hear_bias: list[Tensor]
    update: list[Tensor]
    update_bias: list[Tensor]
    readout: list[Tensor]
    readout_bias: list[Tensor]


class Kept(NamedTuple):
    """What the way back needs of one layer: transformed rows, what was heard, the update."""

    rows: Tensor
    heard: Tensor
    updated: Tensor


class GraphPotential(BasePotential):
    """Scores a world by message passing over all of its constants; invariant under relabelling.

    Unary attributes are node features, the categories of binary attributes are relations (except
    none and false, unless `include_null`). `residual` adds each layer's input to its output,
    `mean_messages` divides what a node hears along a relation by the number of its neighbours there,
    `pool_scale` multiplies the sums over nodes. Predicates of arity 3 and more are refused.

    Worlds are scored in batches that fit the cache, whatever their number.
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
        rng: Generator | None = None,
    ) -> None:
        super().__init__(space, levels)
        if layers < 1 or hidden < 1:
            raise InputError(
                f"a graph potential needs at least one layer and one hidden unit, but has "
                f"layers={layers} and hidden={hidden}."
            )
        rng = rng or Generator().manual_seed(0)
        self.wiring = Wiring(space, include_null)
        self.layers, self.hidden = layers, hidden
        self.residual, self.mean_messages, self.pool_scale = residual, mean_messages, pool_scale
        relations = self.wiring.relations
        inputs = [self.wiring.features] + [hidden] * (layers - 1)
        # A node hears itself and a few neighbours: their sum has three times the variance of one.
        self.hear = nn.ParameterList(
            uniform_weights((levels, size, relations * hidden), size, rng, (2 / 3) ** 0.5)
            for size in inputs
        )
        self.hear_bias = nn.ParameterList(torch.zeros(levels, hidden) for _ in inputs)
        self.update = nn.ParameterList(
            uniform_weights((levels, hidden, hidden), hidden, rng, 2**0.5) for _ in inputs
        )
        self.update_bias = nn.ParameterList(torch.zeros(levels, hidden) for _ in inputs)
        self.readout = LevelMLP(levels, (layers * hidden, hidden, hidden, 1), rng, last_gain=0.1)

    @classmethod
    def preset(cls, name: str, space: Space, levels: int, **options: Any) -> Self:
        """A named size: `paper` (10 layers of 128) or `small` (4 layers of 64)."""
        if name not in PRESETS:
            raise InputError(f"unknown preset {name!r}. Choose one of {', '.join(PRESETS)}.")
        return cls(space, levels, **{**PRESETS[name], **options})

    @property
    def dtype(self) -> torch.dtype:
        return self.hear_bias[0].dtype

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

    def _weights(self, level: int) -> Weights:
        return Weights(*([tensor[level] for tensor in stack] for stack in self._stacks()))

    # Scores: batches that fit the cache, no graph; gradients by parameters compute a batch again.

    def evaluate(self, values: Values) -> Scores:
        stacks = [tensor for stack in self._stacks() for tensor in stack]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in stacks):
            return _Recomputed.apply(self, values, *stacks)
        return self._score_batches(values)

    @torch.no_grad()
    def _score_batches(self, values: Values) -> Scores:
        scores = torch.empty(values.shape[:2], dtype=self.dtype, device=values.device)
        workspace = None
        for level, some in self._batches(values, _ROWS):
            worlds, weights = values[level, some], self._weights(level)
            if self.mean_messages:
                scores[level, some] = self._densely(self._one_hot(worlds), weights)
                continue
            workspace = self._workspace(len(worlds), 1) if workspace is None else workspace
            pools, _ = self._pass_messages(weights, worlds, self.wiring.edges(worlds), workspace)
            scores[level, some] = self._read_out(weights, pools)[-1]
        return scores

    def _batches(self, values: Values, rows: int) -> list[tuple[int, slice]]:
        """Levels and equal shares of their chains, so that no share is small."""
        chains = values.shape[1]
        shares = -(-chains * self.wiring.nodes // rows)
        size = -(-chains // max(1, shares))
        starts = range(0, chains, max(1, size))
        return [
            (lvl, slice(s, min(chains, s + size))) for lvl in range(self.levels) for s in starts
        ]

    def _one_hot(self, worlds: Integer[Tensor, "worlds groups"]) -> Float[Tensor, "worlds entries"]:
        return self.space.one_hot(worlds, self.dtype)

    def _workspace(self, worlds: int, layers: int) -> Float[Tensor, "layers rows hidden"]:
        """Room for the transformed rows of some layers, and one row more for the bias."""
        rows = worlds * self.wiring.nodes * self.wiring.relations + 1
        stack = self.hear_bias[0]
        return torch.empty(layers, rows, self.hidden, dtype=stack.dtype, device=stack.device)

    def _pass_messages(
        self,
        weights: Weights,
        worlds: Integer[Tensor, "worlds groups"],
        edges: Edges,
        workspace: Float[Tensor, "layers rows hidden"],
    ) -> tuple[Float[Tensor, "worlds pools"], list[Kept]]:
        """Transform first, for all relations at once; then every node sums up what it hears."""
        count, hidden = len(worlds), self.hidden
        nodes = count * self.wiring.nodes
        used = nodes * self.wiring.relations
        pools = torch.empty(
            count, self.layers * hidden, dtype=workspace.dtype, device=workspace.device
        )
        kept: list[Kept] = []
        state = self.wiring.node_features(self._one_hot(worlds)).flatten(0, 1)
        for layer in range(self.layers):
            rows = workspace[layer % len(workspace), : used + 1]
            torch.mm(state, weights.hear[layer], out=rows[:used].view(nodes, -1))
            rows[used] = weights.hear_bias[layer]
            heard = embedding_bag(edges.heard, rows, edges.starts, mode="sum").relu_()
            updated = torch.addmm(weights.update_bias[layer], heard, weights.update[layer]).relu_()
            state = updated + state if self.residual and layer else updated
            pool = pools[:, layer * hidden : (layer + 1) * hidden]
            torch.sum(state.view(count, -1, hidden), 1, out=pool)
            if len(workspace) > 1:
                kept.append(Kept(rows, heard, updated))
        return pools.mul_(self.pool_scale) if self.pool_scale != 1 else pools, kept

    def _read_out(self, weights: Weights, pools: Float[Tensor, "worlds pools"]) -> list[Tensor]:
        """The activations of the final network; the last one holds the scores."""
        activations = [pools]
        for weight, bias in zip(weights.readout, weights.readout_bias, strict=True):
            previous = activations[-1]
            previous = previous.relu_() if len(activations) > 1 else previous
            activations.append(torch.addmm(bias, previous, weight))
        activations[-1] = activations[-1].squeeze(1)
        return activations

    # Slopes: the way back through the same batch.

    @torch.no_grad()
    def evaluate_with_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        shape, device = values.shape[:2], values.device
        scores = torch.empty(shape, dtype=self.dtype, device=device)
        slopes = torch.zeros(*shape, self.space.entries, dtype=self.dtype, device=device)
        workspace = None
        for level, some in self._batches(values, _ROWS // 2):
            worlds, weights = values[level, some], self._weights(level)
            if self.mean_messages:
                scores[level, some], slopes[level, some] = self._slopes_by_autograd(worlds, weights)
                continue
            if workspace is None:
                workspace = self._workspace(len(worlds), max(2, self.layers))
            edges = self.wiring.edges(worlds)
            pools, kept = self._pass_messages(weights, worlds, edges, workspace)
            *activations, scores[level, some] = self._read_out(weights, pools)
            gradient = self._back_to_pools(weights, activations)
            self._back_to_entries(weights, edges, kept, gradient, slopes[level, some])
        return scores, slopes

    def _back_to_pools(self, weights: Weights, activations: list[Tensor]) -> Tensor:
        gradient = weights.readout[-1].T.expand(len(activations[0]), -1)
        for weight, activation in zip(weights.readout[-2::-1], activations[:0:-1], strict=True):
            gradient = relu_backward(gradient, activation) @ weight.T
        return gradient * self.pool_scale if self.pool_scale != 1 else gradient

    def _back_to_entries(
        self,
        weights: Weights,
        edges: Edges,
        kept: list[Kept],
        by_pool: Float[Tensor, "worlds pools"],
        slopes: Float[Tensor, "worlds entries"],
    ) -> None:
        count, nodes, relations = len(slopes), self.wiring.nodes, self.wiring.relations
        used = count * nodes * relations
        by_adjacency = slopes.new_zeros(count, nodes, nodes * relations)
        by_state: Tensor | None = None
        spare = torch.empty_like(kept[0].rows)
        for layer in reversed(range(self.layers)):
            rows, heard, updated = kept[layer]
            pool = by_pool[:, layer * self.hidden : (layer + 1) * self.hidden, None].mT
            pool = pool.expand(-1, nodes, -1)
            arrived = pool if by_state is None else by_state.view(count, nodes, -1).add_(pool)
            arrived = arrived.reshape(count * nodes, -1)
            by_heard = relu_backward(arrived, updated) @ weights.update[layer].T
            by_heard = relu_backward(by_heard, heard)
            messages = rows[:used].view(count, nodes * relations, -1)
            by_adjacency.baddbmm_(by_heard.view(count, nodes, -1), messages.mT)
            size = weights.hear[layer].shape[0]
            turned = weights.hear[layer].view(size, relations, -1).permute(2, 1, 0)
            table = spare if size == self.hidden else spare.new_empty(used + 1, size)
            torch.mm(
                by_heard,
                turned.reshape(self.hidden, -1),
                out=table[:used].view(-1, relations * size),
            )
            table[used] = 0
            by_state = embedding_bag(edges.told, table, edges.starts, mode="sum")
            if self.residual and layer:
                by_state += arrived
        assert by_state is not None
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
            rows = (state.flatten(0, 1) @ weights.hear[layer]).view(count, -1, hidden)
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
        onehot = self._one_hot(worlds).requires_grad_()
        with torch.enable_grad():
            scores = self._densely(onehot, weights)
            (slopes,) = torch.autograd.grad(scores.sum(), onehot)
        return scores.detach(), slopes


def relu_backward(gradient: Tensor, activation: Tensor) -> Tensor:
    """The gradient before a ReLU, given the one behind it and what came out of it."""
    return torch.ops.aten.threshold_backward(gradient, activation, 0)


class _Recomputed(torch.autograd.Function):
    """Scores whose gradient by the parameters computes every batch again, to keep memory flat."""

    @staticmethod
    def forward(ctx: Any, potential: GraphPotential, values: Values, *stacks: Tensor) -> Scores:
        ctx.potential, ctx.values = potential, values
        ctx.save_for_backward(*stacks)
        return potential._score_batches(values)

    @staticmethod
    def backward(ctx: Any, *by_score: Tensor) -> tuple[Tensor | None, ...]:
        potential, values, stacks = ctx.potential, ctx.values, ctx.saved_tensors
        gradients = [torch.zeros_like(stack) for stack in stacks]
        sizes = [len(stack) for stack in potential._stacks()]
        for level, some in potential._batches(values, _ROWS // 2):
            tensors = [stack[level].detach().requires_grad_() for stack in stacks]
            split = iter(tensors)
            weights = Weights(*([next(split) for _ in range(size)] for size in sizes))
            with torch.enable_grad():
                scores = potential._densely(potential._one_hot(values[level, some]), weights)
            found = torch.autograd.grad(scores, tensors, by_score[0][level, some])
            for total, part in zip(gradients, found, strict=True):
                total[level] += part
        return None, None, *gradients
