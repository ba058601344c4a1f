"""How much memory training takes, told before it begins."""

from nmln.files import InputError
from nmln.knowledge.data import KnowledgeBase
from nmln.knowledge.potential import Shape
from nmln.knowledge.training import Settings
from nmln.memory import machine_memory, told_bytes

_NUMBER = 4  # bytes
_KEPT = 6  # copies of a hidden layer that a backward pass needs, seen in measurements
_MOST_RANKING = 2**28  # what a batch of the ranking may hold


def expected_bytes(base: KnowledgeBase, shape: Shape, settings: Settings) -> int:
    """About how much memory a training step needs at its peak, beside the program itself."""
    n, relations = len(base.constants), len(base.relations)
    pairs = n * n
    total = 6 * pairs * relations
    if shape.hidden:
        tables = 1 if shape.width == 2 else 3
        total += 3 * tables * pairs * shape.hidden
        candidates = settings.batch * (1 + settings.negatives if settings.negatives else n)
        if settings.objective == "conditional":
            fragments = 2 * candidates if shape.width == 2 else 6 * candidates * n
            loops = settings.batch // 8 * shape.width * n ** (shape.width - 1)
            total += _KEPT * (fragments + loops) * shape.hidden
        elif shape.width == 3:
            total += _KEPT * n * pairs * shape.hidden
        total += _KEPT * (n + shape.width * shape.hidden) * shape.embedding
    if shape.paths:
        total += (18 * pairs + 12 * settings.batch * n) * shape.paths
    total += 8 * (n + relations) * shape.rank * _KEPT
    return total * _NUMBER + _MOST_RANKING


def check_memory(base: KnowledgeBase, shape: Shape, settings: Settings) -> int:
    """The expected memory in bytes; refused if the machine does not have it."""
    needed, there = expected_bytes(base, shape, settings), machine_memory()
    if needed > there * 0.9:
        cure = "Take a smaller --batch, --hidden, --embedding, --rank or --paths"
        if shape.width == 3 and not settings.negatives:
            cure += ", or --negatives 16"
        raise InputError(
            f"{base.sizes}. A training step of this shape needs about {told_bytes(needed)}, but "
            f"the machine has {told_bytes(there)}. {cure}."
        )
    return needed
