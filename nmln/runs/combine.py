"""Several runs as one model, in a folder that is sampled and evaluated like that of a run."""

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
    """The mean of the models in the folders; they have learned from the same split of the same data.

    With `steps`, how much each of them counts at each level is then fitted to the training data; with
    `pieces`, what each further piece of a world costs as well. `data` says where the data are now, if
    they have moved.
    """
    _check_folders(folders)
    home = RunFolder(output)
    home.check_new()
    heads = [RunFolder(folder).read_head() for folder in folders]
    if pieces and not steps and not heads[0].config.model.pieces:
        raise InputError(
            "what a piece costs is learned by fitting. Say for how many steps: --fit 300."
        )
    _check_data(folders, heads)
    source = RunFolder(folders[0]).read_source(heads[0], data)
    models = [load_run(folder) for folder in folders]
    model = Model.combined(models, pieces=pieces, names=[str(folder) for folder in folders])
    _make(output)  # before minutes go into fitting
    with home.locked("combining"):
        home.check_new(source)  # again: another process may have been here meanwhile
        if steps:
            model = model.weighed(sources.pick(source.worlds, source.train), steps, report)
        model.save(home.model)
        home.write_head(model, source, combined=[str(folder) for folder in folders])
    return model


def _check_folders(folders: Sequence[Path]) -> None:
    if len(folders) < 2:
        raise InputError("one run alone has no mean. Name two or more.")
    for number, folder in enumerate(folders):
        if folder.resolve() in [one.resolve() for one in folders[:number]]:
            raise InputError(
                "this run is named twice. Name each of them once.", str(folder), kind="conflict"
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
                f"this run has learned from other data than {own[0]}, or from another split of "
                "them: what is held out from the one the other may know. Train it on the same.",
                str(folder),
                kind="conflict",
            )
