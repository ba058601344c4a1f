"""Training: likelihood learning with persistent chains, one NMLN per level."""

from nmln.training.loop import DivergenceError, Return, train
from nmln.training.trainer import Metrics, Trainer

__all__ = ["DivergenceError", "Metrics", "Return", "Trainer", "train"]
