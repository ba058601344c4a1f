"""Worlds of several domains by position, and domains in words and in JSON."""

import pytest
import torch

from nmln.buckets import (
    Bucketed,
    domain_in_json,
    labels_of,
    name_of,
    names_of,
    size_of,
    sorted_out,
    space_in_json,
)
from nmln.errors import InputError
from nmln.language import Language, predicate
from nmln.space import Space
from tests.strategies import random_worlds

LANGUAGE = Language(predicate("edge", "node", "node", symmetric=True, reflexive=False))
SPACES = [Space(LANGUAGE, {"node": size}) for size in (2, 3, 4)]
HOMES = [2, 0, 1, 1, 0, 2, 2]


def made() -> tuple[Bucketed, list[torch.Tensor]]:
    rows = [random_worlds(SPACES[home], 1)[0] for home in HOMES]
    return Bucketed(*sorted_out(SPACES, rows, HOMES)), rows


def test_positions_keep_their_order_in_every_bucket() -> None:
    found, rows = made()
    places = torch.tensor([6, 1, 3, 0, 2])
    for number, bucket in enumerate(found.chosen(places)):
        wanted = [rows[at] for at in places.tolist() if HOMES[at] == number]
        assert bucket.space == SPACES[number]
        assert torch.equal(bucket.worlds, torch.stack(wanted))
    assert len(found) == len(HOMES)
    assert found.space == SPACES[0]


def test_a_bucket_without_chosen_worlds_is_empty() -> None:
    found, _ = made()
    small, middle, large = found.chosen(torch.tensor([3]))
    assert [len(one.worlds) for one in (small, middle, large)] == [0, 1, 0]


def test_all_positions_of_one_domain_are_its_worlds() -> None:
    worlds = random_worlds(SPACES[1], 5)
    found = Bucketed(*sorted_out(SPACES[1:2], list(worlds), [0] * 5))
    assert torch.equal(found.worlds, worlds)
    order = torch.tensor([4, 0, 2])
    assert torch.equal(found.chosen(order)[0].worlds, worlds[order])


def test_worlds_of_several_domains_are_no_tensor() -> None:
    with pytest.raises(InputError, match=r"one domain, got 3 domains \(2, 3, 4\)"):
        _ = made()[0].worlds


def test_domains_are_named_by_their_sizes() -> None:
    people = Space(Language(predicate("owns", "person", "thing")), {"person": 2, "thing": 3})
    assert name_of(people) == "2 person and 3 thing"
    assert names_of(SPACES * 4) == "2, 3, 4, 2, 3, 4, 2, 3 and 4 more"
    assert size_of(people) == (5, 2, 3)
    assert labels_of(SPACES) == ["2", "3", "4"]
    assert labels_of([*SPACES, SPACES[1]]) == ["2", "3 #1", "4", "3 #2"]


@pytest.mark.parametrize("domain", [{"node": 3}, {"node": ["Anna", "Bob"]}, {"node": ["1", "0"]}])
def test_domains_are_read_back(domain: dict) -> None:
    space = Space(LANGUAGE, domain)
    assert domain_in_json(space) == domain
    assert space_in_json(LANGUAGE, domain_in_json(space)) == space


@pytest.mark.parametrize(
    "content",
    [3, None, {"node": True}, {"node": -1}, {"node": [1, 2]}, {"node": "ab"}, {"n": 3}, {}],
)
def test_what_is_not_a_domain_is_refused(content: object) -> None:
    with pytest.raises(InputError):
        space_in_json(LANGUAGE, content)
