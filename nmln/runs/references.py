"""The training and the test set that samples are compared with: files, named sets, or those of a run."""

from pathlib import Path
from typing import Literal

from nmln.errors import InputError
from nmln.molecules.sample_files import Reference, read_reference
from nmln.runs.baseline_folder import read_any_head
from nmln.runs.folder import RunFolder

Part = Literal["train", "test"]


def references(
    train: str | None,
    test: str | None,
    folder: Path | None = None,
    column: str | None = None,
    size: int | None = None,
    processes: int = 1,
    data: str | None = None,
) -> tuple[Reference, Reference]:
    """The training and the test set, each from a file, a named set or the run in a folder."""
    runs: dict[Path, dict[Part, Reference]] = {}

    def find(part: Part, source: str | None) -> Reference:
        if source is None and folder is None:
            what = "training" if part == "train" else "test"
            raise InputError(
                f"the {what} set is not known. Name a file, a set or the folder of a run with --{part}, "
                "or the run that has both with --run.",
                kind="missing",
            )
        if source is not None and not Path(source).is_dir():
            return read_reference(source, column, size, processes)
        run = Path(source) if source is not None else folder or Path()
        if run not in runs:
            runs[run] = of_run(run, data)
        if not (found := runs[run][part]).smiles:
            raise InputError(
                f"this run has no {part} molecules. Name some: --{part}.", str(run), kind="missing"
            )
        return found

    return find("train", train), find("test", test)


def of_run(folder: Path, data: str | None = None) -> dict[Part, Reference]:
    """The molecules that a run was trained on, and those that it held out."""
    home = RunFolder(folder)
    head = read_any_head(home)
    if head.kind != "molecules":
        raise InputError(
            "this must be a run on molecules, but is not. Name another one.",
            str(folder),
            kind="unsupported",
        )
    source = home.read_source(head, data)
    sizes = frozenset(len(space.domain["node"]) for space in source.spaces)
    chosen: dict[Part, frozenset[str]] = {
        "train": frozenset(source.names[at] for at in source.train.tolist()),
        "test": frozenset(source.names[at] for at in source.test.tolist()),
    }
    return {part: Reference(f"{folder} ({part})", chosen[part], sizes) for part in chosen}
