"""Files, numbers and names that users and their scripts rely on stay as they are."""

import json
from pathlib import Path

import pytest

from tests.golden.scenario import alike, expected, gathered, made
from tests.golden.surface import SURFACE, surface

_AGAIN = (
    "If this was meant: python -m tests.golden.scenario --accept, in a commit of its own, with the "
    "reason in CHANGELOG.md."
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return made(tmp_path_factory.mktemp("golden") / "run")


def test_commands_leave_the_same_files(found: dict[str, str]) -> None:
    assert sorted(found) == sorted(expected()), _AGAIN


@pytest.mark.parametrize("name", sorted(expected()))
def test_a_file_has_the_same_content(found: dict[str, str], name: str) -> None:
    wanted = expected()[name]
    assert alike(found.get(name, ""), wanted) or found.get(name) == wanted, _AGAIN


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('{"a": 1.25, "b": 3}', '{"a": 1.2500001, "b": 3}', True),
        ('{"a": 1.25, "b": 3}', '{"a": 1.2502, "b": 3}', False),
        ('{"a": 1.25, "b": 3}', '{"a": 1.25, "b": 4}', False),
        ("0.5 e 2", "0.5 f 2", False),
        ("4,1.3445119857788086,1.0", "4,1.344511866569519,1.0", True),
        ("1.0 2.0", "1.0", False),
        ("-1e-9 x", "3e-10 x", True),
    ],
)
def test_only_the_last_digits_of_numbers_may_differ(one: str, other: str, same: bool) -> None:
    assert alike(one, other) == same


def test_a_run_of_an_earlier_version_ends_like_one_in_one_go(found: dict[str, str]) -> None:
    assert found["kept/model/tensors.safetensors"] == found["mine-run/model/tensors.safetensors"]


@pytest.mark.parametrize(
    ("name", "one", "other", "alike"),
    [
        ("a.json", '{"seconds": 1, "valid": 2}', '{"seconds": 3, "valid": 2}', True),
        ("a.json", '{"seconds": 1, "valid": 2}', '{"seconds": 1, "valid": 3}', False),
        ("a.json", '{"valid": 2}', '{"share": 2}', False),
        ("a.csv", "step,seconds\n1,2\n", "step,seconds\n1,3\n", True),
        ("a.csv", "step,seconds\n1,2\n", "step,second\n1,2\n", False),
        ("a.csv", "step,seconds\n1,2\n", "step,seconds\n2,2\n", False),
        ("a.gz", "one", "other", False),
    ],
)
def test_all_is_compared_but_times(
    tmp_path: Path, name: str, one: str, other: str, alike: bool
) -> None:
    for folder, text in (("one", one), ("other", other)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    assert (gathered(tmp_path / "one") == gathered(tmp_path / "other")) is alike


@pytest.mark.parametrize("what", sorted(surface()))
def test_names_of_today_are_still_there(what: str) -> None:
    """Names may be added; none is taken away or renamed."""
    known = json.loads(SURFACE.read_text())[what]
    assert set(known) <= set(surface()[what]), _AGAIN
