"""The compiled kernel against the plain network, in every instruction set of this processor."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.language import Attribute, Language, predicate
from nmln.potentials import compile_kernel, compiled
from nmln.potentials.base import ScoreError
from nmln.potentials.graph import GraphPotential
from nmln.space import Space
from tests.strategies import random_worlds

MOLECULES = Language(
    Attribute("atom", ("node",), tuple("CNO")),
    Attribute("bond", ("node", "node"), ("none", "single", "double"), symmetric=True),
)
SORTS = Language(
    predicate("tall", "person"),
    Attribute("size", ("city",), ("small", "large", "huge")),
    predicate("rains"),
    predicate("likes", "person", "person", reflexive=True),
    Attribute("lives", ("person", "city"), ("no", "once", "now")),
    predicate("near", "city", "city", symmetric=True),
)
FLAT = Language(Attribute("colour", ("node",), ("red", "green")), predicate("rains"))
CASES = {
    "molecules": (MOLECULES, {"node": 10}, {}),
    "a narrow network": (MOLECULES, {"node": 6}, {"hidden": 5, "layers": 3}),
    "one layer": (MOLECULES, {"node": 6}, {"hidden": 40, "layers": 1}),
    "a wide network": (MOLECULES, {"node": 7}, {"hidden": 128, "layers": 2}),
    "between panels": (MOLECULES, {"node": 7}, {"hidden": 72, "layers": 2}),
    "residual": (MOLECULES, {"node": 7}, {"residual": True, "pool_scale": 0.3, "layers": 3}),
    "none is a relation": (MOLECULES, {"node": 5}, {"include_null": True, "hidden": 40}),
    "two sorts": (SORTS, {"person": 4, "city": 3}, {"hidden": 24}),
    "two sorts, residual": (
        SORTS,
        {"person": 3, "city": 2},
        {"residual": True, "include_null": True},
    ),
    "no binary attribute": (FLAT, {"node": 4}, {"hidden": 16}),
    "no constants": (Language(predicate("rains")), {}, {"hidden": 8}),
    "more nodes than a block": (MOLECULES, {"node": 170}, {"hidden": 16, "layers": 2}),
}


@pytest.fixture(autouse=True)
def _whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NMLN_COMPILED", raising=False)


@pytest.fixture(params=["the best", "AVX2", "basic"])
def library(request: pytest.FixtureRequest) -> Iterator[compiled.Library]:
    found = compiled.library()
    if found is None:
        pytest.skip(compiled.state())
    wanted = {"the best": found.best, "AVX2": 1, "basic": 0}[request.param]
    if wanted > found.best or (wanted == found.best) != (request.param == "the best"):
        pytest.skip(f"{request.param}: this processor's best is {compiled.state()}")
    found.instructions = wanted
    yield found
    found.instructions = found.best


def build(case: str, worlds: int) -> tuple[GraphPotential, Tensor]:
    language, domain, options = CASES[case]
    space = Space(language, domain)
    rng = Generator().manual_seed(1)
    potential = GraphPotential(space, 3, **{"hidden": 64, **options}, rng=rng)
    with torch.no_grad():
        for name, parameter in potential.named_parameters():
            if "bias" in name:
                parameter += 0.1 * torch.randn(parameter.shape, generator=rng)
    return potential, random_worlds(space, 3 * worlds).view(3, worlds, -1)


def close(found: Tensor, expected: Tensor) -> None:
    scale = expected.abs().max().clamp(min=1e-3) if len(expected) else 1
    apart = (found - expected).abs()
    assert bool((apart <= 1e-4 * scale).all()), f"{apart.max()} of {scale}"


@pytest.mark.parametrize("case", CASES)
def test_scores_slopes_and_gradients_are_those_of_double_precision(
    case: str, library: compiled.Library
) -> None:
    potential, values = build(case, 3 if CASES[case][1].get("node", 0) > 100 else 37)
    by_score = torch.randn(values.shape[:2], generator=Generator().manual_seed(2))
    scores, slopes = potential.score_and_slopes(values)
    assert torch.equal(scores, potential.score(values).detach())
    (potential.score(values) * by_score).sum().backward()
    gradients = [parameter.grad for parameter in potential.parameters()]

    plain = potential.double()
    plain.zero_grad()
    onehot = plain.space.one_hot(values, torch.float64).requires_grad_()
    expected = plain(onehot)
    (expected * by_score.double()).sum().backward()
    close(scores, expected)
    for (name, parameter), found in zip(plain.named_parameters(), gradients, strict=True):
        assert found is not None, name
        assert parameter.grad is not None, name
        close(found, parameter.grad)
    (by_entry,) = torch.autograd.grad(plain(onehot).sum(), onehot)
    close(slopes, by_entry)


@pytest.mark.parametrize("case", ["molecules", "a narrow network", "two sorts"])
def test_a_world_has_the_same_score_in_any_batch(
    case: str, library: compiled.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    potential, values = build(case, 61)
    scores, slopes = potential.score_and_slopes(values)
    order = torch.randperm(61, generator=Generator().manual_seed(3))
    for some in (order, order[:1], order[:23]):
        found = potential.score_and_slopes(values[:, some])
        assert torch.equal(found[0], scores[:, some])
        assert torch.equal(found[1], slopes[:, some])
        assert torch.equal(potential.score(values[:, some]), scores[:, some])
    monkeypatch.setattr(compiled, "_PLACES", 7 * potential.wiring.nodes**2)
    assert torch.equal(potential.score_and_slopes(values)[1], slopes)
    chosen = potential.at_levels([1, 2])
    assert torch.equal(chosen.score(values[1:]), scores[1:])


def test_training_repeats_bit_for_bit(library: compiled.Library) -> None:
    potential, values = build("molecules", 50)

    def gradients() -> list[Tensor]:
        return list(
            torch.autograd.grad(potential.score(values).sum(), list(potential.parameters()))
        )

    for one, other in zip(gradients(), gradients(), strict=True):
        assert torch.equal(one, other)


def test_no_worlds_at_all(library: compiled.Library) -> None:
    potential, values = build("molecules", 1)
    nothing = values[:, :0]
    scores = potential.score(nothing)
    assert scores.shape == (3, 0)
    scores.sum().backward()
    assert all(not bool(parameter.grad.any()) for parameter in potential.parameters())  # pyright: ignore
    assert potential.score_and_slopes(nothing)[1].shape == (3, 0, potential.space.entries)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["hear.1", "update.2", "readout.layers.1.weight", "hear_bias.0"])
def test_weights_that_are_not_finite_are_noticed(
    name: str, bad: float, library: compiled.Library
) -> None:
    potential, values = build("molecules", 20)
    with torch.no_grad():
        potential.get_parameter(name)[1] = bad
    with pytest.raises(ScoreError, match=f"at level 1, .*the parameter {name} is not finite"):
        potential.score(values)


def test_other_precisions_and_means_of_messages_use_torch(
    library: compiled.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    original = compiled.Library.run

    def counted(self: compiled.Library, *given: Any) -> None:
        calls.append(1)
        original(self, *given)

    monkeypatch.setattr(compiled.Library, "run", counted)
    potential, values = build("molecules", 5)
    scores = potential.score(values)
    assert len(calls) == 1
    monkeypatch.setenv("NMLN_COMPILED", "0")
    assert compiled.state() == "not in use: NMLN_COMPILED is 0"
    close(potential.score(values), scores)
    monkeypatch.delenv("NMLN_COMPILED")
    close(potential.double().score(values), scores)
    mean = GraphPotential(potential.space, 3, 2, 16, mean_messages=True)
    mean.score_and_slopes(values)
    assert len(calls) == 1


def test_the_kernel_is_built_wherever_a_compiler_is() -> None:
    if compile_kernel.find_compiler() is None:
        pytest.skip("no C compiler")
    assert compiled.library() is not None, (
        f"the kernel is {compiled.state()}. Install the package again: pip install -e ."
    )


def test_a_category_that_does_not_exist_is_refused_before_memory_is_read() -> None:
    if compiled.library() is None:
        pytest.skip(compiled.state())
    potential, worlds = build("molecules", 3)
    potential.score(worlds)
    for wrong in (3, 200):
        broken = worlds.clone()
        broken[0, 1, 2] = wrong
        with pytest.raises(InputError, match="has the categories 0 to 2, but is"):
            potential.score(broken)


def test_a_library_of_other_sources_is_ignored(tmp_path: Path) -> None:
    compiler = compile_kernel.find_compiler()
    if compiler is None:
        pytest.skip("no C compiler")
    source, stale = tmp_path / "stale.c", tmp_path / "stale.compiled"
    source.write_text(
        "unsigned nmln_source(void) { return 1; }\n"
        "long nmln_room(void) { return 0; }\n"
        "void nmln_run(void) {}\nint nmln_instructions(void) { return 0; }\n"
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", stale, source], check=True)
    foreign = tmp_path / "foreign.compiled"
    foreign.write_bytes(b"made for another machine")
    missing = tmp_path / "missing.compiled"
    assert compiled._load(stale) == (
        "stale.compiled cannot be used: it was compiled from other sources"
    )
    assert "foreign.compiled cannot be used" in str(compiled._load(foreign))
    assert compiled._load(missing) == "it was not built when the package was installed"


def test_without_a_compiler_or_with_a_broken_one_there_is_a_reason_and_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / compile_kernel.LIBRARY
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compile_kernel.compile_kernel(library=library) == "no C compiler was found"
    broken = tmp_path / "cc"
    broken.write_text(f"#!{sys.executable}\nraise SystemExit('cannot compile this')\n")
    broken.chmod(0o755)
    problem = compile_kernel.compile_kernel(library=library)
    assert problem == f"{broken} failed: cannot compile this"
    assert shutil.which("cc") == str(broken)
    assert list(tmp_path.iterdir()) == [broken]
