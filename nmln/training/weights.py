"""The weights of formulas by likelihood: data and model must agree on how often each formula holds.

The log-likelihood is concave in the weights; its gradient is the number of true groundings in the data
less that in the model, its curvature the covariance of these numbers. So Newton's steps find the
weights, and the curvature shows how well the data determine them. Worlds of several domains add up:
each domain has expectations of its own, which count by the share of the worlds that it has.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float64, Integer
from torch import Generator, Tensor

from nmln.buckets import Bucket, in_buckets, name_of, shares_of
from nmln.counting import more_than
from nmln.errors import InputError
from nmln.exchange import start_walkers
from nmln.kernels.coloured import ColouredGibbs
from nmln.ladders import Temperatures
from nmln.logic import WeightedFormula
from nmln.noise import uniform
from nmln.potentials.formula import FormulaPotential
from nmln.sampler import advance, start
from nmln.space import Space

Counts = Float64[Tensor, "worlds formulas"]
Weights = Float64[Tensor, " formulas"]
Matrix = Float64[Tensor, "formulas formulas"]
Progress = Callable[[int, int], None]
Tick = Callable[[], None]

ENUMERABLE = 2**20
_NARROWEST = 1e-6  # of a prior, in nats
_LONGEST_STEP = 2.0  # of a weight, in one update
_FORGET = 0.1  # how much of the old curvature gives way to the new at every update


@dataclass(frozen=True)
class Learned:
    """Formulas with learned weights, templates written out, and the standard error of each weight.

    `errors` come from the curvature of the likelihood and, where the model was sampled, from the
    sampling noise. `exact` says that the model was enumerated. `warnings` name weights that the data
    leave open.
    """

    formulas: tuple[WeightedFormula, ...]
    weights: Weights
    errors: Weights
    exact: bool
    updates: int
    log_likelihood: float | None  # of a world on average; known if exact
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """How weights are learned.

    `prior` is the standard deviation of a Gaussian prior on every weight, about 0; it holds back the
    weight of a formula that the data never violate. The rest is for models that must be sampled.
    """

    prior: float = 10.0
    updates: int = 150
    sweeps: int = 5  # between two updates
    chains: int = 100
    levels: int = 5
    hottest: float = 5.0
    final_sweeps: int = 300  # at the final weights, for their errors

    def __post_init__(self) -> None:
        if not self.prior > 0:
            raise InputError(f"the prior's standard deviation must be positive, got {self.prior}.")
        if self.prior < _NARROWEST:
            raise InputError(
                f"the prior's standard deviation must be at least {_NARROWEST:g}, got {self.prior}: "
                "it would leave every weight at 0."
            )
        for name in ("updates", "sweeps", "chains", "levels", "final_sweeps"):
            least = 2 - (name in ("sweeps", "levels"))
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, got {getattr(self, name)}.")


@torch.no_grad()
def learn_weights(
    space: Space | Sequence[Bucket],
    formulas: Sequence[WeightedFormula],
    worlds: Integer[Tensor, "worlds groups"] | None,
    rng: Generator,
    recipe: Recipe | None = None,
    *,
    exactly: bool | None = None,
    progress: Progress | None = None,
) -> Learned:
    """Maximise the likelihood of worlds over the weights; hard formulas stay hard.

    Starts from the weights that the formulas have. Exact where the space is small, otherwise by chains
    that are kept from update to update. Data of several domains are given in buckets, without `worlds`.
    """
    recipe = recipe or Recipe()
    buckets = in_buckets(space, worlds)
    model = FormulaPotential(buckets[0].space, formulas, dtype=torch.float64)
    if not model.soft:
        raise InputError("there is no weight to learn: every formula is hard.", kind="empty")
    domains = []
    for bucket, share in zip(buckets, shares_of(buckets), strict=True):
        here = model.on(bucket.space)
        assert isinstance(here, FormulaPotential)
        _refuse_violations(here, bucket, len(buckets))
        domains.append(_Domain(here, here.counts(bucket.worlds[None])[0], share))
    if all(_enumerable(domain, exactly) for domain in domains):
        return _exactly(domains, recipe, progress)
    return _by_chains(domains, formulas, rng, recipe, exactly, progress)


class _Domain(NamedTuple):
    """The formulas on one domain, their true groundings in its worlds, and its share of all worlds."""

    model: FormulaPotential
    data: Counts
    share: float


def _refuse_violations(model: FormulaPotential, bucket: Bucket, domains: int) -> None:
    broken = torch.nonzero(model.violations_of(bucket.worlds[None])[0] > 0)
    if len(broken):
        world = int(broken[0])
        among = f" with {name_of(bucket.space)} constants" if domains > 1 else ""
        raise InputError(
            f"world {world} of the data{among} violates the hard formula "
            f"{model.forbidden_by(0, bucket.worlds[world])[0]} Give the formula a weight, or correct "
            "the data.",
            index=world,
            kind="conflict",
        )


def _enumerable(domain: _Domain, exactly: bool | None) -> bool:
    return not more_than(domain.model.space.sizes, ENUMERABLE) if exactly is None else exactly


# Expectations of a domain under the model.


class _Moments(NamedTuple):
    """The mean and the covariance of the true groundings, and the sampling noise of the mean."""

    mean: Weights
    covariance: Matrix
    noise: Matrix

    @staticmethod
    def joint(domains: Sequence[_Domain], found: Sequence["_Moments"]) -> "_Moments":
        """Those of a world of a domain drawn by its share, given the domain."""
        shares = [domain.share for domain in domains]
        return _Moments(
            _weighted([one.mean for one in found], shares),
            _weighted([one.covariance for one in found], shares),
            _weighted([one.noise for one in found], [share**2 for share in shares]),
        )


def _weighted(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    return torch.stack([share * one for one, share in zip(tensors, shares, strict=True)]).sum(0)


class _Enumerated:
    """All possible worlds of a domain."""

    def __init__(self, model: FormulaPotential) -> None:
        possible = []
        for some in model.space.enumerate(2**24).split(2**14):
            allowed = model.violations_of(some[None])[0] == 0
            possible.append(model.counts(some[None])[0][allowed])
        self.counts = torch.cat(possible)

    def log_z(self, weights: Weights) -> Tensor:
        return (self.counts @ weights).logsumexp(0)

    def moments(self, weights: Weights, sweeps: int = 0, settle: int = 0) -> _Moments:
        """Exact; the sweeps are those of `_Sampled`."""
        shares = (self.counts @ weights).softmax(0)
        mean = shares @ self.counts
        centred = self.counts - mean
        covariance = (shares[:, None] * centred).T @ centred
        return _Moments(mean, covariance, torch.zeros_like(covariance))


class _Sampled:
    """Chains on a domain, kept from update to update."""

    def __init__(
        self,
        model: FormulaPotential,
        formulas: Sequence[WeightedFormula],
        recipe: Recipe,
        rng: Generator,
        tick: Tick,
    ) -> None:
        self.model, self.recipe, self.rng, self.tick = model, recipe, rng, tick
        ladder = Temperatures.geometric(recipe.hottest, recipe.levels)
        strengths = [1 / temperature for temperature in ladder]
        self.tempered = FormulaPotential(
            model.space, formulas, recipe.levels, strengths=strengths, dtype=torch.float64
        )
        self.kernel = ColouredGibbs.of(self.tempered)
        worlds = uniform(model.space, recipe.levels, recipe.chains, rng)
        self.state = start(self.tempered, self.kernel, worlds, rng)
        self.walkers = start_walkers(worlds)

    def moments(self, weights: Weights, sweeps: int, settle: int = 0) -> _Moments:
        """From so many sweeps at these weights, of which the first `settle` do not count."""
        self.tempered.weights.copy_(weights.expand_as(self.tempered.weights))
        self.state = self.kernel.init(self.tempered, self.state.values)
        found = []
        for _ in range(sweeps):
            self.state, self.walkers, _, _ = advance(
                self.tempered, self.kernel, self.state, self.walkers, self.rng
            )
            found.append(self.model.counts(self.state.values[-1:])[0])
            self.tick()
        counts, shape = torch.cat(found[settle:]), (len(weights), len(weights))
        means = torch.stack(found[settle:]).mean(0)  # of every chain, which are independent
        noise = means.T.cov().reshape(shape) / self.recipe.chains
        return _Moments(counts.mean(0), counts.T.cov().reshape(shape), noise)


# Two ways to the weights.


def _exactly(domains: Sequence[_Domain], recipe: Recipe, progress: Progress | None) -> Learned:
    """Newton's method with the model enumerated."""
    parts = [_Enumerated(domain.model) for domain in domains]
    number, weights = _number(domains), domains[0].model.weights[0].clone()
    precision = 1 / recipe.prior / recipe.prior / number  # of the prior, for one world of the data
    shares, target = [domain.share for domain in domains], _data_mean(domains)

    def likelihood(some: Weights) -> float:
        return float(target @ some - _weighted([part.log_z(some) for part in parts], shares))

    def objective(some: Weights) -> float:
        return likelihood(some) - precision / 2 * float(some @ some)

    current, curvature = objective(weights), torch.eye(len(weights), dtype=torch.float64)
    update = 0
    for update in range(1, recipe.updates + 1):
        joint = _Moments.joint(domains, [part.moments(weights) for part in parts])
        curvature = joint.covariance
        step = _newton(curvature, precision, target - joint.mean - precision * weights)
        while objective(weights + step) < current - 1e-12 and float(step.abs().max()) > 1e-9:
            step = step / 2
        weights = weights + step
        current = objective(weights)
        if progress is not None:
            progress(update, recipe.updates)
        if float(step.abs().max()) < 1e-8:
            break
    errors = _errors(curvature, precision, number)
    return _learned(domains, weights, errors, curvature, True, update, likelihood(weights))


def _by_chains(
    domains: Sequence[_Domain],
    formulas: Sequence[WeightedFormula],
    rng: Generator,
    recipe: Recipe,
    exactly: bool | None,
    progress: Progress | None,
) -> Learned:
    """Newton's steps that grow shorter, with means and covariances from chains that are kept.

    The weights of the later half are averaged, and a long run at that average gives the last step and
    the errors. Domains that are small enough are enumerated all the same.
    """
    done, runs = 0, sum(not _enumerable(domain, exactly) for domain in domains)
    total = runs * (recipe.updates * recipe.sweeps + recipe.final_sweeps)

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    parts = [
        _Enumerated(domain.model)
        if _enumerable(domain, exactly)
        else _Sampled(domain.model, formulas, recipe, rng, tick)
        for domain in domains
    ]
    number, weights = _number(domains), domains[0].model.weights[0].clone()
    precision, target = 1 / recipe.prior / recipe.prior / number, _data_mean(domains)

    def moments(sweeps: int, settle: int = 0) -> _Moments:
        found = [part.moments(weights, sweeps, settle) for part in parts]
        return _Moments.joint(domains, found)

    curvature: Matrix | None = None
    later: list[Weights] = []
    for update in range(recipe.updates):
        joint = moments(recipe.sweeps)
        new = joint.covariance
        curvature = new if curvature is None else (1 - _FORGET) * curvature + _FORGET * new
        gradient = target - joint.mean - precision * weights
        shorter = 1 / (1 + 10 * update / recipe.updates)
        weights = weights + shorter * _newton(curvature, precision, gradient)
        if update >= recipe.updates // 2:
            later.append(weights)
    weights = torch.stack(later).mean(0)
    joint = moments(recipe.final_sweeps, recipe.final_sweeps // 5)
    gradient = target - joint.mean - precision * weights
    weights = weights + _newton(joint.covariance, precision, gradient)
    errors = _errors(joint.covariance, precision, number, joint.noise)
    return _learned(domains, weights, errors, joint.covariance, False, recipe.updates, None)


def _number(domains: Sequence[_Domain]) -> int:
    return sum(len(domain.data) for domain in domains)


def _data_mean(domains: Sequence[_Domain]) -> Weights:
    """The true groundings of each formula in a world of the data, on average."""
    return _weighted([domain.data.mean(0) for domain in domains], [one.share for one in domains])


def _newton(curvature: Matrix, precision: float, gradient: Weights) -> Weights:
    """Newton's step, shortened where the curvature is a poor guide."""
    ridge = torch.eye(len(gradient), dtype=torch.float64) * (precision + 1e-12)
    step = torch.linalg.solve(curvature + ridge, gradient)
    return step * min(1.0, _LONGEST_STEP / max(float(step.abs().max()), 1e-300))


def _errors(
    curvature: Matrix, precision: float, number: int, noise: Matrix | None = None
) -> Weights:
    """Standard errors: from the curvature for so many worlds, and from the noise of a sampled mean."""
    inverse = torch.linalg.inv(
        curvature + torch.eye(len(curvature), dtype=torch.float64) * (precision + 1e-12)
    )
    variance = inverse / number
    if noise is not None:
        variance = variance + inverse @ noise @ inverse
    return variance.diagonal().clamp(min=0).sqrt()


def _learned(
    domains: Sequence[_Domain],
    weights: Weights,
    errors: Weights,
    curvature: Matrix,
    exact: bool,
    updates: int,
    log_likelihood: float | None,
) -> Learned:
    model = domains[0].model
    formulas = [
        replace(one, weight=float(weight)) for one, weight in zip(model.soft, weights, strict=True)
    ]
    most = torch.cat([torch.tensor(one.model.most).expand_as(one.data) for one in domains])
    data = torch.cat([one.data for one in domains])
    warnings = []
    for place, one in enumerate(model.soft):
        never = bool((data[:, place] == 0).all())
        if float(curvature[place, place]) < 1e-9:
            warnings.append(f"{one} holds equally often in every world: its weight means nothing")
        elif never or bool((data[:, place] == most[:, place]).all()):
            often = "never" if never else "always"
            warnings.append(f"{one} holds {often} in the data: only the prior bounds its weight")
    kept = (*formulas, *model.hard)
    return Learned(kept, weights, errors, exact, updates, log_likelihood, tuple(warnings))
