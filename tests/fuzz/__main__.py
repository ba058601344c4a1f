"""The long version: `python -m tests.fuzz`, with flags that `--help` lists and names of readers.

Goes on after a traceback: tells each different one once, keeps the file that caused it, and ends with
figures, which go to `--results` as JSON; docs/explanation/reliability.md quotes
benchmarks/results/fuzzing.json.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.limits import judge
from tests.fuzz.other_runs import other_readers
from tests.fuzz.readers import TEXT_READERS, Reader, run_readers


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-found"))
    parser.add_argument("--results", type=Path)
    parser.add_argument("readers", nargs="*")
    given_flags = parser.parse_args()
    failed, figures = 0, {}
    with tempfile.TemporaryDirectory() as room:
        home = Path(room) / "home"
        home.mkdir()
        readers = {**TEXT_READERS, **run_readers(home), **other_readers(home)}
        for name in given_flags.readers or readers:
            folder = Path(room) / name.replace(" ", "-")
            if readers[name].base:
                shutil.copytree(home / readers[name].base, folder)
            folder.mkdir(exist_ok=True)
            start = time.monotonic()
            found = try_all(
                name,
                readers[name],
                folder,
                given_flags.examples,
                given_flags.seed,
                given_flags.keep,
            )
            failed += found["traceback"]
            figures[name] = {
                "files": found.total(),
                **{key: found[key] for key in ("result", "refused", "traceback")},
            }
            sys.stdout.write(
                f"{name}: {found.total():,} files, {found['result']:,} read, "
                f"{found['refused']:,} refused, {found['traceback']:,} tracebacks, "
                f"{time.monotonic() - start:.0f} s\n"
            )
            sys.stdout.flush()
    if given_flags.results is not None:
        command = " ".join(["python -m tests.fuzz", *sys.argv[1:]])
        content = {"command": command, "readers": figures}
        given_flags.results.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 1 if failed else 0


def try_all(
    name: str, reader: Reader, folder: Path, examples: int, number: int, keep: Path
) -> Counter[str]:
    """What became of so many files of one reader."""
    path = folder / reader.name
    for beside, content in reader.extra.items():
        (folder / beside).write_bytes(content)
    manifest = path.parent / "manifest.json"
    own = manifest.read_bytes() if manifest.exists() else None
    outcomes: Counter[str] = Counter()
    told: set[str] = set()

    @seed(number)
    @settings(
        max_examples=max(1, round(examples * reader.share)),
        database=None, derandomize=False, deadline=None, phases=(Phase.generate,),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(reader.files)
    def attempt(content: bytes) -> None:
        path.write_bytes(content)
        if own is not None and path != manifest:
            manifest.write_bytes(own)
        try:
            outcomes[judge(lambda: reader.read(path))] += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            outcomes["traceback"] += 1
            frames = [
                one for one in traceback.extract_tb(error.__traceback__) if "/nmln/" in one.filename
            ]
            place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
            key = f"{type(error).__name__} at {place}"
            if key not in told:
                told.add(key)
                keep.mkdir(parents=True, exist_ok=True)
                file = keep / f"{name.replace(' ', '-')}--{len(told)}"
                file.write_bytes(content)
                chain = " < ".join(
                    f"{Path(one.filename).name}:{one.lineno}" for one in frames[::-1][:5]
                )
                sys.stdout.write(f"  {name}: {key}: {str(error)[:200]!r} [{chain}] -> {file}\n")

    attempt()
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
