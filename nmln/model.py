"""What users hold: a space and a potential for every level; train, sample, save and load."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Integer
from torch import Generator, Tensor

from nmln.checkpoint import load_model, save_model
from nmln.combination import check_alike, mean_of
from nmln.config import Config, ModelConfig, configure, override
from nmln.evidence import Evidence, VirtualEvidence
from nmln.files import InputError, placed
from nmln.formats.mln import Program, parse_mln
from nmln.inference import Conditional
from nmln.kernels.defaults import kernel_named
from nmln.logic import WeightedFormula
from nmln.noise import uniform
from nmln.partition import ScaledPotential
from nmln.potentials.base import BasePotential, refuse_complex
from nmln.potentials.bounded import BoundedPotential
from nmln.potentials.formula import FormulaPotential
from nmln.potentials.fragment import DeepSetPotential, FragmentPotential
from nmln.potentials.graph import GraphPotential
from nmln.potentials.image import ImagePotential
from nmln.potentials.independent import IndependentPotential
from nmln.potentials.pieces import PiecesPotential
from nmln.potentials.total import TotalPotential
from nmln.pretrained import folder_of
from nmln.sampler import Observer, sample
from nmln.space import Space
from nmln.training import Metrics, Return, Trainer, train
from nmln.training.method import Method
from nmln.training.optimiser import by_level
from nmln.training.pilot import steps_in
from nmln.training.sizes import check_model, check_training
from nmln.types import Sweep

Report = Callable[[Metrics | Return], None]

WEIGHING = {
    "optimiser.method": "adam",
    "optimiser.learning_rate": 0.01,
    "optimiser.schedule": "cosine",
    "optimiser.warm_up": 20,
    "optimiser.common": 0.0,
    "optimiser.weight_decay": 0.0,
    "optimiser.energy_penalty": 0.0,
    "optimiser.spread": 0.0,
    "optimiser.average": 0.95,
    "chains.weighted": False,
    "training.warm_start": 0,
    "training.minutes": None,
}
"""How betas are fitted: a few numbers, which nothing needs to hold back."""


@dataclass(frozen=True)
class Model:
    """A trained (or yet untrained) distribution over worlds, at every level of its ladder."""

    space: Space
    potential: BasePotential
    config: Config
    formulas: tuple[WeightedFormula, ...] = ()

    @staticmethod
    def build(
        space: Space,
        worlds: Integer[Tensor, "worlds groups"],
        config: Config | None = None,
        formulas: Sequence[WeightedFormula] = (),
    ) -> "Model":
        """A model that has learned nothing yet but the marginals of its base term."""
        config = config or Config()
        if not len(worlds):
            raise InputError("there are no worlds to train on.")
        method = Method.of(config.ladder)
        check_training(space, config)
        potential = _learned(space, method.trained_levels, config, formulas)
        if config.optimiser.common:
            _make_alike(potential)
        if config.model.base:
            rng = Generator().manual_seed(config.model.seed)
            copies = worlds[torch.randint(len(worlds), (max(2000, len(worlds)),), generator=rng)]
            base = IndependentPotential.fit(space, method.corrupt(space, copies, rng))
            potential = potential.add(base)
        return Model(space, _with_pieces(potential, config), config, tuple(formulas))

    @staticmethod
    def fit(
        space: Space,
        worlds: Integer[Tensor, "worlds groups"],
        config: Config | None = None,
        formulas: Sequence[WeightedFormula] = (),
        report: Report | None = None,
    ) -> "Model":
        """Train a model on worlds, from beginning to end, in this process.

        A budget in minutes becomes a number of steps by a short pilot; the model's `config` has it.
        """
        model = Model.build(space, worlds, config, formulas)
        trainer = Trainer(model.potential, worlds, model.config)
        if model.config.training.minutes is not None:
            steps = steps_in(model.config.training.minutes, trainer)
            trainer.config = override(
                model.config, {"training.steps": steps, "training.minutes": None}
            )
            model = replace(model, config=trainer.config)
        for metrics in train(trainer):
            if report is not None:
                report(metrics)
        return model.averaged(trainer)

    def averaged(self, trainer: Trainer) -> "Model":
        """This model with the parameters that sampling uses: their moving average, if there is one."""
        return replace(self, potential=trainer.average or trainer.potential)

    @property
    def method(self) -> Method:
        return Method.of(self.config.ladder)

    def sample(
        self,
        sweeps: int,
        rng: Generator,
        *,
        chains: int | None = None,
        burn_in: int = 100,
        thin: int = 1,
        moves: int = 0,
        kernel: str = "",
        evidence: Evidence | None = None,
        recorder: Observer | None = None,
        added: BasePotential | None = None,
    ) -> Iterator[Sweep]:
        """Chains at all levels from pure noise; the worlds of the target are `sweep.state.values[-1]`.

        A sweep has `moves` moves of the kernel of that name, by default as `config.sampling` says. With
        evidence they sample the conditional distribution. `added` is one more potential, of as many
        levels as the chains have, for example `constraint(space, formulas, levels)`.
        """
        method = self.method
        potential = method.sampled(self.potential)
        if added is not None:
            potential = TotalPotential([potential]).add(added)
        named = kernel_named(kernel or self.config.sampling.kernel, self.space, evidence)
        count = self.config.chains.replicas if chains is None else chains
        start = uniform(self.space, method.chain_levels, count, rng, evidence)
        return sample(
            potential,
            named,
            start,
            sweeps,
            rng,
            moves=moves or self.config.sampling.moves,
            phases=self.config.chains.phases,
            burn_in=burn_in,
            thin=thin,
            recorder=recorder,
        )

    def given(
        self,
        evidence: Evidence | None = None,
        virtual: VirtualEvidence | None = None,
        formulas: Sequence[WeightedFormula] = (),
    ) -> Conditional:
        """The model's distribution given evidence, ready to be asked; formulas are added to it."""
        return Conditional.of_levels(
            self.level(-1),
            self.method.sampled(self.potential),
            self.method.ladder,
            formulas,
            evidence,
            virtual,
        )

    def level(self, level: int) -> BasePotential:
        """The potential of one level that chains run at, alone: it costs one level's time."""
        temperatures = self.method.temperatures
        if temperatures is not None:
            return ScaledPotential(self.potential, [1 / temperatures.rates[level]])
        if self.potential.levels == 1:
            return self.potential
        content = self.describe()
        content["config"]["ladder"]["rates"] = [self.config.ladder.rates[level]]
        potential = Model.described(content).potential
        # Every level has parameters of its own: the first axis of each tensor counts the levels.
        own = {name: tensor[[level]] for name, tensor in self.potential.state_dict().items()}
        potential.load_state_dict(own)
        return potential.to(self.potential.dtype)

    def save(self, path: str | Path) -> None:
        """Keep the model as a directory of tensors and JSON."""
        save_model(Path(path), dict(self.potential.state_dict()), self.describe())

    @staticmethod
    def load(path: str | Path) -> "Model":
        """A model that was saved; nothing in its files is executed."""
        tensors, content = load_model(Path(path))
        model = Model.described(content, str(path))
        model.take(tensors, str(path))
        return model

    @staticmethod
    def combined(
        models: Sequence["Model"], *, pieces: bool = False, names: Sequence[str] = ()
    ) -> "Model":
        """The model whose score is the mean of theirs: probable is what all of them find probable.

        They are over one space, with networks of one form and the same ladder, and were trained apart.
        With `pieces` the whole counts pieces too, with a weight of zero that `weighed` learns. An error
        calls the models by their `names`.
        """
        check_alike(models, names)
        networks = [_networks(model.config.model) for model in models]
        changes = {"model.networks": max(1, sum(networks))}
        known = models[0].config.model.pieces
        config = override(models[0].config, {**changes, "model.pieces": pieces or known})
        whole = Model.described(replace(models[0], config=config).describe())
        mean = mean_of([model.potential.state_dict() for model in models], networks)
        if pieces and not known:  # as it is made: the last part, without effect
            mean = {**whole.potential.state_dict(), **mean}
        whole.take(mean, "the combination")
        return whole

    def weighed(
        self,
        worlds: Integer[Tensor, "worlds groups"],
        steps: int,
        report: Report | None = None,
    ) -> "Model":
        """This model with the betas of its networks fitted by likelihood.

        A mean of scores is flatter than each of them where they disagree, and some levels of some
        networks are better than others: a few hundred steps find out by how much. What each further
        piece of a world costs is fitted too, where they are counted. All else stays as it is.
        """
        if not _networks(self.config.model) and not self.config.model.pieces:
            raise InputError("a formula model has no networks to weigh. Combine without fitting.")
        potential = deepcopy(self.potential).requires_grad_(False)
        assert isinstance(potential, TotalPotential)
        for beta in potential.betas[: _networks(self.config.model)]:
            beta.requires_grad_(True)
        if self.config.model.pieces:
            potential.parts[-1].requires_grad_(True)
        trainer = Trainer(
            potential, worlds, override(self.config, {**WEIGHING, "training.steps": steps})
        )
        for metrics in train(trainer):
            if report is not None:
                report(metrics)
        fitted = self.averaged(trainer)
        for new, own in zip(
            fitted.potential.parameters(), self.potential.parameters(), strict=True
        ):
            new.requires_grad_(own.requires_grad)  # the whole of it can learn on
        return fitted

    @staticmethod
    def pretrained(name: str) -> "Model":
        """A model that comes with the package, for example `pubchem-10`."""
        return Model.load(folder_of(name) / "model")

    def take(self, tensors: Mapping[str, Tensor], source: str) -> None:
        """Take over saved parameters, if they are those of this model."""
        refuse_complex(tensors, source)
        try:
            if any(tensor.is_complex() for tensor in tensors.values()):
                raise TypeError("weights are real numbers")
            self.potential.load_state_dict(tensors)
        except (RuntimeError, KeyError, TypeError, AttributeError):
            raise InputError(
                "its tensors are not those of the model that it describes. Save the model again, or "
                "fetch another copy.",
                source,
            ) from None

    def describe(self) -> dict[str, Any]:
        """Everything but the numbers: language, domain, formulas and configuration."""
        program = Program(self.space.language, dict(self.space.domain), self.formulas)
        return {"program": str(program), "config": self.config.to_dict()}

    @staticmethod
    def described(content: dict[str, Any], source: str | None = None) -> "Model":
        """A model with this description, its parameters still to be filled in."""
        text, settings = content.get("program"), content.get("config")
        if not isinstance(text, str) or not isinstance(settings, dict):
            raise InputError("this is not the description of a model.", source)
        program = parse_mln(text, source or "model")
        with placed(source):
            space = Space(program.language, program.domain)
            config = configure(settings, source)
            potential = _learned(
                space, Method.of(config.ladder).trained_levels, config, program.formulas
            )
        if config.model.base:
            table = torch.zeros(potential.levels, space.entries)
            potential = potential.add(IndependentPotential(space, table))
        return Model(space, _with_pieces(potential, config), config, tuple(program.formulas))


@torch.no_grad()
def _make_alike(potential: BasePotential) -> None:
    """Begin with the same weights at every level, so that a step in common means the same to all."""
    for parameter in potential.parameters():
        if by_level(parameter, potential.levels):
            parameter.copy_(parameter[-1:].expand_as(parameter).clone())


def _learned(
    space: Space, levels: int, config: Config, formulas: Sequence[WeightedFormula]
) -> TotalPotential:
    """The part of the potential that has parameters."""
    check_model(space, levels, config.model)
    parts: list[BasePotential] = [
        _network(space, levels, config.model, config.model.seed + number)
        for number in range(_networks(config.model))
    ]
    if config.model.bound:
        parts = [BoundedPotential(part, config.model.bound) for part in parts]
    if not parts and not formulas:
        raise InputError(
            "a formula model needs formulas: name a .mln file that has some (data.language)."
        )
    if formulas:
        parts.append(FormulaPotential(space, formulas, levels))
    total = TotalPotential(parts)
    with torch.no_grad():
        for beta in total.betas[: config.model.networks]:
            beta.div_(config.model.networks)
    return total


def _with_pieces(potential: TotalPotential, config: Config) -> TotalPotential:
    """The count of pieces comes last, so that a model can take it up later."""
    if not config.model.pieces:
        return potential
    return potential.add(PiecesPotential(potential.space, potential.levels))


def _networks(model: ModelConfig) -> int:
    return 0 if model.potential == "formula" else model.networks


def _network(space: Space, levels: int, model: ModelConfig, seed: int) -> BasePotential:
    hidden, rng = (model.hidden,) * model.layers, Generator().manual_seed(seed)
    match model.potential:
        case "fragment":
            return FragmentPotential(space, levels, model.width, hidden, rng=rng)
        case "deepset":
            return DeepSetPotential(space, levels, model.width, model.hidden, hidden, rng=rng)
        case "image":
            return ImagePotential(
                space, levels, layers=model.layers, channels=model.hidden, rng=rng
            )
        case _:
            return GraphPotential(
                space, levels, model.layers, model.hidden, residual=model.residual, rng=rng
            )
