"""Metrics of sets of molecules: their internal diversity, and their distance to another set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

import numpy as np
import torch
from jaxtyping import Float32, Float64
from torch import Tensor

from nmln.errors import InputError
from nmln.extras import load
from nmln.molecules.chemistry.likeness import mean_distance

DIVERSITY_MOST = 2_000
FCD_MOST = 10_000
_BATCH = 64


@dataclass(frozen=True)
class Measured:
    """A number, and the number of samples (repeats included) that it is computed from."""

    value: float
    samples: int


def draw(counts: Mapping[str, int], most: int, seed: int = 0) -> list[str]:
    """At most `most` of the counted samples, drawn without replacement.

    The order of the strings does not matter: the same counts and seed give the same sample.
    """
    strings = sorted(counts)
    ends = list(accumulate(counts[string] for string in strings))
    total = ends[-1] if ends else 0
    places = Random(seed).sample(range(total), min(most, total))
    return [strings[at] for at in np.searchsorted(ends, places, side="right")]


def internal_diversity(
    counts: Mapping[str, int], most: int = DIVERSITY_MOST, seed: int = 0
) -> Measured | None:
    """The mean of 1 - Tanimoto (Morgan fingerprints, radius 2) over pairs; None below two samples.

    Repeats count, at distance 0. If there are more than `most` samples, that many are drawn.
    """
    chosen = draw(counts, most, seed)
    return Measured(mean_distance(chosen), len(chosen)) if len(chosen) > 1 else None


@dataclass(frozen=True, repr=False)
class Moments:
    """Mean and covariance of ChemNet's activations over molecules."""

    mean: Float64[Tensor, " features"]
    covariance: Float64[Tensor, "features features"]
    samples: int


class ChemNet:
    """The network behind the Fréchet ChemNet distance, from the package `fcd_torch`, on the CPU.

    It remembers the activations of the molecules that it has seen. One core computes about 450 new
    ones per second (measured).
    """

    def __init__(self) -> None:
        self._network = load("fcd_torch").FCD(device="cpu", canonize=False).model
        self._seen: dict[str, Float32[Tensor, " features"]] = {}

    def moments(self, smiles: Sequence[str]) -> Moments:
        """The moments of at least two canonical SMILES, repeats included."""
        if len(smiles) < 2:
            raise InputError(
                "the Fréchet ChemNet distance needs at least two molecules on either side, got "
                f"{len(smiles)}.",
                kind="empty",
            )
        self._look(sorted(set(smiles) - self._seen.keys()))
        activations = torch.stack([self._seen[text] for text in smiles]).double()
        return Moments(activations.mean(0), torch.cov(activations.T), len(smiles))

    def _look(self, smiles: Sequence[str]) -> None:
        encoded = load("fcd_torch.utils").SmilesDataset(smiles, canonize=False)
        for start in range(0, len(smiles), _BATCH):
            places = range(start, min(start + _BATCH, len(smiles)))
            batch = torch.tensor(np.stack([encoded[place] for place in places]))
            with torch.no_grad():
                found = self._network(batch.transpose(1, 2).float())
            self._seen.update(zip((smiles[place] for place in places), found.unbind(), strict=True))


def frechet(one: Moments, other: Moments) -> float:
    """The Fréchet distance of two normal distributions: |m - m'|² + Tr(C + C' - 2 (C C')^½).

    The trace of the root is that of the symmetric (C^½ C' C^½)^½, which is real, and correct for the
    singular covariances of small sets too.
    """
    values, vectors = torch.linalg.eigh(one.covariance)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    shared = torch.linalg.eigvalsh(root @ other.covariance @ root)
    gap = one.mean - other.mean
    traces = one.covariance.trace() + other.covariance.trace()
    return max(0.0, float(gap @ gap + traces - 2 * shared.clamp(min=0).sqrt().sum()))


def fcd(
    samples: Mapping[str, int],
    reference: Moments,
    network: ChemNet,
    most: int = FCD_MOST,
    seed: int = 0,
) -> Measured | None:
    """The Fréchet ChemNet distance of samples to a reference set; None if there are fewer than two.

    It is biased upwards for few molecules on either side: compare only equal numbers.
    """
    chosen = draw(samples, most, seed)
    if len(chosen) < 2:
        return None
    return Measured(frechet(network.moments(chosen), reference), len(chosen))
