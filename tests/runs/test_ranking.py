"""Log-probabilities of drawn molecules, held against the enumeration of all worlds."""

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from math import exp, inf, log
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator

from nmln.baselines.base import LogProb
from nmln.buckets import Bucket
from nmln.config import configure
from nmln.errors import InputError
from nmln.evaluation import Counts
from nmln.evidence import Evidence
from nmln.model import Model
from nmln.molecules.chemistry import encode_all, space_for
from nmln.molecules.decoding import Decoder
from nmln.potentials.formula import constraint
from nmln.runs import baseline, ranking
from nmln.runs import evaluate as evaluation
from nmln.runs.conditions import read_conditions
from nmln.runs.ranking import BaselineScorer, ModelScorer, log_probabilities, scorer_of
from nmln.runs.specification import SamplingSettings
from nmln.space import Space
from tests.runs.sampling_runs import finished, run

__all__ = ["run"]  # a fixture

TRAIN = {2: ["CO", "CO", "CC", "C=O"], 3: ["CCO", "CC=O", "C1CC1", "COC", "C#CO", "CCC"]}
DRAWS = 10**8


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def model() -> Model:
    """A model of two sizes, with scores that differ a good deal."""
    spaces = {size: space_for(("C", "O"), size) for size in TRAIN}
    buckets = [Bucket(spaces[n], encode_all(spaces[n], TRAIN[n]).worlds) for n in TRAIN]
    config = configure({"ladder": {"rates": [0.2, 0.02]}, "model": {"layers": 1, "hidden": 4}})
    found = Model.build(buckets, config=config)
    rng = Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in found.potential.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=rng)
    return found


def exact(
    model: Model, sharpen: float, formulas: Sequence[str], evidence: dict[Space, Evidence]
) -> dict[str, float]:
    """The probability of every molecule by the sum over all worlds of its size."""
    found: dict[str, float] = {}
    for domain in model.domains:
        space = domain.space
        worlds = space.enumerate()
        conditions = read_conditions(space, formulas=formulas)
        with torch.no_grad():
            scores = sharpen * model.on(space).level(-1).score(worlds[None])[0].double()
            if conditions.formulas:
                scores = scores + constraint(space, conditions.formulas, 1).score(worlds[None])[0]
        if space in evidence:
            fits = evidence[space].allowed[space.offsets + worlds.long()].all(1)
            scores = scores.masked_fill(~fits, -inf)
        chances = (domain.share * scores.softmax(0)).tolist()
        for answer, chance in zip(Decoder(space).decode(worlds), chances, strict=True):
            if answer.smiles is not None and chance:
                found[answer.smiles] = found.get(answer.smiles, 0.0) + chance
    return found


@pytest.mark.parametrize(
    ("sharpen", "conditions"),
    [
        (1.0, {}),
        (1.7, {}),
        (1.0, {"formulas": ["1.2 atom(x, O) ^ bond(x, y, double)"]}),
        (0.8, {"formulas": ["bond(x, y, triple) => atom(x, C) ^ atom(y, C)."]}),
        (1.7, {"scaffold": "C*", "formulas": ["0.7 atom(x, O)"]}),
    ],
    ids=["plain", "sharpened", "soft formula", "hard formula", "scaffold"],
)
def test_log_probabilities_are_those_of_all_worlds_of_the_molecules(
    model: Model, sharpen: float, conditions: dict[str, Any]
) -> None:
    given = read_conditions(model.domains, **conditions)
    evidence = {one.space: known for one, known in given.domains if known is not None}
    settings = SamplingSettings.of(model, given, 1000, sharpen=sharpen)
    chances = exact(model, sharpen, conditions.get("formulas", ()), evidence)
    counts = {smiles: round(DRAWS * chance) for smiles, chance in chances.items()}
    counts = {smiles: count for smiles, count in counts.items() if count}
    train = {smiles for smiles in {*TRAIN[2], *TRAIN[3]} if smiles in counts}
    found = ModelScorer(model, settings).score(counts, DRAWS, train, quiet)
    assert found.normalised
    assert found.exact
    wanted = torch.tensor([log(chances[smiles]) for smiles in counts])
    logs = torch.tensor([found.values[smiles] for smiles in counts])
    torch.testing.assert_close(logs, wanted, rtol=0, atol=2e-3)
    assert len(counts) > 20
    assert wanted.std() > 0.5


def test_without_enough_known_draws_each_size_is_ranked_by_itself(model: Model) -> None:
    settings = SamplingSettings.of(model, read_conditions(model.domains), 1000)
    scorer = ModelScorer(model, settings)
    counts = {"CO": 30, "CC": 9, "CCO": 3, "CCC": 40, "COC": 4}
    train = {"CO", "CCO", "COC"}
    found, said = log_probabilities(scorer, Counts(counts, 100), train, quiet)
    assert found is not None
    assert not found.normalised
    assert "each size is ranked by probability separately" in said[0]
    of_two = {"CO": 30, "CC": 9}
    alone, said = log_probabilities(scorer, Counts(of_two, 50), {"CO"}, quiet)
    assert alone is not None
    assert alone.normalised
    assert not said
    assert alone.values["CO"] == pytest.approx(log(31 / 51))
    rare, said = log_probabilities(scorer, Counts({**of_two, "CCO": 1}, 200), train, quiet)
    assert rare is not None
    assert rare.normalised is False  # one of 40 samples is of a size that was hardly drawn
    many = {"CO": 3000, "CC": 900, "CCO": 1}
    few, _ = log_probabilities(scorer, Counts(many, 5000), train, quiet)
    assert few is not None
    assert few.normalised
    assert exp(few.values["CCO"]) < 0.001


def test_formulas_that_name_atoms_and_other_sizes_give_a_reason_instead(model: Model) -> None:
    space = model.domains[1].space
    named = SamplingSettings.of(
        model, replace(read_conditions(space, formulas=["2 atom(0, O)"]), domains=()), 10
    )
    named = replace(
        named, domains=SamplingSettings.of(model, read_conditions(model.domains), 10).domains
    )
    found, said = log_probabilities(ModelScorer(model, named), Counts({"CCO": 1}, 1), set(), quiet)
    assert found is None
    assert "names a single one" in said[0]
    settings = SamplingSettings.of(model, read_conditions(model.domains), 10)
    found, said = log_probabilities(
        ModelScorer(model, settings), Counts({"CCCC": 1}, 1), set(), quiet
    )
    assert found is None
    assert "CCCC has 4 heavy atoms" in said[0]


# Files.


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each figure takes seconds to draw."""
    monkeypatch.setattr(evaluation, "write_recall", lambda *_: ())


SMALL = {"count": 400, "chains": 40, "block": 40, "burn_in": 30, "thin": 1}


@pytest.mark.usefixtures("no_figures")
def test_samples_of_a_run_are_ranked_by_both(run: Path, tmp_path: Path) -> None:
    drawn = finished(run, "run/samples", **SMALL)
    (tmp_path / "train.smi").write_text("CCOCC\nCC(C)CO\nCCNCC\n")
    (tmp_path / "test.smi").write_text("CCCCO\nCCOCO\nCCCCN\nCCCOC\n")
    sets: dict[str, Any] = {
        "train": str(tmp_path / "train.smi"),
        "test": str(tmp_path / "test.smi"),
    }
    out = tmp_path / "out"
    found = evaluation.run([drawn], out, **sets, with_fcd=False, at=(5, 20))
    (one,) = found.evaluated
    assert one.found.by_probability is not None
    assert out / "ranking.csv" in found.written
    content = json.loads((out / "evaluation.json").read_text())["samples"][0]
    assert content["log_probability"]["exact"] is True
    assert content["recall_by_probability"]["test"]["ranked"] == one.found.samples.unique
    with open(out / "ranking.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    logs = [float(row["log_probability"]) for row in rows]
    assert logs == sorted(logs, reverse=True)
    assert {row["smiles"]: int(row["count"]) for row in rows} == one.found.samples.counts
    wanted = {"CCCCO", "CCOCO", "CCCCN", "CCCOC"}
    first = sum(row["smiles"] in wanted for row in rows[:20])
    assert one.found.by_probability.test.at(20) == first
    with open(out / "recall.csv", newline="") as file:
        by = [row["ranked_by"] for row in csv.DictReader(file)]
    assert {*by} == {"count", "probability"}

    again = evaluation.run([drawn], tmp_path / "no", **sets, with_fcd=False, probability=False)
    assert again.evaluated[0].found.by_probability is None
    assert not (tmp_path / "no" / "ranking.csv").exists()
    assert "ranked_by" not in (tmp_path / "no" / "recall.csv").read_text()


def test_only_the_model_that_drew_the_target_scores_it(run: Path) -> None:
    drawn = finished(run, "run/samples", **SMALL, all_levels=True)
    assert scorer_of(drawn / "samples.csv.gz", 1) is not None
    assert scorer_of(drawn / "samples.csv.gz", 0) is None
    assert scorer_of(drawn / "counts.csv", None) is not None
    assert scorer_of(drawn / "counts-1.csv", None) is not None
    assert scorer_of(drawn / "counts-0.csv", None) is None
    assert scorer_of(drawn / "others.csv", None) is None
    assert scorer_of(run / "counts.csv", None) is None
    away = drawn.rename(run.parent / "away")
    assert scorer_of(away / "counts.csv", None, None) is None
    assert scorer_of(away / "counts.csv", None, run) is not None
    summary = json.loads((away / "sampling.json").read_text())
    summary["settings"]["model"] = "another"
    (away / "sampling.json").write_text(json.dumps(summary))
    assert scorer_of(away / "counts.csv", None, run) is None
    (away / "sampling.json").write_text('{"settings": {"model": 3}}')
    assert scorer_of(away / "counts.csv", None, run) is None


# Baselines.


class Strings:
    """A generator with a lower bound for every molecule but one that it cannot write."""

    def __init__(self, known: bool = True) -> None:
        self.known = known

    def log_prob(self, molecules: Sequence[str], seed: int = 0) -> LogProb | None:
        values = [-inf if one == "CC" else -float(len(one)) for one in molecules]
        return LogProb(torch.tensor(values).double(), exact=False) if self.known else None


def test_baselines_are_ranked_by_their_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    class Opened:
        generator = Strings()

    monkeypatch.setattr(baseline, "open_baseline", lambda _: Opened)
    monkeypatch.setattr(ranking, "_TOGETHER", 2)
    samples = Counts({"CC": 5, "CCO": 1, "CO": 2}, 8)
    found, said = log_probabilities(BaselineScorer(Path("x")), samples, set(), quiet)
    assert found is not None
    assert found.values == {"CC": -inf, "CO": -2, "CCO": -3}
    assert not found.exact
    assert not said
    Opened.generator = Strings(known=False)
    found, said = log_probabilities(BaselineScorer(Path("x")), samples, set(), quiet)
    assert found is None
    assert "has no likelihood" in said[0]


def test_baselines_are_scored_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = BaselineScorer(Path("x"))
    monkeypatch.setattr(ranking, "scorer_of", lambda *_: scorer)
    asked = [ranking.asked_scorer(Path("x"), None, None, wanted) for wanted in (None, False, True)]
    assert asked == [None, None, scorer]


def test_other_errors_than_unsupported_ones_are_not_hidden(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SamplingSettings.of(model, read_conditions(model.domains), 10)

    def broken(*_: Any, **__: Any) -> None:
        raise InputError("broken", kind="damaged")

    monkeypatch.setattr(ranking, "log_weights", broken)
    with pytest.raises(InputError, match="broken"):
        log_probabilities(ModelScorer(model, settings), Counts({"CO": 1}, 1), set(), quiet)
