"""What works without optional packages, and what the rest says about the missing ones."""

import json
import os
import re
import subprocess
import sys
import tomllib
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from nmln.diagnostics import effective_sample_size, rank_rhat
from nmln.errors import InputError
from nmln.extras import EXTRAS, MissingExtraError, available, later, load, require
from tests.core_only import COMMANDS, ROOT

REFUSED = {
    "run": ("nmln run", "molecules,report"),
    "evaluate": ("nmln evaluate", "molecules,report,metrics"),
    "evaluate --no-fcd": ("nmln evaluate", "molecules,report"),
    "report": ("nmln report", "report"),
    "sample --pretrained": ("nmln sample --pretrained", "molecules"),
    "train on molecules": ("molecules", "molecules"),
    "train on a set": ("molecules", "molecules"),
    "sample molecules": ("molecules", "molecules"),
    "train --tensorboard": ("nmln train --tensorboard", "report"),
    "kb train on a set": ("the triples of nations", "knowledge"),
    "data info on molecules": ("molecules", "molecules"),
    "data list": ("nmln data list", "molecules"),
    "data fetch": ("nmln data fetch", "molecules"),
    "reproduce toy-tracking": ("nmln reproduce toy-tracking", "report"),
    "reproduce two-peaks": ("nmln reproduce two-peaks", "report"),
    "reproduce n-queens": ("nmln reproduce n-queens", "report"),
}


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every verb does in the core alone, all in one process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.core_only", str(tmp_path_factory.mktemp("core"))],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "COLUMNS": "400", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_optional_package_was_hidden(core: dict[str, Any]) -> None:
    optional = {module for modules in EXTRAS.values() for module in modules}
    assert {module for module in optional if available(module)} <= set(core["hidden"])
    assert not core["imported"]


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in REFUSED])
def test_a_command_works_in_the_core_alone(core: dict[str, Any], name: str) -> None:
    assert core["commands"][name]["code"] == 0, core["commands"][name]["said"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_command_names_the_extra_that_it_lacks(core: dict[str, Any], name: str) -> None:
    subject, extras = REFUSED[name]
    found = core["commands"][name]
    assert found["code"] == 2, found["said"]
    [line] = found["said"].splitlines()
    assert line.startswith(f"error: {subject} ")
    assert f"pip install 'nmln[{extras}]'" in line


def test_sampling_in_the_core_says_why_there_is_no_page(core: dict[str, Any]) -> None:
    said = core["commands"]["sample"]["said"]
    assert "pip install 'nmln[report]'" in said
    assert "people/samples.db" in said


def test_an_energy_of_ones_own_has_diagnostics_in_the_core_alone(core: dict[str, Any]) -> None:
    assert core["potts"]["ess"] > 1


@pytest.mark.parametrize(
    ("name", "extra"),
    [("write_summary", "report"), ("to_arviz", "report"), ("Molecules", "molecules")],
)
def test_python_names_the_extra_that_it_lacks(core: dict[str, Any], name: str, extra: str) -> None:
    assert core["potts"][name].endswith(f"Install it with: pip install 'nmln[{extra}]'")


def test_the_table_of_extras_is_that_of_the_package() -> None:
    declared = project()["optional-dependencies"]
    assert set(EXTRAS) == set(declared) - {"all", "dev"}
    for extra, modules in EXTRAS.items():
        named = {Requirement(text) for text in declared[extra]}
        assert {canonicalize_name(module) for module in modules} == {
            canonicalize_name(one.name) for one in named if one.name != "nmln"
        }
    [everything] = map(Requirement, declared["all"])
    assert everything.extras == set(EXTRAS)
    assert "nmln[all]" in declared["dev"]


def test_torch_has_a_lower_bound_in_the_wheel_and_a_pin_in_development() -> None:
    [torch] = [one for one in map(Requirement, project()["dependencies"]) if one.name == "torch"]
    [bound] = torch.specifier
    assert bound.operator == ">="
    [pinned] = re.findall(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert Version(bound.version) <= Version(pinned)
    installs = re.findall(r"pip install.*", (ROOT / "Makefile").read_text())
    assert installs
    assert all("-c constraints.txt" in line for line in installs)


def test_what_is_missing_is_listed_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("rdkit", "matplotlib", "fcd_torch"):
        monkeypatch.setitem(sys.modules, module, None)
    require("drawing", "lark")
    with pytest.raises(InputError, match="RDKit, fcd_torch and Matplotlib") as caught:
        require("drawing", "rdkit", "fcd_torch", "matplotlib")
    assert isinstance(caught.value, MissingExtraError)
    assert caught.value.extras == ("molecules", "report", "metrics")
    assert caught.value.modules == ("rdkit", "fcd_torch", "matplotlib")


def test_a_module_is_imported_when_it_is_first_used(monkeypatch: pytest.MonkeyPatch) -> None:
    module = later("selfies")
    assert not hasattr(module, "__path__")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "selfies", None)
        with pytest.raises(MissingExtraError, match=r"nmln\[baselines\]"):
            _ = module.encoder
    assert module.encoder is load("selfies").encoder


def test_an_installed_package_that_lacks_another_one_keeps_its_own_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "pykeen.py").write_text("import nothing_of_this_name")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pykeen", raising=False)
    with pytest.raises(ModuleNotFoundError, match="nothing_of_this_name"):
        load("pykeen")


@pytest.mark.filterwarnings("ignore")  # of ArviZ, about its successor
def test_sizes_and_rhat_are_those_of_arviz_bit_for_bit() -> None:
    import arviz

    rng = np.random.default_rng(0)
    for draws, chains in ((4, 2), (50, 3), (301, 20)):
        trace = rng.normal(size=(draws, chains)).cumsum(0)
        for method in ("bulk", "mean"):
            expected = float(arviz.ess(np.ascontiguousarray(trace.T), method=method))
            assert effective_sample_size(trace, method) == expected
        expected = float(arviz.rhat(np.ascontiguousarray(trace.T), method="rank"))
        assert rank_rhat(trace) == expected
