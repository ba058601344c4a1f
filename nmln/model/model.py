"""The model that users hold: train, sample, generate, ask, save and load."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Integer
from torch import Generator, Tensor

from nmln.buckets import Bucket, in_buckets
from nmln.checkpoint import MODEL, load_model, save_model
from nmln.config import Config
from nmln.devices import device_of, generator, move
from nmln.errors import InputError
from nmln.evidence import Evidence, VirtualEvidence
from nmln.inference import Conditional
from nmln.logic import WeightedFormula
from nmln.model import replicas as stored
from nmln.model.assembly import describe, from_description, new_potential, take
from nmln.model.chains import ModelChains
from nmln.model.combination import Report, fit_betas, mean_potential
from nmln.model.constants import refuse_misspelled, warn_unseen
from nmln.model.domains import (
    Domain,
    asked_for,
    by_shares,
    domains_of,
    refuse_conditions,
    refuse_several,
)
from nmln.model.generation import MOST_TRIES, collect, decoder_for
from nmln.model.pretrained import folder_of
from nmln.model.start import start_from, started_settings
from nmln.potentials.base import BasePotential
from nmln.potentials.independent import MARGINALS
from nmln.potentials.scaled import ScaledPotential
from nmln.sampler import Observer
from nmln.space import Space
from nmln.training import Trainer, train
from nmln.training.method import Method
from nmln.training.pilot import planned
from nmln.training.rates import with_rates
from nmln.types import Sweep


@dataclass(frozen=True)
class Model:
    """A trained (or yet untrained) distribution over worlds, at every level of its ladder.

    A model of several `domains` is P(world) = P(domain) P(world | domain) with the shares of the data;
    its `space` and `potential` are those of the first domain, and `on` gives the others.
    """

    space: Space
    potential: BasePotential
    config: Config
    formulas: tuple[WeightedFormula, ...] = ()
    domains: tuple[Domain, ...] = ()
    replicas: stored.Replicas | None = None  # that chains may start from

    @staticmethod
    def build(
        space: Space | Sequence[Bucket],
        worlds: Integer[Tensor, "worlds groups"] | None = None,
        config: Config | None = None,
        formulas: Sequence[WeightedFormula] = (),
        start: "Model | None" = None,
    ) -> "Model":
        """A model that has learned only the marginals of its base term, or what `start` has learned.

        Args:
            space: the language and the domain, or data of several domains in buckets.
            worlds: the data, if they are of one domain.
            config: the settings; by default those of `Config()`, with the potential of `start`.
            formulas: formulas whose weights are learned beside the networks.
            start: a model whose weights this one starts with. It has the same language, but may have
                other domains, levels and values of attributes.
        """
        buckets = in_buckets(space, worlds)
        domains = domains_of(buckets)
        config = config or (Config() if start is None else started_settings(start))
        config = with_rates(config, buckets)
        potential = new_potential(buckets, config, formulas)
        if start is not None:
            start_from(start, potential, config, formulas)
        return Model(buckets[0].space, potential, config, tuple(formulas), domains)

    @staticmethod
    def fit(
        space: Space | Sequence[Bucket],
        worlds: Integer[Tensor, "worlds groups"] | None = None,
        config: Config | None = None,
        formulas: Sequence[WeightedFormula] = (),
        report: Report | None = None,
        start: "Model | None" = None,
    ) -> "Model":
        """Train a model on worlds, from start to end, in this process.

        A budget in minutes becomes a number of steps by a short pilot; the model's `config` has it.

        Args:
            space: the language and the domain, or data of several domains in buckets.
            worlds: the data, if they are of one domain.
            config: the settings; by default those of `Config()`, with the potential of `start`.
            formulas: formulas whose weights are learned beside the networks.
            report: called after every step with its metrics.
            start: a model whose weights this one starts with, as in `build`.
        """
        buckets = in_buckets(space, worlds)
        model = Model.build(buckets, config=config, formulas=formulas, start=start)
        trainer = Trainer(model.potential, buckets, model.config)
        if model.config.training.minutes is not None:
            trainer.configure(planned(model.config.training.minutes, trainer))
            model = replace(model, config=trainer.config)
        for metrics in train(trainer):
            if report is not None:
                report(metrics)
        model = model.averaged(trainer)
        return replace(model, replicas=stored.Replicas.mixed(trainer))

    def averaged(self, trainer: Trainer) -> "Model":
        """This model with the parameters that sampling uses: their average, if there is one."""
        return replace(self, potential=trainer.average or trainer.potential, replicas=None)

    def to(self, device: str | torch.device) -> "Model":
        """This model on a device, as `--device` names it: its parameters are moved, not copied.

        Chains, queries and training of the result run there.
        """
        found = device if isinstance(device, torch.device) else device_of(device)
        return replace(self, potential=move(self.potential, found))

    def on(self, space: Space, *, warn: bool = True) -> "Model":
        """The model of one domain, which may be another one than those of the data.

        Its parameters are shared with this model. By default a warning says where no data had as many
        constants, so that results are an extrapolation.
        """
        own = None
        if self.replicas is not None and space in self._known:
            own = self.replicas.of(self._known.index(space))
        found = Model(space, self.potential.on(space), self.config, self.formulas, replicas=own)
        if warn:
            warn_unseen(self._known, space)
        return found

    @property
    def _known(self) -> list[Space]:
        """The language on every domain of the data."""
        return [one.space for one in self.domains] or [self.space]

    def share_of(self, space: Space) -> float:
        """The probability of a domain: its share of the data, 0 if it was not in them."""
        known = {one.space: one.share for one in self.domains} or {self.space: 1.0}
        return known.get(space, 0.0)

    @property
    def method(self) -> Method:
        """How its levels are made: by noise, by temperature, or only one."""
        return Method.of(self.config.ladder)

    def sample(
        self,
        sweeps: int,
        rng: Generator,
        *,
        chains: int | None = None,
        burn_in: int | None = None,
        thin: int = 1,
        moves: int = 0,
        kernel: str = "",
        evidence: Evidence | None = None,
        recorder: Observer | None = None,
        added: BasePotential | None = None,
        start: stored.Start = "auto",
        sharpen: float = 1.0,
    ) -> Iterator[Sweep]:
        """Chains at all levels; the worlds of the target are `sweep.state.values[-1]`.

        They start from the replicas that come with the model or from pure noise, see `start`. `generate`
        gives decoded results instead.

        Args:
            sweeps: how many sweeps are made, those of the burn-in included.
            rng: the source of all random numbers.
            chains: replicas; by default as many as in training.
            burn_in: sweeps that are not returned; by default 100 from noise, and as many as `decide`
                says from replicas.
            thin: sweeps from one that is returned to the next.
            moves: steps of the kernel per sweep; 0 for `config.sampling.moves`.
            kernel: the name of a kernel; empty for `config.sampling.kernel`.
            evidence: what every world agrees with, so that the chains sample the conditional
                distribution.
            recorder: sees every sweep after the burn-in.
            added: one more potential with as many levels as the chains have, for example
                `constraint(space, formulas, levels)`.
            start: `noise`, `model` for the replicas of the model, or `auto`: the replicas if there are
                some, nothing changes the distribution, and no burn-in is given.
            sharpen: B multiplies the model's scores at the target, whose worlds then have the
                distribution exp(B * score) / Z; `added` is not multiplied.
        """
        running = self.chains(
            moves=moves, kernel=kernel, evidence=evidence, added=added, sharpen=sharpen
        )
        count = self.config.chains.replicas if chains is None else chains
        changed = evidence is not None or added is not None or sharpen != 1
        told = self._beginning(start, burn_in, moves, changed, 100)
        first = stored.first_worlds(
            running, self.replicas if told.from_replicas else None, count, rng
        )
        return running.run(first, sweeps, rng, burn_in=told.burn_in, thin=thin, recorder=recorder)

    def _beginning(
        self, start: stored.Start, burn_in: int | None, moves: int, changed: bool, noise: int
    ) -> stored.Decision:
        """Where chains start; `changed`: their target is another one than that of the model."""
        condition = "evidence, a potential or sharpening is given" if changed else None
        pace = moves / self.config.sampling.moves if moves else 1.0
        return stored.decide(start, burn_in, [self.replicas], condition, pace, noise)

    def chains(
        self,
        *,
        moves: int = 0,
        kernel: str = "",
        evidence: Evidence | None = None,
        added: BasePotential | None = None,
        sharpen: float = 1.0,
    ) -> ModelChains:
        """What runs the chains of this model, for more control than `sample` gives.

        Args:
            moves: steps of the kernel per sweep; 0 for `config.sampling.moves`.
            kernel: the name of a kernel; empty for `config.sampling.kernel`.
            evidence: what every world agrees with.
            added: one more potential with as many levels as the chains have.
            sharpen: a number that the model's scores at the target are multiplied by.
        """
        refuse_several(self.domains, "sampling chains")
        return ModelChains.of(
            self.space,
            self.potential,
            self.config,
            moves=moves,
            kernel=kernel,
            evidence=evidence,
            added=added,
            sharpen=sharpen,
        )

    def generate(
        self,
        n: int,
        *,
        seed: int = 0,
        chains: int = 100,
        burn_in: int | None = None,
        thin: int = 4,
        moves: int = 0,
        kernel: str = "",
        evidence: Evidence | None = None,
        added: BasePotential | None = None,
        kind: str | None = None,
        valid_only: bool = True,
        attempts: int | None = None,
        size: int | None = None,
        sizes: Sequence[int] | None = None,
        start: stored.Start = "auto",
        sharpen: float = 1.0,
    ) -> list[Any]:
        """n results, decoded by what the language is about; the same seed gives the same results.

        A model of several domains draws a domain by its share for every result.

        A model of molecules gives SMILES, one of graphs NetworkX graphs, any other frozen sets of true
        ground atoms. Results of one chain, which are `chains` places apart, are not independent.

        Not every world of molecules is a valid molecule: those that are not are left out and drawn
        again. Of the model `pubchem-10` 98.5 % are valid. If too few of the attempts are, that is an
        error.

        Args:
            n: how many results.
            seed: of all random numbers.
            chains: replicas that are run side by side, at most n.
            burn_in: sweeps before the first result; by default 300 from noise, few from replicas.
            thin: sweeps from one result of a chain to the next.
            moves: steps of the kernel per sweep; 0 for `config.sampling.moves`.
            kernel: the name of a kernel; empty for `config.sampling.kernel`.
            evidence: what every world agrees with.
            added: one more potential with as many levels as the chains have, for example
                `constraint(space, formulas, levels)`.
            kind: `molecules`, `graphs` or `atoms`; by default derived from the language.
            valid_only: False gives the first n attempts, with None in the place of those that are not
                valid.
            attempts: how many worlds are drawn at most; by default 100 per result.
            size: the number of constants, such as the heavy atoms of molecules. A size that was not in
                the data is allowed, with a warning that it is an extrapolation.
            sizes: several sizes, by their shares among each other in the data; evenly, if one was not in
                the data.
            start: where the chains start, as in `sample`.
            sharpen: a number that the model's scores at the target are multiplied by, given the size:
                above 1, results are more often valid and less varied.
        """
        domains = asked_for(self.domains, self.space, size, sizes)
        changed = evidence is not None or added is not None or sharpen != 1
        if domains:
            options: dict[str, Any] = {
                "chains": chains, "burn_in": burn_in, "thin": thin, "moves": moves, "kernel": kernel,
                "evidence": evidence, "added": added, "kind": kind, "valid_only": valid_only,
                "start": start, "sharpen": sharpen,
            }  # fmt: skip
            refuse_conditions(domains, evidence is not None or added is not None)

            def results(space: Space, count: int, own: int, tries: int | None) -> list[Any]:
                there = self.on(space, warn=False)
                return there.generate(count, seed=own, attempts=tries, **options)

            return by_shares(domains, n, seed, attempts, results)
        for name, number in (("n", n), ("chains", chains), ("attempts", attempts or 1)):
            if number < 1:
                raise InputError(f"{name} must be at least 1, got {number}.")
        decode, chains = decoder_for(self.space, kind), min(n, chains)
        most = n if not valid_only else MOST_TRIES * n if attempts is None else attempts
        told = self._beginning(start, burn_in, moves, changed, stored.BURN_IN)
        sweeps = self.sample(
            told.burn_in + thin * -(-most // chains),
            generator(self.potential.device, seed),
            chains=chains,
            burn_in=told.burn_in,
            thin=thin,
            moves=moves,
            kernel=kernel,
            evidence=evidence,
            added=added,
            start="model" if told.from_replicas else "noise",
            sharpen=sharpen,
        )
        return collect((sweep.state.values[-1] for sweep in sweeps), decode, n, valid_only)

    def given(
        self,
        evidence: Evidence | None = None,
        virtual: VirtualEvidence | None = None,
        formulas: Sequence[WeightedFormula] = (),
    ) -> Conditional:
        """The model's distribution given evidence, ready for queries; formulas are added to it.

        It is that on the domain of the evidence, which may be one that was not in the data: see `on`.
        Names that are partly those of the data, or nearly, are refused as probable mistakes;
        `model.on(space).given(evidence)` takes any.
        """
        about = evidence or virtual
        if about is not None and (about.space != self.space or self.domains):
            there = self.on(about.space, warn=False)
            refuse_misspelled(self._known, about.space.domain)
            warn_unseen(self._known, about.space)
            return there.given(evidence, virtual, formulas)
        refuse_several(self.domains, "a query")
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
        return self.potential.at_levels([level]).to(self.potential.dtype)

    def save(self, path: str | Path) -> None:
        """Save the model as a directory of tensors and JSON; that of `on` as one of one domain."""
        tensors = dict(self.potential.state_dict())
        if not self.domains:
            tensors = {
                name: tensor for name, tensor in tensors.items() if not name.endswith(MARGINALS)
            }
        content = self.describe()
        if self.replicas is not None:
            tensors |= self.replicas.tensors()
            content["replicas"] = self.replicas.described()
        save_model(Path(path), tensors, content)

    @staticmethod
    def load(path: str | Path) -> "Model":
        """A model that `save` wrote; nothing in its files is executed. `nmln.load` takes runs too."""
        tensors, content = load_model(Path(path))
        model = Model.described(content, str(path))
        model.take(stored.parameters_in(tensors), str(path))
        spaces, levels = model._known, model.method.chain_levels
        found = stored.Replicas.read(tensors, content.get("replicas"), spaces, levels, str(path))
        return replace(model, replicas=found)

    @staticmethod
    def pretrained(name: str) -> "Model":
        """A model that comes with the package, for example `pubchem-10`."""
        return Model.load(folder_of(name) / MODEL)

    @staticmethod
    def combined(
        models: Sequence["Model"], *, pieces: bool = False, names: Sequence[str] = ()
    ) -> "Model":
        """The model whose score is the mean of theirs: a world is probable if all find it probable.

        They have the same space, form of network and ladder, and were trained separately. With `pieces`
        the result counts pieces too, with a weight of zero that `weighed` learns. Errors use `names`
        for the models.
        """
        config, potential = mean_potential(models, pieces=pieces, names=names)
        return Model(models[0].space, potential, config, models[0].formulas)

    def weighed(
        self,
        worlds: Integer[Tensor, "worlds groups"],
        steps: int,
        report: Report | None = None,
    ) -> "Model":
        """This model with the betas of its networks fitted by likelihood.

        A mean of scores is flatter than each of them where they disagree, and some levels of some
        networks are better than others: a few hundred steps find out by how much. The cost of a further
        piece is fitted too, where pieces are counted. Everything else stays as it is.
        """
        refuse_several(self.domains, "fitting betas")
        potential, replicas = fit_betas(self, worlds, steps, report)
        return replace(self, potential=potential, replicas=replicas)

    def mixed(
        self,
        chains: int = 200,
        burn_in: int = stored.BURN_IN,
        *,
        times: int = 1,
        every: int = 100,
        seed: int = 0,
        report: Callable[[int, int], None] | None = None,
    ) -> "Model":
        """This model with replicas to start from, made by chains that burn in from noise.

        Training gives a model its own.

        Args:
            chains: replicas that are run side by side.
            burn_in: sweeps before they are kept.
            times: how often they are kept.
            every: sweeps from one time to the next.
            seed: of all random numbers.
            report: called with the number of sweeps done and of all.
        """
        plan = (chains, burn_in, times, every, seed, report)
        runs = [self.on(space, warn=False).chains() for space in self._known]
        kept = [stored.mixed_from_noise(running, *plan) for running in runs]
        return replace(self, replicas=stored.Replicas.of_domains(kept, burn_in))

    def take(self, tensors: Mapping[str, Tensor], source: str) -> None:
        """Take over saved parameters; refuses those of another model, and names `source`."""
        take(self.potential, tensors, source)

    def describe(self) -> dict[str, Any]:
        """Everything but the numbers: language, domain, formulas and configuration."""
        return describe(self.space, self.formulas, self.config, self.domains)

    @staticmethod
    def described(content: dict[str, Any], source: str | None = None) -> "Model":
        """A model with this description, its parameters still to be filled in."""
        made = from_description(content, source)
        return Model(made.space, made.potential, made.config, made.formulas, made.domains)
