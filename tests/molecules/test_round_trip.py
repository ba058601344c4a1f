"""Every molecule of every set in the directory that NMLN_DATA names, to a world and back."""

import gzip
import json
import os
from pathlib import Path

import pytest

from benchmarks.round_trip import RESULTS, round_trip, sets
from nmln.molecules.datasets import DIRECTORY
from tests.molecules.test_datasets import write

FOLDER = os.environ.get(DIRECTORY, "")
SETS = sets(Path(FOLDER)) if FOLDER else {}

# How many have something that worlds of atoms and bonds have no words for. Other sets have none.
REFUSED = {"unfiltered/chembl_15": {"bond of another kind": 1}}

needs_directory = pytest.mark.skipif(
    not SETS, reason=f"{DIRECTORY} does not name a directory of molecules"
)


@needs_directory
@pytest.mark.parametrize("name", SETS)
def test_molecules_from_all_over_every_set_come_back(name: str) -> None:
    lines = json.loads(RESULTS.read_text())["sets"]
    (known,) = (one["lines"] for one in lines if one["name"] == name)
    found = round_trip(name, SETS[name], every=max(1, known // 200))
    assert found.changed == ()
    assert found.back + sum(found.refused.values()) == found.lines >= min(known, 200)
    assert all(count <= REFUSED.get(name, {}).get(why, 0) for why, count in found.refused.items())


@needs_directory
@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_every_molecule_of_every_set_comes_back_or_is_counted(name: str) -> None:
    found = round_trip(name, SETS[name])
    assert found.changed == ()
    assert found.refused == REFUSED.get(name, {})
    assert found.back + sum(found.refused.values()) == found.lines


def test_what_is_quoted_is_what_the_tests_hold() -> None:
    kept = json.loads(RESULTS.read_text())["sets"]
    assert len(kept) == 22
    for one in kept:
        assert one["changed"] == []
        assert one["refused"] == REFUSED.get(one["name"], {})
        assert one["back"] + sum(one["refused"].values()) == one["lines"] > 0


def test_what_does_not_come_back_is_counted(tmp_path: Path) -> None:
    file = write(tmp_path / "mine_3.smi", "CCO\nC[CH]C\nCC.O\nCCN\n")
    packed = tmp_path / "mine_3.smi.gz"
    file.rename(packed)  # plain text under a packed name is refused
    with pytest.raises(ValueError, match="mine_3"):
        round_trip("mine_3", packed)
    packed.write_bytes(gzip.compress(b"CCO\nC[CH]C\nCC.O\nCCN\nCCCC\n"))
    found = round_trip("mine_3", packed)
    assert (found.lines, found.back) == (5, 2)
    assert found.refused == {"radical": 1, "several fragments": 1, "another size": 1}
    assert round_trip("mine_3", packed, every=3).lines == 2
