"""Models from folders: of a run, finished or not, or of a saved model; and those of the package."""

import shlex
from pathlib import Path

import torch

from nmln import checkpoint
from nmln.errors import InputError
from nmln.files import refuse_links
from nmln.model import pretrained
from nmln.model.model import Model

BASELINE = "baseline.json"
"""The description of a baseline, which stands in its folder in place of that of a run."""


def load(source: str | Path) -> Model:
    """The model of a run, of a model's own folder, or of the package.

    A run that is not finished gives the model of its newest checkpoint. A name that is not a folder,
    such as `pubchem-10`, is that of a model which comes with the package. Nothing in the files is
    executed.
    """
    folder = Path(source)
    if checkpoint.is_model(folder):
        return Model.load(folder)
    if not folder.exists():
        if str(source) in pretrained.names():
            return Model.pretrained(str(source))
        known = ", ".join(pretrained.names()) or "none in this installation"
        raise InputError(
            "a model must be the folder of a run, a folder that Model.save wrote, or the name of a "
            f"model in the package ({known}), but this does not exist. Check the path.",
            str(source),
            kind="missing",
        )
    return load_run(folder)


def load_run(folder: Path) -> Model:
    """The model of a finished run, or of its newest checkpoint; refuses links inside the run."""
    return load_newest(folder)[0]


def load_newest(folder: Path) -> tuple[Model, int]:
    """`load_run`, and the step that the model is of."""
    refuse_links(folder)
    refuse_baseline(folder)
    if (folder / checkpoint.MODEL).exists():
        model = Model.load(folder / checkpoint.MODEL)
        return model, model.config.training.steps
    kept = checkpoint.load(folder)
    model = Model.described(kept.content, str(kept.path))
    try:
        tree = checkpoint.unflatten(kept.tensors, kept.content["tree"])
        weights = tree["average"] or tree["potential"]
        if not all(isinstance(tensor, torch.Tensor) for tensor in weights.values()):
            raise TypeError("weights are tensors")
    except checkpoint.FOREIGN as error:
        raise InputError(
            f"this checkpoint does not hold a model ({error}). Restore it from a copy.",
            str(kept.path),
            kind="damaged",
        ) from None
    model.take(weights, str(kept.path))
    return model, kept.step


def refuse_baseline(folder: Path) -> None:
    """Refuse the folder of a baseline, which is not a model of this package."""
    if (folder / BASELINE).is_file():
        raise InputError(
            "this folder holds a baseline, which has commands of its own: "
            f"{shlex.join(['nmln', 'baseline', 'sample', str(folder)])} draws from it.",
            str(folder),
            kind="unsupported",
        )
