"""The effect of corruption on a built-in world, level by level: `nmln data corrupt`."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path

import torch

from nmln.files import write_json, write_lines
from nmln.formats.db import format_worlds, read_db, write_db
from nmln.formats.mln import Program, read_mln
from nmln.ladders import Ladder
from nmln.noise import acceptance_bound
from nmln.potentials.formula import FormulaPotential
from nmln.space import Space
from nmln.types import Worlds


@dataclass(frozen=True)
class CorruptedLevel:
    """The effect of corruption at one rate: means over the drawn copies beside exact expectations."""

    rate: float
    changed: float  # groups, mean over the copies
    changed_expected: float
    untouched: float  # share of the copies
    untouched_expected: float
    swap_bound: float | None  # with the next level, by the paper's worst-case bound
    score: float  # of the program's weighted formulas, mean over the copies


@dataclass(frozen=True)
class CorruptionOutcome:
    """The corrupted world with its statistics at every level, and the files that were written."""

    program: Program
    space: Space
    world: Worlds
    levels: tuple[CorruptedLevel, ...]
    example: Worlds  # one corrupted copy at every level
    written: tuple[Path, ...]


def builtin(name: str) -> tuple[Program, Space, Worlds]:
    """A program (language and formulas), its space and its worlds, shipped with the package."""
    with as_file(files("nmln") / "data") as folder:
        program = read_mln(folder / f"{name}.mln")
        space, worlds = read_db(folder / f"{name}.db", program.language, program.domain)
    return program, space, worlds


def run(output: Path, rates: tuple[float, ...], copies: int, seed: int) -> CorruptionOutcome:
    """Corrupt the built-in world at every rate and write the statistics to the folder `output`.

    Args:
        output: the folder for `corrupted.db`, `levels.csv` and `summary.json`.
        rates: the corruption rates, noisiest first.
        copies: the number of corrupted copies at every level.
        seed: the seed of all random numbers.
    """
    ladder = Ladder(rates)
    program, space, worlds = builtin("smokers")
    rng = torch.Generator().manual_seed(seed)
    corrupted = ladder.corrupt(space, worlds[:1].expand(copies, -1), rng)
    formulas = FormulaPotential(space, program.formulas, len(ladder))
    with torch.no_grad():
        scores = formulas.score(corrupted).double().mean(1).tolist()
    levels = tuple(_measure(space, worlds[0], corrupted, ladder, scores))
    write_db(output / "corrupted.db", space, corrupted[:, 0])
    write_lines(output / "levels.csv", _table(levels))
    summary = {
        "data": "smokers",
        "seed": seed,
        "copies": copies,
        "space": asdict(space.measure),
        "world": "\n".join(format_worlds(space, worlds)).split("\n"),
        "levels": [asdict(level) for level in levels],
    }
    write_json(output / "summary.json", summary)
    written = tuple(output / name for name in ("corrupted.db", "levels.csv", "summary.json"))
    return CorruptionOutcome(program, space, worlds[0], levels, corrupted[:, 0], written)


def _measure(
    space: Space, world: Worlds, corrupted: Worlds, ladder: Ladder, scores: list[float]
) -> Iterator[CorruptedLevel]:
    free = int((space.sizes > 1).sum())
    for level, rate in enumerate(ladder):
        changed = (corrupted[level] != world).sum(-1).double()
        below = ladder.rates[level + 1] if level + 1 < len(ladder) else None
        yield CorruptedLevel(
            rate=rate,
            changed=changed.mean().item(),
            changed_expected=free * rate,
            untouched=(changed == 0).double().mean().item(),
            untouched_expected=(1 - rate) ** free,
            swap_bound=None if below is None else acceptance_bound(free, rate, below),
            score=scores[level],
        )


def _table(levels: tuple[CorruptedLevel, ...]) -> Iterator[str]:
    yield ",".join(asdict(levels[0]))
    for level in levels:
        yield ",".join("" if value is None else repr(value) for value in asdict(level).values())
