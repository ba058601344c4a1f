"""Neural Markov Logic Networks with parallel noising.

The names below are the public face of the package. They are imported on first use, so that
`import nmln` and `nmln --help` do not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

_HOMES = {
    "Bucket": "buckets",
    "Attribute": "language",
    "Language": "language",
    "predicate": "language",
    "GroundAtom": "logic",
    "Literal": "logic",
    "Space": "space",
    "measure": "space",
    "from_atoms": "worlds",
    "to_text": "worlds",
    "true_atoms": "worlds",
    "Evidence": "evidence",
    "VirtualEvidence": "evidence",
    "Conditional": "inference",
    "Plan": "inference",
    "ColouredGibbs": "kernels.coloured",
    "Ladder": "ladders",
    "corrupt": "noise",
    "uniform": "noise",
    "FormulaPotential": "potentials.formula",
    "constraint": "potentials.formula",
    "FragmentPotential": "potentials.fragment",
    "DeepSetPotential": "potentials.fragment",
    "GraphPotential": "potentials.graph",
    "ImagePotential": "potentials.image",
    "OneHotPotential": "potentials.function",
    "ValuesPotential": "potentials.function",
    "TablePotential": "potentials.function",
    "LocalPotential": "potentials.local",
    "PiecesPotential": "potentials.pieces",
    "RingsPotential": "potentials.rings",
    "QuantifiedPotential": "potentials.quantified",
    "TemperedPotential": "potentials.tempered",
    "TotalPotential": "potentials.total",
    "Gibbs": "kernels.gibbs",
    "SystematicGibbs": "kernels.gibbs",
    "BlockedGibbs": "kernels.gibbs",
    "MetropolisedGibbs": "kernels.metropolised",
    "GibbsWithGradients": "kernels.gradient",
    "DiscreteLangevin": "kernels.langevin",
    "PathAuxiliary": "kernels.path",
    "Mixture": "kernels.combined",
    "Composition": "kernels.combined",
    "sample": "sampler",
    "snapshot": "sampler",
    "Temperatures": "ladders",
    "Metropolis": "kernels.metropolis",
    "BalancedMetropolis": "kernels.balanced",
    "Lazy": "kernels.combined",
    "ByLevel": "kernels.combined",
    "Screened": "kernels.screened",
    "LocalSlide": "kernels.structural",
    "Regraft": "kernels.structural",
    "Switch": "kernels.structural",
    "kernel_named": "kernels.registry",
    "Recorder": "recording",
    "diagnose": "diagnostics",
    "equal_rejection": "adaptation",
    "write_summary": "report.summary",
    "noised": "noise",
    "Model": "model",
    "load": "model",
    "BasePotential": "potentials.base",
    "NeuralPotential": "potentials.base",
    "Kernel": "types",
    "Sweep": "types",
    "Program": "formats.mln",
    "parse_mln": "formats.mln",
    "configure": "config",
    "recall_curve": "evaluation",
    "Molecules": "molecules.datasets",
    "KnowledgeBase": "knowledge.data",
    "KnowledgePotential": "knowledge.potential",
    "InputError": "errors",
    "read_db": "formats.db",
    "read_evidence": "formats.db",
    "from_text": "formats.db",
    "write_db": "formats.db",
    "read_mln": "formats.mln",
    "parse_formula": "formats.mln",
    "write_mln": "formats.mln",
    "read_triples": "formats.triples",
    "write_triples": "formats.triples",
    "from_networkx": "formats.graphs",
    "to_networkx": "formats.graphs",
}

if TYPE_CHECKING:
    from nmln.adaptation import equal_rejection as equal_rejection
    from nmln.buckets import Bucket as Bucket
    from nmln.config import configure as configure
    from nmln.diagnostics import diagnose as diagnose
    from nmln.errors import InputError as InputError
    from nmln.evaluation import recall_curve as recall_curve
    from nmln.evidence import Evidence as Evidence
    from nmln.evidence import VirtualEvidence as VirtualEvidence
    from nmln.formats.db import from_text as from_text
    from nmln.formats.db import read_db as read_db
    from nmln.formats.db import read_evidence as read_evidence
    from nmln.formats.db import write_db as write_db
    from nmln.formats.graphs import from_networkx as from_networkx
    from nmln.formats.graphs import to_networkx as to_networkx
    from nmln.formats.mln import Program as Program
    from nmln.formats.mln import parse_formula as parse_formula
    from nmln.formats.mln import parse_mln as parse_mln
    from nmln.formats.mln import read_mln as read_mln
    from nmln.formats.mln import write_mln as write_mln
    from nmln.formats.triples import read_triples as read_triples
    from nmln.formats.triples import write_triples as write_triples
    from nmln.inference import Conditional as Conditional
    from nmln.inference import Plan as Plan
    from nmln.kernels.balanced import BalancedMetropolis as BalancedMetropolis
    from nmln.kernels.coloured import ColouredGibbs as ColouredGibbs
    from nmln.kernels.combined import ByLevel as ByLevel
    from nmln.kernels.combined import Composition as Composition
    from nmln.kernels.combined import Lazy as Lazy
    from nmln.kernels.combined import Mixture as Mixture
    from nmln.kernels.gibbs import BlockedGibbs as BlockedGibbs
    from nmln.kernels.gibbs import Gibbs as Gibbs
    from nmln.kernels.gibbs import SystematicGibbs as SystematicGibbs
    from nmln.kernels.gradient import GibbsWithGradients as GibbsWithGradients
    from nmln.kernels.langevin import DiscreteLangevin as DiscreteLangevin
    from nmln.kernels.metropolis import Metropolis as Metropolis
    from nmln.kernels.metropolised import MetropolisedGibbs as MetropolisedGibbs
    from nmln.kernels.path import PathAuxiliary as PathAuxiliary
    from nmln.kernels.registry import kernel_named as kernel_named
    from nmln.kernels.screened import Screened as Screened
    from nmln.kernels.structural import LocalSlide as LocalSlide
    from nmln.kernels.structural import Regraft as Regraft
    from nmln.kernels.structural import Switch as Switch
    from nmln.knowledge.data import KnowledgeBase as KnowledgeBase
    from nmln.knowledge.potential import KnowledgePotential as KnowledgePotential
    from nmln.ladders import Ladder as Ladder
    from nmln.ladders import Temperatures as Temperatures
    from nmln.language import Attribute as Attribute
    from nmln.language import Language as Language
    from nmln.language import predicate as predicate
    from nmln.logic import GroundAtom as GroundAtom
    from nmln.logic import Literal as Literal
    from nmln.model import Model as Model
    from nmln.model import load as load
    from nmln.molecules.datasets import Molecules as Molecules
    from nmln.noise import corrupt as corrupt
    from nmln.noise import noised as noised
    from nmln.noise import uniform as uniform
    from nmln.potentials.base import BasePotential as BasePotential
    from nmln.potentials.base import NeuralPotential as NeuralPotential
    from nmln.potentials.formula import FormulaPotential as FormulaPotential
    from nmln.potentials.formula import constraint as constraint
    from nmln.potentials.fragment import DeepSetPotential as DeepSetPotential
    from nmln.potentials.fragment import FragmentPotential as FragmentPotential
    from nmln.potentials.function import OneHotPotential as OneHotPotential
    from nmln.potentials.function import TablePotential as TablePotential
    from nmln.potentials.function import ValuesPotential as ValuesPotential
    from nmln.potentials.graph import GraphPotential as GraphPotential
    from nmln.potentials.image import ImagePotential as ImagePotential
    from nmln.potentials.local import LocalPotential as LocalPotential
    from nmln.potentials.pieces import PiecesPotential as PiecesPotential
    from nmln.potentials.quantified import QuantifiedPotential as QuantifiedPotential
    from nmln.potentials.rings import RingsPotential as RingsPotential
    from nmln.potentials.tempered import TemperedPotential as TemperedPotential
    from nmln.potentials.total import TotalPotential as TotalPotential
    from nmln.recording import Recorder as Recorder
    from nmln.report.summary import write_summary as write_summary
    from nmln.sampler import sample as sample
    from nmln.sampler import snapshot as snapshot
    from nmln.space import Space as Space
    from nmln.space import measure as measure
    from nmln.types import Kernel as Kernel
    from nmln.types import Sweep as Sweep
    from nmln.worlds import from_atoms as from_atoms
    from nmln.worlds import to_text as to_text
    from nmln.worlds import true_atoms as true_atoms


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"nmln.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'nmln' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
