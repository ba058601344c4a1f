"""The readers that are fuzzed: valid examples of each format, and what reads them as a command would."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors.torch import load as load_tensors
from safetensors.torch import save

from nmln import checkpoint
from nmln.config import read_config
from nmln.errors import InputError
from nmln.formats.db import read_db, read_known
from nmln.formats.graphs import from_networkx, read_graphs
from nmln.formats.mln import parse_mln, read_mln
from nmln.knowledge.data import KnowledgeBase
from nmln.model import Model, load_run
from nmln.molecules.datasets import BUILT_IN, describe, load
from nmln.molecules.sample_files import read_reference, read_samples
from nmln.report.findings import findings_of
from nmln.report.page import facts
from nmln.runs import job, kept, pages
from nmln.runs import train as training
from nmln.runs.folder import RunFolder
from nmln.runs.kept import kept_source
from nmln.space import Space
from tests.checkpoint.test_directory import forge
from tests.fuzz.mutations import texts, trees
from tests.runs.runs import whole_run, write_worlds

Read = Callable[[Path], object]


@dataclass(frozen=True)
class Reader:
    """A format: mutated files of it, the name that they get, and what reads them."""

    files: st.SearchStrategy[bytes]
    name: str
    read: Read
    share: float = 1.0  # of the usual number of examples: less where reading is slow
    extra: dict[str, bytes] = field(default_factory=dict)  # files beside it
    base: str = ""  # the folder that is copied for it; none for a file alone


# Text.

MLN = [
    b"""// people
person = {Anna, Bob, "C d"}
kind = {single, double}
smokes(person)
friends(person, person) symmetric irreflexive
bond(person, person, kind?) irreflexive
1.5 smokes(x) => cancer(x)
cancer(person)
!friends(x, x).
-0.5e-1 FORALL x EXIST y (friends(x, y) v x != y) ^ !smokes("C d")
type(x, +k)
/* a
comment */ 2 (smokes(x) <=> smokes(y)) v x = Anna
""",
    b"a(b)\n1 a(X)\n",
]
DB = [
    b'smokes(Anna)\n!smokes(Bob) // not\nfriends(Anna, "B \\"c")\n---\nsmokes(Bob)\n',
    b"friends(Anna, Bob)\nfriends(Bob, Anna)\n",
    b"0.8 smokes(Anna)\n.5 smokes(Bob)\nfriends(Bob, Anna)\n",
]
NL = [b"smokes(Anna).\nfriends(Anna, Bob).\n// x\n", b'"a b"("c\\u0041").\n']
TSV = [b"a\tr\tb\nb\tr\ta\nc\ts s\ta\n", b"x\ty\tz\r\n\r\n"]
LANGUAGE = parse_mln("person = {Anna, Bob, Carl}\nsmokes(person)\nfriends(person, person)")
WORDS = (
    b"smokes(Anna)",
    b"friends(Anna, Anna)",
    b"person",
    b" => ",
    b" <=> ",
    b"EXIST x ",
    b"FORALL x ",
    b"symmetric",
    b"{1, 2}",
    b"!",
    b"?",
    b"+x",
    b".\n",
    b"0.3 ",
    b"'",
    b"\\u0000",
    b"\\ud800",
    b'""',
)
GRAPH = [
    b"""<?xml version='1.0' encoding='utf-8'?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="d0" for="node" attr.name="kind" attr.type="string"/>
<key id="d1" for="edge" attr.name="bond" attr.type="int"><default>1</default></key>
<key id="d2" for="node" attr.name="old" attr.type="boolean"/>
<graph edgedefault="undirected">
<node id="a"><data key="d0">C</data><data key="d2">true</data></node>
<node id="b"><data key="d0">N</data><data key="d2">False</data></node>
<node id="c"><data key="d0">C</data><data key="d2">1</data></node>
<edge source="a" target="b"><data key="d1">2</data></edge>
<edge source="b" target="c"/>
</graph></graphml>
""",
    b"""<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="directed">
<node id="1"/><node id="2"/><edge id="e" source="1" target="2"/></graph></graphml>""",
]
XML = (
    b'<!DOCTYPE g [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>',
    b"&b;",
    b"&#0;",
    b"&#10;",
    b'<!DOCTYPE g [<!ENTITY x SYSTEM "file:///etc/passwd">]>',
    b"<node/>",
    b'<node id="a"/>',
    b"<graph>",
    b'<edge source="a" target="a"/>',
    b'<edge source="b" target="a"/>',
    b"<data key='d9'>x</data>",
    b"<g>" * 200,
    b"directed",
    b'"long"',
    b'"double"',
    b'"yfiles"',
    b"<port/>",
    b"<hyperedge/>",
    b"none",
)
SMI = [b"CCO first\nCCN\n# c\nc1ccccc1\n[NH4+]\n", b"SMILES name\nC\tx\nCC\ty\n"]
CSV = [b'id,smiles,x\n1,CCO,"a, b"\n2,CCN,\n3,"C\nC",\n', b"smiles;y\nCCO;1\n", b"# c\n\nC\nCC\n"]
SAMPLES = [
    b"level,chain,draw,smiles,status\n0,0,0,CCO,valid\n1,0,0,,invalid\n1,1,0,CCN,valid\n",
    b"smiles,count\nCCO,3\nCCN,2\n",
    b"smiles\nCCO\n\nCC\n",
]
CHEMISTRY = (
    b"CCO",
    b"[",
    b"]",
    b"%99",
    b"C1CC1",
    b"[13CH4]",
    b"[Xx]",
    b".",
    b"=" * 50,
    b"C" * 1000,
    b"\xef\xbb\xbf",
    b"smiles",
    b"count",
    b"level",
    b"status",
    b"valid",
    b"invalid",
    b"@",
    b"/",
    b"->",
    b"*",
    b"(" * 500,
)
TOML = [
    b"""preset = "small"
[data]
source = "x.db"
train_share = 0.8
[ladder]
rates = [0.2, 0.02]
[model]
layers = 1
hidden = 8
[chains]
moves = 2
replicas = 8
[optimiser]
learning_rate = 1e-3
clip = 5
[training]
steps = 25
checkpoint_seconds = 0
""",
    b'[model]\npotential = "fragment"\nwidth = 2\n[training]\nminutes = 1.5\nseed = 3\n',
]
TABLES = (
    b"[data]",
    b"[model]",
    b"[[x]]",
    b"true",
    b"[0.1, 'a']",
    b"{a=1}",
    b"1979-05-27T07:32:00Z",
    b"[",
    b"{a=",
    b"0x7fffffffffffffffffff",
    b"+inf",
    b"rates = []",
    b"'''",
    b"a.b.c = 1",
    b"preset = 3",
    b'"\\ud800"',
)


def _evidence(path: Path) -> None:
    known = read_known(path)
    space = Space(LANGUAGE.language, LANGUAGE.domain)
    known.virtual(space, known.evidence(space, ["smokes"]))


def _program(path: Path) -> None:
    assert parse_mln(str(read_mln(path))).language == read_mln(path).language


def _each(*readers: Read) -> Read:
    """All of them, each whatever the others make of the file; the first refusal is told."""

    def read(path: Path) -> None:
        refusals = []
        for one in readers:
            try:
                one(path)
            except (InputError, OSError) as error:
                refusals.append(error)
        if refusals:
            raise refusals[0]

    return read


def _molecules(path: Path) -> None:
    describe(path)
    load(path)


TEXT_READERS: dict[str, Reader] = {
    "mln": Reader(texts(MLN, WORDS), "x.mln", _program),
    "db": Reader(texts(DB, WORDS), "x.db", _each(read_db, _evidence)),
    "nl": Reader(texts(NL, WORDS), "x.nl", _each(read_db, _evidence)),
    "triples": Reader(
        texts(TSV),
        "train.tsv",
        lambda path: KnowledgeBase.read(path.parent),
        extra={"valid.tsv": TSV[0]},
    ),
    "graphml": Reader(
        texts(GRAPH, XML), "x.graphml", lambda path: from_networkx(read_graphs(path))
    ),
    "smi": Reader(texts(SMI, CHEMISTRY), "x.smi", _each(_molecules, read_samples)),
    "csv": Reader(texts(CSV, CHEMISTRY), "x.csv", _each(_molecules, read_samples)),
    "samples": Reader(
        texts(SAMPLES, CHEMISTRY),
        "samples.csv",
        _each(read_samples, lambda p: read_reference(str(p))),
    ),
    "toml": Reader(texts(TOML, TABLES), "x.toml", read_config),
}


# The files of a run.


def of_folder(read: Read, name: str) -> Read:
    """Reading the folder that a file of this name is in, however deep."""
    depth = len(Path(name).parts)
    return lambda path: read(path.parents[depth - 1])


def forged(read: Read) -> Read:
    """Reading a saved directory whose hashes have been made to fit the changed file."""

    def reading(path: Path) -> None:
        try:
            forge(path.parent)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return  # a manifest of which an attacker makes nothing either
        read(path)

    return reading


def run_readers(folder: Path) -> dict[str, Reader]:
    """Readers of the files of a run, which is made in `folder` now; each is given a copy of it."""
    run = whole_run(write_worlds(folder), training__steps=3)
    shutil.rmtree(run / "checkpoints" / "step-000000001", ignore_errors=True)
    shutil.rmtree(run / "checkpoints" / "step-000000002", ignore_errors=True)
    last = Path("checkpoints/step-000000003")
    (run / "likelihood.json").write_text(
        json.dumps({"test": -3.5, "test_error": 0.1, "log_z": 2.0})
    )
    settings = job.JobSettings("pubchem-10")
    job.write_settings(run, settings)

    def tree(name: str) -> list[Any]:
        return [json.loads((run / name).read_text())]

    def noticed(path: str) -> Read:
        """Loading a checkpoint in which any bit of a file may have changed."""
        own = (run / path).read_bytes()

        def read(folder: Path) -> None:
            checkpoint.load(folder)
            assert (folder / path).read_bytes() == own, "a change was not noticed"

        return read

    worlds = RunFolder(run).read_source().worlds
    tensors_kept = load_tensors((run / "worlds.safetensors").read_bytes())

    def unchanged(folder: Path) -> None:
        """Reading the data of a run in which any bit of the kept worlds may have changed."""
        assert torch.equal(RunFolder(folder).read_source().worlds, worlds)
        _kept(folder)

    def rewritten(content: bytes) -> bytes:
        """A file of kept worlds with other metadata and a digest that fits them."""
        try:
            told = json.loads(content)
            told["digest"] = kept._digest(told, tensors_kept)
        except (ValueError, TypeError, RecursionError):
            return content
        return save(tensors_kept, {"nmln": json.dumps(told)})

    both = _each(load_run, training.resume)
    content, tensors, manifest = (
        f"{last}/{name}" for name in ("content.json", "tensors.safetensors", "manifest.json")
    )
    lines = (run / "metrics.jsonl").read_bytes()
    programs = ("", "a(b)", "s = {A}\na(s)", 'n = {"x"}\nsmokes(n)')
    readers: dict[str, tuple[st.SearchStrategy[bytes], str, Read, float]] = {
        "config.json": (
            trees(tree("config.json"), programs),
            "config.json",
            _each(_head, _report, _source),
            0.5,
        ),
        "split.json": (trees(tree("split.json")), "split.json", _each(_source, _report), 0.5),
        "worlds.safetensors": (
            texts([(run / "worlds.safetensors").read_bytes()]),
            "worlds.safetensors",
            unchanged,
            0.5,
        ),
        "forged worlds": (
            trees([kept_content(run / "worlds.safetensors")], programs).map(rewritten),
            "worlds.safetensors",
            _each(_source, _kept),
            0.5,
        ),
        "main.json": (trees(tree("main.json")), "main.json", job.read_settings, 1),
        "metrics.jsonl": (
            texts([lines, *lines.splitlines(keepends=True)], (b"null", b"[", b'{"step": 3}')),
            "metrics.jsonl",
            _report,
            0.5,
        ),
        "metrics as JSON": (
            trees([json.loads(lines.splitlines()[0])]),
            "metrics.jsonl",
            _report,
            0.5,
        ),
        "likelihood.json": (trees(tree("likelihood.json")), "likelihood.json", _report, 0.5),
        "flipped tensors": (texts([(run / tensors).read_bytes()]), tensors, noticed(tensors), 1),
        "flipped content": (texts([(run / content).read_bytes()]), content, noticed(content), 1),
        "flipped manifest": (texts([(run / manifest).read_bytes()]), manifest, checkpoint.load, 1),
        "manifest.json": (trees(tree(manifest)), manifest, checkpoint.load, 1),
        "forged tensors": (texts([(run / tensors).read_bytes()]), tensors, both, 0.1),
        "forged content": (trees(tree(content), programs), content, both, 0.3),
        "forged model": (
            trees(tree("model/content.json"), programs),
            "model/content.json",
            lambda folder: Model.load(folder / "model"),
            0.5,
        ),
    }
    made = {}
    for name, (files, path, read, share) in readers.items():
        reading = of_folder(read, path)
        if name.startswith("forged"):
            reading = forged(reading)
        made[name] = Reader(files, path, reading, share, base="whole")
    return made


def kept_content(path: Path) -> dict[str, Any]:
    """The metadata of a file of kept worlds, without its digest."""
    content = kept._content(path.read_bytes())
    del content["digest"]
    return content


def _kept(folder: Path) -> None:
    """The kept worlds of a run; reading them refuses nothing, so that a refusal is said here."""
    if kept_source(folder / "worlds.safetensors") is None:
        raise InputError("this file is not used.", kind="damaged")


def _source(folder: Path) -> None:
    """The data of a run, unless they are a whole set that comes with the package."""
    config = RunFolder(folder).read_head().config
    if config.data.source not in BUILT_IN:
        RunFolder(folder).read_source()


def _head(folder: Path) -> object:
    return RunFolder(folder).read_head()


def _report(folder: Path) -> None:
    """What `nmln report` reads, without drawing it."""
    run = pages.read_run(folder)
    findings_of(run.history, run.levels, run.config.optimiser.clip)
    pages._facts(run)
    pages._likelihood(run)
    pages.configuration_section(run)
    facts([("lead", pages._lead(run)), ("again", pages.repeating(run.config, folder))])
