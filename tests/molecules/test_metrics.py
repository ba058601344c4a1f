import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch

from nmln.errors import InputError
from nmln.molecules.chemistry.likeness import mean_distance
from nmln.molecules.metrics import ChemNet, Moments, draw, fcd, frechet, internal_diversity

DATA = Path(__file__).parent.parent.parent / "nmln" / "data"


def molecules(count: int) -> list[str]:
    lines = (DATA / "pubchem-9.smi").read_text().splitlines()[1:]
    return [line.split()[0] for line in lines[:: len(lines) // count]][:count]


@pytest.fixture(scope="module")
def network() -> ChemNet:
    return ChemNet()


def test_drawing_is_without_replacement_and_knows_no_order() -> None:
    counts = {"a": 5, "b": 1, "c": 100}
    assert Counter(draw(counts, 1000)) == counts
    reversed_counts = dict(reversed(counts.items()))
    assert draw(counts, 20, seed=3) == draw(reversed_counts, 20, seed=3) != draw(counts, 20, seed=4)
    assert draw({}, 5) == []
    many = Counter(one for seed in range(200) for one in draw(counts, 10, seed))
    assert many["c"] == pytest.approx(2000 * 100 / 106, abs=60)


def test_alike_molecules_have_no_diversity_and_repeats_lower_it() -> None:
    assert internal_diversity({"CCO": 7}) == internal_diversity({"CCO": 2_500_000}, most=7)
    same = internal_diversity({"CCO": 7})
    assert same is not None
    assert same.value == 0
    two = internal_diversity({"CCO": 1, "c1ccccc1": 1})
    three = internal_diversity({"CCO": 2, "c1ccccc1": 1})
    assert two is not None
    assert three is not None
    assert two.value == 1  # nothing in common
    assert three.value == pytest.approx(2 / 3)
    assert internal_diversity({"CCO": 1}) is None


def test_what_is_no_molecule_has_no_distance() -> None:
    with pytest.raises(InputError, match="'C1C' cannot be read as SMILES"):
        mean_distance(["C1C", "C"])
    with pytest.raises(InputError, match="two molecules"):
        mean_distance(["C"])


def test_the_distance_of_one_dimensional_normal_distributions_is_known() -> None:
    one = Moments(torch.tensor([1.0]).double(), torch.tensor([[4.0]]).double(), 10)
    other = Moments(torch.tensor([4.0]).double(), torch.tensor([[25.0]]).double(), 10)
    assert frechet(one, other) == pytest.approx(3**2 + (5 - 2) ** 2)


def test_the_distance_of_a_set_to_itself_is_zero_and_to_others_is_not(network: ChemNet) -> None:
    known = molecules(120)
    reference = network.moments(known)
    itself = fcd(dict.fromkeys(known, 1), reference, network)
    chains = fcd({"C" * 9: 50, "C" * 8 + "O": 50}, reference, network)
    assert itself is not None
    assert chains is not None
    assert itself.samples == 120
    assert itself.value < 1e-3
    assert chains.value > 10
    assert fcd({"CCO": 1}, reference, network) is None


@pytest.mark.slow
def test_our_distance_is_that_of_fcd_torch(network: ChemNet) -> None:
    from fcd_torch import FCD

    one, other = molecules(80)[:40], molecules(80)[40:]
    ours = frechet(network.moments(one), network.moments(other))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its calls of numpy and scipy are old
        theirs = FCD(device="cpu", canonize=True)(one, other)
    assert ours == pytest.approx(theirs, rel=1e-2)
