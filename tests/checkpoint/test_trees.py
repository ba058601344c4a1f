import math
from collections import OrderedDict
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from nmln.checkpoint import flatten, load_model, save_model, unflatten
from nmln.errors import InputError

DTYPES = (torch.bool, torch.uint8, torch.int16, torch.int64, torch.float32, torch.float64)

keys = st.text(max_size=3) | st.sampled_from(["$tensor", "__metadata__", "a/b", "\ud800"])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any bits, also of NaN, in a few shapes; sometimes a transposed view."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.sampled_from([(), (0, 2), (3,), (2, 3), (2, 1, 2)]))
    count = math.prod(shape) * torch.empty((), dtype=dtype).element_size()
    most = 1 if dtype == torch.bool else 255
    raw = draw(st.lists(st.integers(0, most), min_size=count, max_size=count))
    tensor = torch.tensor(raw, dtype=torch.uint8).view(dtype).reshape(shape)
    return tensor.T if len(shape) == 2 and draw(st.booleans()) else tensor


trees = st.recursive(
    scalars | tensors(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(keys | st.integers(-1, 3) | st.none(), inner, max_size=3)
    ),
    max_leaves=8,
)


def bits(tensor: Tensor) -> tuple[Any, ...]:
    return (
        tensor.dtype,
        tensor.shape,
        bytes(tensor.contiguous().flatten().view(torch.uint8).numpy()),
    )


def same(one: Any, other: Any) -> bool:
    """Equal in type, order of keys and every bit."""
    if type(one) is not type(other):
        return False
    match one:
        case Tensor():
            return bits(one) == bits(other)
        case list() | tuple():
            return len(one) == len(other) and all(map(same, one, other))
        case dict():
            return same(list(one), list(other)) and all(same(one[key], other[key]) for key in one)
        case float():
            return repr(one) == repr(other)
    return one == other


@given(trees)
def test_a_tree_comes_back_exactly_through_the_disk(
    tmp_path_factory: pytest.TempPathFactory, tree: Any
) -> None:
    path = tmp_path_factory.mktemp("tree") / "model"
    save_model(path, *flatten(tree))
    assert same(unflatten(*load_model(path)), tree)


@given(trees, trees)
def test_the_comparison_distinguishes_different_trees(one: Any, other: Any) -> None:
    assert same([one], [one])
    assert not same([one, 1], [other, 1.0])
    assert not same((one,), [one])


@pytest.mark.parametrize("optimiser", [torch.optim.Adam, torch.optim.SGD])
def test_an_optimiser_continues_as_if_nothing_had_happened(
    tmp_path: Path, optimiser: type[torch.optim.Adam] | type[torch.optim.SGD]
) -> None:
    torch.manual_seed(0)

    def step(model: nn.Module, steps: torch.optim.Optimizer) -> None:
        steps.zero_grad()
        model(torch.ones(2, 3)).square().sum().backward()
        steps.step()

    model = nn.Linear(3, 2)
    steps = optimiser(model.parameters(), lr=0.1)
    step(model, steps)
    save_model(tmp_path / "m", *flatten({"model": model.state_dict(), "steps": steps.state_dict()}))
    tree = unflatten(*load_model(tmp_path / "m"))
    again = nn.Linear(3, 2)
    again.load_state_dict(tree["model"])
    steps_again = optimiser(again.parameters(), lr=0.5)
    steps_again.load_state_dict(tree["steps"])
    step(model, steps)
    step(again, steps_again)
    assert same(dict(again.state_dict()), dict(model.state_dict()))


def test_subclasses_come_back_as_plain_types() -> None:
    class Pair(NamedTuple):
        left: int
        right: int

    class Colour(str, Enum):  # noqa: UP042 (str() of these is not their value)
        RED = "red"

    tree = [Pair(1, 2), OrderedDict(a=1), np.float64(0.1), Colour.RED, nn.Parameter(torch.ones(1))]
    found = unflatten(*flatten(tree))
    assert found[:4] == [(1, 2), {"a": 1}, 0.1, "red"]
    assert [type(item) for item in found[:4]] == [tuple, dict, float, str]


def test_tensors_are_named_after_their_place() -> None:
    one = torch.ones(1)
    found, _ = flatten({"optimiser": {"state": {0: {"mean": one}}}, "chains": [one]})
    assert list(found) == ["optimiser/state/0/mean", "chains/0"]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": [np.int64(3)]}, "a/0 is of type int64, which cannot be saved. Convert it"),
        ({"a": {(1, 2): 3}}, r"a has \(1, 2\). Rename it"),
        (b"x", "tree is of type bytes"),
    ],
)
def test_what_cannot_be_saved_is_named(tree: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        flatten(tree)


def test_depth_is_limited_in_both_directions() -> None:
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    assert unflatten(*flatten(deep)) == deep
    with pytest.raises(InputError, match="may have 100 levels"):
        flatten([deep])
    with pytest.raises(InputError, match="may have 100 levels"):
        unflatten({}, {"tree": [deep]})


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"tree": {"$tensor": "absent"}},
        {"tree": {"$tensor": "t", "more": 1}},
        {"tree": {"$float": "1"}},
        {"tree": [{"$dict": [[[], 1]]}]},
        {"tree": {"$dict": [1]}},
        {"tree": {"$code": "x"}},
    ],
)
def test_content_that_flatten_cannot_have_made_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="not made by flatten"):
        unflatten({"t": torch.ones(1)}, content)
