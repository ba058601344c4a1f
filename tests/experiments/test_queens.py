from itertools import combinations

import pytest
import torch

from nmln.errors import InputError
from nmln.experiments.queens import (
    attacked,
    attacking_pairs,
    board_space,
    boards_of,
    queens,
    solutions,
    solved,
    solved_boards,
)


def attacks_by_hand(board: torch.Tensor) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    stand = [(r, c) for r, row in enumerate(board.tolist()) for c, queen in enumerate(row) if queen]
    return [
        (a, b)
        for a, b in combinations(stand, 2)
        if a[0] == b[0] or a[1] == b[1] or abs(a[0] - b[0]) == abs(a[1] - b[1])
    ]


@pytest.mark.parametrize(
    ("n", "count"), [(2, 0), (3, 0), (4, 2), (5, 10), (6, 4), (7, 40), (8, 92)]
)
def test_the_solver_finds_every_solution_once(n: int, count: int) -> None:
    found = list(solutions(n))
    assert len(found) == len(set(found)) == count
    assert set(solutions(n, torch.Generator().manual_seed(1))) == set(found)


def test_all_solutions_become_worlds_in_which_nothing_attacks() -> None:
    space = board_space(6)
    worlds = solved_boards(space, 100, torch.Generator())
    boards = boards_of(space, worlds)
    assert boards.shape == (4, 6, 6)
    assert solved(boards).all()
    for board, columns in zip(boards, solutions(6), strict=True):
        assert board.argmax(1).tolist() == list(columns)


def test_of_many_solutions_different_ones_are_drawn() -> None:
    space = board_space(9)
    first, again, other = (
        solved_boards(space, 50, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert first.shape == (50, 81)
    assert len(first.unique(dim=0)) == 50
    assert solved(boards_of(space, first)).all()
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_boards_without_a_solution_are_refused() -> None:
    with pytest.raises(InputError, match="3 queens have no solution"):
        solved_boards(board_space(3), 10, torch.Generator())


@pytest.mark.parametrize("n", [1, 4, 7])
def test_attacks_are_those_counted_by_hand(n: int) -> None:
    rng = torch.Generator().manual_seed(n)
    boards = (torch.rand(2, 30, n, n, generator=rng) < 0.3).long()
    pairs, hit = attacking_pairs(boards), attacked(boards)
    for place in ((i, j) for i in range(2) for j in range(30)):
        by_hand = attacks_by_hand(boards[place])
        assert pairs[place] == len(by_hand)
        assert {tuple(square) for square in hit[place].nonzero().tolist()} == {
            square for pair in by_hand for square in pair
        }


def test_a_queen_between_two_others_does_not_shield_them() -> None:
    board = torch.zeros(4, 4).long()
    board[0, 0] = board[1, 1] = board[3, 3] = 1
    assert attacking_pairs(board) == 3


def test_a_board_with_too_few_queens_is_not_solved() -> None:
    board = torch.zeros(4, 4).long()
    board[0, 1] = board[1, 3] = board[2, 0] = 1
    assert attacking_pairs(board) == 0
    assert queens(board) == 3
    assert not solved(board)
    board[3, 2] = 1
    assert solved(board)
