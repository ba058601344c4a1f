"""Molecules under conditions: scaffolds, formulas and evidence hold in every sample."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.model import load_run
from nmln.molecules.chemistry import ATOM, BOND, BONDS
from nmln.molecules.scaffolds import scaffold_evidence
from nmln.runs import stream
from nmln.runs.conditions import Conditions, read_formula
from nmln.runs.stream import SamplingJob, SamplingSettings
from tests.runs.sampling_runs import begin, make_run, read, run, summary

pytestmark = pytest.mark.usefixtures("unchecked")

__all__ = ["run"]  # a fixture


def worlds(job: SamplingJob, level: int = -1) -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.cat([sweep.state.values[level] for sweep in stream.chains_of(job, 0, rng)])


def atoms_and_bonds(
    job: SamplingJob, world: torch.Tensor
) -> tuple[list[str], dict[tuple[int, int], str]]:
    space = job.model.space
    kinds = space.language[ATOM].values
    names = [kinds[value] for value in world[space.block(ATOM).groups].tolist()]
    table, values = space.table(BOND), world[space.block(BOND).groups].tolist()
    nodes = range(len(names))
    found = {(i, j): BONDS[values[table[i, j]]] for i in nodes for j in nodes if i != j}
    return names, found


def joined_oxygens(job: SamplingJob, world: torch.Tensor) -> bool:
    names, bonds = atoms_and_bonds(job, world)
    return any(b != "none" and names[i] == names[j] == "O" for (i, j), b in bonds.items())


def test_every_sample_contains_the_scaffold_and_closed_atoms_stay_closed(run: Path) -> None:
    job = begin(run, "out", count=300, scaffold="C1C(*)O1")
    for level in range(2):
        for world in worlds(job, level):
            names, bonds = atoms_and_bonds(job, world)
            assert names[:3] == ["C", "C", "O"]
            assert [bonds[0, 1], bonds[1, 2], bonds[0, 2]] == ["single"] * 3
            assert {bonds[i, j] for i in (0, 2) for j in (3, 4)} == {"none"}
    stream.work(job)
    stream.finish(job)
    valid = [smiles for *_, smiles in read(job.folder) if smiles]
    assert valid
    assert summary(job.folder)["scaffold"] == "C1C(*)O1"


OXYGENS = [f"!(atom(x, O) ^ atom(y, O) ^ bond(x, y, {kind}))." for kind in BONDS[1:]]


KERNELS = ("balanced", "gradients")  # that of the shipped model, and that of these runs


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "formulas", [OXYGENS, ["atom(x, O) ^ atom(y, O) ^ x != y => bond(x, y, none)."]]
)
def test_every_sample_obeys_hard_formulas(run: Path, formulas: list[str], kernel: str) -> None:
    job = begin(run, "out", count=1500, chains=100, formulas=formulas, kernel=kernel)
    found = worlds(job)
    assert not any(joined_oxygens(job, world) for world in found)
    assert any(atoms_and_bonds(job, world)[0].count("O") > 1 for world in found)


@pytest.mark.parametrize("kernel", KERNELS)
def test_without_them_some_do_not(run: Path, kernel: str) -> None:
    job = begin(run, "out", count=1500, chains=100, kernel=kernel)
    assert any(joined_oxygens(job, world) for world in worlds(job))


@pytest.mark.parametrize("kernel", KERNELS)
def test_scaffold_formulas_and_evidence_hold_together(
    run: Path, tmp_path: Path, kernel: str
) -> None:
    (tmp_path / "known.db").write_text("atom(4, O)\n")
    (tmp_path / "rules.mln").write_text("// no two oxygens bonded\n" + "\n".join(OXYGENS[1:]))
    job = begin(
        run,
        "out",
        count=300,
        scaffold="CO*",
        evidence=tmp_path / "known.db",
        formulas=OXYGENS[:1],
        formula_files=[tmp_path / "rules.mln"],
        kernel=kernel,
    )
    assert len(job.settings.formulas) == 3
    for world in worlds(job):
        names, bonds = atoms_and_bonds(job, world)
        assert names[:2] == ["C", "O"]
        assert names[4] == "O"
        assert bonds[0, 1] == "single"
        assert not joined_oxygens(job, world)
    resumed = stream.resume(job.folder, job.model).settings.conditions(job.model.space)
    asked = job.settings.conditions(job.model.space)
    assert resumed.formulas == asked.formulas
    assert isinstance(asked.evidence, Evidence)
    again = scaffold_evidence(job.model.space, "CO*").allowed
    assert not bool((asked.evidence.allowed & ~again).any())


@pytest.mark.parametrize(
    ("wishes", "told"),
    [
        (
            {"scaffold": "O*", "formulas": ["!atom(x, O)."]},
            r"hard formulas and agrees with the evidence or scaffold: they seem to contradict each "
            r"other\. Still violated: !atom\(x, O\)\. Change a formula, or what is given\.$",
        ),
        (
            {"formulas": ["atom(0, O).", "!atom(0, O)."]},
            r"^no world was found that satisfies all hard formulas: they seem to contradict each "
            r"other\. Still violated: !?atom\(0, O\)\. Change one of them\.$",
        ),
    ],
)
def test_what_contradicts_itself_is_reported_with_the_formula(
    run: Path, wishes: dict[str, Any], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        stream.work(begin(run, "out", **wishes))


def small_job(tmp_path: Path, formulas: tuple[str, ...]) -> SamplingJob:
    run = make_run(tmp_path / f"small{len(formulas)}", smiles=["COC", "CCO", "OCO", "CCC"])
    model = load_run(run)
    conditions = Conditions(None, tuple(read_formula(model.space, text) for text in formulas))
    settings = SamplingSettings.of(model, conditions, 16_000, block=400, chains=400, burn_in=20)
    place = stream.SamplePlace("molecules", tmp_path / "out")
    return SamplingJob(place, model, settings, folders=(tmp_path,))


def test_a_weighted_formula_shifts_the_distribution_as_reweighting_does(tmp_path: Path) -> None:
    """512 worlds of 3 atoms: the mean number of oxygens and of bonds at oxygens, exactly."""
    formula = "1.2 atom(x, O) ^ bond(x, y, single)"
    job = small_job(tmp_path, (formula,))
    every = Evidence.none(job.model.space).enumerate()
    with torch.no_grad():
        plain = job.model.potential.score(every.expand(2, -1, -1))[-1].double()

    def groundings(world: torch.Tensor) -> int:
        names, bonds = atoms_and_bonds(job, world)
        return sum(bond == "single" and names[i] == "O" for (i, _), bond in bonds.items())

    counts = torch.tensor([groundings(world) for world in every]).double()
    exact = float((plain + 1.2 * counts).softmax(0) @ counts)
    unweighted = float(plain.softmax(0) @ counts)
    index = Evidence.none(job.model.space).index(worlds(job)).view(-1, 400)[20:]
    by_chain = counts[index].mean(0)  # chains are independent
    error = float(by_chain.std() / 400**0.5)
    assert abs(float(by_chain.mean()) - exact) < 4.5 * error
    assert abs(float(by_chain.mean()) - unweighted) > 20 * error
