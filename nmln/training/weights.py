"""The weights of formulas by likelihood: data and model must agree on how often each formula holds.

The log-likelihood is concave in the weights; its gradient is the number of true groundings in the data
less that in the model, its curvature the covariance of these numbers. So Newton's steps find the
weights, and the curvature shows how well the data determine them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64, Integer
from torch import Generator, Tensor

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
from nmln.types import Values

Counts = Float64[Tensor, "worlds formulas"]
Weights = Float64[Tensor, " formulas"]
Matrix = Float64[Tensor, "formulas formulas"]
Progress = Callable[[int, int], None]

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
    space: Space,
    formulas: Sequence[WeightedFormula],
    worlds: Integer[Tensor, "worlds groups"],
    rng: Generator,
    recipe: Recipe | None = None,
    *,
    exactly: bool | None = None,
    progress: Progress | None = None,
) -> Learned:
    """Maximise the likelihood of worlds over the weights; hard formulas stay hard.

    Starts from the weights that the formulas have. Exact where the space is small, otherwise by chains
    that are kept from update to update.
    """
    recipe = recipe or Recipe()
    if not len(worlds):
        raise InputError("there are no worlds to learn from. Give at least one.", kind="empty")
    model = FormulaPotential(space, formulas, dtype=torch.float64)
    if not model.soft:
        raise InputError("there is no weight to learn: every formula is hard.", kind="empty")
    broken = torch.nonzero(model.violations_of(worlds[None])[0] > 0)
    if len(broken):
        world = int(broken[0])
        raise InputError(
            f"world {world} of the data violates the hard formula "
            f"{model.forbidden_by(0, worlds[world])[0]} Give the formula a weight, or correct the data.",
            index=world,
            kind="conflict",
        )
    data = model.counts(worlds[None])[0]
    enumerable = not more_than(space.sizes, ENUMERABLE)
    if enumerable if exactly is None else exactly:
        return _exactly(model, data, recipe, progress)
    return _by_chains(model, formulas, data, rng, recipe, progress)


def _exactly(
    model: FormulaPotential, data: Counts, recipe: Recipe, progress: Progress | None
) -> Learned:
    """Newton's method with the model enumerated."""
    worlds = model.space.enumerate(2**24)
    possible = []
    for some in worlds.split(2**14):
        allowed = model.violations_of(some[None])[0] == 0
        possible.append(model.counts(some[None])[0][allowed])
    counts = torch.cat(possible)
    number, weights = len(data), model.weights[0].clone()
    precision = 1 / recipe.prior / recipe.prior / number  # of the prior, for one world of the data

    def likelihood(some: Weights) -> float:
        return float(data.mean(0) @ some - (counts @ some).logsumexp(0))

    def objective(some: Weights) -> float:
        return likelihood(some) - precision / 2 * float(some @ some)

    current, curvature = objective(weights), torch.eye(len(weights), dtype=torch.float64)
    update = 0
    for update in range(1, recipe.updates + 1):
        shares = (counts @ weights).softmax(0)
        mean = shares @ counts
        centred = counts - mean
        curvature = (shares[:, None] * centred).T @ centred
        step = _newton(curvature, precision, data.mean(0) - mean - precision * weights)
        while objective(weights + step) < current - 1e-12 and float(step.abs().max()) > 1e-9:
            step = step / 2
        weights = weights + step
        current = objective(weights)
        if progress is not None:
            progress(update, recipe.updates)
        if float(step.abs().max()) < 1e-8:
            break
    errors = _errors(curvature, precision, number)
    return _learned(model, data, weights, errors, curvature, True, update, likelihood(weights))


def _by_chains(
    model: FormulaPotential,
    formulas: Sequence[WeightedFormula],
    data: Counts,
    rng: Generator,
    recipe: Recipe,
    progress: Progress | None,
) -> Learned:
    """Newton's steps that grow shorter, with means and covariances from chains that are kept.

    The weights of the later half are averaged, and a long run at that average gives the last step and
    the errors.
    """
    space, number = model.space, len(data)
    ladder = Temperatures.geometric(recipe.hottest, recipe.levels)
    strengths = [1 / temperature for temperature in ladder]
    tempered = FormulaPotential(
        space, formulas, recipe.levels, strengths=strengths, dtype=torch.float64
    )
    kernel = ColouredGibbs.of(tempered)
    worlds = uniform(space, recipe.levels, recipe.chains, rng)
    state = start(tempered, kernel, worlds, rng)
    walkers = start_walkers(worlds)
    weights = model.weights[0].clone()
    precision = 1 / recipe.prior / recipe.prior / number
    total = recipe.updates * recipe.sweeps + recipe.final_sweeps

    def run(sweeps: int, done: int) -> list[Counts]:
        nonlocal state, walkers
        tempered.weights.copy_(weights.expand_as(tempered.weights))
        state = kernel.init(tempered, state.values)
        found = []
        for sweep in range(sweeps):
            state, walkers, _, _ = advance(tempered, kernel, state, walkers, rng)
            found.append(_counts_at_target(model, state.values))
            if progress is not None:
                progress(done + sweep + 1, total)
        return found

    curvature: Matrix | None = None
    later: list[Weights] = []
    for update in range(recipe.updates):
        found = run(recipe.sweeps, update * recipe.sweeps)
        counts = torch.cat(found)
        new = counts.T.cov(correction=1).reshape(len(weights), len(weights))
        curvature = new if curvature is None else (1 - _FORGET) * curvature + _FORGET * new
        gradient = data.mean(0) - counts.mean(0) - precision * weights
        shorter = 1 / (1 + 10 * update / recipe.updates)
        weights = weights + shorter * _newton(curvature, precision, gradient)
        if update >= recipe.updates // 2:
            later.append(weights)
    weights = torch.stack(later).mean(0)
    settle = recipe.final_sweeps // 5
    found = run(recipe.final_sweeps, recipe.updates * recipe.sweeps)[settle:]
    counts = torch.cat(found)
    curvature = counts.T.cov().reshape(len(weights), len(weights))
    gradient = data.mean(0) - counts.mean(0) - precision * weights
    weights = weights + _newton(curvature, precision, gradient)
    means = torch.stack(found).mean(0)  # of every chain, which are independent
    noise = means.T.cov().reshape(len(weights), len(weights)) / recipe.chains
    errors = _errors(curvature, precision, number, noise)
    return _learned(model, data, weights, errors, curvature, False, recipe.updates, None)


def _counts_at_target(model: FormulaPotential, values: Values) -> Counts:
    return model.counts(values[-1:])[0]


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
    model: FormulaPotential,
    data: Counts,
    weights: Weights,
    errors: Weights,
    curvature: Matrix,
    exact: bool,
    updates: int,
    log_likelihood: float | None,
) -> Learned:
    formulas = [
        replace(one, weight=float(weight)) for one, weight in zip(model.soft, weights, strict=True)
    ]
    warnings = []
    most = torch.tensor(model.most, dtype=torch.float64)
    for place, one in enumerate(model.soft):
        if float(curvature[place, place]) < 1e-9:
            warnings.append(f"{one} holds equally often in every world: its weight means nothing")
        elif bool((data[:, place] == most[place]).all()) or bool((data[:, place] == 0).all()):
            always = "always" if bool((data[:, place] > 0).any()) else "never"
            warnings.append(f"{one} holds {always} in the data: only the prior bounds its weight")
    kept = (*formulas, *model.hard)
    return Learned(kept, weights, errors, exact, updates, log_likelihood, tuple(warnings))
