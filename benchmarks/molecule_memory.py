"""The memory of generating molecules, measured or extrapolated."""

import os
import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Integer
from torch import Generator, Tensor

from benchmarks.ratios import Ratio, resident
from nmln import checkpoint
from nmln.config import DataConfig
from nmln.errors import InputError
from nmln.molecules.decoding import Decoder
from nmln.runs import data as sources
from nmln.runs import sample as sampling
from nmln.runs import sample_rows, stream

MANY, BOUND = 2_000_000, 2.0  # samples, and GiB that they may take
REMEMBERED = 100_000  # worlds that the decoder of a process keeps at most
COUNTED, DECODED = 200_000, 20_000  # names and worlds that the growth of memory is measured with
GIB = 2**30


def high_water(process: int) -> int:
    """The most memory that a process has held, in bytes; 0 when it is gone."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    lines = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return 1024 * int(lines[0].split()[1]) if lines else 0


def family(process: int) -> list[int]:
    """A process and all that it started, directly or not."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        children = []
    return [process, *(one for child in children for one in family(int(child)))]


def command(
    run: Path, count: int, burn_in: int, thin: int, processes: int, output: Path, told: Path
) -> tuple[int, dict[str, Any]]:
    """`nmln sample` as a user types it: the peak memory of its processes together, and its summary.

    Pages that they share are counted in each of them: the sum is an upper bound. The output of the
    command goes to the file `told`.
    """
    words = [sys.executable, "-m", "nmln", "sample", str(run), "--num-samples", str(count),
             "--burn-in", str(burn_in), "--thin", str(thin), "--processes", str(processes),
             "--output", str(output)]  # fmt: skip
    peak = 0
    with open(told, "wb") as log:
        started = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            while started.poll() is None:
                peak = max(peak, sum(map(high_water, family(started.pid))))
                time.sleep(0.05)
        finally:
            if started.poll() is None:
                started.terminate()
                started.wait()
    if started.returncode:
        failure = told.read_text(errors="replace").strip()[-500:]
        raise InputError(f"nmln sample failed: {failure}", kind="system")
    return peak, checkpoint.read_json(output / stream.SUMMARY)


def growth(data: DataConfig) -> tuple[float, float]:
    """Bytes that one more remembered world and one more counted molecule take, in this new process."""
    torch.set_num_threads(1)
    source = sources.load(data)
    worlds = relabelled(source.worlds, len(source.space.domain["node"]), DECODED)
    decoder = Decoder(source.space)
    decoder.decode(worlds[:1000])
    before, seen = resident(), len(decoder)
    for part in worlds[1000:].split(1000):
        decoder.decode(part)
    remembered = (resident() - before) / (len(decoder) - seen)
    with tempfile.TemporaryDirectory() as room:
        path, tally = Path(room) / "sample_rows.csv.gz", sample_rows.RowCounter([0])
        with sample_rows.SampleFile(path) as table:
            for start in range(0, COUNTED, 1000):
                table.add(
                    f"{row},0,valid,{source.names[row % len(source.names)]}{row}"  # all different
                    for row in range(start, start + 1000)
                )
            table.end_member()
        before = max(resident(), high_water(os.getpid()))
        tally.add(path)
        sample_rows.write_counts(Path(room) / "counts.csv", tally.most_frequent(0))
        counted = (high_water(os.getpid()) - before) / COUNTED
    return remembered, counted


def relabelled(
    worlds: Integer[Tensor, "worlds groups"], nodes: int, count: int
) -> Integer[Tensor, "count groups"]:
    """Copies with their nodes in another order: nearly all different, and the same molecules."""
    rng = Generator().manual_seed(0)
    copies = worlds[torch.arange(count) % len(worlds)]
    orders = torch.rand(count, nodes, generator=rng).argsort(1)
    first, second = torch.triu_indices(nodes, nodes, 1)
    bonds = torch.zeros(count, nodes, nodes, dtype=worlds.dtype)
    bonds[:, first, second] = bonds[:, second, first] = copies[:, nodes:]
    moved = bonds[torch.arange(count)[:, None, None], orders[:, :, None], orders[:, None, :]]
    return torch.cat([copies[:, :nodes].gather(1, orders), moved[:, first, second]], 1)


def memory(
    opened: sampling.OpenedRun,
    count: int,
    burn_in: int,
    thin: int,
    processes: int,
    output: Path,
    told: Path,
) -> tuple[list[Ratio], dict[str, Any]]:
    """The peak of the command, and of 2 million samples: measured, or extrapolated and called so."""
    peak, summary = command(opened.folder, count, burn_in, thin, processes, output, told)
    different = summary["levels"][-1]["unique"]
    facts: dict[str, Any] = {
        "samples": count,
        "processes": processes,
        "peak_bytes": peak,
        "valid": summary["levels"][-1]["valid"],
        "different": different,
        "seconds": summary["seconds"],
        "samples_per_second": summary["samples_per_second"],
        "different_per_second": different / summary["seconds"],
        "decoding_share": summary["decoding_share"],
    }
    name = f"nmln sample, {count:,}"
    ratios = [
        Ratio(f"{name}: samples per second with the burn-in", facts["samples_per_second"]),
        Ratio(
            f"{name}: different valid per second with the burn-in", facts["different_per_second"]
        ),
    ]
    if count >= MANY:
        return [*ratios, Ratio(f"{name}: peak memory (GiB)", peak / GIB, BOUND)], facts
    with get_context("spawn").Pool(1) as pool:
        remembered, counted = pool.apply(growth, (opened.model.config.data,))
    more = max(0, processes * REMEMBERED - count) * remembered + (MANY - different) * counted
    facts |= {"bytes_per_remembered_world": remembered, "bytes_per_counted_molecule": counted}
    return [
        *ratios,
        Ratio(f"{name}: peak memory (GiB)", peak / GIB),
        Ratio("bytes for each different molecule when counting", counted),
        Ratio(f"extrapolated to {MANY:,}, all different: peak (GiB)", (peak + more) / GIB, BOUND),
    ], facts
