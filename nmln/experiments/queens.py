"""Boards of queens: a solver, boards as worlds, and the number of queens that attack each other."""

from collections.abc import Iterator
from itertools import islice

import torch
from jaxtyping import Bool, Int64, Integer
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.language import Language, predicate
from nmln.space import Space

Boards = Integer[Tensor, "*batch rows columns"]
"""1 on a square with a queen, otherwise 0."""

Placement = tuple[int, ...]
"""The column of the queen in every row."""


def board_space(n: int) -> Space:
    """Worlds of n x n squares, each with a queen or without."""
    return Space(Language(predicate("queen", "row", "column")), {"row": n, "column": n})


def solutions(n: int, rng: Generator | None = None) -> Iterator[Placement]:
    """All ways to place n queens so that none attacks another, by backtracking.

    In the order of their columns, or with a generator in the order of a search that tries the columns
    of every row as they are drawn: then the first one is a solution found at random.
    """
    placed: list[int] = []

    def search(columns: int, rising: int, falling: int) -> Iterator[Placement]:
        if len(placed) == n:
            yield tuple(placed)
            return
        order = range(n) if rng is None else torch.randperm(n, generator=rng).tolist()
        for column in order:
            bit = 1 << column
            if bit & (columns | rising | falling):
                continue
            placed.append(column)
            yield from search(columns | bit, (rising | bit) << 1, (falling | bit) >> 1)
            placed.pop()

    return search(0, 0, 0)


def solved_boards(space: Space, most: int, rng: Generator) -> Integer[Tensor, "worlds groups"]:
    """All solutions as worlds; if there are more than `most`, so many different ones found at random."""
    n = len(space.domain["row"])
    found = list(islice(solutions(n), most + 1))
    if not found:
        raise InputError(f"{n} queens have no solution. Use 4 or more.", kind="empty")
    if len(found) > most:
        drawn: dict[Placement, None] = {}
        while len(drawn) < most:
            drawn[next(solutions(n, rng))] = None
        found = list(drawn)
    columns = torch.tensor(found)
    boards = torch.zeros(len(found), n, n, dtype=space.dtype).scatter_(2, columns[..., None], 1)
    worlds = torch.zeros(len(found), space.groups, dtype=space.dtype)
    worlds[:, _places(space).flatten()] = boards.flatten(1)
    return worlds


def boards_of(space: Space, values: Integer[Tensor, "*batch groups"]) -> Boards:
    """Worlds as pictures."""
    return values[..., _places(space)]


def _places(space: Space) -> Int64[Tensor, "rows columns"]:
    """The group of every square."""
    return torch.from_numpy(space.table("queen").copy()).long()


def queens(boards: Boards) -> Int64[Tensor, "*batch"]:
    """The number of queens on each board."""
    return boards.long().sum((-2, -1))


def attacking_pairs(boards: Boards) -> Int64[Tensor, "*batch"]:
    """The pairs of queens that share a row, a column or a diagonal, also with others between them.

    Two queens share at most one line, so the pairs of all lines are added up.
    """
    on_line = (boards.double().flatten(-2) @ _lines(boards.shape[-1]).double().T).long()
    return (on_line * (on_line - 1) // 2).sum(-1)


def attacked(boards: Boards) -> Bool[Tensor, "*batch rows columns"]:
    """The queens that share a line with another."""
    lines = _lines(boards.shape[-1]).double()
    crowded = (boards.double().flatten(-2) @ lines.T) > 1
    hit = (crowded.double() @ lines) > 0
    return hit.unflatten(-1, boards.shape[-2:]) & (boards > 0)


def solved(boards: Boards) -> Bool[Tensor, "*batch"]:
    """Whether an n x n board has n queens and none attacks another."""
    return (attacking_pairs(boards) == 0) & (queens(boards) == boards.shape[-1])


def _lines(n: int) -> Bool[Tensor, "lines squares"]:
    """The squares of every row, column and diagonal."""
    row, column = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    ranges = ((row, 0), (column, 0), (row - column, 1 - n), (row + column, 0))
    lines = [
        place == first + index
        for place, first in ranges
        for index in range(n if place is row or place is column else 2 * n - 1)
    ]
    return torch.stack(lines).flatten(1)
