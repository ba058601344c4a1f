"""Questions to a distribution: marginals, conditionals, the most probable world, likelihoods."""

from nmln.inference.answers import Answer, Answers
from nmln.inference.chains import Plan
from nmln.inference.conditional import Conditional
from nmln.inference.likelihood import LogProbabilities
from nmln.inference.search import Best

__all__ = ["Answer", "Answers", "Best", "Conditional", "LogProbabilities", "Plan"]
