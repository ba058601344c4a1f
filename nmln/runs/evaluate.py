"""Evaluation: samples of any origin compared with training and test molecules."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nmln import checkpoint
from nmln.errors import InputError
from nmln.evaluation import MARKS, Counts, Evaluation, evaluate
from nmln.files import write_json, write_lines
from nmln.model import Model, load_run
from nmln.model.domains import domains_in_json
from nmln.molecules.datasets import Dropped
from nmln.molecules.metrics import ChemNet, Measured, fcd, internal_diversity
from nmln.molecules.sample_files import (
    Reference,
    Samples,
    heavy_atoms,
    locate,
    read_samples,
)
from nmln.report.recall import write_recall
from nmln.runs import stream
from nmln.runs.baseline_folder import model_fingerprint
from nmln.runs.evaluation_tables import ranking_table, recall_table
from nmln.runs.folder import RunFolder
from nmln.runs.ranking import LogProbabilities, Scorer, asked_scorer, log_probabilities
from nmln.runs.references import references
from nmln.runs.specification import fingerprint

_SHOWN = 12  # sizes in a sentence

DENOMINATORS = {
    "valid": "of all attempts",
    "unique@k": "different molecules of k valid samples",
    "novelty": "of the different valid molecules, those not in the training set",
    "V.U.N.": "different valid molecules not in the training set, of all attempts",
    "known": "of the valid samples, repeats included",
    "coverage": "of the training or test set",
    "ideal coverage": "1-(1-1/M)^attempts, M molecules in training and test set together",
    "recall at t": "molecules of the set among the t most frequently generated different ones",
    "recall_by_probability": "the same among the t most probable different ones that were generated",
}


@dataclass(frozen=True)
class Evaluated:
    """The evaluation of the samples of one level of one file: one curve of the figure."""

    name: str
    source: str
    level: int | None
    found: Evaluation
    refused: tuple[Dropped, ...]
    diversity: Measured | None
    fcd: Measured | None
    likelihood: dict[str, Any] | None
    by_size: Mapping[int, "SizeEvaluation"] = field(default_factory=dict)
    log_probabilities: LogProbabilities | None = None  # of its molecules, under their own model

    def describe(self) -> dict[str, Any]:
        """The same for JSON."""
        return {
            "name": self.name, "source": self.source, "level": self.level,
            **self.found.describe(),
            "not_valid": [asdict(reason) for reason in self.refused],
            "internal_diversity": None if self.diversity is None else asdict(self.diversity),
            "fcd": None if self.fcd is None else asdict(self.fcd),
            "likelihood": self.likelihood,
            **_ranked(self.log_probabilities),
            **_sized({size: one.describe() for size, one in self.by_size.items()}),
        }  # fmt: skip


class SizeEvaluation(NamedTuple):
    """The samples of one size compared with the training and test molecules of this size.

    The number of attempts of a size is recorded by `nmln sample`; where it is not known, the valid
    samples count as the attempts, and what is a share of the attempts is left out.
    """

    found: Evaluation
    attempts_known: bool

    def describe(self) -> dict[str, Any]:
        """The same for JSON."""
        numbers = self.found.describe()
        if not self.attempts_known:
            for name in ("attempts", "valid", "vun", "ideal_coverage"):
                del numbers[name]
        return numbers


def _ranked(found: LogProbabilities | None) -> dict[str, Any]:
    """An entry for JSON, if there are log-probabilities."""
    return {} if found is None else {"log_probability": found.describe()}


def _sized(by_size: Mapping[int, Any]) -> dict[str, Any]:
    """An entry for JSON, if there are several sizes."""
    return {"by_size": {str(size): one for size, one in by_size.items()}} if by_size else {}


@dataclass(frozen=True)
class EvaluationOutcome:
    """All evaluations of one call, and the training and test set.

    `fcd_train` is the distance from the training set to the test set, which a perfect copy would have.
    """

    train: Reference
    test: Reference
    sizes: tuple[int, ...]
    evaluated: tuple[Evaluated, ...]
    diversity_test: Measured | None
    fcd_train: Measured | None
    notes: tuple[str, ...]
    written: tuple[Path, ...] = ()

    @property
    def size(self) -> int | None:
        """The number of heavy atoms that valid samples must have, if it is only one."""
        return self.sizes[0] if len(self.sizes) == 1 else None

    @property
    def known(self) -> int:
        """The number of different molecules in both sets together."""
        return len(self.train.smiles | self.test.smiles)

    def describe(self) -> dict[str, Any]:
        """The same for JSON."""
        return {
            "denominators": DENOMINATORS,
            "train": {"source": self.train.source, "molecules": len(self.train.smiles)},
            "test": {"source": self.test.source, "molecules": len(self.test.smiles)},
            "train_and_test": self.known,
            "heavy_atoms": self.size or list(self.sizes),
            "internal_diversity_of_test": _as_json(self.diversity_test),
            "fcd_of_train": _as_json(self.fcd_train),
            "notes": list(self.notes),
            "samples": [one.describe() for one in self.evaluated],
        }


def run(
    paths: Sequence[Path],
    output: Path,
    *,
    train: str | None = None,
    test: str | None = None,
    folder: Path | None = None,
    at: Sequence[int] = MARKS,
    size: int | None = None,
    column: str | None = None,
    level: int | Literal["all"] | None = None,
    with_fcd: bool = True,
    seed: int = 0,
    processes: int = 1,
    progress: Callable[[str], None] = lambda _: None,
    data: str | None = None,
    probability: bool | None = None,
) -> EvaluationOutcome:
    """Evaluate files of samples, and write evaluation.json, recall.csv, recall.png and recall.svg.

    Where the model that drew the samples is found, they are ranked by probability too, and ranking.csv
    has the log-probability of every different molecule. `probability` says whether: by default it is
    done for models, not for baselines, most of which take minutes.

    `train` and `test` are files, named sets or folders of runs; by default they are those of the run in
    `folder`, whose data may have moved to `data`. Of samples at several levels, the target is evaluated
    by default, otherwise one `level` or all. Valid samples have as many heavy atoms as some training or
    test molecule, or exactly `size`.
    """
    if not paths:
        raise InputError(
            "there are no samples to evaluate. Name at least one file.", kind="missing"
        )
    files = [locate(path) for path in paths]
    progress("reading the training and test set")
    learnt, held_out = references(train, test, folder, column, size, processes, data)
    sizes = tuple(sorted(learnt.sizes | held_out.sizes)) if size is None else (size,)
    samples: list[Samples] = []
    likelihoods: list[dict[str, Any] | None] = []
    scorers: list[Scorer | None] = []
    for file in files:
        progress(f"reading {file}")
        found = read_samples(file, column, sizes, processes)
        target = max((one.level for one in found if one.level is not None), default=None)
        likelihood = _likelihood(file, folder)
        for one in _chosen(found, level):
            samples.append(one)
            likelihoods.append(likelihood if one.level == target else None)
            scorers.append(asked_scorer(file, one.level, folder, probability))
    names = _names(samples)
    outcome = compare(
        list(zip(names, samples, likelihoods, strict=True)),
        learnt,
        held_out,
        sizes=sizes,
        at=at,
        with_fcd=with_fcd,
        seed=seed,
        progress=progress,
        scorers={name: one for name, one in zip(names, scorers, strict=True) if one is not None},
    )
    return write(outcome, output)


def compare(
    named: Sequence[tuple[str, Samples, dict[str, Any] | None]],
    train: Reference,
    test: Reference,
    *,
    sizes: Sequence[int] = (),
    at: Sequence[int] = MARKS,
    with_fcd: bool = True,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
    scorers: Mapping[str, Scorer] | None = None,
) -> EvaluationOutcome:
    """Evaluate samples in memory, each with a name and, if known, the likelihood of its model.

    `sizes` are the numbers of heavy atoms that valid samples have; if there are several, every one is
    evaluated by itself too. `scorers` are the models of some samples, by name.
    """
    notes = _notes(train, test, sizes)
    network = ChemNet() if with_fcd and len(test.smiles) > 1 else None
    moments, fcd_train = None, None
    if network is not None:
        progress("computing ChemNet activations of the training and test set")
        moments = network.moments(sorted(test.smiles))
        fcd_train = fcd(dict.fromkeys(train.smiles, 1), moments, network, seed=seed)
    evaluated = []
    for name, one, likelihood in named:
        progress(f"evaluating {name}")
        counts = one.counts.counts
        if not counts:
            notes.append(f"{name}: none of {one.counts.attempts:,} attempts is valid.")
        distance = None
        if network is not None and moments is not None:
            distance = fcd(counts, moments, network, seed=seed)
        logs = None
        if counts and scorers is not None and name in scorers:
            logs, said = log_probabilities(scorers[name], one.counts, train.smiles, progress)
            notes += [f"{name}: {text}" for text in said]
        together = logs is not None and (logs.normalised or len(sizes) < 2)
        evaluated.append(
            Evaluated(
                name,
                one.source,
                one.level,
                evaluate(
                    one.counts,
                    train.smiles,
                    test.smiles,
                    at,
                    logs.of(counts) if logs is not None and together else None,
                ),
                one.refused,
                internal_diversity(counts, seed=seed),
                distance,
                likelihood,
                _by_size(one, train, test, sizes, at, logs) if len(sizes) > 1 else {},
                logs,
            )
        )
    diversity_test = internal_diversity(dict.fromkeys(test.smiles, 1), seed=seed)
    return EvaluationOutcome(
        train, test, tuple(sizes), tuple(evaluated), diversity_test, fcd_train, tuple(notes)
    )


def write(outcome: EvaluationOutcome, output: Path) -> EvaluationOutcome:
    """Write an outcome into a folder; returns it with the names of the files."""
    lines = [(one.name, one.found) for one in outcome.evaluated]
    write_json(output / "evaluation.json", outcome.describe(), ascii_only=False)
    write_lines(output / "recall.csv", recall_table(lines))
    pictures = write_recall(output / "recall", lines, outcome.known)
    written = [output / "evaluation.json", output / "recall.csv", *pictures]
    ranked = [
        (one.name, one.found.samples.counts, one.log_probabilities)
        for one in outcome.evaluated
        if one.log_probabilities is not None
    ]
    if ranked:
        write_lines(output / "ranking.csv", ranking_table(ranked))
        written.append(output / "ranking.csv")
    return replace(outcome, written=tuple(written))


# Parts of a comparison.


def _by_size(
    samples: Samples,
    train: Reference,
    test: Reference,
    sizes: Sequence[int],
    at: Sequence[int],
    logs: LogProbabilities | None = None,
) -> dict[int, SizeEvaluation]:
    """The evaluation of every size that has training and test molecules."""
    counted: dict[int, dict[str, int]] = {size: {} for size in sizes}
    for smiles, count in samples.counts.counts.items():
        if (own := counted.get(heavy_atoms(smiles))) is not None:
            own[smiles] = count
    found = {}
    for size, counts in counted.items():
        learnt, held_out = (
            {s for s in one.smiles if heavy_atoms(s) == size} for one in (train, test)
        )
        attempts = samples.attempts_by_size.get(size)
        if learnt and held_out and (counts or attempts):
            whole = Counts(counts, sum(counts.values()) if attempts is None else attempts)
            scores = None if logs is None else logs.of(counts)
            compared = evaluate(whole, learnt, held_out, at, scores)
            found[size] = SizeEvaluation(compared, attempts is not None)
    return found


def _notes(train: Reference, test: Reference, sizes: Sequence[int]) -> list[str]:
    notes = []
    for what, one in (("training", train), ("test", test)):
        if left_out := [drop for drop in one.dropped if drop.reason != "duplicate"]:
            reasons = "; ".join(map(str, left_out))
            notes.append(f"{one.source}: left out of the {what} set: {reasons}.")
    if shared := len(train.smiles & test.smiles):
        notes.append(
            f"the training and the test set share {shared:,} molecules: recall of the test set counts "
            "molecules that were trained on."
        )
    if len(sizes) > 1:
        shown = ", ".join(map(str, sizes)) if len(sizes) <= _SHOWN else f"{sizes[0]} to {sizes[-1]}"
        notes.append(
            f"the sets have molecules of {shown} heavy atoms, so samples of these sizes are valid. "
            "Require one size with --size."
        )
    return notes


# The samples.


def _chosen(found: list[Samples], level: int | Literal["all"] | None) -> list[Samples]:
    """The chosen levels of a file; by default the target, which is the last."""
    if level == "all" or found[-1].level is None:
        return found
    if level is None:
        return found[-1:]
    if chosen := [one for one in found if one.level == level]:
        return chosen
    levels = ", ".join(str(one.level) for one in found)
    raise InputError(
        f"there are no samples of level {level}. Available levels: {levels}.",
        found[0].source,
        kind="missing",
    )


def _names(samples: Sequence[Samples]) -> list[str]:
    """Short distinct names for the samples: the shortest ends of paths that differ."""
    paths = [Path(one.source).resolve() for one in samples]
    depth, deepest = 1, max(len(path.parts) for path in paths)
    while depth < deepest and len({path.parts[-depth:] for path in paths}) < len(set(paths)):
        depth += 1
    names = []
    for path, one in zip(paths, samples, strict=True):
        level = "" if one.level is None or paths.count(path) == 1 else f" level {one.level}"
        names.append("/".join(path.parts[-depth:]) + level)
    return names


def _likelihood(samples: Path, folder: Path | None) -> dict[str, Any] | None:
    """The measured likelihood of the model that drew these samples, if there is one.

    It is that of `nmln likelihood` or of `nmln baseline likelihood`. There is none for samples of other
    origin, nor for samples that were sharpened, drawn under conditions or of some sizes only, because
    these have another distribution.
    """
    path = samples.parent / stream.SUMMARY
    drawn = checkpoint.read_json(path).get("settings") if path.is_file() else None
    if not isinstance(drawn, dict) or any(map(drawn.get, ("allowed", "formulas", "sharpen"))):
        return None
    for run in (samples.parent, samples.parent.parent, folder):
        if run is None:
            continue
        home = RunFolder(run)
        if not home.likelihood.is_file():
            continue
        if home.is_baseline:
            found = checkpoint.read_json(home.likelihood)
            if found.get("model") == drawn.get("model") == model_fingerprint(home.model):
                return found
        elif home.is_run and _drawn_from(load_run(run), drawn):
            return checkpoint.read_json(home.likelihood)
    return None


def _drawn_from(model: Model, settings: dict[str, Any]) -> bool:
    """Whether these are the settings of samples of a model, of all its sizes and without evidence."""
    all_sizes = [{**one, "allowed": ""} for one in domains_in_json(model.domains)]
    drawn = settings.get("domains", [])
    names = ("domain", "share", "allowed")
    sizes = [{name: one.get(name) for name in names} for one in drawn if isinstance(one, dict)]
    return sizes == all_sizes and fingerprint(model) == settings.get("model")


def _as_json(measured: Measured | None) -> dict[str, Any] | None:
    return None if measured is None else asdict(measured)
