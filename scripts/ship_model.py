"""Put a finished run into the package, with a card that describes it and its quality.

    nmln train pubchem-10 --minutes 60 --output runs/long
    nmln sample runs/long --num-samples 200000
    nmln evaluate runs/long
    nmln sample runs/long --num-samples 20000 --all-levels --output runs/long/levels
    nmln likelihood runs/long
    python scripts/ship_model.py runs/long pubchem-10 --command "nmln train pubchem-10 --minutes 60 ..."

Every number of the card comes from the files that these commands write; the commands that made the run
are repeated as they are given. `--beside NAME=RUN` names runs that were sampled and evaluated in the
same way, for comparison. The card goes into the package and to docs/explanation/models.md.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from nmln.config import configure
from nmln.files import write_lines
from nmln.model import Model, pretrained
from nmln.runs.likelihood import by_log_z
from nmln.training.method import Method

ROOT = Path(__file__).parent.parent
MARKS = ("100", "300", "1000", "3000", "10000")


def numbers(run: Path) -> dict[str, Any]:
    """The evaluation of the target level of a run, and the validity of all levels."""
    samples = json.loads((run / "evaluation" / "evaluation.json").read_text())["samples"]
    path = run / "likelihood.json"
    likelihood = json.loads(path.read_text()) if path.exists() else {}
    path = run / "levels" / "sampling.json"
    sampled = json.loads(path.read_text()) if path.exists() else {"levels": [], "attempts": 0}
    return {
        **samples[-1],
        "levels": [one["valid"] / sampled["attempts"] for one in sampled["levels"]],
        "nats": likelihood.get("test_molecules"),
        "nats_error": likelihood.get("test_molecules_error"),
        "nats_interval": by_log_z(likelihood, "test_molecules"),
    }


def columns(found: dict[str, Any]) -> list[str]:
    """One column of the table."""
    nats = "not measured"
    if found["nats"] is not None:
        least, most = found["nats_interval"]
        nats = f"{found['nats']:.2f} ({found['nats_error']:.2f}) [{least:.2f}, {most:.2f}]"
    return [
        f"{found['attempts']:,}",
        _share(found["valid"]),
        *(
            ", ".join(
                _number(found["recall"][kind]["at"][mark]["value"]) for kind in ("test", "train")
            )
            for mark in MARKS
        ),
        _share(found["coverage_test"]),
        _share(found["known_train"]),
        _share(found["known_test"]),
        f"{found['vun']['value']:.1%}",
        "-" if found["fcd"] is None else f"{found['fcd']['value']:.2f}",
        nats,
    ]


ROWS = (
    "samples",
    "valid",
    *(f"in test, train among the {int(mark):,} most frequent" for mark in MARKS),
    "test set covered",
    "valid ones in the training set",
    "valid ones in the test set",
    "valid, unique, new (of the attempts)",
    "FCD to the test set",
    "held-out nats per molecule",
)


def table(beside: dict[str, dict[str, Any]]) -> list[str]:
    """The evaluations side by side."""
    lines = [
        "| | " + " | ".join(beside) + " |",
        "| --- |" + " --- |" * len(beside),
    ]
    for name, *cells in zip(ROWS, *map(columns, beside.values()), strict=True):
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def levels(found: dict[str, Any], rates: tuple[float, ...]) -> list[str]:
    return [
        "| rate of corruption | valid |",
        "| --- | --- |",
        *(f"| {rate:g} | {valid:.1%} |" for rate, valid in zip(rates, found["levels"], strict=True)),
    ]  # fmt: skip


def card(name: str, run: Path, beside: dict[str, Path], recipe: list[str]) -> list[str]:
    """The whole text of the card."""
    head = json.loads((run / "config.json").read_text())
    config, found = configure(head["config"]), numbers(run)
    split = json.loads((run / "split.json").read_text())
    size = sum(one.stat().st_size for one in (run / "model").iterdir()) / 1e6
    ladder, model, chains = Method.of(config.ladder).noise, config.model, config.chains
    number, held_out, atoms = len(split["train"]), len(split["test"]), name.rsplit("-", 1)[-1]
    return [
        f"# The model {name}",
        "",
        f"Molecules of {atoms} heavy atoms without training: `nmln sample --pretrained {name}`, or",
        f'`nmln.Model.pretrained("{name}")`.',
        "",
        f"An NMLN* with {_counted(model.networks)} of {model.layers} layers of {model.hidden}",
        f"at each of {len(ladder.rates)} levels{_pieces(model.pieces)},",
        f"{size:.1f} MB. It has learned from {number:,} of the",
        f"{number + held_out:,} molecules of the built-in set `{config.data.source}`; the other",
        f"{held_out:,} were held out. {config.training.steps:,} steps with {chains.replicas} replicas",
        f"and {chains.sweeps * chains.moves} moves each took {_time(run, head)}:",
        "",
        "```sh",
        *recipe,
        "```",
        "",
        *_chains(run / "model"),
        "## How good it is",
        "",
        *table({"this model": found, **{key: numbers(path) for key, path in beside.items()}}),
        "",
        "Intervals are 95 %. The likelihood is that of a molecule, all its labelled worlds together;",
        "beside it are its standard error over molecules and, in square brackets, where the interval of",
        "log Z puts it. Samples of one chain are correlated, so that repeats among them are more",
        "frequent than among independent draws. Valid samples by level:",
        "",
        *levels(found, ladder.rates),
        "",
        "## What it is for, and what not",
        "",
        "For trying the software and for comparisons. It covers only molecules of this size with the",
        "atoms of its data, without charges, stereochemistry or three dimensions, and it does not know",
        "what is stable, safe or can be synthesised: its molecules are suggestions.",
        "",
        "## Data and licence",
        "",
        "The molecules are public facts collected by PubChem, taken from the package `chemicals` (MIT);",
        "see `nmln/data/PROVENANCE.md`. The weights have the licence of this package.",
    ]


def _chains(model: Path) -> list[str]:
    """How many chains come with a model, if there are some."""
    found = Model.load(model).replicas
    if found is None:
        return []
    return [
        f"It comes with {found.count:,} chains to start from, mixed for {found.sweeps:,} sweeps.",
        "",
    ]


def _counted(networks: int) -> str:
    return "a graph network" if networks == 1 else f"the mean of {networks} graph networks"


def _trained(run: Path, head: dict[str, Any]) -> list[Path]:
    """The runs that a model was combined from, or the run itself."""
    if "combined" not in head:
        return [run]
    heads = {
        Path(one): json.loads((Path(one) / "config.json").read_text()) for one in head["combined"]
    }
    return [folder for one, its in heads.items() for folder in _trained(one, its)]


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 100 and value % 1 else f"{value:.0f}"


def _pieces(counted: bool) -> str:
    return " and a count of pieces (`PiecesPotential`)" if counted else ""


def _time(run: Path, head: dict[str, Any]) -> str:
    """The training time of the run itself, or of each run that it was combined from."""
    folders = _trained(run, head)
    minutes = []
    for folder in folders:
        last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
        minutes.append(round(last["seconds"] / 60))
    cores = json.loads((folders[0] / "config.json").read_text())["config"]["training"]["processes"]
    told = f"{min(minutes)} to {max(minutes)}" if len(folders) > 1 else f"{minutes[0]}"
    return f"{told} minutes on {max(1, cores)} core(s){' per network' if len(folders) > 1 else ''}"


def _share(share: dict[str, Any]) -> str:
    return f"{share['value']:.1%} [{100 * share['low']:.1f}, {100 * share['high']:.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--command", action="append", required=True)
    parser.add_argument("--beside", action="append", default=[], metavar="NAME=RUN")
    given = parser.parse_args()
    beside = {key: Path(path) for key, path in (text.split("=", 1) for text in given.beside)}
    target = ROOT / "nmln" / "data" / "pretrained" / given.name
    lines = card(given.name, given.run, beside, given.command)
    pretrained.pack(given.run, target)
    write_lines(target / pretrained.CARD, lines)
    write_lines(ROOT / "docs" / "explanation" / "models.md", lines)
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
