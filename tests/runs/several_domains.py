"""Data of several domains: graphs of 4 to 6 nodes, and worlds of 3 and 4 people."""

from pathlib import Path

import networkx as nx


def write_graphs(folder: Path) -> Path:
    """Twelve graphs of three sizes, a file each."""
    folder.mkdir()
    for number in range(12):
        graph = nx.gnp_random_graph(4 + number % 3, 0.4, seed=number)
        nx.write_graphml(graph, folder / f"{number:02d}.graphml")
    return folder


def write_people(path: Path) -> Path:
    """Twenty worlds in one file, each with constants of its own."""
    people, worlds = ["Anna", "Bob", "Carl", "Dora", "Eve"], []
    for number in range(20):
        some = people[: 3 + number % 2]
        worlds.append(
            "\n".join([f"friends({some[0]}, {some[1]})", *(f"smokes({p})" for p in some[1:])])
        )
    path.write_text("\n---\n".join(worlds) + "\n")
    return path
