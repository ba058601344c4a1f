"""Commands with every setting given, and what they leave behind in a form that can be compared.

`python -m tests.golden.scenario FOLDER` runs them in a new folder; `--accept` replaces the expected
results by those of this version. A commit that does so names the reason in CHANGELOG.md. The folder
`kept` is a run of version 0.1.0.dev1 with the settings of `mine.toml` that was ended after three steps.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from math import isclose
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
EXPECTED = HERE / "expected"

# Every generation of processors rounds sums in another order. These settings, which must be there when a
# process starts, make most of them compute like the oldest. Last digits still differ between makers of
# processors, so numbers are compared with a tolerance (`alike`).
PORTABLE = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "MKL_DEBUG_CPU_TYPE": "",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX2,-AVX,-FMA,-FMA4",
    "OPENBLAS_CORETYPE": "Nehalem",
    "NPY_DISABLE_CPU_FEATURES": "",
    "OMP_NUM_THREADS": "1",
    "NMLN_COMPILED": "0",
    "COLUMNS": "400",
    "NO_COLOR": "1",
}

SAMPLING = (
    "--chains", "6", "--burn-in", "3", "--thin", "2", "--moves", "4", "--kernel", "balanced",
    "--seed", "11", "--block-size", "3", "--processes", "1",
)  # fmt: skip
KB = (
    "--epochs", "4", "--objective", "conditional", "--width", "2", "--hidden", "4", "--embedding", "2",
    "--rank", "2", "--paths", "2", "--batch", "8", "--negatives", "2", "--rate", "0.02", "--hide", "0.1",
    "--dropout", "0.1", "--penalty", "0.001", "--patience", "9", "--seed", "5",
    "--checkpoint-seconds", "1000",
)  # fmt: skip
INFER = (
    "--chains", "8", "--levels", "3", "--hottest", "5", "--sweeps", "60", "--burn-in", "10",
    "--kernel", "gibbs", "--seed", "3", "--error", "0.5",
)  # fmt: skip
MAIN = (
    "--size", "4", "--num-samples", "40", "--chains", "4", "--burn-in", "3", "--seed", "2",
    "--processes", "1",
)  # fmt: skip

COMMANDS: dict[str, tuple[str, ...]] = {
    "train-worlds": ("train", "people.db", "--config", "people.toml", "--output", "people-run"),
    "sample-worlds": ("sample", "people-run", "--num-samples", "20", *SAMPLING),
    "report": ("report", "people-run"),
    "train-two": (
        "train", "people.db", "--config", "two.toml", "--output", "two-run", "--processes", "2",
    ),
    "train-molecules": ("train", "mine.smi", "--config", "mine.toml", "--output", "mine-run"),
    "sample-molecules": ("sample", "mine-run", "--num-samples", "60", "--all-levels", *SAMPLING),
    "sample-scaffold": (
        "sample", "mine-run", "--num-samples", "12", "--output", "scaffold", "--scaffold", "CC*",
        "--formula", "1.5 bond(x, y, double)", *SAMPLING,
    ),
    "evaluate": ("evaluate", "mine-run", "--no-fcd", "--at", "5,10", "--processes", "1"),
    "likelihood": (
        "likelihood", "mine-run", "--chains", "4", "--steps", "6", "--sweeps", "6", "--seed", "1",
    ),
    "resume-kept": ("train", "--resume", "kept", "--data", "mine.smi", "--processes", "1"),
    "train-again": ("train", "mine.smi", "--config", "again.toml", "--output", "again-run"),
    "combine": ("combine", "mine-run", "again-run", "--output", "both", "--fit", "2"),
    "run": ("run", "--data", "mine.smi", *MAIN, "--output", "main"),
    "shipped": (
        "sample", "--pretrained", "pubchem-10", "--num-samples", "20", "--output", "shipped",
        "--chains", "10", "--burn-in", "3", "--thin", "1", "--moves", "6", "--kernel", "balanced",
        "--seed", "7", "--block-size", "5", "--processes", "1",
    ),
    "kb-train": ("kb", "train", "camps", "--output", "kb-run", *KB),
    "kb-rank": ("kb", "rank", "kb-run", "--batch", "16"),
    "kb-complete": ("kb", "complete", "kb-run", "--top", "5"),
    "infer-exact": (
        "infer", "-i", "smokers.mln", "-e", "known.db", "-q", "Cancer,Smokes(Bob)", "--exact",
        "-o", "exact.csv", "--seed", "0",
    ),
    "infer-chains": (
        "infer", "-i", "smokers.mln", "-e", "known.db", "-q", "Cancer", "--sample", "-o",
        "sampled.json", *INFER,
    ),
    "infer-map": ("infer", "-i", "smokers.mln", "-e", "known.db", "--map", "-o", "map.db", "--exact"),
    "learn": (
        "learn", "-i", "smokers.mln", "-t", "smokers.db", "-o", "learned.mln", "--prior", "2",
        "--exact", "--updates", "20", "--chains", "10", "--seed", "4",
    ),
    "corrupt": ("data", "corrupt", "--rates", "0.3,0.1", "--copies", "50", "--seed", "6",
                "--output", "corrupted"),
    "tracking": ("reproduce", "--help"),
    "unknown-verb": ("learnt",),
    "unknown-flag": ("train", "people.db", "--step", "3"),
    "missing-file": ("train", "nothing.db"),
    "bad-setting": ("train", "people.db", "--set", "chains.moves=0", "--output", "bad"),
    "second-training": ("train", "people.db", "--config", "people.toml", "--output", "people-run"),
    "contradiction": ("infer", "-i", "smokers.mln", "-e", "wrong.db", "-q", "Cancer"),
}  # fmt: skip
"""In the order in which they run; the last ones are refused."""

TABLES: dict[str, dict[str, Any]] = {
    "data": {"train_share": 0.75, "split_seed": 3},
    "ladder": {"method": "noising", "rates": [0.2, 0.02]},
    "model": {
        "potential": "graph", "layers": 1, "hidden": 4, "width": 2, "networks": 1, "residual": False,
        "bound": 50.0, "base": True, "pieces": True, "seed": 1,
    },
    "chains": {
        "kernel": "balanced", "replicas": 8, "sweeps": 2, "moves": 3, "changes": 0.0, "phases": "both",
        "start": "data", "renewal": 0.1, "weighted": False,
    },
    "optimiser": {
        "method": "adam", "learning_rate": 0.002, "common": 1.0, "schedule": "cosine", "warm_up": 3,
        "trust": 0.5, "clip": 20.0, "weight_decay": 0.1, "energy_penalty": 0.01, "spread": 4.0,
        "average": 0.9,
    },
    "training": {
        "steps": 6, "batch": 8, "warm_start": 0, "corruption": "step", "seed": 2,
        "checkpoint_seconds": 1000.0, "keep": 1, "retries": 1, "processes": 1, "blocks": 2,
    },
    "sampling": {"kernel": "balanced", "moves": 4},
}  # fmt: skip
MOLECULES = (
    "CCCO", "CCCN", "CCOC", "C=CCO", "N#CCC", "O=CCC", "C1CCC1", "CCNC", "OCCO", "C#CCC", "CC(C)O",
    "CC(=O)C", "CC(=O)O", "CC(N)=O", "C1CC1O", "CC(C)C", "C=C(C)C", "CC=CC", "NCCO", "FC(F)F",
)  # fmt: skip
SMOKERS = """person = {Anna, Bob}
Smokes(person)
Cancer(person)
Friends(person, person) symmetric irreflexive
1.5 Smokes(x) => Cancer(x)
1.1 Friends(x, y) => (Smokes(x) <=> Smokes(y))
"""


def write_data(folder: Path) -> None:
    """Everything that the commands read."""
    people = ("Anna", "Bob", "Carl")
    worlds = []
    for number in range(12):
        one, other = people[number % 3], people[(number + 1 + number // 6) % 3]
        lines = [f"friends({one}, {other})", *(f"smokes({p})" for p in people if p != one)]
        worlds.append("\n".join(lines))
    (folder / "people.db").write_text("\n---\n".join(worlds) + "\n")
    (folder / "mine.smi").write_text("\n".join(MOLECULES) + "\n")
    (folder / "smokers.mln").write_text(SMOKERS)
    (folder / "smokers.db").write_text(
        "Smokes(Anna)\nCancer(Anna)\n---\nFriends(Anna, Bob)\n---\nSmokes(Bob)\nSmokes(Anna)\n"
    )
    shutil.copytree(HERE / "kept", folder / "kept")
    (folder / "known.db").write_text("Smokes(Anna)\n0.8 Friends(Anna, Bob)\n")
    (folder / "wrong.db").write_text("Smokes(Anna)\n!Smokes(Anna)\n")
    _write_config(folder / "people.toml")
    _write_config(folder / "two.toml", training={"processes": 2})
    _write_config(folder / "mine.toml", optimiser={"spread": 0.0})
    _write_config(folder / "again.toml", model={"seed": 8}, training={"seed": 9})
    pairs = [(a, b) for a in range(5) for b in range(5) if a != b]
    facts = [f"p{a}\t{'ally' if a % 2 == b % 2 else 'rival'}\tp{b}" for a, b in pairs]
    (folder / "camps").mkdir()
    for name, part in (("valid", facts[:3]), ("test", facts[3:6]), ("train", facts[6:])):
        (folder / "camps" / f"{name}.tsv").write_text("".join(f"{fact}\n" for fact in part))


def _write_config(path: Path, **changes: dict[str, Any]) -> None:
    lines = []
    for name, table in TABLES.items():
        lines.append(f"[{name}]")
        told = {**table, **changes.get(name, {})}
        lines += [f"{key} = {json.dumps(value)}" for key, value in told.items()]
    path.write_text("\n".join(lines) + "\n")


def run(folder: Path) -> dict[str, int]:
    """Run all commands in a folder, in this process; their exit codes."""
    from nmln.cli import main
    from tests.faults.shim import draw_nothing

    write_data(folder)
    settings = [f"{table}.{key}={json.dumps(value)}" for table, keys in TABLES.items()
                for key, value in keys.items() if f"{table}.{key}" != "training.processes"]  # fmt: skip
    draw_nothing()
    with contextlib.chdir(folder):
        codes = {}
        for name, words in COMMANDS.items():
            added = [w for one in settings for w in ("--set", one)] if name == "run" else []
            codes[name] = _call(main, (*words, *added))
        (folder / "python.json").write_text(json.dumps(in_python(), indent=1) + "\n")
    return codes


def _call(main: Any, words: tuple[str, ...]) -> int:
    sys.argv = ["nmln", *words]
    said, told = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told):
            main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    else:
        code = 0
    if code not in (0, 2):
        raise AssertionError(f"{words} left with {code}: {said.getvalue()} {told.getvalue()}")
    return code


def in_python() -> dict[str, Any]:
    """What the public functions draw and compute with fixed seeds."""
    import torch

    import nmln

    space = nmln.Space(
        nmln.Language(nmln.Attribute("spin", ("site",), ("a", "b", "c"))), {"site": 9}
    )

    def potts(onehot: torch.Tensor) -> torch.Tensor:
        grid = onehot.unflatten(-1, (3, 3, 3))
        return 1.1 * (grid * grid.roll(1, -2) + grid * grid.roll(1, -3)).sum((-3, -2, -1))

    ladder = nmln.Temperatures.geometric(hottest=2.0, levels=3)
    potential = nmln.TemperedPotential(nmln.OneHotPotential(space, potts), ladder)
    found: dict[str, Any] = {}
    for name in ("gibbs", "gradients", "langevin", "path", "balanced", "metropolis", "systematic"):
        rng = torch.Generator().manual_seed(5)
        start = nmln.uniform(space, 3, 4, rng)
        kernel = nmln.kernel_named(name, space)
        sweeps = nmln.sample(potential, kernel, start, 6, rng, moves=3, burn_in=4)
        found[name] = [hash_of(sweep.state.values) for sweep in sweeps]
    rng = torch.Generator().manual_seed(8)
    world = torch.zeros(space.groups, dtype=space.dtype)
    found["corrupt"] = nmln.corrupt(space, world, 0.4, rng).tolist()
    found["shipped"] = [
        hash_of(sweep.state.values)
        for sweep in nmln.Model.pretrained("pubchem-10").sample(
            2, rng, chains=3, burn_in=1, thin=1, moves=2, kernel="balanced"
        )
    ]
    return found


def hash_of(tensor: Any) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:16]


# What is left behind, in a form that can be compared.

_SPENT = re.compile(r"seconds|per_second|bookkeeping|decoding_share|memory|version")
_SENTENCES = re.compile(r"findings|notes|note|warnings|command|resume|message")
_PICTURES = (".png", ".svg", ".html")
_NUMBER = re.compile(
    r"(?<![\w.])-?\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)(?![\w.])"
)  # with a point or exponent
_FINGERPRINT = re.compile("[0-9a-f]{16}")
_RELATIVE, _ABSOLUTE = 1e-4, 1e-6
_SKIPPED = re.compile(r"(^|/)(\.[^/]*|events\.out\.[^/]*)$|^shipped/\.|^runs/pretrained")


def gathered(folder: Path) -> dict[str, str]:
    """Every file that commands left, as text: numbers as they are, no times, sentences or folders."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not _SKIPPED.search(name):
            found[name] = _comparable(path, folder)
    return found


def _comparable(path: Path, folder: Path) -> str:
    content = path.read_bytes()
    if path.name == "worlds.safetensors":
        return _kept_worlds(content)
    if path.suffix == ".safetensors":
        return _numbers(content)
    if path.suffix in _PICTURES:
        return "a picture or page\n"
    if path.name == "manifest.json":
        return "".join(f"{key}\n" for key in sorted(json.loads(content)))
    if path.suffix == ".json":
        told = _timeless(json.loads(content))
        return _homeless(json.dumps(told, indent=1, ensure_ascii=False), folder) + "\n"
    if path.suffix == ".jsonl":
        lines = [json.dumps(_timeless(json.loads(line))) for line in content.splitlines()]
        return _homeless("\n".join(lines), folder) + "\n"
    if path.name.endswith(".csv"):
        return _homeless(_timeless_table(content.decode()), folder)
    try:
        return _homeless(content.decode("utf-8"), folder)
    except UnicodeDecodeError:
        return f"{len(content)} bytes, {hashlib.sha256(content).hexdigest()}\n"


def _kept_worlds(content: bytes) -> str:
    """The parsed data of a run; hashes stand for tensors, and the version of RDKit is left out."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    told = json.loads(header.pop("__metadata__")["nmln"])
    told["origin"]["versions"].pop("rdkit", None)
    del told["digest"]  # of all this, and of the version
    for name, one in header.items():
        start, end = (8 + length + at for at in one["data_offsets"])
        shape = [one["dtype"], one["shape"]]
        told[name] = [*shape, hashlib.sha256(content[start:end]).hexdigest()]
    return json.dumps(told, indent=1, sort_keys=True) + "\n"


def _numbers(content: bytes) -> str:
    """The tensors of a file: numbers by their mean, size and ends, all others by their bytes."""
    import torch  # only here: other tests import this module before they hide packages
    from safetensors.torch import load

    length = int.from_bytes(content[:8], "little")
    lines = [f"{length} bytes of header"]
    for name, tensor in sorted(load(content).items()):
        kind = f"{name} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        if tensor.is_floating_point() and tensor.numel():
            wide = tensor.double().flatten()
            weights = torch.arange(1, len(wide) + 1).double().cos()
            found = (wide.mean(), wide.norm(), wide.min(), wide.max(), wide @ weights)
            lines.append(f"{kind}: " + " ".join(f"{float(one):.9e}" for one in found))
        else:
            lines.append(f"{kind}: {hashlib.sha256(tensor.numpy().tobytes()).hexdigest()}")
    return "\n".join(lines) + "\n"


def alike(found: str, wanted: str) -> bool:
    """Whether two texts are the same but for the last digits of numbers with a point."""
    parts, others = _NUMBER.split(found), _NUMBER.split(wanted)
    if parts != others:
        return False
    pairs = zip(_NUMBER.findall(found), _NUMBER.findall(wanted), strict=True)
    return all(
        isclose(float(one), float(other), rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
        for one, other in pairs
    )


def _timeless_table(text: str) -> str:
    rows = [line.split(",") for line in text.splitlines()]
    spent = {i for i, name in enumerate(rows[0]) if _SPENT.search(name)} if rows else set()
    header = ",".join(rows[0]) if rows else ""
    return "\n".join(
        [
            header,
            *(",".join("" if i in spent else c for i, c in enumerate(r)) for r in rows[1:]),
            "",
        ]
    )


def _timeless(content: Any, key: str = "") -> Any:
    """The same keys; what was measured by a clock or is said in words becomes a word."""
    if _SPENT.search(key) and not isinstance(content, dict):
        return "time"
    if _SENTENCES.search(key) and not isinstance(content, dict):
        return "words"
    if key == "model" and isinstance(content, str) and _FINGERPRINT.fullmatch(content):
        return "a fingerprint"
    if key == "evaluations" and isinstance(content, list):  # of a checkpoint: the last is a time
        return content[:-1]
    if isinstance(content, dict):
        return {name: _timeless(value, name) for name, value in content.items()}
    return [_timeless(one) for one in content] if isinstance(content, list) else content


def _homeless(text: str, folder: Path) -> str:
    return text.replace(str(folder), "FOLDER")


def made(folder: Path) -> dict[str, str]:
    """What this version leaves, computed in a process that rounds alike on every machine."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden.scenario", str(folder)],
        cwd=ROOT,
        env={**os.environ, **PORTABLE},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return gathered(folder)


def expected() -> dict[str, str]:
    return {
        path.relative_to(EXPECTED).as_posix().removesuffix(".txt"): path.read_text()
        for path in sorted(EXPECTED.rglob("*.txt"))
    }


def accept(found: dict[str, str]) -> None:
    """Make what was found the expected results."""
    for path in EXPECTED.rglob("*.txt"):
        path.unlink()
    for name, text in found.items():
        path = EXPECTED / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--accept", action="store_true")
    given = parser.parse_args()
    if given.accept:
        with tempfile.TemporaryDirectory() as name:
            accept(made(Path(name).resolve() / "golden"))
        return
    import torch

    torch.set_num_threads(1)
    given.folder.mkdir()
    codes = run(given.folder.resolve())
    (given.folder / "codes.json").write_text(json.dumps(codes, indent=1) + "\n")


if __name__ == "__main__":
    main()
