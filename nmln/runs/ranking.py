"""Log-probabilities of molecules under the model that drew them, to rank them by.

The samples of a run are different molecules with counts. Their counts estimate the probabilities that
the model gives them; for most, which were drawn once or twice, badly. The model itself knows them: up to
log Z, which is the same for all molecules of one size. So molecules are ranked as they would be by the
counts of infinitely many samples. Only molecules that were drawn are ranked.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, log
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch

from nmln import checkpoint
from nmln.errors import InputError
from nmln.evaluation import Counts, Scores
from nmln.evidence import Evidence
from nmln.model import Model, load_run
from nmln.model.chains import sharpened
from nmln.molecules.chemistry import encode_all
from nmln.molecules.likelihood import log_weights, refuse_named_nodes
from nmln.molecules.sample_files import heavy_atoms
from nmln.potentials.base import BasePotential
from nmln.potentials.formula import constraint
from nmln.potentials.total import TotalPotential
from nmln.runs import stream
from nmln.runs.baseline_folder import model_fingerprint
from nmln.runs.folder import RunFolder
from nmln.runs.specification import SamplingSettings, fingerprint
from nmln.space import Space

Say = Callable[[str], None]

_OURS = re.compile(r"(?:samples|counts(?:-(\d{1,9}))?)\.csv(?:\.gz)?")
_FEWEST = 20  # draws of known molecules from which the log Z of a size is estimated
_REST = 0.01  # share of the samples whose sizes may have fewer
_KNOWN = 5_000  # training molecules of a size that log Z is estimated from
_TOGETHER = 256  # molecules that a baseline scores together


@dataclass(frozen=True)
class LogProbabilities:
    """The log-probability of every different molecule that was drawn.

    They are lower bounds unless `exact`. Where they are not `normalised`, a constant is missing, which
    is the same for all molecules of one size; then molecules of several sizes cannot be compared.
    """

    values: Mapping[str, float]
    exact: bool = True
    normalised: bool = True

    def of(self, smiles: Collection[str]) -> Scores:
        """Those of some of the molecules."""
        return Scores({one: self.values[one] for one in smiles}, self.exact)

    def describe(self) -> dict[str, Any]:
        """What the numbers are, for JSON."""
        return {"exact": self.exact, "normalised": self.normalised}


@runtime_checkable
class Scorer(Protocol):
    """A model that drew samples and can give their molecules log-probabilities."""

    costly: ClassVar[bool]
    """Whether it takes minutes for thousands of molecules, so that it is used only on request."""

    def score(
        self, counts: Mapping[str, int], attempts: int, train: Collection[str], say: Say
    ) -> LogProbabilities | None:
        """The log-probabilities of counted molecules; None where there are no correct ones.

        Args:
            counts: how often each different molecule was drawn.
            attempts: in how many draws, invalid ones included.
            train: molecules of the training set, from which log Z may be estimated.
            say: called with the progress.
        """
        ...


def scorer_of(samples: Path, level: int | None, folder: Path | None = None) -> Scorer | None:
    """The model that drew the samples of a file, at one level; None if it is not known.

    It is looked for in the folder of the samples, in the one above and in `folder`, and known by the
    hash that `nmln sample` records. Only the target level has log-probabilities.
    """
    found, path = _OURS.fullmatch(samples.name), samples.parent / stream.SUMMARY
    if found is None or not path.is_file():
        return None
    settings = _settings(checkpoint.read_json(path).get("settings"))
    if settings is None:
        return None
    if found[1] is not None:
        level = int(found[1])
    for run in (samples.parent, samples.parent.parent, folder):
        if run is None:
            continue
        home = RunFolder(run)
        if home.is_baseline and home.model.exists():
            if settings.model == model_fingerprint(home.model):
                return BaselineScorer(run)
        elif home.is_run:
            model = load_run(run)
            if settings.model == fingerprint(model):
                target = model.method.chain_levels - 1
                return ModelScorer(model, settings) if level in (None, target) else None
    return None


def _settings(content: Any) -> SamplingSettings | None:
    """The settings of a sampling; None if they are not those of this version or an earlier one."""
    for by_processes in (False, True):
        try:
            return SamplingSettings.read(content, by_processes)
        except (ValueError, TypeError):
            continue
    return None


def asked_scorer(
    samples: Path, level: int | None, folder: Path | None, wanted: bool | None
) -> Scorer | None:
    """`scorer_of`, if a ranking by probability is `wanted`; None asks for one that takes no minutes."""
    found = None if wanted is False else scorer_of(samples, level, folder)
    return None if found is None or (found.costly and wanted is None) else found


def log_probabilities(
    scorer: Scorer, samples: Counts, train: Collection[str], say: Say
) -> tuple[LogProbabilities | None, list[str]]:
    """The log-probabilities of the different molecules of samples, and what is missing in words."""
    try:
        found = scorer.score(samples.counts, samples.attempts, train, say)
    except InputError as error:
        if error.kind != "unsupported":
            raise
        return None, [f"no ranking by probability: {error.message}"]
    if found is None:
        return None, ["no ranking by probability: this baseline has no likelihood."]
    if found.normalised or len({*map(heavy_atoms, samples.counts)}) < 2:
        return found, []
    return found, [
        "each size is ranked by probability separately, because log Z of some sizes is unknown: too few "
        "of their samples are training molecules. Draw more samples."
    ]


# Models of worlds.


class _Sized(NamedTuple):
    """What the molecules of one size are scored with."""

    space: Space
    potential: BasePotential
    evidence: Evidence | None


@dataclass(frozen=True)
class ModelScorer:
    """A model of worlds, under the conditions that its samples were drawn with.

    The weight of a molecule is the sum over its worlds that agree with the evidence; formulas that were
    added count in full, and the model's own scores as much as they were sharpened.
    """

    model: Model
    settings: SamplingSettings
    costly: ClassVar[bool] = False

    def score(
        self, counts: Mapping[str, int], attempts: int, train: Collection[str], say: Say
    ) -> LogProbabilities:
        """Exact log-probabilities, normalised by the training molecules among the samples.

        P(known molecules of a size) is the sum of their weights over Z, and their share among the draws
        estimates it: from that follows log Z. It needs some draws of training molecules of the size.
        """
        refuse_named_nodes(self.model.formulas)
        sized, weights = self._sized(), dict[str, float]()
        by_size, known = _by_size(counts), _by_size(train)
        offsets, missing, done = dict[int, float](), 0, 0
        for size, smiles in by_size.items():
            if size not in sized:
                raise InputError(
                    f"{smiles[0]} has {size} heavy atoms, but these samples were drawn with "
                    f"{' or '.join(map(str, sized))}.",
                    kind="unsupported",
                )
            own = sized[size]

            def tell(some: int, before: int = done) -> None:
                say(f"log-probabilities: {before + some:,} of {len(counts):,} molecules")

            found = log_weights(own.potential, own.space, smiles, own.evidence, tell)
            weights.update(zip(smiles, found.tolist(), strict=True))
            done += len(smiles)
            offset, drawn = _offset(own, known.get(size, []), weights, counts, attempts)
            offsets[size] = offset
            if drawn < _FEWEST:
                missing += sum(counts[one] for one in smiles)
        shared = missing <= _REST * sum(counts.values()) if len(by_size) > 1 else not missing
        normalised = shared and all(map(isfinite, offsets.values()))
        if not normalised:
            return LogProbabilities(weights, normalised=False)
        values = {one: weight + offsets[heavy_atoms(one)] for one, weight in weights.items()}
        return LogProbabilities(values)

    def _sized(self) -> dict[int, _Sized]:
        """The target's distribution for every size that was drawn."""
        found = {}
        for number, model in enumerate(self.settings.models(self.model)):
            conditions = self.settings.conditions(model.space, number)
            refuse_named_nodes(conditions.formulas)
            potential = sharpened(model.level(-1), self.settings.sharpen)
            if conditions.formulas:
                added = constraint(model.space, conditions.formulas, levels=1)
                potential = TotalPotential([potential]).add(added)
            size = len(model.space.domain["node"])
            found[size] = _Sized(model.space, potential, conditions.evidence)
        return found


def _by_size(smiles: Iterable[str]) -> dict[int, list[str]]:
    """Molecules by their number of heavy atoms, in the order of their text."""
    found: dict[int, list[str]] = {}
    for one in sorted(smiles):
        found.setdefault(heavy_atoms(one), []).append(one)
    return found


def _offset(
    own: _Sized,
    known: Sequence[str],
    weights: Mapping[str, float],
    counts: Mapping[str, int],
    attempts: int,
) -> tuple[float, int]:
    """log P(size) - log Z(size) by known molecules, and the number of their draws.

    One more draw is added, so that a size with none of them still has a place.
    """
    if (
        len(known) > _KNOWN
    ):  # a choice that does not depend on the samples, so that it is not biased
        known = Random(0).sample(known, _KNOWN)
    others = [one for one in known if one not in weights]
    possible = [others[at] for at in encode_all(own.space, others).positions]
    scored = log_weights(own.potential, own.space, possible, own.evidence)
    drawn = [one for one in known if one in weights]
    logs = [*scored.tolist(), *(weights[one] for one in drawn)]
    total = float(torch.tensor(logs, dtype=torch.float64).logsumexp(0)) if logs else -inf
    draws = sum(counts[one] for one in drawn)
    return log((draws + 1) / (attempts + 1)) - total, draws


# Baselines.


@dataclass(frozen=True)
class BaselineScorer:
    """A baseline: its log-probabilities are normalised, and bounds for most baselines."""

    folder: Path
    costly: ClassVar[bool] = True

    def score(
        self, counts: Mapping[str, int], attempts: int, train: Collection[str], say: Say
    ) -> LogProbabilities | None:
        from nmln.runs.baseline import open_baseline  # imports every baseline

        generator = open_baseline(self.folder).generator
        smiles, values, exact = sorted(counts), list[float](), True
        for number, start in enumerate(range(0, len(smiles), _TOGETHER)):
            found = generator.log_prob(smiles[start : start + _TOGETHER], seed=number)
            if found is None:
                return None
            values += found.values.tolist()
            exact = exact and found.exact
            say(f"log-probabilities: {len(values):,} of {len(smiles):,} molecules")
        return LogProbabilities(dict(zip(smiles, values, strict=True)), exact)
