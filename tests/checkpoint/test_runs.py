"""Saving, keeping and loading, also when the writer is killed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import pytest
import torch
from torch import Tensor

import nmln
from nmln.checkpoint import (
    discard_after,
    latest_step,
    load,
    load_model,
    save,
    save_model,
)
from nmln.errors import InputError

WEIGHTS = {"weights": torch.arange(6.0)}


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*"))


def test_tensors_and_content_come_back_with_every_bit(tmp_path: Path) -> None:
    base = torch.arange(24.0)
    rng = torch.Generator().manual_seed(5)
    tensors = {
        "base": base,
        "overlapping": base[3:9],
        "same": base,
        "transposed": base.view(4, 6).T,
        "expanded": base[:2, None].expand(2, 3),
        "parameter": torch.nn.Parameter(torch.randn(2, generator=rng)),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "generator": rng.get_state(),
        "NaN": torch.tensor([0x7FC00001, -1], dtype=torch.int32).view(torch.float32),
        "empty": torch.empty(0, 3, dtype=torch.float64),
        "scalar": torch.tensor(True),
        "large": torch.tensor([2**63 - 1]),
        "half": torch.ones(2, dtype=torch.bfloat16),
    }
    content = {"rate": 0.1, "whole": 1.0, "count": 2**70, "none": None, "ü\ud800": [True, []]}
    path = save(tmp_path, 1200, tensors, content)
    assert path == tmp_path / "checkpoints" / "step-000001200"
    found = load(tmp_path)
    assert (found.step, found.path, found.version) == (1200, path, nmln.__version__)
    assert found.skipped == []
    assert repr(found.content) == repr(content)
    assert found.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        again = found.tensors[name]
        assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
        assert again.equal(tensor) or name == "NaN"
    assert found.tensors["NaN"].view(torch.int32).equal(tensors["NaN"].view(torch.int32))
    torch.Generator().set_state(found.tensors["generator"])


def test_what_was_loaded_does_not_depend_on_the_file(tmp_path: Path) -> None:
    path = save(tmp_path, 1, {"a": torch.ones(5000)}, {})
    found = load(tmp_path)
    with open(path / "tensors.safetensors", "r+b") as file:
        file.write(b"\0" * 20_000)
        file.truncate()
    assert found.tensors["a"].sum() == 5000


def test_the_last_few_are_kept(tmp_path: Path) -> None:
    for step in range(1, 6):
        save(tmp_path, step, WEIGHTS, {})
    assert steps(tmp_path) == [3, 4, 5]
    save(tmp_path, 9, WEIGHTS, {}, keep=1)
    assert steps(tmp_path) == [9]
    with pytest.raises(InputError, match="keep must be 1"):
        save(tmp_path, 10, WEIGHTS, {}, keep=0)


def test_damaged_checkpoints_do_not_count_among_those_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        path = save(tmp_path, step, WEIGHTS, {})
    (path / "manifest.json").unlink()
    save(tmp_path, 4, WEIGHTS, {}, keep=2)
    assert steps(tmp_path) == [2, 3, 4]
    save(tmp_path, 5, WEIGHTS, {}, keep=2)
    assert steps(tmp_path) == [4, 5]


def test_later_steps_are_left_alone_until_they_are_discarded(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step, WEIGHTS, {})
    save(tmp_path, 11, WEIGHTS, {})
    assert steps(tmp_path) == [10, 11, 20, 30]
    assert latest_step(tmp_path) == 30
    discard_after(tmp_path, 11)
    assert steps(tmp_path) == [10, 11]
    assert latest_step(tmp_path) == 11
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 1, WEIGHTS, {"try": 1})
    save(tmp_path, 1, WEIGHTS, {"try": 2})
    assert load(tmp_path).content == {"try": 2}
    assert steps(tmp_path) == [1]


def test_a_writer_that_died_while_replacing_loses_nothing(tmp_path: Path) -> None:
    path = save(tmp_path, 1, WEIGHTS, {"try": 1})
    path.rename(path.with_name(f".{path.name}.replaced"))
    assert load(tmp_path).content == {"try": 1}
    assert latest_step(tmp_path) == 1
    save(tmp_path, 2, WEIGHTS, {})
    assert steps(tmp_path) == [1, 2]
    save_model(tmp_path / "model", WEIGHTS, {"try": 1})
    (tmp_path / "model").rename(tmp_path / ".model.replaced")
    assert load_model(tmp_path / "model")[1] == {"try": 1}
    save_model(tmp_path / "model", WEIGHTS, {"try": 2})
    assert load_model(tmp_path / "model")[1] == {"try": 2}
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "model"}


def test_what_dead_writers_left_is_ignored_and_removed(tmp_path: Path) -> None:
    path = save(tmp_path, 1, WEIGHTS, {})
    debris = path.with_name(".step-000000007.partial")
    debris.mkdir()
    (debris / "manifest.json").write_text("{")
    (path.parent / ".notes").write_text("the user's own")
    assert (latest_step(tmp_path), load(tmp_path).skipped) == (1, [])
    save(tmp_path, 2, WEIGHTS, {})
    assert {entry.name for entry in path.parent.iterdir()} == {
        ".notes",
        "step-000000001",
        "step-000000002",
    }


def test_without_a_checkpoint_the_cure_is_to_train(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        assert latest_step(folder) is None
        discard_after(folder, 0)
        with pytest.raises(InputError, match=r"there is no checkpoint here. Train first"):
            load(folder)
    save(tmp_path, 1, WEIGHTS, {})
    with pytest.raises(InputError, match="no checkpoint of step 5, only of 1"):
        load(tmp_path, step=5)


def test_if_none_is_good_each_problem_is_reported(tmp_path: Path) -> None:
    (save(tmp_path, 1, WEIGHTS, {}) / "content.json").unlink()
    (save(tmp_path, 2, WEIGHTS, {}) / "manifest.json").write_text("{")
    with pytest.raises(InputError, match=r"content.json is missing") as caught:
        load(tmp_path)
    assert str(caught.value).startswith(str(tmp_path))
    assert "manifest.json is not readable as JSON" in str(caught.value)
    assert latest_step(tmp_path) is None


def test_a_reader_looks_again_when_the_writer_has_moved_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, WEIGHTS, {})
    lstat = Path.lstat

    def move_on(path: Path) -> object:
        monkeypatch.undo()
        save(tmp_path, 2, WEIGHTS, {}, keep=1)
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", move_on)
    assert load(tmp_path).step == 2


def test_a_model_is_replaced_but_nothing_else_is(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "model"
    save_model(path, WEIGHTS, {"try": 1})
    save_model(path, WEIGHTS, {"try": 2})
    tensors, content = load_model(path)
    assert content == {"try": 2}
    assert tensors["weights"].equal(WEIGHTS["weights"])
    (path / "notes.txt").write_text("precious")
    with pytest.raises(InputError, match=r"notes.txt") as caught:
        save_model(path, WEIGHTS, {})
    assert (caught.value.kind, caught.value.token) == ("exists", "notes.txt")
    assert (path / "notes.txt").read_text() == "precious"
    assert load_model(save(tmp_path, 1, WEIGHTS, {"step": 1}))[1] == {"step": 1}


def test_everyone_who_may_read_one_file_may_read_all(tmp_path: Path) -> None:
    path = save(tmp_path, 1, WEIGHTS, {})
    assert len({entry.stat().st_mode for entry in path.iterdir()}) == 1


def test_saving_is_fast_but_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {str(index): torch.randn(1_000_000) for index in range(13)}
    monkeypatch.setattr("os.fsync", lambda handle: None)
    start = time.perf_counter()
    save(tmp_path, 1, tensors, {})
    assert time.perf_counter() - start < 5  # 0.1 s on an idle machine
    loaded: dict[str, Tensor] = load(tmp_path).tensors
    assert all(loaded[name].equal(tensors[name]) for name in tensors)


WRITER = """if True:
    import os, sys
    import torch
    from nmln.checkpoint import latest_step, save
    for _ in sys.stdin:  # a child for every line, so that torch is imported only once
        child = os.fork()
        if child:
            print("child", child, flush=True)
            os.waitpid(child, 0)
            print("dead", flush=True)
            continue
        step = latest_step(sys.argv[1]) or 0
        while True:
            step += 1
            for attempt in range(2):  # the second time in place of the first
                save(sys.argv[1], step, {"a": torch.full((50_000,), step)}, {"step": step}, keep=2)
                print(step, flush=True)
"""


def test_a_writer_killed_at_any_moment_leaves_what_it_reported(tmp_path: Path) -> None:
    delays = random.Random(3)
    reported, debris = 0, 0
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for _ in range(20):
            writer.stdin.write("\n")
            writer.stdin.flush()
            for line in writer.stdout:
                if line.startswith("child"):
                    time.sleep(delays.uniform(0, 0.15))
                    os.kill(int(line.split()[1]), signal.SIGKILL)
                elif line.startswith("dead"):
                    break
                else:
                    reported = max(reported, int(line))
            if reported or latest_step(tmp_path) is not None:
                found = load(tmp_path)
                assert found.skipped == []
                assert reported <= found.step <= reported + 1
                assert found.tensors["a"].eq(found.step).all()
                assert found.content == {"step": found.step}
                reported = (
                    found.step
                )  # killed between writing and reporting: the next goes on from it
                debris += bool(list((tmp_path / "checkpoints").glob(".*")))
    assert reported > 5
    assert debris > 0, "the kills must hit writers in the middle of their work"


STEPPER = """if True:
    import os, shutil, sys
    from itertools import count
    from pathlib import Path
    import torch
    from nmln.checkpoint import load, save
    EVENTS = "open os.mkdir os.rename os.remove os.rmdir os.chmod os.listdir os.scandir".split()

    def write(folder, step, value):
        save(folder, step, {"a": torch.full((9,), value)}, {"value": value}, keep=2)

    for step in (2, 3):  # replacing a checkpoint, adding one and removing the oldest
        for last in count():
            folder = Path(sys.argv[1]) / f"{step}-{last}"
            write(folder, 1, 1), write(folder, 2, 2)
            if not (child := os.fork()):
                left = iter(range(last, -1, -1))
                sys.addaudithook(lambda event, _: event in EVENTS and not next(left) and os._exit(9))
                write(folder, step, 7)
                os._exit(0)
            finished = os.waitpid(child, 0)[1] == 0
            found = load(folder)
            assert found.content["value"] in (2, 7) and not found.skipped, (step, last, found)
            assert found.tensors["a"].eq(found.content["value"]).all()
            if finished:
                break
            write(folder, 4, 4)
            assert load(folder).step == 4
            names = sorted(path.name for path in (folder / "checkpoints").iterdir())
            assert len(names) == 2 and not names[0].startswith("."), names
            shutil.rmtree(folder)
        print(last)
"""


def test_a_writer_that_dies_between_any_two_system_calls_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", STEPPER, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert min(map(int, done.stdout.split())) > 20
