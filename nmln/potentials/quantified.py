"""Quantified potentials: fragment scores aggregated variable by variable."""

from collections import Counter
from collections.abc import Callable

from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.potentials.fragment import FragmentNetwork, Fragments, fragments
from nmln.space import Space
from nmln.types import OneHot, Scores

AGGREGATES: dict[str, Callable[[Tensor], Tensor]] = {
    "min": lambda scores: scores.amin(-1),
    "max": lambda scores: scores.amax(-1),
    "mean": lambda scores: scores.mean(-1),
    "sum": lambda scores: scores.sum(-1),
}


class QuantifiedPotential(FragmentNetwork):
    """A soft formula in prenex form: a network scores each tuple, quantifiers aggregate the scores.

    `quantifiers` lists, from the outermost variable to the innermost, how its values are aggregated:
    `max` is a soft "there is", `min` a soft "for all", `mean` and `sum` count. Variables take
    different constants. With several sorts, `sorts` names that of every variable.

    `("min", "max")` over one sort reads: for every x there is another y such that …
    """

    def __init__(
        self,
        space: Space,
        levels: int,
        quantifiers: tuple[str, ...],
        sorts: tuple[str, ...] | None = None,
        hidden: tuple[int, ...] = (64, 64),
        *,
        embedding: int = 0,
        rng: Generator | None = None,
    ) -> None:
        unknown = [name for name in quantifiers if name not in AGGREGATES]
        if unknown or not quantifiers:
            raise InputError(
                f"quantifiers must be some of {', '.join(AGGREGATES)}, got {quantifiers}.",
                token=unknown[0] if unknown else None,
                kind="unknown" if unknown else "empty",
            )
        if sorts is None:
            if len(space.domain) != 1:
                raise InputError(
                    f"this language has the sorts {', '.join(space.domain) or 'none'}: say which each "
                    "variable ranges over, as in sorts=('person', 'city').",
                    kind="missing",
                )
            sorts = tuple(space.domain) * len(quantifiers)
        if len(sorts) != len(quantifiers) or any(sort not in space.domain for sort in sorts):
            raise InputError(
                f"every quantifier needs a sort of the language ({', '.join(space.domain)}), but "
                f"{len(quantifiers)} quantifiers have the sorts {sorts}.",
                kind="conflict",
            )
        for attribute in space.language:
            lacking = Counter(attribute.sorts) - Counter(sorts)
            if lacking:
                raise InputError(
                    f"{attribute.declaration()} would never be seen: it needs more variables of sort "
                    f"{', '.join(lacking)} than the {len(sorts)} that these quantifiers have.",
                    token=attribute.name,
                    kind="conflict",
                )
        table = fragments(space, sorts)
        if not len(table.constants):
            raise InputError(
                f"there are not enough constants for variables of the sorts {sorts}.",
                kind="conflict",
            )
        rng = rng or Generator().manual_seed(0)
        super().__init__(space, levels, [table], (*hidden, 1), embedding, rng)
        self.quantifiers = quantifiers

    def tables_of(self, space: Space) -> list[Fragments]:
        table = fragments(space, self.tables[0].sorts)
        return [table] if len(table.constants) else []

    def forward(self, onehot: OneHot) -> Scores:
        scores = self.outputs(onehot)[0].squeeze(-1).unflatten(-1, self.tables[0].grid)
        for name in reversed(self.quantifiers):
            scores = AGGREGATES[name](scores)
        return scores
