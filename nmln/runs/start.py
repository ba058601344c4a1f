"""The run whose weights another one starts with: read, recorded, and found again."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from nmln import checkpoint
from nmln.config import Config
from nmln.errors import InputError, placed
from nmln.language import new_values
from nmln.model import Model, load
from nmln.model.loading import load_newest
from nmln.model.start import check_settings, started_settings
from nmln.runs.folder import RunFolder
from nmln.space import Space


@dataclass(frozen=True)
class Start:
    """A model that a run starts from, and where it is from."""

    model: Model
    run: str  # the folder of a run or of a model, or the name of one in the package
    step: int | None = None  # of a run
    fingerprint: str | None = None  # of the data of a run

    @property
    def settings(self) -> Config:
        """The settings of a new run where nothing else is said."""
        return started_settings(self.model)

    @property
    def weights(self) -> str:
        """A hash of the weights."""
        digest = sha256()
        for name, tensor in sorted(self.model.potential.state_dict().items()):
            digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    @property
    def record(self) -> dict[str, Any]:
        """What `config.json` says about it."""
        return {
            "run": self.run,
            "step": self.step,
            "fingerprint": self.fingerprint,
            "weights": self.weights,
        }

    def check(self, config: Config) -> None:
        """Refuse settings of another potential."""
        with placed(self.run):
            check_settings(config, self.model)

    def described_on(self, space: Space) -> str:
        """The start in words, with the values that are new on a space."""
        more = new_values(self.model.space.language, space.language)
        return in_words(self.record) + (f"; new values: {', '.join(more)}" if more else "")


def read_start(source: str) -> Start:
    """The model of a run, finished or not, of a model's folder or of the package."""
    folder = Path(source)
    if not folder.is_dir() or checkpoint.is_model(folder):
        return Start(load(source), str(folder.resolve()) if folder.exists() else source)
    head = RunFolder(folder).read_head()
    model, step = load_newest(folder)
    return Start(model, str(folder.resolve()), None if head.combined else step, head.fingerprint)


def read_again(record: dict[str, Any], folder: Path) -> Start:
    """The start that a head records; refuses one that has changed since."""
    run = record.get("run")
    if not isinstance(run, str):
        raise InputError(
            "the head of this run must name the run that it starts from, but does not. Restore it from "
            "a copy.",
            str(folder),
            kind="damaged",
        )
    found = read_start(run)
    if found.weights != record.get("weights"):
        raise InputError(
            f"this run starts from the weights of {run}, which have changed since, and was stopped "
            "before its first checkpoint. Start it again in another folder.",
            str(folder),
            kind="conflict",
        )
    return found


def in_words(record: dict[str, Any]) -> str:
    """The record of a head, which may have been received and hold anything, in words."""
    step = record.get("step")
    at = f", step {step:,}" if isinstance(step, int) else ""
    return f"starts from {str(record.get('run'))[:300]}{at}"
