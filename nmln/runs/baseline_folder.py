"""The folder of a baseline: its description, beside the files that every run has.

Nothing here needs the code of the baselines, so that samples of a baseline can be evaluated without it.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nmln import checkpoint
from nmln.config import Config, DataConfig, configure
from nmln.dropped import Dropped
from nmln.errors import InputError
from nmln.files import refuse_links, write_json
from nmln.runs.data import Source
from nmln.runs.folder import RunFolder, RunHead, check_format, dropped_in, split_hash, writing


@dataclass(frozen=True)
class BaselineHead:
    """The description of a baseline in `baseline.json`.

    `refused` are the training molecules that the baseline cannot represent, by reason; `trained` is None
    until the training is finished.
    """

    name: str
    settings: dict[str, Any]
    updates: int
    seed: int
    sizes: tuple[int, ...]  # heavy atoms of the training molecules
    run: RunHead  # what it has in common with other runs; only the data of its `config` mean something
    refused: tuple[Dropped, ...] = ()
    trained: dict[str, Any] | None = None

    @property
    def data(self) -> DataConfig:
        return self.run.config.data


def new_head(
    name: str,
    settings: dict[str, Any],
    updates: int,
    seed: int,
    data: DataConfig,
    source: Source,
    refused: tuple[Dropped, ...],
) -> BaselineHead:
    """The description of a training that starts now."""
    sizes = tuple(len(space.domain["node"]) for space in source.spaces)
    content = {
        "format": checkpoint.FORMAT,
        "nmln": checkpoint.VERSION,
        "kind": source.kind,
        "baseline": name,
        "settings": json.loads(json.dumps(settings)),
        "updates": updates,
        "seed": seed,
        "size": sizes[-1],
        **({"sizes": list(sizes)} if len(sizes) > 1 else {}),
        "config": {"data": data.to_dict()},
        "program": source.program,
        "fingerprint": source.fingerprint,
        "split": split_hash(source),
        "dropped": [asdict(one) for one in source.dropped],
        "refused": [asdict(one) for one in refused],
        "trained": None,
    }
    run = RunHead(content, Config(data=data), source.kind, source.program, source.dropped)
    return BaselineHead(name, content["settings"], updates, seed, sizes, run, refused)


def write_head(home: RunFolder, head: BaselineHead, source: Source | None = None) -> None:
    """Write the description; with `source`, the split and the parsed data before it."""
    if source is not None:
        home.write_data(source)
    with writing(home.baseline):  # last: it makes the folder a baseline
        write_json(home.baseline, {**head.run.content, "trained": head.trained})


def finished(head: BaselineHead, trained: dict[str, Any]) -> BaselineHead:
    """The description of a finished training."""
    return replace(head, trained=trained)


def read_head(home: RunFolder) -> BaselineHead:
    """Read the description of a baseline; refuses other folders, and formats of newer versions."""
    refuse_links(home.path)
    if not home.is_baseline:
        what = "a run of nmln train, not a baseline" if home.is_run else "no baseline"
        raise InputError(
            f"there is {what} in this folder. Train one: nmln baseline train NAME DATA",
            str(home.path),
            kind="missing",
        )
    content = checkpoint.read_json(home.baseline)
    check_format(content, home.baseline)
    try:
        config = configure({"data": content["config"]["data"]}, str(home.baseline))
        texts = [content[key] for key in ("baseline", "program")]
        numbers = [content[key] for key in ("updates", "seed", "size")]
        settings, trained = content["settings"], content["trained"]
        fits = content["kind"] == "molecules" and all(type(one) is str for one in texts)
        fits = fits and all(type(one) is int for one in numbers)
        if not (fits and isinstance(settings, dict) and isinstance(trained, dict | None)):
            raise TypeError("its entries are of other types")
        sizes = content.get("sizes", [content["size"]])
        if not (isinstance(sizes, list) and sizes and all(type(one) is int for one in sizes)):
            raise TypeError("its sizes must be whole numbers")
        (name, program), (updates, seed, _) = texts, numbers
        run = RunHead(content, config, "molecules", program, dropped_in(content))
        refused = dropped_in({"dropped": content["refused"]})
        return BaselineHead(name, settings, updates, seed, tuple(sizes), run, refused, trained)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"this does not describe a baseline ({error}). Restore it from a copy, or train again.",
            str(home.baseline),
            kind="damaged",
        ) from None


def read_any_head(home: RunFolder) -> RunHead:
    """The description of a run or of a baseline, by which its data are read."""
    return read_head(home).run if home.is_baseline else home.read_head()


def model_fingerprint(path: Path) -> str:
    """A hash of a saved baseline, which identifies the model that drew samples."""
    tensors, content = checkpoint.load_model(path)
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
