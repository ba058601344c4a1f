"""`nmln infer` and `nmln learn`, as a user of Markov logic would call them."""

import csv
import json
import subprocess
import sys
from itertools import product
from math import exp, log
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nmln.cli import app
from nmln.errors import InputError
from nmln.formats.db import read_db
from nmln.formats.mln import read_mln

pytestmark = pytest.mark.usefixtures("unchecked")

MODEL = """
person = {Anna, Bob, Carl}
Smokes(person)
Cancer(person)
Friends(person, person) symmetric irreflexive
1.5 Smokes(x) => Cancer(x)
1.1 Friends(x, y) => (Smokes(x) <=> Smokes(y))
!(Cancer(x) ^ Friends(x, y) ^ Cancer(y) ^ !Smokes(x) ^ !Smokes(y)).
"""
EVIDENCE = "Friends(Anna, Bob)\n!Friends(Bob, Carl)\n0.8 Smokes(Anna)  // a report\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.mln").write_text(MODEL)
    (tmp_path / "evidence.db").write_text(EVIDENCE)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def error_of(*arguments: str) -> str:
    """What a mistake is answered with."""
    result = run(*arguments)
    assert isinstance(result.exception, InputError), result.output
    message = str(result.exception)
    assert "\n" not in message
    return message


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def ask(*arguments: str) -> str:
    result = run("infer", "-i", "model.mln", *arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_marginals_are_reported_and_written(here: Path) -> None:
    output = ask("-e", "evidence.db", "-q", "Cancer,Friends/2", "-o", "result.db")
    assert "Exact: 128 worlds enumerated." in output
    assert "7 groups are free" in output
    lines = [line for line in (here / "result.db").read_text().splitlines() if line[:2] != "//"]
    assert len(lines) == 6
    values = {atom: float(value) for value, atom in (line.split(" ", 1) for line in lines)}
    assert values["Friends(Anna, Bob)"] == 1
    assert values["Friends(Bob, Carl)"] == 0
    assert 0.5 < values["Cancer(Anna)"] < 1


def test_the_formats_say_the_same_and_chains_agree(here: Path) -> None:
    ask("-e", "evidence.db", "-q", "Cancer", "-o", "result.csv")
    ask("-e", "evidence.db", "-q", "Cancer", "-o", "result.json")
    ask("-e", "evidence.db", "-q", "Cancer", "--sample", "--error", "0.02", "-o", "chains.csv")
    exact, sampled = (rows(here / name) for name in ("result.csv", "chains.csv"))
    content = json.loads((here / "result.json").read_text())
    assert content["command"].startswith("nmln")
    for row, other, one in zip(exact, sampled, content["answers"], strict=True):
        assert row["query"] == other["query"] == one["text"]
        assert float(row["probability"]) == pytest.approx(one["value"], abs=1e-6)
        assert row["exact"] == "true"
        assert row["standard_error"] == ""
        difference = abs(float(row["probability"]) - float(other["probability"]))
        assert difference < 5 * max(float(other["standard_error"]), 1e-3)


def test_the_same_seed_gives_the_same_answers(here: Path) -> None:
    options = ("-q", "Smokes", "--sample", "--error", "0.5", "--chains", "5", "--levels", "2")
    options += ("--sweeps", "40", "--burn-in", "5")
    known = ask(*options, "--seed", "3")
    assert ask(*options, "--seed", "3") == known
    assert ask(*options, "--seed", "4") != known


def test_closed_and_open_predicates(here: Path) -> None:
    open_world = ask("-e", "evidence.db", "-q", "Cancer(Carl)")
    assert "Closed" not in open_world
    closed = ask("-e", "evidence.db", "-q", "Cancer(Carl)", "-cw", "Friends")
    assert "Closed: Friends." in closed
    assert "6 groups are free" in closed
    everything = ask("-e", "evidence.db", "-q", "Cancer(Carl)", "-cw", "*", "-ow", "Smokes")
    assert "Closed: Friends." in everything
    assert "6 groups are free" in everything
    assert "3 groups are free" in ask("-q", "Cancer", "--closed", "*")


def test_the_most_probable_world_and_its_likelihood(here: Path) -> None:
    shown = ask("-e", "evidence.db", "--map")
    assert "Friends(Anna, Bob)" in shown
    assert "every world was looked at" in shown
    assert "Written: best.db" in ask("-e", "evidence.db", "--map", "--sample", "-o", "best.db")
    program = read_mln("model.mln")
    _, worlds = read_db("best.db", program.language, program.domain)
    assert len(worlds) == 1
    assert "world 0: log P = -" in ask("--likelihood", "best.db")
    sampled = ask("--likelihood", "best.db", "--sample", "-o", "likelihood.csv")
    assert "log Z is between" in sampled
    (row,) = rows(here / "likelihood.csv")
    assert float(row["least"]) < float(row["log_probability"]) < float(row["most"])


def test_formulas_are_added_up(here: Path) -> None:
    (here / "more.mln").write_text("3 Smokes(Anna)\n")
    plain, both = ask("-q", "Smokes(Anna)"), ask("-q", "Smokes(Anna)", "-i", "more.mln")
    assert float(both.split("Smokes(Anna): ")[1][:6]) > float(plain.split("Smokes(Anna): ")[1][:6])
    again = ask("-q", "Smokes(Anna)", "--formula", "3 Smokes(Anna)")
    assert again.split("Smokes(Anna): ")[1] == both.split("Smokes(Anna): ")[1]


def test_bad_input_gets_one_clear_line(here: Path) -> None:
    model = ("infer", "-i", "model.mln")
    assert "unknown predicate Cancr" in error_of(*model, "-q", "Cancr")
    assert "the query is empty" in error_of(*model)
    assert "the query is empty" in error_of(*model, "-q", " ")
    assert "one thing at a time" in error_of(*model, "-q", "Cancer", "--map")
    (here / "against.db").write_text(
        "Cancer(Anna)\nFriends(Anna, Bob)\nCancer(Bob)\n!Smokes(Anna)\n!Smokes(Bob)\n"
    )
    assert "hard formula !(Cancer(x) ^" in error_of(*model, "-e", "against.db", "-q", "Smokes")
    (here / "twice.db").write_text("0.8 Smokes(Anna)\n\n0.3 Smokes(Anna)\n")
    message = error_of(*model, "-e", "twice.db", "-q", "Smokes")
    assert message.startswith("twice.db:3: Smokes(Anna) is reported twice, with 0.8 and 0.3")
    (here / "settled.db").write_text("!Smokes(Anna)\n0.3 Smokes(Anna)\n")
    assert "settled.db:2: " in error_of(*model, "-e", "settled.db", "-q", "Smokes")
    (here / "over.db").write_text("1.3 Smokes(Anna)\n")
    assert "over.db:1: the probability of a report" in error_of(
        *model, "-e", "over.db", "-q", "Smokes"
    )
    (here / "strange.db").write_text("Smokes(Zoe)\n")
    assert "strange.db:1:" in error_of(*model, "-e", "strange.db", "-q", "Smokes")
    assert "closed and open" in error_of(*model, "-q", "Smokes", "-cw", "Cancer", "-ow", "Cancer")
    assert "unknown predicate Drinks" in error_of(*model, "-q", "Smokes", "-cw", "Drinks")
    assert ".db, .csv or .json" in error_of(*model, "-q", "Smokes", "-o", "out.txt")
    assert "is neither" in error_of("infer", "-i", "nothing", "-q", "Smokes")
    assert "no such file" in error_of("infer", "-i", "nothing.mln", "-q", "Smokes")
    large = "person = {1, ..., 200000}\nFriends(person, person)\n1 Friends(x, y)\n"
    (here / "large.mln").write_text(large)
    assert "this domain is too large" in error_of("infer", "-i", "large.mln", "-q", "Friends")


def test_it_runs_as_a_module_and_ends_without_a_traceback(here: Path) -> None:
    def module(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "nmln", "infer", "-i", "model.mln", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert "Cancer(Anna): 0." in module("-q", "Cancer").stdout
    wrong = module("-q", "Cancr")
    assert wrong.returncode == 2
    assert wrong.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in wrong.stderr


def test_weights_are_learned_and_written(here: Path) -> None:
    (here / "train.db").write_text(
        "\n---\n".join(
            ["Smokes(Anna)\nCancer(Anna)\nFriends(Anna, Bob)\nSmokes(Bob)"] * 5
            + ["Cancer(Carl)\nFriends(Bob, Carl)"] * 4
            + ["Smokes(Carl)\nFriends(Anna, Bob)"] * 3
        )
    )
    done = run("learn", "-i", "model.mln", "-t", "train.db", "-o", "learned.mln")
    assert done.exit_code == 0, done.exception
    assert "enumerated, log-likelihood -" in done.output
    program = read_mln("learned.mln")
    weights = [one.weight for one in program.formulas if not one.hard]
    assert len(weights) == 2
    assert all(weight is not None and abs(weight) < 5 for weight in weights)
    assert sum(one.hard for one in program.formulas) == 1
    assert "Cancer(Anna): 0." in run("infer", "-i", "learned.mln", "-q", "Cancer").output
    sampled = run("learn", "-i", "model.mln", "-t", "train.db", "--sample", "--updates", "10")
    assert "chains" in sampled.output
    assert (here / "model-learned.mln").exists()


def test_a_network_is_learned_where_it_is_named(here: Path) -> None:
    (here / "train.db").write_text("\n---\n".join(["Smokes(Anna)\nCancer(Anna)"] * 6))
    (here / "soft.mln").write_text("\n".join(MODEL.splitlines()[:-1]))
    settings = ["model.potential=fragment", "training.steps=3", "training.processes=1"]
    settings += ["ladder.rates=[0.2,0.02]", "chains.replicas=4", "training.batch=4"]
    options = [part for setting in settings for part in ("--set", setting)]
    done = run("learn", "-i", "soft.mln", "-t", "train.db", "-o", "run", *options)
    assert done.exit_code == 0, done.exception
    asked = run("infer", "-i", "run", "-q", "Cancer", "--formula", "!Smokes(Bob).")
    assert asked.exit_code == 0, asked.exception
    assert "Cancer(Anna): 0." in asked.output
    assert (
        "Smokes(Bob): 0.0000"
        in run("infer", "-i", "run", "-q", "Smokes", "--formula", "!Smokes(Bob).").output
    )


def test_learning_refuses_what_it_cannot_use(here: Path) -> None:
    (here / "train.db").write_text("Smokes(Anna)\n")
    (here / "bare.mln").write_text("Smokes(person)\n")
    learn = ("learn", "-t", "train.db")
    assert "no formula in this file" in error_of(*learn, "-i", "bare.mln")
    assert "end with .mln" in error_of(*learn, "-i", "model.mln", "-o", "out.db")
    (here / "broken.db").write_text("Cancer(Anna)\nFriends(Anna, Bob)\nCancer(Bob)\n")
    broken = error_of("learn", "-t", "broken.db", "-i", "model.mln")
    assert "world 0 of the data violates the hard formula" in broken


def test_a_trained_model_is_asked_about_other_constants(here: Path) -> None:
    """A model of formulas alone, so that the probabilities are those of the formulas."""
    (here / "open.mln").write_text(MODEL.replace("person = {Anna, Bob, Carl}\n", ""))
    (here / "train.db").write_text(
        "Smokes(Anna)\nCancer(Anna)\nFriends(Anna, Bob)\n---\nSmokes(Bob)\n"
    )
    settings = ["model.potential=formula", "model.base=false", "training.steps=0",
                "training.processes=1", "chains.replicas=4", "training.batch=4"]  # fmt: skip
    changes = [word for one in settings for word in ("--set", one)]
    done = run("learn", "-i", "open.mln", "-t", "train.db", "-o", "run", *changes)
    assert done.exit_code == 0, done.output
    known = "Friends(Xaver, Yann)\n0.8 Smokes(Xaver)\n!Cancer(Zoe)\n"
    (here / "new.db").write_text(known)
    with pytest.warns(UserWarning, match="size 3: it was trained on 2"):
        done = run("infer", "-i", "run", "-e", "new.db", "-q", "Cancer,Smokes", "-o", "run.csv")
    assert done.exit_code == 0, done.output
    assert "put on the constants of the evidence: 3." in done.output
    done = run("infer", "-i", "open.mln", "-e", "new.db", "-q", "Cancer,Smokes", "-o", "mln.csv")
    assert done.exit_code == 0, done.output
    found, expected = (
        {row["query"]: float(row["probability"]) for row in rows(here / name)}
        for name in ("run.csv", "mln.csv")
    )
    assert found == pytest.approx(expected, abs=1e-6)
    assert found["Cancer(Zoe)"] == 0
    (here / "old.db").write_text("Smokes(Anna)\n")
    done = run("infer", "-i", "run", "-e", "old.db", "-q", "Smokes")
    assert "Smokes(Bob)" in done.output
    assert "put on" not in done.output
    with pytest.warns(UserWarning, match="size 3: it was trained on 2") as seen:
        done = run("infer", "-i", "run", "--size", "3", "-q", "Smokes")
    assert len(seen) == 1
    assert "Smokes(2)" in done.output
    (here / "misspelt.db").write_text("Smokes(Bob)\n0.8 Smokes(Ana)\n")
    assert error_of("infer", "-i", "run", "-e", "misspelt.db", "-q", "Cancer").startswith(
        "misspelt.db:2:12: Ana is not a constant of sort person in this model, but Bob is. Did you mean "
        "Anna? For a new domain, "
    )
    assert "this is a .mln file" in error_of(
        "infer", "-i", "open.mln", "--size", "3", "-q", "Smokes"
    )
    assert "unknown predicate" in error_of("infer", "-i", "run", "-e", "old.db", "-q", "Tall")


def test_weights_are_learned_from_databases_with_their_own_constants(here: Path) -> None:
    (here / "open.mln").write_text(
        "Smokes(person)\nCancer(person)\n0 Smokes(x)\n0 Smokes(x) => Cancer(x)\n"
    )
    (here / "a.db").write_text("Smokes(Anna)\nCancer(Anna)\nCancer(Bob)\n---\nSmokes(Bob)\n")
    (here / "b.db").write_text("Smokes(Xaver)\nCancer(Xaver)\nCancer(Yann)\nSmokes(Zoe)\n")
    done = run("learn", "-i", "open.mln", "-t", "a.db", "-t", "b.db", "-o", "learned.mln")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "3 worlds of 2 domains (2, 3 constants)" in done.output
    learned = read_mln("learned.mln")
    assert not learned.domain
    # Seven persons, of whom four smoke and two of these have cancer; all are independent.
    smokes, implies = (one.weight or 0 for one in learned.formulas)
    chance = [2 * exp(implies), exp(smokes) * (1 + exp(implies))]  # who does not smoke, who smokes
    assert chance[1] / sum(chance) == pytest.approx(4 / 7, abs=0.01)
    assert exp(implies) / (1 + exp(implies)) == pytest.approx(2 / 4, abs=0.01)
    (here / "new.db").write_text("Smokes(Emil)\nCancer(Fred)\n")
    done = run("infer", "-i", "learned.mln", "-e", "new.db", "-q", "Smokes(Fred)", "-o", "new.csv")
    assert done.exit_code == 0, done.output
    odds = exp(smokes + implies) / exp(implies)
    assert float(rows(here / "new.csv")[0]["probability"]) == pytest.approx(
        odds / (1 + odds), abs=1e-6
    )


OPEN = "Smokes(person)\nCancer(person)\n0 Smokes(x)\n0 Smokes(x) => Cancer(x)\n"
A = "Smokes(Anna)\nCancer(Anna)\nCancer(Bob)\n"
B = "Smokes(Xaver)\nCancer(Xaver)\nCancer(Yann)\nSmokes(Zoe)\n"


def test_worlds_of_one_file_have_their_own_constants_where_that_is_asked_for(here: Path) -> None:
    (here / "open.mln").write_text(OPEN)
    for name, text in (("a.db", A), ("b.db", B), ("both.db", f"{A}---\n{B}")):
        (here / name).write_text(text)

    def weights(name: str, *options: str) -> tuple[list[str], str]:
        done = run("learn", "-i", "open.mln", "-o", name, *options)
        assert done.exit_code == 0, (done.output, done.exception)
        return [str(one) for one in read_mln(name).formulas], done.output

    files, said = weights("files.mln", "-t", "a.db", "-t", "b.db")
    assert "note" not in said
    each, said = weights("each.mln", "-t", "both.db", "--domains", "each")
    assert each == files
    assert "2 worlds of 2 domains (2, 3 constants)" in said
    assert "note" not in said
    common, said = weights("common.mln", "-t", "both.db")
    assert common != files
    assert "note: both.db: the worlds name different constants: 0 of 5 are common to all." in said
    assert "--domains each takes those of each world" in said
    assert weights("named.mln", "-t", "both.db", "--domains", "common")[0] == common
    learn = ("learn", "-i", "open.mln", "-t", "both.db", "-o", "x.mln", "--domains")
    assert "common or each, got 'all'" in error_of(*learn, "all")


def test_formulas_over_several_domains_name_no_constants(here: Path) -> None:
    (here / "open.mln").write_text(OPEN + "0 Smokes(Anna) v Cancer(Anna)\n")
    (here / "a.db").write_text(A)
    (here / "b.db").write_text(B)
    (here / "c.db").write_text("Smokes(Cleo)\nCancer(Dirk)\n")
    (here / "both.db").write_text(f"{A}---\n{B}")
    wrong = "open.mln:5: formulas over several domains cannot name constants, but Smokes(Anna) v "
    for options in (
        ("-t", "a.db", "-t", "b.db"),
        ("-t", "a.db", "-t", "c.db"),  # of one size: the constants are numbered
        ("-t", "both.db", "--domains", "each"),
        ("-t", "both.db", "--domains", "each", "--set", "training.steps=0"),
    ):
        found = error_of("learn", "-i", "open.mln", *options, "-o", "x.mln")
        assert found.startswith(wrong), found
        assert "person = {Anna, ...}" in found
    (here / "d.db").write_text("Smokes(Anna)\nCancer(Bob)\nCancer(Dirk)\n")  # has Anna too
    done = run("learn", "-i", "open.mln", "-t", "a.db", "-t", "d.db", "-o", "x.mln")
    assert done.exit_code == 0, done.exception


def test_weights_of_named_databases_answer_questions_about_new_people(here: Path) -> None:
    """Databases of two, three and four people; the answers about three others by enumeration."""
    (here / "open.mln").write_text(
        "Smokes(person)\nCancer(person)\nFriends(person, person) symmetric irreflexive\n"
        "0 Smokes(x) => Cancer(x)\n0 Friends(x, y) => (Smokes(x) <=> Smokes(y))\n0 Friends(x, y)\n"
    )
    (here / "a.db").write_text(
        "Smokes(Anna)\nCancer(Anna)\n!Smokes(Bob)\n---\nFriends(Anna, Bob)\nCancer(Bob)\n"
    )
    (here / "b.db").write_text("Friends(Carl, Dora)\nSmokes(Carl)\nSmokes(Dora)\nCancer(Eve)\n")
    (here / "c.db").write_text(
        "Friends(Fred, Gil)\nSmokes(Hal)\nCancer(Hal)\nFriends(Hal, Ina)\n!Smokes(Ina)\n"
    )
    files = [word for name in "abc" for word in ("-t", f"{name}.db")]
    done = run("learn", "-i", "open.mln", *files, "-o", "learned.mln")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "4 worlds of 3 domains (2, 3, 4 constants)" in done.output
    ill, alike, friends = (one.weight or 0.0 for one in read_mln("learned.mln").formulas)
    assert min(map(abs, (ill, alike, friends))) > 0.05

    (here / "new.db").write_text("Smokes(Xaver)\nFriends(Xaver, Yann)\n!Cancer(Zoe)\n")
    asked = "Smokes(Yann),Cancer(Xaver),Smokes(Zoe),Friends(Yann, Zoe)"
    done = run("infer", "-i", "learned.mln", "-e", "new.db", "-q", asked, "-o", "new.csv")
    assert done.exit_code == 0, (done.output, done.exception)
    found = {row["query"]: float(row["probability"]) for row in rows(here / "new.csv")}

    total, true = 0.0, dict.fromkeys(found, 0.0)
    for bits in product((False, True), repeat=9):
        smokes, cancer, pairs = bits[:3], bits[3:6], dict(zip(PAIRS, bits[6:], strict=True))
        if not (smokes[0] and pairs[0, 1] and not cancer[2]):
            continue
        score = sum(ill * (not s or c) for s, c in zip(smokes, cancer, strict=True))
        for (x, y), tied in pairs.items():  # a formula counts a pair in both orders
            score += 2 * alike * (not tied or smokes[x] == smokes[y]) + 2 * friends * tied
        total += exp(score)
        for name, holds in zip(found, (smokes[1], cancer[0], smokes[2], pairs[1, 2]), strict=True):
            true[name] += exp(score) * holds
    assert found == pytest.approx({name: share / total for name, share in true.items()}, abs=1e-6)


PAIRS = ((0, 1), (0, 2), (1, 2))


def test_worlds_are_scored_on_their_own_domains(here: Path) -> None:
    """Of formulas alone, so that the likelihoods are those of the formulas on each domain."""
    (here / "open.mln").write_text(OPEN.replace("0 ", "0.7 "))
    (here / "train.db").write_text(f"{A}---\n{B}")
    settings = ["model.potential=formula", "model.base=false", "training.steps=0",
                "training.processes=1", "chains.replicas=8", "training.batch=8"]  # fmt: skip
    changes = [word for one in settings for word in ("--set", one)]
    learn = ("learn", "-i", "open.mln", "-t", "train.db", "--domains", "each", "-o", "run")
    done = run(*learn, *changes)
    assert done.exit_code == 0, (done.output, done.exception)
    worlds = ["Smokes(Emil)\nCancer(Fred)\n", "Smokes(Gil)\n!Smokes(Hal)\n!Smokes(Ina)\n",
              "Smokes(Anna)\nCancer(Bob)\n"]  # fmt: skip
    (here / "new.db").write_text("---\n".join(worlds))
    likelihood = ("infer", "-i", "run", "--likelihood")
    done = run(*likelihood, "new.db", "-o", "run.csv")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "world 1: log P = -" in done.output
    assert "given 3 constants" in done.output
    found = [float(row["log_probability"]) for row in rows(here / "run.csv")]
    # Of a person: neither, cancer, smokes, both; all persons are independent.
    chance = [exp(0.7), exp(0.7), exp(0.7), exp(1.4)]
    log_z, scores = log(sum(chance)), {"neither": 0.7, "cancer": 0.7, "smokes": 0.7}
    pair = scores["smokes"] + scores["cancer"] - 2 * log_z
    three = scores["smokes"] + 2 * scores["neither"] - 3 * log_z
    assert found == pytest.approx([pair, three, pair], abs=1e-4)
    one = error_of(*likelihood, "new.db", "--size", "3")
    assert "new.db:1:8: undeclared constant Emil" in one
    assert "One domain is scored at a time" in one
    (here / "mixed.db").write_text("Smokes(Anna)\nCancer(Zelda)\n")
    assert "mixed.db:2:8: Zelda is not a constant" in error_of(*likelihood, "mixed.db")
