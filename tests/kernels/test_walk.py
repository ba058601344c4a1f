"""Walks: the compiled kernel takes the same path as torch, and each world its own in any batch."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.kernels.walk import Walk, Walked
from nmln.language import Attribute, Language, predicate
from nmln.potentials import compiled
from nmln.potentials.independent import IndependentPotential
from nmln.potentials.local import LocalPotential
from nmln.potentials.stand_in import StandIn
from nmln.space import Space
from tests.strategies import random_worlds, spaces

LEVELS, CHAINS = 2, 12
MOLECULES = Space(
    Language(
        Attribute("atom", ("node",), tuple("CNO")),
        Attribute("charge", ("node",), ("minus", "plus"), optional=True),
        Attribute("bond", ("node", "node"), ("none", "single", "double"), True, False),
        predicate("near", "node", "node", symmetric=True),
        predicate("before", "node", "node"),
    ),
    {"node": 7},
)
MANY = tuple(f"v{number}" for number in range(300))
WIDE = Space(
    Language(
        Attribute("colour", ("node",), MANY),
        Attribute("bond", ("node", "node"), tuple("abcd"), True, False, optional=True),
    ),
    {"node": 4},
)
needed = pytest.mark.skipif(compiled.library() is None, reason=compiled.state())


@pytest.fixture(autouse=True)
def _whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NMLN_COMPILED", raising=False)


def stand_in_on(space: Space, seed: int, scale: float = 1.0) -> StandIn:
    """Random numbers for every entry, and for every neighbourhood where the space has some."""
    rng = Generator().manual_seed(seed)
    table = scale * torch.randn(LEVELS, space.entries, generator=rng)
    found = IndependentPotential(space, table).stand_in()
    try:
        local = LocalPotential(space, LEVELS)
    except InputError:
        return found
    with torch.no_grad():
        for weights in local.parameters():
            weights.copy_(scale * torch.randn(weights.shape, generator=rng))
    return found.plus(local.stand_in())


def numbers(moves: tuple[int, ...], seed: int, chains: int = CHAINS) -> list[Tensor]:
    rng = Generator().manual_seed(seed)
    return [torch.rand(chains, count, 5, generator=rng, dtype=torch.float64) for count in moves]


def narrowed(space: Space, seed: int) -> Evidence:
    """Evidence that leaves each group a random choice of its categories."""
    rng = Generator().manual_seed(seed)
    allowed = torch.rand(space.entries, generator=rng) < 0.6
    kept = random_worlds(space, 1, seed)[0].long() + space.offsets
    allowed[kept] = True
    return Evidence(space, allowed)


def worlds_on(space: Space, seed: int, evidence: Evidence | None = None) -> Tensor:
    worlds = random_worlds(space, LEVELS * CHAINS, seed).view(LEVELS, CHAINS, -1)
    return worlds if evidence is None else evidence.clamp(worlds)


def both(
    walk: Walk, stand_in: StandIn, values: Tensor, uniforms: list[Tensor]
) -> tuple[Walked, Walked]:
    library = compiled.library()
    assert library is not None
    fast = walk.in_c(library, stand_in, values, uniforms)
    return fast, walk.with_torch(stand_in, values, uniforms)


def check(fast: Walked, plain: Walked, stand_in: StandIn, start: Tensor) -> None:
    assert torch.equal(fast.values, plain.values)
    assert fast.values.dtype == plain.values.dtype == start.dtype
    grown = stand_in.score(fast.values) - stand_in.score(start)
    for one in (fast, plain):
        assert torch.allclose(one.gained, grown, rtol=0, atol=1e-9)


@needed
@pytest.mark.usefixtures("unchecked")
@given(spaces(), st.integers(0, 2**20), st.booleans(), st.sampled_from([0.0, 0.5, 3.0]))
def test_the_compiled_walk_takes_the_path_of_the_plain_one(
    space: Space, seed: int, free: bool, scale: float
) -> None:
    evidence = None if free else narrowed(space, seed)
    assume(bool((evidence or Evidence.none(space)).free.any()))
    stand_in, start = stand_in_on(space, seed, scale), worlds_on(space, seed, evidence)
    found = both(Walk(space, evidence), stand_in, start, numbers((9, 4), seed))
    check(*found, stand_in, start)
    for worlds in (start, found[0].values):
        assert evidence is None or bool(evidence.allows(worlds).all())


@needed
@pytest.mark.parametrize("space", [MOLECULES, WIDE], ids=["molecules", "wide"])
@pytest.mark.parametrize("seed", range(4))
def test_long_walks_agree_too(space: Space, seed: int) -> None:
    """Many rejected moves: the counts of nodes must be restored after each."""
    evidence = narrowed(space, seed) if seed % 2 else None
    stand_in, start = stand_in_on(space, seed, 1 + seed), worlds_on(space, seed, evidence)
    before = start.clone()
    fast, plain = both(Walk(space, evidence), stand_in, start, numbers((300, 250), seed))
    check(fast, plain, stand_in, start)
    assert torch.equal(start, before)
    assert (fast.values != start).any(-1).double().mean() > 0.9


@needed
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_worlds_of_any_integer_type_are_moved_and_left_as_they_were(dtype: torch.dtype) -> None:
    stand_in, start = stand_in_on(MOLECULES, 5), worlds_on(MOLECULES, 5)
    expected, _ = both(Walk(MOLECULES), stand_in, start, numbers((20, 20), 5))
    own = start.to(dtype)
    for given_as in (own, own.mT.contiguous().mT, own[:, ::2]):
        before = given_as.clone()
        uniforms = numbers((20, 20), 5)
        if given_as.shape[1] < CHAINS:
            uniforms = [one[::2] for one in uniforms]
        fast, plain = both(Walk(MOLECULES), stand_in, given_as, uniforms)
        check(fast, plain, stand_in, given_as)
        assert torch.equal(given_as, before)
        step = CHAINS // given_as.shape[1]
        assert torch.equal(fast.values.to(start.dtype), expected.values[:, ::step])


@needed
def test_a_world_takes_the_same_path_in_any_batch() -> None:
    stand_in, start = stand_in_on(MOLECULES, 6), worlds_on(MOLECULES, 6)
    uniforms = numbers((30, 20), 6)
    whole = both(Walk(MOLECULES), stand_in, start, uniforms)
    for some in (slice(0, 1), slice(3, 8), slice(CHAINS - 1, None)):
        parts = both(Walk(MOLECULES), stand_in, start[:, some], [one[some] for one in uniforms])
        for part, all_together in zip(parts, whole, strict=True):
            assert torch.equal(part.values, all_together.values[:, some])
        assert torch.equal(parts[0].gained, whole[0].gained[:, some]), "bit for bit"
    for level in range(LEVELS):
        only = stand_in.at_levels([level])
        fast, _ = both(Walk(MOLECULES), only, start[[level]], [uniforms[level]])
        assert torch.equal(fast.values[0], whole[0].values[level])


@needed
def test_the_check_rejects_walks_by_other_numbers_and_by_another_stand_in() -> None:
    start = worlds_on(MOLECULES, 7)
    uniforms, others = numbers((20, 20), 7), numbers((20, 20), 8)
    stand_in, other = stand_in_on(MOLECULES, 7), stand_in_on(MOLECULES, 8)
    walk = Walk(MOLECULES)
    fast, _ = both(walk, stand_in, start, uniforms)
    assert not torch.equal(fast.values, walk.with_torch(stand_in, start, others).values)
    assert not torch.equal(fast.values, walk.with_torch(other, start, uniforms).values)


@needed
@pytest.mark.parametrize("extreme", [0.0, 1 - 2.0**-53])
def test_the_smallest_and_the_largest_uniform_numbers_make_a_choice(extreme: float) -> None:
    start, stand_in = worlds_on(MOLECULES, 9), stand_in_on(MOLECULES, 9)
    uniforms = [torch.full((CHAINS, 6, 5), extreme, dtype=torch.float64)] * 2
    for one in uniforms:
        one[..., 4] = 0.0  # taken
    check(*both(Walk(MOLECULES), stand_in, start, uniforms), stand_in, start)


def test_worlds_and_evidence_of_another_space_are_refused() -> None:
    stand_in, rng = stand_in_on(MOLECULES, 1), Generator()
    start = worlds_on(MOLECULES, 1)
    for wrong in (start[..., 1:], start[:1]):
        with pytest.raises(InputError, match="needs such worlds"):
            Walk(MOLECULES).run(stand_in, wrong, (3, 3), rng)
    with pytest.raises(InputError, match="a number of moves for each level, got 1"):
        Walk(MOLECULES).run(stand_in, start, (3,), rng)
    with pytest.raises(InputError, match="about another space"):
        Walk(MOLECULES, Evidence.none(WIDE)).run(stand_in, start, (3, 3), rng)
    with pytest.raises(InputError, match="over another space"):
        Walk(MOLECULES).run(stand_in_on(WIDE, 1), start, (3, 3), rng)
    nothing = Evidence.observe(MOLECULES, start[0, 0], range(MOLECULES.groups))
    with pytest.raises(InputError, match="every group is observed"):
        Walk(MOLECULES, nothing).run(stand_in, start, (3, 3), rng)
