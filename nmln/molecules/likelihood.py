"""The log-likelihood of molecules, as opposed to that of worlds.

A model gives probabilities to labelled worlds. A molecule has many: its nodes can be numbered in n!
ways, of which those that differ by a symmetry are the same world, and the double bonds of aromatic
rings can be drawn in several places. With K over the structures of a molecule that differ by more
than a renumbering,

    log p(molecule) = log sum_K (n! / |Aut K|) exp rho(K) - log Z.

This holds for scores that do not depend on the numbering, which is checked. Given evidence, the worlds
that do not agree with it are left out of the count.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import factorial, inf, log

import torch
from jaxtyping import Float64, Int64, Integer
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.logic import Atom, Constant, Equal, Formula, WeightedFormula, parts
from nmln.molecules.agreement import Agreement
from nmln.molecules.chemistry import NODE, Molecule, atoms_of, decode_rows, encode_all
from nmln.molecules.chemistry.kekule import kekule_structures
from nmln.potentials.base import BasePotential
from nmln.space import Space

_AT_ONCE = 1024  # worlds scored together
_TOGETHER = 1000  # molecules whose structures are found together
_TRIED = 16  # worlds that are renumbered to check that the score stays the same


@dataclass(frozen=True)
class Structures:
    """One world per structure of some molecules, and the log of the number of worlds it represents.

    `molecule` is the position, among the `molecules`, of the one that a structure belongs to.
    """

    space: Space
    worlds: Integer[Tensor, "structures groups"]
    log_counts: Float64[Tensor, " structures"]
    molecule: Int64[Tensor, " structures"]
    molecules: int

    @staticmethod
    def of(space: Space, worlds: Integer[Tensor, "molecules groups"]) -> "Structures":
        """The structures of the molecules that these worlds encode, one world per molecule.

        It takes about one millisecond per molecule of ten atoms.
        """
        kinds, nodes = atoms_of(space)
        rows = worlds.detach().cpu()
        found, counts, owners = [], [], []
        for position, answer in enumerate(decode_rows(kinds, nodes, rows.numpy())):
            if answer.smiles is None:
                raise InputError(
                    f"only valid molecules have a likelihood, but world {position} is {answer.status}. "
                    "Leave it out.",
                    index=position,
                    kind="unsupported",
                )
            row = rows[position].tolist()
            names = tuple(kinds[kind] for kind in row[:nodes])
            for one in kekule_structures(Molecule(names, bytes(row[nodes:]), answer.smiles)):
                found.append([*row[:nodes], *one.bonds])
                counts.append(log(one.labelled))
                owners.append(position)
        return Structures(
            space,
            torch.tensor(found, dtype=space.dtype).view(-1, space.groups),
            torch.tensor(counts, dtype=torch.float64),
            torch.tensor(owners, dtype=torch.int64),
            len(rows),
        )

    @staticmethod
    def of_smiles(space: Space, smiles: Sequence[str]) -> "Structures":
        """The structures of molecules by their SMILES; a molecule without a world here is an error."""
        encoded = encode_all(space, smiles)
        if encoded.refused:
            position, refusal = encoded.refused[0]
            raise InputError(
                f"this has no likelihood: {refusal.detail}",
                index=position,
                token=smiles[position],
                kind="unsupported",
            )
        return Structures.of(space, encoded.worlds)

    def given(self, evidence: Evidence) -> "Structures":
        """The same structures, each with the number of its worlds that agree with the evidence."""
        agreement = Agreement(evidence)
        whole = log(factorial(agreement.nodes))
        counts = []
        for world, logs in zip(self.worlds, self.log_counts.tolist(), strict=True):
            agreeing = agreement.numberings(world)
            # log_counts is log n! - log |Aut|: dividing by the symmetries is adding what is left.
            counts.append(log(agreeing) + logs - whole if agreeing else -inf)
        return replace(self, log_counts=torch.tensor(counts, dtype=torch.float64))

    def log_sums(self, scores: Float64[Tensor, " structures"]) -> Float64[Tensor, " molecules"]:
        """The log of the sum of exp(score) over the worlds of each molecule."""
        first = torch.searchsorted(self.molecule, torch.arange(self.molecules))
        place = torch.arange(len(scores)) - first[self.molecule]  # among the molecule's own
        most = int(place.max()) + 1 if len(place) else 1
        table = torch.full((self.molecules, most), float("-inf"), dtype=torch.float64)
        table[self.molecule, place] = self.log_counts + scores
        return table.logsumexp(1)


def molecule_log_likelihood(
    potential: BasePotential, space: Space, smiles: Sequence[str], log_z: float
) -> Float64[Tensor, " molecules"]:
    """The log-probability of each molecule at the target level, in nats.

    `log_z` is that of the target level. Refuses potentials whose scores depend on the numbering.
    """
    return log_probabilities(potential, Structures.of_smiles(space, smiles), log_z)


@torch.no_grad()
def log_probabilities(
    potential: BasePotential, structures: Structures, log_z: float
) -> Float64[Tensor, " molecules"]:
    """The log-probability at the target level of each molecule, from its structures."""
    check_numbering(potential, structures)
    return structures.log_sums(_target_scores(potential, structures.worlds)) - log_z


def log_weights(
    potential: BasePotential,
    space: Space,
    smiles: Sequence[str],
    evidence: Evidence | None = None,
    progress: Callable[[int], None] | None = None,
) -> Float64[Tensor, " molecules"]:
    """The log-probability of each molecule at the target level, plus log Z: enough to rank them.

    Minus infinity is the weight of a molecule that the potential or the evidence forbids. One core takes
    0.8 ms per molecule of ten atoms.

    Args:
        potential: its scores must not depend on how atoms are numbered; this is checked.
        space: the language and the size of all molecules.
        smiles: the molecules.
        evidence: what the worlds agree with, so that the weights are those of the conditional
            distribution.
        progress: called with the number of molecules done.
    """
    found = []
    for start in range(0, len(smiles), _TOGETHER):
        structures = Structures.of_smiles(space, smiles[start : start + _TOGETHER])
        if evidence is not None:
            structures = structures.given(evidence)
        found.append(log_probabilities(potential, structures, 0.0))
        if progress is not None:
            progress(min(len(smiles), start + _TOGETHER))
    return torch.cat([*found, torch.zeros(0, dtype=torch.float64)])


def refuse_named_nodes(formulas: Iterable[WeightedFormula]) -> None:
    """Refuse formulas that name single atoms: worlds of one molecule would have different scores."""
    for one in formulas:
        if _names_a_node(one.formula):
            raise InputError(
                f"the likelihood of a molecule needs formulas that treat all atoms alike, but {one} "
                "names a single one. Write it with variables.",
                token=str(one),
                kind="unsupported",
            )


def _names_a_node(formula: Formula) -> bool:
    match formula:
        case Atom(_, terms):
            pass
        case Equal(left, right):
            terms = (left, right)
        case _:
            return any(map(_names_a_node, parts(formula)))
    return any(isinstance(term, Constant) and term.sort == NODE for term in terms)


@torch.no_grad()
def check_numbering(potential: BasePotential, structures: Structures) -> None:
    """Refuse a potential that scores a world and a renumbered copy differently: n! would be wrong."""
    worlds = structures.worlds[:: max(1, len(structures.worlds) // _TRIED)][:_TRIED]
    if not len(worlds):
        return
    _, nodes = atoms_of(structures.space)
    rng = Generator().manual_seed(0)
    renumbered = torch.stack(
        [
            structures.space.relabel(world, {NODE: torch.randperm(nodes, generator=rng).tolist()})
            for world in worlds
        ]
    )
    before, after = _target_scores(potential, worlds), _target_scores(potential, renumbered)
    # Sums in another order round differently.
    changed = (before != after) & ((before - after).abs() > 1e-3 * (1 + before.abs()))
    if bool(changed.any()):
        index = int(torch.nonzero(changed)[0])
        raise InputError(
            "the likelihood of a molecule needs scores that do not depend on how its atoms are "
            f"numbered, but a world of score {before[index]:.6g} has {after[index]:.6g} with its atoms "
            "renumbered. Use a graph, fragment or deepset potential, and formulas without constants.",
            kind="unsupported",
        )


def _target_scores(
    potential: BasePotential, worlds: Integer[Tensor, "worlds groups"]
) -> Float64[Tensor, " worlds"]:
    found = [
        potential.score(some.expand(potential.levels, -1, -1))[-1].double().cpu()
        for some in worlds.split(_AT_ONCE)
    ]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)
