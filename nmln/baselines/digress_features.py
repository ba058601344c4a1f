"""The extra inputs of DiGress: what a transformer does not see by itself in a noisy graph.

Eight per node: the numbers of 3-, 4- and 5-cycles through it (over 10, at most 1), whether it lies
outside the largest component, the first two eigenvectors of the Laplacian with eigenvalue above 0,
`charge` (its usual valence minus its valence) and valence. Twelve per graph: its size over the
largest, the numbers of its 3- to 6-cycles (over 10, at most 1) and of its components, the first five
eigenvalues above 0 over the number of nodes (2 where there are fewer), and its weight.

Cycles are counted by closed walks. A closed walk of five steps that is not a cycle returns to a node
after two steps, which gives, with degrees d and A^k the powers of the adjacency matrix,

    2 c5(i) = A^5_ii - 2 d_i A^3_ii - 2 sum_j A_ij A^2_ij d_j - sum_j A_ij A^3_jj + 5 A^3_ii.

Cycles, components, charge, valence and weight are equivariant under renumbering. Eigenvectors are
given only up to their signs, and up to a rotation where an eigenvalue is repeated.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

NODE_FEATURES, WHOLE_FEATURES = 8, 12

_VECTORS, _VALUES = 2, 5  # eigenvectors and eigenvalues that are given
_FEW = 2.0  # stands for an eigenvalue that a small graph does not have

Matrix = Float64[Tensor, "graphs nodes nodes"]


@dataclass(frozen=True)
class Features:
    """The extra features of graphs over some kinds of atoms.

    `weights` and `valences` belong to the kinds of atoms; `heaviest` and `largest` are the weight of the
    heaviest graph in the training set and the number of nodes of the largest.
    """

    weights: Sequence[float]
    valences: Sequence[int]
    heaviest: float
    largest: int

    def __call__(
        self, kinds: Int64[Tensor, "graphs nodes"], orders: Int64[Tensor, "graphs nodes nodes"]
    ) -> tuple[Float64[Tensor, "graphs nodes 8"], Float64[Tensor, "graphs 12"]]:
        """Features of graphs by the kind of every node and the bond order of every pair."""
        adjacent = (orders > 0).double()
        node_cycles, cycles = cycle_counts(adjacent)
        outside, components = components_of(adjacent)
        values, vectors = spectrum(adjacent, components)
        valence = orders.sum(-1).double()
        usual = torch.tensor(self.valences, dtype=torch.float64)[kinds]
        weight = torch.tensor(self.weights, dtype=torch.float64)[kinds].sum(-1) / self.heaviest
        apart = torch.stack((usual - valence, valence), -1)
        nodes = (node_cycles / 10).clamp(max=1), outside.double()[..., None], vectors, apart
        whole = (
            torch.full((len(kinds), 1), kinds.shape[1] / self.largest, dtype=torch.float64),
            (cycles / 10).clamp(max=1),
            components.double()[:, None],
            values,
            weight[:, None],
        )
        return torch.cat(nodes, -1), torch.cat(whole, -1)


def cycle_counts(
    one: Matrix,
) -> tuple[Float64[Tensor, "graphs nodes 3"], Float64[Tensor, "graphs 4"]]:
    """The numbers of 3-, 4- and 5-cycles through each node, and of 3- to 6-cycles in each graph."""
    two = one @ one
    three = one @ two
    four = two @ two
    degrees = one.sum(-1)
    closed3, closed4 = _diagonal(three), _diagonal(four)
    closed5, closed6 = (two * three).sum(-1), (three * three).sum((1, 2))
    around = (one @ torch.stack((degrees, closed3), -1)).unbind(-1)
    through3 = closed3 / 2
    through4 = (closed4 - degrees * (degrees - 1) - around[0]) / 2
    back = ((one * two) @ degrees[..., None]).squeeze(-1)
    through5 = (closed5 - 2 * degrees * closed3 - 2 * back - around[1] + 5 * closed3) / 2
    nodes = torch.stack((through3, through4, through5), -1)
    six = (
        closed6
        - 3 * closed3.square().sum(1)
        + 9 * (one * two.square()).sum((1, 2))
        - 6 * (degrees * closed4).sum(1)
        + 6 * closed4.sum(1)
        - 4 * closed3.sum(1)
        + 4 * degrees.pow(3).sum(1)
        + 3 * three.sum((1, 2))
        - 12 * degrees.square().sum(1)
        + 4 * degrees.sum(1)
    ) / 12
    lengths = torch.tensor([3.0, 4.0, 5.0], dtype=torch.float64)
    return nodes, torch.cat((nodes.sum(1) / lengths, six[:, None]), -1)


def components_of(
    adjacent: Matrix,
) -> tuple[Bool[Tensor, "graphs nodes"], Int64[Tensor, " graphs"]]:
    """The nodes outside the largest component (or those of that size), and how many components."""
    nodes = adjacent.shape[1]
    reached = adjacent + torch.eye(nodes, dtype=torch.float64)
    for _ in range((nodes - 1).bit_length()):
        reached = ((reached @ reached) > 0).double()
    sizes = reached.sum(-1)
    return sizes < sizes.amax(1, keepdim=True), (1 / sizes).sum(1).round().long()


def spectrum(
    adjacent: Matrix, components: Int64[Tensor, " graphs"]
) -> tuple[Float64[Tensor, "graphs 5"], Float64[Tensor, "graphs nodes 2"]]:
    """The lowest eigenvalues above 0 of the Laplacian, over the number of nodes, and eigenvectors.

    An eigenvalue of 0 belongs to each component, so their number says where the others begin.
    """
    nodes = adjacent.shape[1]
    values, vectors = torch.linalg.eigh(torch.diag_embed(adjacent.sum(-1)) - adjacent)
    values = torch.nn.functional.pad(values / nodes, (0, _VALUES), value=_FEW)
    vectors = torch.nn.functional.pad(vectors, (0, _VECTORS))
    first = components[:, None] + torch.arange(_VALUES)
    wanted = first[:, None, :_VECTORS].expand(-1, nodes, -1)
    return values.gather(1, first), vectors.gather(2, wanted)


def _diagonal(matrix: Matrix) -> Float64[Tensor, "graphs nodes"]:
    return matrix.diagonal(dim1=1, dim2=2)
