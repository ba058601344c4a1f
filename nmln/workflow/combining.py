"""Several runs as one model, in a folder that is sampled and evaluated like that of a run."""

from collections.abc import Sequence
from pathlib import Path

from nmln.checkpoint import read_json
from nmln.files import InputError
from nmln.model import Model, Report
from nmln.workflow import sources
from nmln.workflow.sampling import load
from nmln.workflow.training import check_new, read_head, write_head


def combine(
    folders: Sequence[Path],
    output: Path,
    steps: int = 0,
    report: Report | None = None,
    *,
    pieces: bool = False,
) -> Model:
    """The mean of the models in the folders; they have learned from the same split of the same data.

    With `steps`, how much each of them counts at each level is then fitted to the training data; with
    `pieces`, what each further piece of a world costs as well.
    """
    if len(folders) < 2:
        raise InputError("one run alone has no mean. Name two or more.")
    check_new(output)
    heads = [read_head(folder) for folder in folders]
    if pieces and not steps and not heads[0]["config"]["model"].get("pieces"):
        raise InputError(
            "what a piece costs is learned by fitting. Say for how many steps: --fit 300."
        )
    splits = [read_json(folder / "split.json") for folder in folders]
    for folder, head, split in zip(folders[1:], heads[1:], splits[1:], strict=True):
        same_data = head["config"]["data"]["source"] == heads[0]["config"]["data"]["source"]
        if split != splits[0] or head["kind"] != heads[0]["kind"] or not same_data:
            raise InputError(
                f"this run has learned from other data than {folders[0]}, or from another split of "
                "them: what is held out from the one the other may know. Train it on the same.",
                str(folder),
            )
    model = Model.combined([load(folder) for folder in folders], pieces=pieces)
    if steps:
        source = sources.load(model.config.data)
        model = model.weighed(sources.pick(source.worlds, source.train), steps, report)
    output.mkdir(parents=True, exist_ok=True)
    model.save(output / "model")
    names = [str(folder) for folder in folders]
    write_head(output, model, heads[0]["kind"], splits[0], combined=names)
    return model
