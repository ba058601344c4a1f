"""Samples of worlds that are not molecules: the same rules, streaming and resuming."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from nmln.errors import InputError, InterruptedRunError
from nmln.formats.db import read_db
from nmln.formats.graphs import read_graphs
from nmln.runs import parts as joining
from nmln.runs import sample as sampling
from nmln.runs import sample_rows, stream
from nmln.runs.workspace import Part
from tests.runs.sampling_runs import TINY, begin, leave, listing, make_world_run


@pytest.fixture(params=["db", "graphs"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(stream, "write_summary", lambda *_: [])
    return make_world_run(tmp_path / "run", request.param)


def finished(run: Path, name: str, **wishes: Any) -> Path:
    """What was written: a file, or a folder of graphs."""
    job = begin(run, name, **{**TINY, **wishes})
    stream.work(job)
    return stream.finish(job).written[0]


def content(path: Path) -> dict[str, bytes]:
    return listing(path) if path.is_dir() else {"": path.read_bytes()}


def around(run: Path) -> list[str]:
    """What lies beside the run."""
    return sorted(path.name for path in run.parent.iterdir() if path != run)


def test_worlds_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    run = make_world_run(tmp_path / "run")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stream, "write_summary", lambda *_: [])
        path = finished(run, "out")
    job = begin(run, "again", **TINY)
    _, found = read_db(path, job.model.space.language, job.model.space.domain)
    draws: list[list[torch.Tensor]] = [[], [], []]
    for block in job.blocks:
        rng = torch.Generator().manual_seed(job.settings.stream(block))
        for sweep in list(stream.chains_of(job, block, rng))[2:]:
            draws[sweep.number - 3] += list(sweep.state.values[-1])
    expected = torch.stack([world for draw in draws for world in draw])[:14]
    assert torch.equal(found, expected)


def test_the_files_are_named_as_asked(run: Path) -> None:
    kind = sampling.open_run(run).kind
    ending = ".db" if kind == "db" else ""
    assert finished(run, "v1.2") == run.parent / f"v1.2{ending}"
    assert around(run) == [f"v1.2{ending}"]
    assert (run / "samples").with_name(f"samples{ending}") == sampling.run(
        run, 4, burn_in=1, chains=2
    ).written[0]  # fmt: skip
    if kind == "db":
        assert finished(run, "out.db") == run.parent / "out.db"
    else:
        assert len(read_graphs(run.parent / "v1.2")) == 14


@pytest.mark.slow
def test_pages_are_named_like_the_samples(tmp_path: Path) -> None:
    run = make_world_run(tmp_path / "run")
    found = sampling.run(run, 8, tmp_path / "v1.2", burn_in=1, chains=2)
    names = ["v1.2.db", *(f"v1.2-chains.{ending}" for ending in ("html", "json", "png", "svg"))]
    assert [path.name for path in found.written] == names
    assert around(run) == sorted(names)


def test_worlds_that_are_there_are_not_replaced_unasked(run: Path) -> None:
    path = finished(run, "out")
    before = content(path)
    with pytest.raises(InputError, match=rf"already holds samples \({path.name}\)"):
        begin(run, "out", **TINY, seed=1)
    default = sampling.run(run, 4, burn_in=1, chains=2).written[0]
    with pytest.raises(InputError, match="already holds samples"):
        sampling.run(run, 4, burn_in=1, chains=2, seed=5)
    assert default.exists()
    assert content(path) == before
    job = begin(run, "out", **{**TINY, "count": 5}, overwrite=True)
    stream.work(job)
    assert content(path) == before
    stream.finish(job)
    if path.is_dir():
        assert sorted(content(path)) == [f"{number:06d}.graphml" for number in range(5)]
    assert around(run) == [path.name]


def test_worlds_that_come_while_sampling_are_not_replaced_unasked(run: Path) -> None:
    job = begin(run, "out", **TINY)
    stream.work(job)
    other = finished(run, "other", seed=3)
    other.rename(job.place.target)
    before = content(job.place.target)
    with pytest.raises(InputError, match="already holds samples"):
        stream.finish(job)
    assert content(job.place.target) == before
    stream.finish(begin(run, "out", **TINY, overwrite=True))
    assert content(job.place.target) == content(finished(run, "whole"))


def test_worlds_that_break_down_end_with_the_same_files(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_rows, "_MEMBER", 3)  # so that there are many
    whole = content(finished(run, "whole"))
    for stop in (3, 7):
        job, left = begin(run, "out", **TINY), [stop]

        def tick(left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                signal.raise_signal(signal.SIGTERM)

        with pytest.raises(InterruptedRunError, match="stopped after sweep"):
            stream.work(job, tick=tick)
    assert content(finished(run, "out")) == whole


def test_parts_of_worlds_give_what_one_process_gives(run: Path) -> None:
    whole = content(finished(run, "whole"))
    opened = sampling.open_run(run)
    for number in (2, 1):
        stream.work(begin(run, "out", **TINY, part=Part(number, 2)))
    assert [name for name in around(run) if "part" in name] == [
        "out.part-1-of-2",
        "out.part-2-of-2",
    ]
    place = sampling.place_of(opened, run.parent / "out")
    stream.finish(joining.join(place, opened.model))
    assert content(place.target) == whole
    assert len(around(run)) == 2


def test_foreign_files_among_graphs_are_left(tmp_path: Path) -> None:
    run = make_world_run(tmp_path / "run", "graphs")
    mine = tmp_path / "out" / "notes.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(InputError, match=r"notes\.txt: this was not written by sampling"):
            begin(run, "out", **TINY, overwrite=overwrite)
    assert mine.read_text() == "mine"
    mine.rename(tmp_path / "notes.txt")
    finished_job = begin(run, "out", **TINY)  # an empty folder is no obstacle
    stream.work(finished_job)
    mine.write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt: this was not written by sampling"):
        stream.finish(finished_job)
    assert mine.read_text() == "mine"


def test_links_are_not_written_through(run: Path) -> None:
    treasure = run.parent / "treasure"
    treasure.write_text("of the user")
    place = sampling.place_of(sampling.open_run(run), run.parent / "out")
    place.target.symlink_to(treasure)
    for overwrite in (False, True):
        with pytest.raises(InputError, match=f"{place.target.name}: links within"):
            begin(run, "out", **TINY, overwrite=overwrite)
    assert treasure.read_text() == "of the user"


def test_damaged_worlds_are_named(tmp_path: Path) -> None:
    run = make_world_run(tmp_path / "run")
    job = begin(run, "out", **TINY)
    stream.work(job)
    shutil.copy(job.data(0), tmp_path / "kept")
    job.data(0).write_bytes(job.data(0).read_bytes()[:-2])
    with pytest.raises(InputError, match=r"worlds\.gz: this file has changed"):
        stream.finish(job)
    shutil.copy(tmp_path / "kept", job.data(0))
    assert not (tmp_path / "out.db").exists()


def test_commands_for_worlds_are_those_for_molecules(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--num-samples", 6, "--chains", 3, "--burn-in", 1, "--thin", 1, "--processes", 1]
    assert leave(monkeypatch, run, *words) == 0
    assert capsys.readouterr().out.startswith("6 worlds. Written: ")
    assert leave(monkeypatch, run, *words, "--seed", 2) == 2
    assert leave(monkeypatch, run, *words, "--seed", 2, "--overwrite") == 0
    assert leave(monkeypatch, run, "--resume") == 2
    assert "is finished" in capsys.readouterr().err
    assert leave(monkeypatch, run, *words, "--all-levels", "--overwrite") == 2
    assert "for molecules" in capsys.readouterr().err
