import json
import re
from pathlib import Path

import pytest
import torch
from torch import Generator

from nmln.diagnostics import Diagnostics, diagnose
from nmln.kernels.gibbs import Gibbs
from nmln.kernels.langevin import DiscreteLangevin
from nmln.ladders import Temperatures
from nmln.language import Language, predicate
from nmln.potentials.function import OneHotPotential
from nmln.potentials.tempered import TemperedPotential
from nmln.recording import Recorder
from nmln.report.summary import write_summary
from nmln.sampler import sample
from nmln.space import Space

pytestmark = pytest.mark.usefixtures("unchecked")

SPACE = Space(Language(predicate("up", "site")), {"site": 10})


def ring(onehot):
    spins = onehot[..., 1::2] - onehot[..., ::2]
    return 1.5 * (spins * spins.roll(1, -1)).sum(-1)


def found(*temperatures: float) -> Diagnostics:
    ladder = Temperatures(temperatures)
    potential = TemperedPotential(OneHotPotential(SPACE, ring), ladder)
    start = torch.zeros(len(ladder), 8, 10, dtype=torch.uint8)
    recorder = Recorder({"<up>": lambda values: values.double().mean(-1)})
    kernel = DiscreteLangevin(SPACE) if len(ladder) > 1 else Gibbs(SPACE)
    rng = Generator().manual_seed(0)
    for _ in sample(potential, kernel, start, 60, rng, burn_in=20, recorder=recorder):
        pass
    return diagnose(recorder, ladder)


@pytest.mark.parametrize("temperatures", [(50.0, 1.0), (1.0,)])
def test_the_page_says_what_is_wrong_and_needs_nothing_else(
    temperatures: tuple[float, ...], tmp_path: Path
) -> None:
    diagnostics = found(*temperatures)
    written = write_summary(tmp_path / "run" / "summary.html", diagnostics, "A & B")
    assert [path.name for path in written] == [
        "summary.html",
        "summary.json",
        "summary.png",
        "summary.svg",
    ]
    page = written[0].read_text()
    assert diagnostics.findings(), "this run is too short to be good"
    for text in diagnostics.findings():
        assert text.replace("<", "&lt;").replace(">", "&gt;") in page
    assert "<h1>A &amp; B</h1>" in page
    assert "&lt;up&gt;" in page
    assert not re.search(r'(src|href)="http', page)
    content = json.loads(written[1].read_text(), parse_constant=lambda name: pytest.fail(name))
    assert content["levels"] == len(temperatures)
    assert content["findings"] == diagnostics.findings()
    assert written[2].read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_same_diagnostics_give_the_same_files(tmp_path: Path) -> None:
    diagnostics = found(4.0, 1.0)
    one, other = (write_summary(tmp_path / name / "run.html", diagnostics) for name in "ab")
    for first, second in zip(one, other, strict=True):
        assert first.read_bytes() == second.read_bytes()
