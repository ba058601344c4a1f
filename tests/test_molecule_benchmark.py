"""The parts of the benchmark of molecules that can go wrong silently."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from benchmarks.molecule_memory import REMEMBERED, family, high_water, relabelled
from benchmarks.molecules import Generated, Rate, Strings, side_by_side
from nmln.baselines.gru import GRU, GRUSettings
from nmln.molecules.chemistry import Molecule, encode_all, parse_all, space_for
from nmln.molecules.decoding import Decoder
from nmln.runs import stream


class Fixed(GRU):
    """Writes what it was told to."""

    def draw(self, count: int) -> list[str | None]:
        return [["OCC", "CCO", None, "C(", "CC", "C=CO"][place % 6] for place in range(count)]


def test_strings_are_counted_as_molecules_of_the_size() -> None:
    writer = Fixed("gru", GRUSettings(layers=1, units=2, embedded=2))
    writer.build(["CO", "CC"])
    strings = Strings(writer, size=3)
    strings.write(12)
    strings.write(6)
    assert strings.tally.counts == {"CCO": 6, "C=CO": 3}
    rate = strings.rate
    assert (rate.samples, rate.valid, rate.different) == (18, 9, 2)
    assert rate.seconds > 0


def test_relabelled_worlds_are_other_worlds_of_the_same_molecules() -> None:
    names = ("CC(=O)OC", "C1CC1CF", "N#CC=CC")
    space = space_for(("C", "N", "O", "F"), 5)
    worlds = encode_all(space, names).worlds
    moved = relabelled(worlds, 5, 60)
    decoded = [one.smiles for one in Decoder(space).decode(moved)]
    canonical = [one.smiles for one in parse_all(names) if isinstance(one, Molecule)]
    assert Counter(decoded) == dict.fromkeys(canonical, 20)
    assert len(torch.unique(moved, dim=0)) > 40


def test_the_share_of_decoding_and_counting_is_of_the_whole_time() -> None:
    found = Generated(Rate(10, 5, 2, 4.0), 1.0, decoding=0.5, counting=0.3, whole=4.0)
    assert found.share == pytest.approx(0.2)
    assert found.rate.samples_per_second == 2.5
    assert found.rate.different_per_second == 0.5


def test_nothing_is_divided_by_the_molecules_of_a_model_without_any() -> None:
    found = Generated(Rate(10, 5, 2, 4.0), 1.0, decoding=0.5, counting=0.3, whole=4.0)
    for theirs, told in ((Rate(10, 3, 1, 2.0), True), (Rate(10, 0, 0, 2.0), False)):
        ratios = side_by_side(found, theirs, burn_in=3)
        assert (ratios[-1].what == "ours / LSTM: different valid") is told
        assert next(one for one in ratios if one.target).value == pytest.approx(0.2)


def test_the_extrapolation_knows_how_many_worlds_are_remembered() -> None:
    assert stream.REMEMBERED == REMEMBERED


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the /proc of Linux")
def test_the_peak_of_a_process_outlives_what_it_has_freed() -> None:
    code = "block = b'x' * (200 * 2**20); del block; print(flush=True); input()"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        assert child.pid in family(os.getpid())
        seen = high_water(child.pid)
        child.stdin.write(b"\n")
    assert seen > 200 * 2**20
    assert high_water(child.pid) == 0
