"""NetworkX graphs with node and edge attributes.

Nodes are the constants of the sort `node`. A node attribute is a unary predicate (True or False) or
a unary exclusive attribute; an edge attribute is a binary exclusive one whose `none` means that there
is no edge. A graph without edge attributes has the Boolean predicate `edge`.
"""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

import networkx as nx
import torch
from jaxtyping import Integer
from torch import Tensor

from nmln.buckets import Bucket
from nmln.config import DataConfig
from nmln.errors import InputError, placed
from nmln.files import check_readable
from nmln.formats.registry import Format, Parsed, register
from nmln.language import NONE, Attribute, Language, predicate
from nmln.logic import GroundAtom
from nmln.space import Space
from nmln.worlds import Spaces, from_atoms, paired, true_atoms

NODE, EDGE = "node", "edge"
SUFFIX = ".graphml"
_DEEPEST = 100  # elements inside each other


def read_graphml(path: str | Path) -> nx.Graph:
    """The graph in a GraphML file.

    A file that declares entities, which can unfold to any size or name other files, is refused before
    it is read.
    """
    check_readable(path)
    try:
        _refuse_entities(Path(path))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # values without a type are strings
            return nx.read_graphml(path)
    except (InputError, OSError):
        raise
    except MemoryError:
        raise InputError(
            "this graph does not fit into memory. Take a smaller one.", str(path), kind="size"
        ) from None
    except Exception as error:  # networkx raises whatever it runs into
        reason = " ".join(str(error).split()) or type(error).__name__
        message = f"this is not GraphML: {reason[:200]}."
        raise InputError(message, str(path), kind="syntax") from None


def read_graphs(path: Path) -> list[nx.Graph]:
    """The graph in a GraphML file, or those of a folder in the order of their names."""
    files = _graph_files(path)
    if not files:
        raise InputError("there is no .graphml file in this folder.", str(path), kind="missing")
    for file in files:
        check_readable(file)
    graphs = []
    for file in files:
        graph = read_graphml(file)
        graphs.append(nx.DiGraph(graph) if graph.is_directed() else nx.Graph(graph))
    return graphs


def write_graphs(folder: Path, space: Spaces, worlds: Iterable[Integer[Tensor, " groups"]]) -> None:
    """Write worlds as numbered GraphML files into a new folder, as they come."""
    folder.mkdir(parents=True)
    for number, (own, world) in enumerate(paired(space, worlds)):
        (graph,) = to_networkx(own, world[None])
        with open(folder / f"{number:06d}{SUFFIX}", "xb") as file:
            nx.write_graphml(graph, file)
            file.flush()
            os.fsync(file.fileno())


def _graph_files(path: Path) -> list[Path]:
    return sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]


def _refuse_entities(path: Path) -> None:
    """Refuse entities and deep nesting, in one pass over the file and constant memory."""
    parser, depth = expat.ParserCreate(), 0

    def refuse(*_: object) -> NoReturn:
        raise InputError(
            "this file declares XML entities, which graphs do not need. Remove its <!ENTITY ...> "
            "declarations.",
            str(path),
            kind="content",
        )

    def start(*_: object) -> None:
        nonlocal depth
        depth += 1
        if depth > _DEEPEST:
            raise InputError(
                f"elements are nested more than {_DEEPEST} deep. Is it GraphML?",
                str(path),
                kind="size",
            )

    def end(*_: object) -> None:
        nonlocal depth
        depth -= 1

    parser.EntityDeclHandler = refuse
    parser.StartElementHandler, parser.EndElementHandler = start, end
    with open(path, "rb") as file:
        parser.ParseFile(file)


def from_networkx(
    graphs: Sequence[nx.Graph], space: Space | None = None
) -> tuple[Space, Integer[Tensor, "worlds groups"]]:
    """Graphs over one set of nodes as worlds.

    Without a space the language is read off all graphs: which attributes occur and with which values
    (kept as text). Graphs with other node names but as many nodes are numbered in their own order.
    """
    _refuse_kinds(graphs)
    nodes = _common_nodes(graphs)
    if space is None:
        space = Space(_infer_language(graphs), {NODE: nodes})
    constants = next(iter(space.domain.values()), ())
    if len(constants) != len(nodes):
        raise InputError(
            f"these graphs have {len(nodes)} nodes, but the space has {len(constants)} constants. "
            "Pick graphs of that size.",
            kind="conflict",
        )
    worlds = []
    for graph in graphs:
        own = tuple(map(str, graph))
        names = dict(zip(graph, own if set(own) == set(constants) else constants, strict=True))
        worlds.append(from_atoms(space, _atoms(graph, names, space.language)))
    return space, torch.stack(worlds)


def parse_graphs(graphs: Sequence[nx.Graph]) -> Parsed:
    """Graphs of any numbers of nodes as worlds over one language, which is read off all graphs."""
    _refuse_kinds(graphs)
    sizes = sorted({len(graph) for graph in graphs})
    if len(sizes) == 1:
        return Parsed.of(*from_networkx(graphs))
    language = _infer_language(graphs)
    buckets = []
    for size in sizes:
        mine = [graph for graph in graphs if len(graph) == size]
        try:
            space = Space(language, {NODE: _common_nodes(mine)})
        except InputError as error:
            raise InputError(
                f"graphs of {size} nodes cannot be learned: {error.message}", kind=error.kind
            ) from None
        buckets.append(Bucket(*from_networkx(mine, space)))
    homes = torch.tensor([sizes.index(len(graph)) for graph in graphs], dtype=torch.int64)
    return Parsed(tuple(buckets), homes)


def _refuse_kinds(graphs: Sequence[nx.Graph]) -> None:
    if not graphs:
        raise InputError("no graphs were given. Give at least one.", kind="empty")
    if len({graph.is_directed() for graph in graphs}) > 1:
        raise InputError(
            "some graphs are directed and some are not. Convert them to one kind.", kind="conflict"
        )
    if any(graph.is_multigraph() for graph in graphs):
        raise InputError(
            "a multigraph has several edges per pair. Convert it with networkx.Graph(g).",
            kind="unsupported",
        )


def _common_nodes(graphs: Sequence[nx.Graph]) -> tuple[str, ...]:
    """The names of the nodes if all graphs share them, otherwise numbers."""
    sizes = sorted({len(graph) for graph in graphs})
    if len(sizes) > 1:
        raise InputError(
            f"one model is over one domain, but these graphs have {', '.join(map(str, sizes))} nodes. "
            "Pick one size.",
            kind="conflict",
        )
    names = tuple(map(str, graphs[0]))
    if len(set(names)) < len(names):
        raise InputError("two nodes have the same name as text. Rename one of them.", kind="twice")
    same = all(set(map(str, graph)) == set(names) for graph in graphs)
    return names if same else tuple(map(str, range(sizes[0])))


def _infer_language(graphs: Sequence[nx.Graph]) -> Language:
    directed = graphs[0].is_directed()
    loops = any(nx.number_of_selfloops(graph) for graph in graphs)
    node_data = [data for graph in graphs for _, data in graph.nodes(data=True)]
    edge_data = [data for graph in graphs for _, _, data in graph.edges(data=True)]
    attributes = []
    for key, seen, missing in _columns(node_data):
        if seen <= {"True", "False"} and not missing:
            attributes.append(predicate(key, NODE))
        else:
            attributes.append(Attribute(key, (NODE,), tuple(sorted(seen)), optional=missing))
    named = {attribute.name for attribute in attributes}
    bare = not edge_data
    for key, seen, missing in _columns(edge_data):
        if key in named or key == EDGE:
            raise InputError(
                f"the edge attribute {key} needs another name: {key} is taken.",
                token=key,
                kind="twice",
            )
        if NONE in seen:
            raise InputError(
                f"the edge attribute {key} has the value {NONE}, which means: no edge. Rename it.",
                token=key,
                kind="conflict",
            )
        values = (NONE, *sorted(seen))
        attributes.append(Attribute(key, (NODE, NODE), values, not directed, loops))
        bare = bare or missing
    # An edge that lacks an attribute is still an edge: then there is a predicate that says so.
    if bare or not any(edge_data):
        attributes.append(predicate(EDGE, NODE, NODE, symmetric=not directed, reflexive=loops))
    return Language(*attributes)


def _columns(rows: list[dict]) -> list[tuple[str, set[str], bool]]:
    """Each key that occurs, the values it takes as text, and whether some rows lack it."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [
        (
            str(key),
            {str(row[key]) for row in rows if key in row},
            any(key not in row for row in rows),
        )
        for key in keys
    ]


def _atoms(graph: nx.Graph, names: dict, language: Language) -> list[GroundAtom]:
    atoms: list[GroundAtom] = []

    def state(key: str, constants: tuple[str, ...], value: object) -> None:
        if not language[key].boolean:
            atoms.append(GroundAtom(key, (*constants, str(value))))
        elif str(value) != "False":
            atoms.append(GroundAtom(key, constants))

    for node, data in graph.nodes(data=True):
        for key, value in data.items():
            state(str(key), (names[node],), value)
    plain = EDGE in language and language[EDGE].boolean and language[EDGE].arity == 2
    for source, target, data in graph.edges(data=True):
        for key, value in [*data.items(), *([(EDGE, True)] if plain else [])]:
            symmetric = language[str(key)].symmetric
            if symmetric and graph.is_directed() and not graph.has_edge(target, source):
                raise InputError(
                    f"the edge {source} -> {target} has no way back, but {key} is symmetric in this "
                    "space. Give undirected graphs, or declare the predicate without 'symmetric'.",
                    token=str(key),
                    kind="conflict",
                )
            state(str(key), (names[source], names[target]), value)
            if not symmetric and not graph.is_directed():
                state(str(key), (names[target], names[source]), value)
    return atoms


def to_networkx(space: Space, worlds: Integer[Tensor, "worlds groups"]) -> list[nx.Graph]:
    """Worlds over one sort as graphs: the inverse of `from_networkx`.

    Directed unless every binary attribute is symmetric. A Boolean binary predicate other than `edge`
    becomes an edge attribute with the value True.
    """
    if len(space.domain) != 1 or any(a.arity not in (1, 2) for a in space.language):
        raise InputError(
            "only a language over one sort with unary and binary predicates can be written as graphs. "
            "Write a .db file instead.",
            kind="unsupported",
        )
    (nodes,) = space.domain.values()
    directed = not all(a.symmetric for a in space.language if a.arity == 2)
    graphs = []
    for world in worlds:
        graph = nx.DiGraph() if directed else nx.Graph()
        flags = {a.name: False for a in space.language if a.boolean and a.arity == 1}
        graph.add_nodes_from(nodes, **flags)
        for atom in true_atoms(space, world, skip_null=True):
            attribute = space.language[atom.predicate]
            value = True if attribute.boolean else atom.arguments[-1]
            if attribute.arity == 1:
                graph.nodes[atom.arguments[0]][atom.predicate] = value
                continue
            one, other = atom.arguments[:2]
            plain = attribute.boolean and attribute.name == EDGE
            data = {} if plain else {atom.predicate: value}
            graph.add_edge(one, other, **data)
            if directed and attribute.symmetric:
                graph.add_edge(other, one, **data)
        graphs.append(graph)
    return graphs


def graph_decoder(
    space: Space,
) -> Callable[[Integer[Tensor, "worlds groups"]], list[nx.Graph]] | None:
    """`to_networkx` for a space as `from_networkx` makes it, None for any other.

    Its only sort is `node`, and its attributes are unary or binary, at least one of them binary.
    """
    arities = {attribute.arity for attribute in space.language}
    if set(space.domain) != {NODE} or 2 not in arities or not arities <= {1, 2}:
        return None
    return lambda worlds: to_networkx(space, worlds)


def _recognise(path: Path) -> bool:
    """Whether a path is a GraphML file, or a folder with at least one."""
    if path.is_dir():
        return any(path.glob(f"*{SUFFIX}"))
    return path.suffix.lower() == SUFFIX


def _read(config: DataConfig) -> Parsed:
    graphs = read_graphs(Path(config.source))
    with placed(config.source if len({len(graph) for graph in graphs}) > 1 else None):
        return parse_graphs(graphs)


def _files(config: DataConfig) -> Iterator[Path]:
    yield from _graph_files(Path(config.source))


def _gather(paths: Sequence[Path], language: Path | None, place: Path) -> Parsed:
    with placed(place):
        return parse_graphs([graph for path in paths for graph in read_graphs(path)])


def _check(space: Space) -> None:
    to_networkx(space, torch.zeros(0, space.groups, dtype=space.dtype))


register(
    Format(
        "graphml", "graphs", (SUFFIX,), _read, write_graphs,
        check=_check, recognise=_recognise, files=_files, gather=_gather, standard=True, folder=True,
    )
)  # fmt: skip
