"""Runs on a device that is named at the command line, and one clear line where it is not there."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nmln import devices
from nmln.cli import main
from nmln.config import Config, TrainingConfig, configure
from nmln.devices import CPU, chosen, device_of, move, of_worlds, processes_of
from nmln.distributed import Ranks
from nmln.errors import InputError
from nmln.inference import Plan
from nmln.model import Model
from nmln.runs import infer, likelihood, sample, stream
from nmln.runs import train as training
from nmln.runs.specification import SamplingSettings
from nmln.training import Metrics
from tests.devices.elsewhere import DEVICE, SeededGenerator, elsewhere
from tests.devices.test_questions import PAIRS
from tests.potentials.test_contract import MOLECULES, formula_potential
from tests.runs.runs import settings, weights, write_worlds

SHORT = Plan(chains=4, burn_in=1, sweeps=4, error=None, moves=1)


def pretend(monkeypatch: pytest.MonkeyPatch, gpus: int = 1) -> None:
    """Make `cuda` the pretended device."""
    there = SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: True, device_count=lambda: gpus),
        backends=torch.backends,
        device=lambda name, index=0: DEVICE if name == "cuda" else torch.device(name),
        float64=torch.float64,
    )
    monkeypatch.setattr(devices, "torch", there)
    monkeypatch.setattr(devices, "Generator", SeededGenerator)


class Notes(training.Silent):
    """A watcher that keeps notes, and stops a run after a step."""

    def __init__(self, last: int = 0) -> None:
        self.last, self.notes = last, []

    def on_note(self, text: str) -> None:
        self.notes.append(text)

    def on_step(self, metrics: Metrics, quality: dict[str, float]) -> None:
        if metrics.step == self.last:
            raise KeyboardInterrupt


def short(people: Path, **changes: object) -> Config:
    return settings(
        people, **{"training__steps": 3, "chains__moves": 1, "data__language": None, **changes}
    )


@pytest.fixture
def people(tmp_path: Path) -> Path:
    return write_worlds(tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_a_run_is_trained_sampled_and_asked_on_its_device(
    people: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "write_summary", lambda *_: [])
    here, there = people.parent / "here", people.parent / "there"
    training.run(training.begin(here, short(people)))
    asked: list[Callable[[Path, str], Any]] = [
        lambda run, device: (
            sample.run(run, 12, chains=6, burn_in=2, thin=1, block=3, device=device)
            .written[0]
            .read_text()
        ),
        lambda run, device: likelihood.run(
            run, chains=2, steps=2, sweeps=4, device=device
        ).numbers(),
        lambda run, device: [
            one.value
            for one in infer.pose([run], query="smokes", device=device)
            .conditional.marginals("smokes", plan=SHORT, exactly=False)
            .answers
        ],
    ]
    expected = [question(here, "cpu") for question in asked]
    pretend(monkeypatch)
    with elsewhere():
        training.run(training.begin(there, short(people, training__device="cuda")))
        found = [question(there, "cuda") for question in asked]
    assert json.loads((there / "config.json").read_text())["config"]["training"]["device"] == "cuda"
    for name, weight in weights(here).items():
        assert torch.allclose(weights(there)[name], weight, atol=1e-6)
    assert found[0] == expected[0]
    assert found[1] == pytest.approx(expected[1], abs=1e-4)
    assert found[2] == pytest.approx(expected[2], abs=1e-4)


@pytest.mark.slow
def test_a_run_continues_on_the_device_that_it_records_or_on_another_with_a_note(
    people: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    begun, whole = people.parent / "begun", people.parent / "whole"
    with elsewhere():
        training.run(training.begin(whole, short(people, training__device="auto")))
        with pytest.raises(KeyboardInterrupt):
            training.run(training.begin(begun, short(people)), Notes(last=2))
        job = training.resume(begun)
        assert job.trainer.values.device == DEVICE
        assert not job.trainer.reseeded
    watcher = Notes()
    training.run(training.resume(begun, device="cpu"), watcher)
    assert "another kind of device" in watcher.notes[0]
    assert weights(begun).keys() == weights(whole).keys()


def test_a_run_of_an_earlier_version_continues_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    assert chosen("auto") == "cuda"
    assert training.recorded_device(configure({})) == "cpu"
    assert training.recorded_device(configure({"training": {"device": "cuda"}})) == "cuda"


def test_settings_name_a_device_only_where_one_is_chosen() -> None:
    assert "device" not in TrainingConfig().to_dict()
    assert TrainingConfig(device="cuda").to_dict()["device"] == "cuda"
    plain, there = SamplingSettings(5), SamplingSettings(5, device="cuda")
    assert "device" not in plain.described()
    assert plain.digest != there.digest
    content = {**there.described(), "formulas": [], "block": 5, "chains": 5}
    assert SamplingSettings.read(content).device == "cuda"
    with pytest.raises(ValueError, match="its device is unknown"):
        SamplingSettings.read({**content, "device": "abacus"})


@pytest.mark.parametrize(
    ("verb", "device"),
    [
        ("train", "cuda"),
        ("setting", "mps"),
        ("resume", "cuda"),
        ("sample", "mps"),
        ("likelihood", "cuda"),
        ("infer", "mps"),
        ("run", "cuda"),
    ],
)
def test_a_device_that_is_not_there_is_one_clear_line(
    verb: str,
    device: str,
    people: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.chdir(people.parent)
    if verb in ("sample", "likelihood", "infer", "resume"):
        training.run(training.begin(people.parent / "run", short(people, training__steps=1)))
    words = {
        "train": ["train", "people.db", "--device", device],
        "setting": ["train", "people.db", "--set", f"training.device={device}"],
        "resume": ["train", "--resume", "run", "--device", device],
        "sample": ["sample", "run", "--device", device],
        "likelihood": ["likelihood", "run", "--device", device],
        "infer": ["infer", "-i", "run", "-q", "smokes", "--device", device],
        "run": ["run", "--data", "pubchem-9", "--device", device],
    }[verb]
    before = sorted(people.parent.rglob("*"))
    monkeypatch.setattr("sys.argv", ["nmln", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0
    assert f"--device {device}: this PyTorch sees no" in said
    assert "Take --device cpu." in said
    assert sorted(people.parent.rglob("*")) == before


def test_an_unknown_device_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="one of auto, cpu, cuda, mps, got 'tpu'"):
        chosen("tpu")
    with pytest.raises(InputError, match=r"training\.device must be one of"):
        configure({"training": {"device": "tpu"}})


def test_processes_take_one_gpu_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes_of("cpu") is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert processes_of("cuda") == 2
    places = []
    for rank in ("0", "1", "2"):
        monkeypatch.setenv("RANK", rank)
        places.append(device_of("cuda").index)
    assert places == [0, 1, 0]
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert device_of("auto") == torch.device("cuda", 1)


def test_worlds_live_on_the_device_unless_it_lacks_double_precision() -> None:
    assert of_worlds(torch.device("cuda", 1)) == torch.device("cuda", 1)
    assert of_worlds(torch.device("mps")) == CPU
    assert of_worlds(CPU) == CPU


def test_terms_in_double_precision_are_refused_where_there_is_none() -> None:
    potential = formula_potential(MOLECULES, torch.Generator()).double()
    with pytest.raises(InputError, match="double precision"):
        move(potential, torch.device("mps"))


def test_ranks_average_what_lies_on_a_device() -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    with elsewhere():
        found = Ranks().average(rows.to(DEVICE), 2)
        assert found.device == DEVICE
        assert found.tolist() == [2.0, 3.5]


def test_a_model_is_moved_by_the_name_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    worlds = torch.zeros(4, PAIRS.groups, dtype=PAIRS.dtype)
    config = configure({"ladder": {"rates": (0.1, 0.01)}, "model": {"layers": 1, "hidden": 4}})
    with elsewhere():
        assert Model.build(PAIRS, worlds, config).to("cuda").potential.device == DEVICE
        assert Model.build(PAIRS, worlds, config).to("cpu").potential.device == CPU
