"""Train on the facts about fourteen nations, rank held-out ones, and list the most surprising ones."""

import sys

import torch

from nmln.errors import InputError
from nmln.knowledge.completion import complete
from nmln.knowledge.data import KnowledgeBase
from nmln.knowledge.potential import KnowledgePotential
from nmln.knowledge.ranking import rank, scorer
from nmln.knowledge.settings import recommended
from nmln.knowledge.training import train

torch.set_num_threads(1)
try:
    nations = KnowledgeBase.read("nations")
except InputError as missing:  # it comes with an optional package
    print(missing)
    sys.exit()
print(nations.sizes)

shape, settings = recommended(nations, settings={"epochs": 60})
potential = KnowledgePotential(nations.space, shape, rng=torch.Generator().manual_seed(0))
result = train(potential, nations, settings)
with torch.no_grad():
    found = rank(scorer(potential, nations), nations.test, nations.known).both
print(f"after {result.epoch} epochs: test MRR {found.mrr:.3f}, Hits@10 {found.hits_at_10:.3f}\n")

print("in none of the files, yet most probable given the known facts:")
for one in complete(potential, nations, top=10):
    print(f"{one.probability:6.3f}  {one.head} {one.relation} {one.tail}")

print("\nmost probable compared with the base rate of their relation:")
for one in complete(potential, nations, top=10, surprising=True):
    fact = f"{one.head} {one.relation} {one.tail}"
    print(f"{one.probability:6.3f} (base rate {one.base_rate:.3f})  {fact}")
