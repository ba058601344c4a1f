"""The main job on molecules of several sizes: train, generate, compare, report, and be stopped."""

import json
from pathlib import Path

import pytest

from nmln.errors import InterruptedRunError
from nmln.runs import blocks, pipeline, stream
from tests.molecules.test_sizes import FIVE, THREE
from tests.runs.main_jobs import CHANGES, MOLECULES, small
from tests.runs.sampling_runs import files, summary

SETTINGS = {**CHANGES, "chains.replicas": 12, "training.batch": 12, "training.steps": 8}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10 molecules of 3 atoms, 40 of 4 and 6 of 5."""
    path = tmp_path_factory.mktemp("data") / "mixed.smi"
    path.write_text("\n".join([*THREE, *MOLECULES, *FIVE]) + "\n")
    return path


def job(data: Path) -> pipeline.JobSettings:
    return small(data, size=None, samples=120, changes=SETTINGS)


@pytest.fixture(scope="module")
def done(data: Path) -> pipeline.JobOutcome:
    return pipeline.run(data.parent / "whole", job(data))


def test_a_file_of_several_sizes_becomes_a_model_molecules_and_a_report(
    done: pipeline.JobOutcome,
) -> None:
    told = summary(done.folder / "samples")
    assert [one["size"] for one in told["sizes"]] == ["3", "4", "5"]
    found = json.loads((done.folder / "evaluation" / "evaluation.json").read_text())
    assert found["heavy_atoms"] == [3, 4, 5]
    target = found["samples"][-1]
    assert sum(one["attempts"] for one in target["by_size"].values()) == 120
    for one in told["sizes"]:
        part = target["by_size"][one["size"]]
        assert part["valid"]["count"] == one["levels"][-1]["valid"]
    page = done.report.read_text()
    assert "3, 4 and 5 heavy atoms" in page
    assert page.count("<h2>By size</h2>") == 1
    assert "<h3>Size 4</h3>" in page


class Stopped(pipeline.Performer):
    """Draws two blocks and some sweeps of a third."""

    def draw(self, job: stream.SamplingJob, folder: Path, count: int) -> None:
        sweeps = 0

        def interrupted() -> bool:
            nonlocal sweeps
            sweeps += 1
            return sweeps > 5

        stream.work(job, [0, 1])
        decoder = blocks.decoders_of(job)[job.settings.home(2)]
        blocks.work_on(job, 2, blocks.Kept(), decoder, interrupted, None, 1000.0)


@pytest.mark.slow
def test_a_job_that_is_stopped_while_it_draws_ends_in_the_same_bytes(
    data: Path, done: pipeline.JobOutcome
) -> None:
    folder = data.parent / "stopped"
    with pytest.raises(InterruptedRunError):
        pipeline.run(folder, job(data), by=Stopped())
    pipeline.run(folder, job(data))
    assert files(folder / "samples") == files(done.folder / "samples")
    assert summary(folder / "samples")["sizes"] == summary(done.folder / "samples")["sizes"]
