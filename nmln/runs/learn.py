"""Learning the weights of the formulas in a `.mln` file from the worlds in `.db` files."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Generator

from nmln.buckets import names_of
from nmln.errors import InputError, placed
from nmln.formats.db import Facts, differing_constants, read_facts
from nmln.formats.each import encode_for
from nmln.formats.mln import Program, read_mln, write_mln
from nmln.formats.registry import Parsed
from nmln.training.weights import Learned, Recipe, learn_weights


@dataclass(frozen=True)
class LearningJob:
    """Formulas, the worlds to learn their weights from, and the file for the result."""

    program: Program
    worlds: Parsed
    target: Path

    def __str__(self) -> str:
        spaces = self.worlds.spaces
        several = f" of {len(spaces)} domains ({names_of(spaces)} constants)" if spaces[1:] else ""
        largest = max(spaces, key=lambda space: space.groups)
        return f"{len(self.worlds):,} worlds{several}; {largest.measure}"


def target_of(model: Path, output: Path | None) -> Path:
    """The output file: `output`, or by default NAME-learned.mln beside the input."""
    target = output or model.with_name(f"{model.stem}-learned.mln")
    if target.suffix.lower() != ".mln":
        raise InputError(
            f"learned formulas are written to a file that must end with .mln, got {target}. Name one "
            "(--output).",
            token=str(target),
        )
    return target


def read_program(model: Path) -> Program:
    """Read the formulas; refuses a file without any."""
    program = read_mln(model)
    if not program.formulas:
        raise InputError(
            "there is no formula in this file, so there is no weight to learn. Add one.",
            str(model),
            kind="empty",
        )
    return program


def begin(
    program: Program,
    data: Sequence[Path],
    target: Path,
    domains: str | None = None,
    model: Path | None = None,
) -> LearningJob:
    """Read the worlds; unlisted atoms are false.

    Constants that the program does not declare are `common` to the worlds of a file (the default), or
    of `each` world those that it names. Errors in formulas name the file `model`.
    """
    if domains not in (None, "common", "each"):
        raise InputError(
            f"--domains must be common or each, got {domains!r}. Correct it.", token="--domains"
        )
    files = [read_facts(path) for path in data]
    facts = [world for worlds in files for world in worlds]
    with placed(data[0]):
        found = encode_for(program, model or "program", facts, by_file=domains != "each")
    notes = () if domains == "each" else tuple(_notes(program, files))
    return LearningJob(program, replace(found, notes=notes), target)


def _notes(program: Program, files: Sequence[Sequence[Facts]]) -> Iterator[str]:
    """A note for every file whose worlds name different constants."""
    for worlds in files:
        if note := differing_constants(worlds, program.language, program.domain):
            yield f"{worlds[0].source}: {note}"


def run(
    job: LearningJob,
    recipe: Recipe,
    *,
    seed: int = 0,
    exactly: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Learned:
    """Learn the weights and write the formulas with them; templates are expanded.

    Args:
        job: the formulas, the data and the output file.
        recipe: prior, number of updates and chains.
        seed: the seed of all random numbers.
        exactly: enumerate all worlds, or run chains; by default worlds are enumerated if there are at
            most 2^20.
        progress: called with the work done and the total.
    """
    rng = Generator().manual_seed(seed)
    found = learn_weights(
        job.worlds.buckets, job.program.formulas, None, rng, recipe, exactly=exactly,
        progress=progress,
    )  # fmt: skip
    learned = Program(job.program.language, dict(job.program.domain), found.formulas)
    write_mln(job.target, learned)
    return found
