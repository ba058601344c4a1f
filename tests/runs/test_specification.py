"""The conditions of a sampling run: formulas and evidence, read with errors that name the place."""

import json
from pathlib import Path

import pytest

from nmln.config import configure
from nmln.errors import InputError
from nmln.formats.db import read_db
from nmln.formats.mln import parse_mln
from nmln.model import Model, load_run
from nmln.molecules.chemistry import space_for
from nmln.runs import sample as sampling
from nmln.runs.conditions import read_conditions, read_formula, read_formulas
from nmln.space import Space
from nmln.worlds import true_atoms

MOLECULES = space_for(("C", "N", "O", "Cl", "N+"), 4)


def make_run(folder: Path) -> Path:
    """A run over people whose model has learned nothing."""
    program = parse_mln("person = {Anna, Bob}\nsmokes(person)\nfriends(person, person)")
    space = Space(program.language, program.domain)
    worlds = space.enumerate()[:20]
    config = configure(
        {
            "ladder": {"rates": [0.2, 0.02]},
            "model": {"layers": 1, "hidden": 4},
            "chains": {"moves": 2},
        }
    )
    model = Model.build(space, worlds, config)
    folder.mkdir(parents=True)
    model.save(folder / "model")
    (folder / "config.json").write_text(json.dumps({**model.describe(), "kind": "db"}))
    return folder


def test_formulas_steer_worlds_of_any_kind(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    rules = tmp_path / "rules.mln"
    rules.write_text("friends(x, y) => friends(y, x).\n")
    outcome = sampling.run(
        run,
        100,
        chains=10,
        burn_in=5,
        formulas=["EXIST x smokes(x)."],
        formula_files=[rules],
    )
    assert outcome.count == 100
    model = load_run(run)
    _, worlds = read_db(outcome.written[0], model.space.language, model.space.domain)
    for world in worlds:
        atoms = set(map(str, true_atoms(model.space, world)))
        assert atoms & {"smokes(Anna)", "smokes(Bob)"}
        assert ("friends(Anna, Bob)" in atoms) == ("friends(Bob, Anna)" in atoms)


def test_scaffolds_are_for_molecules(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(InputError, match=r"for molecules, but run was trained on a \.db file"):
        sampling.run(run, 10, scaffold="CO")


@pytest.mark.parametrize(
    "text",
    [
        "!(atom(x, O) ^ atom(y, O) ^ bond(x, y, single)).",
        "-1.5 atom(x, N+) ^ bond(x, y, double)",
        "0.5 atom(x, +kind)",
        "EXIST x atom(x, Cl).",
        "1.5 atom(n, C) ^ bond(n, o, double)",
        "0.5 atom(x, +n)",
        "1 atom(x, k) ^ atom(y, k) ^ bond(x, y, double)",
        "1 EXIST n (atom(x, n) ^ atom(y, n))",
    ],
)
def test_a_formula_reads_back_as_it_is_written(text: str) -> None:
    formula = read_formula(MOLECULES, text)
    assert read_formula(MOLECULES, str(formula)) == formula


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!(atom(x, O) & atom(y, O)).", r":14: '& atom.* Write '\^' for and"),
        ("1 bnd(x, y, single)", ":3: unknown predicate bnd.*Did you mean bond?"),
        ("1 atom(x, CL)", ":11: undeclared constant CL.*Did you mean Cl?"),
        ("1 atom(x, Co)", r":11: undeclared constant Co.*correct the name\.$"),
        ("1 bond(x, y, singel)", r":14: singel is not a category.*Did you mean single\?"),
        ("1 bond(x, y, Single)", r":14: undeclared constant Single.*Did you mean single\?"),
        ("1.5 atom(x, n)", r":13: n is not a category.*Write atom\(x, N\)"),
        ("EXIST x atom(x, cl).", r":17: cl is not a category.*Write atom\(x, Cl\)"),
        ("!atom(x, cl).", r":10: cl is not a category.*Write atom\(x, Cl\)"),
        ("1 atom(x, k) ^ k = o", r":20: o is not a category.*Write k = O"),
        ("atom(x, O)", "must have a weight"),
        ("1 atom(x)", "has 1 arguments, but atom takes 2"),
        ("2 atom(x, O).", "a hard formula .* has no weight"),
    ],
)
def test_a_wrong_formula_is_named_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"(?s)^formula .*{message}"):
        read_formula(MOLECULES, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("// rules\n\n1 atom(x, Zz)\n", r"rules\.mln:3:11: undeclared constant Zz"),
        ("\n1.5 atom(x, O ^\n", r"rules\.mln:2:15: '\^' is not understood"),
        (
            "\natom(node, atom_value!)\n",
            r"rules\.mln:2: atom is declared twice.*leave declarations",
        ),
        ("// bnd\nbnd(x, y)\n", r"rules\.mln:2: bnd is declared here"),
        ("1 atom(x, O)\n\n(atom(x, O))\n", r"rules\.mln:3: \(atom\(x, O\)\) must have a weight"),
        ("1 atom(x, O)\n1 (atom(x, O) ^\n atom(y, cl))", r"rules\.mln:3:10: cl is not a category"),
        ("// nothing\n", "there is no formula in this file"),
    ],
)
def test_a_wrong_file_of_formulas_is_named_with_its_line(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "rules.mln"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_formulas(MOLECULES, path)


def test_evidence_and_scaffold_must_agree(tmp_path: Path) -> None:
    known = tmp_path / "known.db"
    known.write_text("atom(0, O)\n")
    with pytest.raises(InputError, match=r"leaves no category for atom\(0\)"):
        read_conditions(MOLECULES, evidence=known, scaffold="CO")
    both = read_conditions(MOLECULES, evidence=known, scaffold="OC").evidence
    assert both is not None
    assert int(both.counts[0]) == 1
