"""Declare a language, read a world from a .db file, corrupt it, and print the result."""

from pathlib import Path

import torch

import nmln

Path("smokers.db").write_text("friends(Anna, Bob)\nfriends(Bob, Carl)\nsmokes(Bob)\n")

language = nmln.Language(
    nmln.predicate("smokes", "person"),
    nmln.predicate("friends", "person", "person", symmetric=True, reflexive=False),
)
space, worlds = nmln.read_db("smokers.db", language)
print(space)

rng = torch.Generator().manual_seed(0)
corrupted = nmln.corrupt(space, worlds, 0.3, rng)
print("the world:", *nmln.true_atoms(space, worlds[0]))
print("corrupted:", *nmln.true_atoms(space, corrupted[0]))
