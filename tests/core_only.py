"""Commands in a process in which only the core of the package is installed.

`python -m tests.core_only FOLDER` hides every package that `pip install nmln` without extras would not
bring, runs the commands below in FOLDER and prints a JSON object: for each its exit code and what it
said.
"""

import contextlib
import io
import json
import os
import sys
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
SHORT = ("--chains", "4", "--steps", "6", "--sweeps", "6")
COMMANDS: dict[str, tuple[str, ...]] = {
    "infer": (
        "infer", "-i", "smokers.mln", "-e", "known.db", "-q", "Cancer", "--sample", "--chains", "4",
        "--levels", "2", "--sweeps", "20", "--burn-in", "5", "-o", "sampled.json",
    ),
    "infer exactly": ("infer", "-i", "smokers.mln", "-q", "Cancer", "--exact"),
    "infer the mode": ("infer", "-i", "smokers.mln", "-e", "known.db", "--map"),
    "learn": (
        "learn", "-i", "smokers.mln", "-t", "smokers.db", "-o", "learned.mln", "--updates", "3",
    ),
    "train": ("train", "people.db", "--config", "people.toml", "--output", "people"),
    "continue training": ("train", "--resume", "people", "--processes", "1"),
    "sample": (
        "sample", "people", "--num-samples", "20", "--chains", "4", "--burn-in", "2",
        "--processes", "1",
    ),
    "likelihood": ("likelihood", "people", *SHORT),
    "train again": ("train", "people.db", "--config", "again.toml", "--output", "again"),
    "combine": ("combine", "people", "again", "--output", "both"),
    "kb train": ("kb", "train", "camps", "--output", "kb", "--epochs", "1", "--width", "2"),
    "kb rank": ("kb", "rank", "kb"),
    "kb complete": ("kb", "complete", "kb", "--top", "2"),
    "data info": ("data", "info", "smokers.mln", "smokers.db"),
    "data corrupt": ("data", "corrupt", "--copies", "10", "--output", "corrupted"),
    "reproduce matching": ("reproduce", "matching", "--help"),
    # What needs an extra.
    "run": ("run", "--data", "mine.smi", "--output", "main"),
    "evaluate": ("evaluate", "mine.smi", "--train", "mine.smi", "--test", "mine.smi"),
    "evaluate --no-fcd": ("evaluate", "mine.smi", "--train", "mine.smi", "--no-fcd"),
    "report": ("report", "people"),
    "sample --pretrained": ("sample", "--pretrained", "pubchem-10"),
    "train on molecules": ("train", "mine.smi", "--config", "mine.toml", "--output", "mine"),
    "train on a set": ("train", "pubchem-9", "--config", "mine.toml", "--output", "mine"),
    "sample molecules": ("sample", "kept", "--num-samples", "4", "--processes", "1"),
    "train --tensorboard": (
        "train", "people.db", "--config", "people.toml", "--output", "events", "--tensorboard",
    ),
    "kb train on a set": ("kb", "train", "nations", "--output", "nations"),
    "data info on molecules": ("data", "info", "mine.smi"),
    "data list": ("data", "list"),
    "data fetch": ("data", "fetch", "qm9"),
    "reproduce toy-tracking": ("reproduce", "toy-tracking", "--output", "toy"),
    "reproduce two-peaks": ("reproduce", "two-peaks", "--output", "peaks"),
    "reproduce n-queens": ("reproduce", "n-queens", "--output", "queens"),
}  # fmt: skip


def core_packages() -> set[str]:
    """The distributions that the package's dependencies bring, without any extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: set[str] = set()
    wanted = [(Requirement(text), "") for text in project["dependencies"]]
    while wanted:
        requirement, extra = wanted.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for one in ("", *requirement.extras):
            if f"{name}[{one}]" not in found:
                found.add(f"{name}[{one}]")
                with contextlib.suppress(metadata.PackageNotFoundError):
                    wanted += [(Requirement(t), one) for t in metadata.requires(name) or []]
    return {name.partition("[")[0] for name in found}


class Hiding:
    """Finds what another finder does, except the modules of some packages."""

    def __init__(self, finder: Any, names: set[str]) -> None:
        self.finder, self.names = finder, names

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname.partition(".")[0] in self.names:
            return None
        return self.finder.find_spec(fullname, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.finder, name)


def hide_extras() -> set[str]:
    """From now on, modules of packages beyond the core cannot be imported; their names."""
    core = core_packages()
    hidden = {
        module
        for module, packages in metadata.packages_distributions().items()
        if not any(canonicalize_name(package) in core for package in packages)
    } - {"nmln", "tests", "packaging"}
    if loaded := hidden & sys.modules.keys() - {"_distutils_hack"}:
        raise RuntimeError(f"these are imported before they could be hidden: {sorted(loaded)}")
    sys.meta_path[:] = [Hiding(finder, hidden) for finder in sys.meta_path]
    return hidden


def command(words: Sequence[str]) -> dict[str, Any]:
    """The exit code of a command in this process, and all that it said."""
    from nmln.cli import main

    sys.argv = ["nmln", *words]
    code: Any = 0
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as left:
            code = left.code or 0
    return {"code": code, "said": said.getvalue()}


def potts() -> dict[str, Any]:
    """An energy of one's own, tempered, with diagnostics."""
    import torch

    import nmln

    space = nmln.Space(nmln.Language(nmln.Attribute("spin", ("s",), ("a", "b", "c"))), {"s": 9})

    def energy(onehot: torch.Tensor) -> torch.Tensor:
        grid = onehot.unflatten(-1, (3, 3, 3))
        return (grid * grid.roll(1, -2) + grid * grid.roll(1, -3)).sum((-3, -2, -1))

    ladder = nmln.Temperatures.geometric(hottest=2.0, levels=3)
    potential = nmln.TemperedPotential(nmln.OneHotPotential(space, energy), ladder)
    kernel, rng = nmln.kernel_named("langevin", space), torch.Generator().manual_seed(0)
    recorder = nmln.Recorder({"share of a": lambda values: (values == 0).double().mean(-1)})
    start = nmln.uniform(space, len(ladder), 8, rng)
    for _ in nmln.sample(potential, kernel, start, 60, rng, burn_in=10, recorder=recorder):
        pass
    found = nmln.diagnose(recorder, ladder)
    told: dict[str, Any] = {"ess": found.mixing["share of a"][-1].ess}
    for name, use in (
        ("write_summary", lambda: nmln.write_summary("potts.html", found)),
        ("to_arviz", found.to_arviz),
        ("Molecules", lambda: nmln.Molecules.read("pubchem-9")),
    ):
        try:
            use()
        except nmln.InputError as error:
            told[name] = str(error)
    return told


def run(folder: Path) -> dict[str, Any]:
    """Every command, one after the other, in one process."""
    from tests.golden.scenario import write_data

    write_data(folder)
    os.chdir(folder)
    os.environ.pop("NMLN_DATA", None)
    hidden = hide_extras()
    import nmln

    return {
        "hidden": sorted(hidden),
        "potts": potts(),
        "public": [name for name in nmln._HOMES if getattr(nmln, name) is None],
        "commands": {name: command(words) for name, words in COMMANDS.items()},
        "imported": sorted(hidden & {name.partition(".")[0] for name in sys.modules}),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(Path(sys.argv[1]))))
