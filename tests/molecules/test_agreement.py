"""Molecules given evidence: how many of their worlds agree with it, held against enumeration."""

from itertools import permutations

import pytest
import torch

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.formats.mln import parse_formula
from nmln.molecules.agreement import Agreement
from nmln.molecules.chemistry import encode, space_for
from nmln.molecules.decoding import Decoder
from nmln.molecules.likelihood import Structures, log_weights, refuse_named_nodes
from nmln.molecules.scaffolds import scaffold_evidence
from nmln.space import Space
from tests.molecules.test_likelihood import random_model

THREE = space_for(("C", "N", "O"), 3)
FIVE = space_for(("C", "N", "O"), 5)


def known(space: Space, *nodes: int, apart: bool = True) -> Evidence:
    """The last category of some nodes, and perhaps no bond between the first two."""
    allowed = torch.ones(space.entries, dtype=torch.bool)
    for node in nodes:
        start = int(space.offsets[node])
        allowed[start : start + int(space.sizes[node]) - 1] = False
    start = int(space.offsets[len(space.domain["node"])])
    allowed[start + 1 : start + 4] = not apart
    return Evidence(space, allowed)


def agrees(evidence: Evidence, worlds: torch.Tensor) -> torch.Tensor:
    """Which worlds have only categories that the evidence allows."""
    entries = evidence.space.offsets + worlds.long()
    return evidence.allowed[entries].all(1)


@pytest.mark.parametrize(
    ("evidence", "varies"),
    [
        (scaffold_evidence(THREE, "CO*"), False),
        (scaffold_evidence(THREE, "C=O"), False),
        (known(THREE, 2, apart=False), True),
        (known(THREE), False),
    ],
    ids=["open scaffold", "scaffold", "one atom", "no bond"],
)
def test_weights_given_evidence_are_those_of_the_agreeing_worlds(
    evidence: Evidence, varies: bool
) -> None:
    potential = random_model(THREE)
    worlds = THREE.enumerate()
    with torch.no_grad():
        scores = potential.score(worlds.expand(2, -1, -1))[-1].double()
    summed: dict[str, list[float]] = {}
    everything: dict[str, list[float]] = {}
    for answer, score, fits in zip(
        Decoder(THREE).decode(worlds), scores.tolist(), agrees(evidence, worlds), strict=True
    ):
        if answer.smiles is not None:
            everything.setdefault(answer.smiles, []).append(score)
            if fits:
                summed.setdefault(answer.smiles, []).append(score)
    names = sorted(everything)
    assert 1 < len(summed) < len(names)

    def sums(parts: dict[str, list[float]]) -> torch.Tensor:
        return torch.stack(
            [torch.tensor(parts.get(name, [])).double().logsumexp(0) for name in names]
        )

    done: list[int] = []
    found = log_weights(potential, THREE, names, evidence, done.append)
    torch.testing.assert_close(found, sums(summed), rtol=0, atol=1e-5)
    assert done == [len(names)]
    without = log_weights(potential, THREE, names)
    torch.testing.assert_close(without, sums(everything), rtol=0, atol=1e-5)
    possible = found.isfinite()
    if varies:  # counting all worlds would be wrong by more than a constant
        assert (found - without)[possible].std() > 0.1
    assert not bool(possible.all())


@pytest.mark.parametrize("scaffold", ["c1ccoc1", "C=C*", "C1CC1*", "CN"])
@pytest.mark.parametrize("smiles", ["c1ccoc1", "c1cn[nH]c1", "C1CC1CN", "C=CC=CN", "CCNCO"])
def test_the_numberings_are_those_that_all_permutations_give(scaffold: str, smiles: str) -> None:
    try:
        evidence = scaffold_evidence(FIVE, scaffold)
    except InputError:  # as large as the molecule
        evidence = known(FIVE, 0, 3)
    world = encode(FIVE, smiles)
    renumbered = torch.stack(
        [FIVE.relabel(world, {"node": list(order)}) for order in permutations(range(5))]
    )
    assert Agreement(evidence).numberings(world) == int(agrees(evidence, renumbered).sum())
    structures = Structures.of_smiles(FIVE, [smiles])
    different = {tuple(one.tolist()) for one in renumbered[agrees(evidence, renumbered)]}
    own = structures.given(evidence).log_counts[(structures.worlds == world).all(1)]
    if len(own):
        assert float(own.exp().sum()) == pytest.approx(len(different))


def test_evidence_that_tells_all_nodes_apart_but_hardly_binds_them_is_refused() -> None:
    large = space_for(("C", "N", "O"), 12)
    allowed = torch.ones(large.entries, dtype=torch.bool)
    for node in range(0, 11, 2):  # six pairs of nodes without a bond
        allowed[
            large.block("bond").entries.start + 4 * int(large.table("bond")[node, node + 1]) + 1
        ] = False
    with pytest.raises(InputError, match="too many ways"):
        Agreement(Evidence(large, allowed)).numberings(encode(large, "C" * 12))


@pytest.mark.parametrize(("text", "refused"), [("1.5 atom(0, C)", True), ("bond(x, 1, single).", True),
                                               ("atom(x, C) ^ x != y => bond(x, y, none).", False),
                                               ("1 EXIST x (atom(x, C) ^ x = 2)", True)])  # fmt: skip
def test_formulas_that_name_an_atom_are_refused(text: str, refused: bool) -> None:
    formula = parse_formula(text, FIVE.language, {"node": tuple(FIVE.domain["node"])})
    if not refused:
        refuse_named_nodes([formula])
        return
    with pytest.raises(InputError, match="names a single one"):
        refuse_named_nodes([formula])
