"""Sampling in parts, drawn by any processes and machines, gives what one process gives."""

import json
import shlex
import shutil
import signal
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from nmln.errors import InputError, InterruptedRunError
from nmln.model import load_run
from nmln.runs import parts as joining
from nmln.runs import sample as sampling
from nmln.runs import stream
from nmln.runs.specification import SamplingSettings
from nmln.runs.workspace import Part
from tests.runs.sampling_runs import (
    TINY,
    begin,
    files,
    finished,
    leave,
    listing,
    make_run,
    run,
    summary,
)

__all__ = ["run"]  # a fixture
TIMES = ("command", "processes", "seconds", "cpu_seconds", "samples_per_second", "decoding_share")


def draw(run: Path, name: str, part: Part, **wishes: Any) -> stream.SamplingJob:
    job = begin(run, name, part=part, about={"resume": f"again {part}"}, **{**TINY, **wishes})
    stream.work(job)
    return job


def joined(run: Path, name: str, folders: list[Path] | None = None, **options: Any) -> Path:
    opened = sampling.open_run(run)
    place = sampling.place_of(opened, run.parent / name)
    stream.finish(joining.join(place, opened.model, folders or [], **options))
    return place.output


def results(folder: Path) -> dict[str, Any]:
    return {name: value for name, value in summary(folder).items() if name not in TIMES}


# Blocks.


def test_any_processes_in_any_order_give_the_same_files(run: Path) -> None:
    whole = finished(run, "whole", **TINY)
    for number, (count, order) in enumerate(
        [(1, (2, 1, 0)), *((3, order) for order in list(permutations(range(3)))[::2])]
    ):
        job = begin(run, f"other{number}", **TINY)
        for rank in order if count == 3 else [0]:
            share = [rank] if count == 3 else list(order)
            stream.work(stream.attend(job.place, job.model), share)
        stream.finish(job, count)
        assert files(job.folder) == files(whole)
        assert results(job.folder) == results(whole)


def test_two_processes_share_the_blocks(run: Path) -> None:
    whole = finished(run, "whole", **TINY)
    job = begin(run, "two", **TINY)
    for rank in (1, 0):
        stream.work(job, job.blocks[rank::2])
    stream.finish(job, 2)
    assert files(job.folder) == files(whole)
    assert summary(job.folder)["seconds"] > 0


def test_streams_of_blocks_and_seeds_have_nothing_in_common() -> None:
    seeds = {
        SamplingSettings(9, seed=seed, block=5).stream(block)
        for seed in range(40)
        for block in range(9)
    }
    assert len(seeds) == 360
    assert all(0 <= seed < 2**63 for seed in seeds)
    bits = [sum(seed >> place & 1 for seed in seeds) / 360 for place in range(63)]
    assert 0.35 < min(bits) < max(bits) < 0.65


@pytest.mark.parametrize(("chains", "block", "blocks"), [(100, 50, 2), (7, 50, 1), (101, 50, 3)])
def test_blocks_depend_on_settings_only(run: Path, chains: int, block: int, blocks: int) -> None:
    job = begin(run, "out", count=10**6, chains=chains, block=block)
    assert job.settings.parts == blocks
    assert sum(job.settings.slice(number)[1] for number in range(blocks)) == chains
    assert max(job.settings.slice(number)[1] for number in range(blocks)) <= block
    numbers = [n for b in range(blocks) for n in job.settings.wanted(b, job.settings.draws - 1)]
    assert sorted(numbers)[-1] == 10**6 - 1


# Parts.


def test_parts_give_what_one_process_gives(run: Path) -> None:
    whole = finished(run, "whole", **TINY, all_levels=True)
    for number in (2, 1):
        draw(run, "out", Part(number, 2), all_levels=True)
    assert sorted(path.name for path in (run.parent / "out").iterdir()) == [
        "part-1-of-2",
        "part-2-of-2",
    ]
    out = joined(run, "out")
    assert files(out) == files(whole)
    assert results(out) == results(whole)
    assert list(listing(out)) == list(listing(whole))


def test_parts_of_other_machines_are_joined_and_left(run: Path) -> None:
    whole = finished(run, "whole", **TINY)
    for number in range(1, 4):
        draw(run, f"machine{number}", Part(number, 3))
    shutil.copytree(run.parent / "machine3", run.parent / "here" / "copied")
    there = [run.parent / "machine1", run.parent / "machine2" / "part-2-of-3"]
    before = listing(run.parent / "machine1")
    out = joined(run, "out", [*there, run.parent / "here" / "copied"])
    assert files(out) == files(whole)
    assert listing(run.parent / "machine1") == before
    with pytest.raises(InputError, match="already holds samples"):
        joined(run, "out", [*there, run.parent / "machine3"])
    joined(run, "out", [*there, run.parent / "machine3"], overwrite=True)
    assert files(out) == files(whole)


def test_a_part_that_is_stopped_continues(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = finished(run, "whole", **TINY), run.parent / "the out"
    words = ["--num-samples", 14, "--chains", 6, "--burn-in", 2, "--thin", 1, "--block-size", 2]
    words += ["--output", out, "--processes", 1]
    with monkeypatch.context() as patched:
        real, left = stream.work, [3]

        def tick() -> None:
            left[0] -= 1
            if not left[0]:
                signal.raise_signal(signal.SIGINT)

        patched.setattr(stream, "work", lambda job, blocks, _: real(job, blocks, tick))
        assert leave(patched, run, *words, "--part", "1/2") == 130
    again = f"nmln sample {run} --resume --output '{out}' --part 1/2"
    assert (
        f"stopped after sweep 3 of 5. The progress is kept. Continue with: {again}"
        in capsys.readouterr().err
    )
    with pytest.raises(InputError, match=r"parts? 2 of 2 is missing\. Draw with --part 2/2"):
        joined(run, out.name)
    assert leave(monkeypatch, run, *words, "--part", "2/2") == 0
    assert leave(monkeypatch, run, "--join", "--output", out) == 2
    assert (
        f"part-1-of-2: this part is not finished. Continue with: {again}" in capsys.readouterr().err
    )
    assert leave(monkeypatch, *shlex.split(again)[2:], "--processes", 1) == 0
    said = capsys.readouterr().out
    assert said.startswith("part 1 of 2 is done: 2 of 3 blocks")
    assert leave(monkeypatch, *shlex.split(said.split("join them with: ")[1])[2:]) == 0
    assert files(out) == files(whole)
    assert leave(monkeypatch, run, "--join", "--output", out) == 2
    assert "The sampling is finished." in capsys.readouterr().err


def test_parts_that_do_not_belong_together_are_named(run: Path) -> None:
    first = draw(run, "out", Part(1, 2))
    with pytest.raises(InputError, match=r"out: part 2 of 2 is missing"):
        joined(run, "out")
    draw(run, "seed", Part(2, 2), seed=1)
    with pytest.raises(InputError, match=r"part-2-of-2: .* another sampling .*seed 1 instead of 0"):
        joined(run, "new", [run.parent / "out", run.parent / "seed"])
    with pytest.raises(InputError, match=r"part-1-of-2: this part is given twice"):
        joined(run, "new", [run.parent / "out", run.parent / "out" / "part-1-of-2"])
    draw(run, "three", Part(2, 3))
    with pytest.raises(InputError, match="got 2 and 3"):
        joined(run, "new", [run.parent / "out", run.parent / "three"])
    other = make_run(run.parent / "trained", seed=1)
    with pytest.raises(InputError, match=r"part-1-of-2: this part was drawn from another model"):
        joining.join(
            sampling.place_of(sampling.open_run(other), run.parent / "new"),
            load_run(other),
            [run.parent / "out", run.parent / "seed"],
        )
    (run.parent / "new" / "part-2-of-2").mkdir(parents=True)
    with pytest.raises(InputError, match=r"part-2-of-2: there is no sampling in this part"):
        joined(run, "new", [run.parent / "out", run.parent / "new"])
    (run.parent / "new" / "part-2-of-2" / "mine").write_text("mine")
    with pytest.raises(InputError, match="mine: this was not written by sampling"):
        joined(run, "new", [run.parent / "out", run.parent / "new"])
    with pytest.raises(InputError, match="no parts to join"):
        joined(run, "new", [run])
    copied = run.parent / "renamed" / "part-2-of-2"
    shutil.copytree(first.work, copied)
    with pytest.raises(InputError, match=r"renamed.*another part"):
        joined(run, "new", [run.parent / "out", copied])


def test_more_parts_than_blocks_are_refused(run: Path) -> None:
    with pytest.raises(InputError, match=r"make 3 blocks, too few for 4 parts.*--chains 8 "):
        begin(run, "out", **TINY, part=Part(1, 4))
    for text in ("0/2", "3/2", "2", "1/2/3", "a/b", "-1/2", ""):
        with pytest.raises(InputError, match="--part must be"):
            joining.read_part(text)
    assert joining.read_part("2/8") == Part(2, 8)


def test_a_join_that_is_killed_is_done_again(run: Path) -> None:
    whole = finished(run, "whole", **TINY)
    for number in (1, 2):
        draw(run, "out", Part(number, 2))
    opened = sampling.open_run(run)
    place = sampling.place_of(opened, run.parent / "out")
    joining.join(place, opened.model)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stream, "discard", lambda *_: (_ for _ in ()).throw(InterruptedRunError))
        with pytest.raises(InterruptedRunError):
            joined(run, "out")
    assert joined(run, "out") == place.output
    assert list(listing(place.output)) == list(listing(whole))
    assert files(place.output) == files(whole)


# As a user starts it.


@pytest.mark.slow
def test_one_two_and_three_processes_give_the_same_bytes(run: Path) -> None:
    words = ["--num-samples", "105", "--chains", "12", "--burn-in", "3", "--thin", "2"]
    words += ["--block-size", "3"]
    for count in (1, 2, 3):
        done = subprocess.run(
            [sys.executable, "-m", "nmln", "sample", "run", *words, "--processes", str(count),
             "--output", f"out{count}"],
            cwd=run.parent, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert summary(run.parent / f"out{count}")["processes"] == count
    one, two, three = (run.parent / f"out{count}" for count in (1, 2, 3))
    assert files(one) == files(two) == files(three)
    assert results(one) == results(two) == results(three)
    assert json.loads((one / "chains.json").read_text())["chains"] == 12
