"""Several runs combined into one model, in a folder that can be used like that of a run."""

from collections.abc import Sequence
from pathlib import Path

from nmln.checkpoint import explain, read_json
from nmln.errors import InputError
from nmln.model import Model, Report, load_run
from nmln.runs import data as sources
from nmln.runs.folder import RunFolder, RunHead


def combine(
    folders: Sequence[Path],
    output: Path,
    steps: int = 0,
    report: Report | None = None,
    *,
    pieces: bool = False,
    data: str | None = None,
) -> Model:
    """The mean of the models in the folders; they must share the data and their split.

    With `steps`, the weight of each model at each level is then fitted to the training data; with
    `pieces`, also the cost per connected component. `data` is the new location of the data, if they have
    moved.
    """
    _check_folders(folders)
    home = RunFolder(output)
    home.check_new()
    heads = [RunFolder(folder).read_head() for folder in folders]
    if pieces and not steps and not heads[0].config.model.pieces:
        raise InputError(
            "the cost per component must be fitted, but no steps are given. Add, for example, --fit 300."
        )
    _check_data(folders, heads)
    source = RunFolder(folders[0]).read_source(heads[0], data)
    models = [load_run(folder) for folder in folders]
    model = Model.combined(models, pieces=pieces, names=[str(folder) for folder in folders])
    _make(output)  # before the fit, which takes minutes
    with home.locked("combining"):
        home.check_new(source)  # again: another process may have written here in the meantime
        if steps:
            model = model.weighed(sources.pick(source.worlds, source.train), steps, report)
        model.save(home.model)
        home.write_head(model, source, combined=[str(folder) for folder in folders])
    return model


def _check_folders(folders: Sequence[Path]) -> None:
    if len(folders) < 2:
        raise InputError(f"at least two runs must be named, got {len(folders)}. Name another one.")
    for number, folder in enumerate(folders):
        if folder.resolve() in [one.resolve() for one in folders[:number]]:
            raise InputError(
                "this run is named twice. Name each run once.", str(folder), kind="conflict"
            )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(explain(error, folder), str(folder), kind="system") from None


def _check_data(folders: Sequence[Path], heads: Sequence[RunHead]) -> None:
    """Refuse runs on other data, or on another split of them."""
    splits = [read_json(RunFolder(folder).split) for folder in folders]
    own, *others = zip(folders, heads, splits, strict=True)
    for folder, head, split in others:
        same = head.kind == own[1].kind
        same &= head.fingerprint == own[1].fingerprint
        if head.fingerprint is None:  # of an earlier version; else the data may have moved
            same &= head.config.data.source == own[1].config.data.source
        if split != own[2] or not same:
            raise InputError(
                f"this run must have the data and the split of {own[0]}, but has others: one model "
                "would know data that are held out from another. Train it on the same split.",
                str(folder),
                kind="conflict",
            )
