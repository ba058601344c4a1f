"""The speed of encoding, packing, corrupting and reading worlds: `python -m benchmarks.worlds`."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.ratios import Ratio, interleaved, report
from nmln.evidence import Evidence
from nmln.language import Attribute, Language
from nmln.noise import corrupt
from nmln.space import Space

WORLDS = 100_000
BONDS = ("none", "single", "double", "triple")
LANGUAGE = Language(
    Attribute("atom", ("node",), tuple("ABCDEFGHIJ")),
    Attribute("bond", ("node", "node"), BONDS, symmetric=True, reflexive=False),
)

# Reads a file in a separate process, so that its peak memory is that of the reader.
READER = """
import json, resource, sys, time
from nmln.formats.db import read_db
from nmln.language import Language, predicate
start = time.perf_counter()
space, worlds = read_db(sys.argv[1], Language(predicate("friends", "person", "person")))
taken = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([taken, peak, space.groups]))
"""


def encoding() -> list[Ratio]:
    space = Space(LANGUAGE, {"node": 20})
    rng = torch.Generator().manual_seed(0)
    uniform = torch.rand(WORLDS, space.groups, generator=rng)
    worlds = (uniform * space.sizes).to(space.dtype)
    onehot, packed = space.one_hot(worlds), space.pack(worlds)
    encode, copy_onehot = interleaved(lambda: space.one_hot(worlds), onehot.clone)
    pack, copy_packed = interleaved(lambda: space.pack(worlds), packed.clone, rounds=20)
    del onehot, uniform
    rates = (0.001, 0.01, 0.1, 0.5)
    evidence = Evidence.observe(space, worlds[0], torch.arange(0, space.groups, 2))
    agreeing = evidence.clamp(worlds)
    draw, observed, *corrupting = interleaved(
        lambda: torch.rand(WORLDS, space.groups, generator=rng),
        lambda: corrupt(space, agreeing, 0.1, rng, evidence),
        *(lambda rate=rate: corrupt(space, worlds, rate, rng) for rate in rates),
    )
    return [
        Ratio("one-hot encoding / copying its result", encode / copy_onehot, 3),
        Ratio("packing / copying its result", pack / copy_packed, 3),
        Ratio("bytes per group of a world", worlds.nbytes / worlds.numel(), 1),
        *(
            Ratio(
                f"corrupting at rate {rate} / drawing one uniform number per group",
                taken / draw,
                0.5 if rate == 0.001 else 1.5,
            )
            for rate, taken in zip(rates, corrupting, strict=True)
        ),
        Ratio("the same at rate 0.1 with every other group observed", observed / draw, 3),
    ]


def reading(folder: Path) -> list[Ratio]:
    """Literals over 1,100 people; a quarter of the file and the whole of it."""
    measured = []
    for literals in (250_000, 1_000_000):
        path = folder / f"{literals}.db"
        with open(path, "w") as file:
            for index in range(literals):
                one, other = divmod(index * 7919 % 1_210_000, 1_100)
                file.write(f"{'!' if index % 3 else ''}friends(P{one}, P{other})\n")
        done = subprocess.run(
            [sys.executable, "-c", READER, path], capture_output=True, text=True, check=True
        )
        measured.append(json.loads(done.stdout))
    (few, _, _), (many, peak, _) = measured
    return [
        Ratio("seconds per literal of a .db, 1,000,000 / 250,000 literals", many / few / 4, 1.5),
        Ratio("peak memory of reading 1,000,000 literals (GiB)", peak / 2**30, 1.5),
    ]


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        # Reading first: a child process counts the memory that its parent held when it started.
        read = reading(Path(folder))
    ratios = encoding() + read
    report("worlds", ratios, worlds=WORLDS, nodes=20, groups=210)


if __name__ == "__main__":
    main()
