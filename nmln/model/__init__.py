"""The model that users hold: a space with a potential for every level.

`Model` trains, samples, generates, answers, saves and loads. `assembly` builds its potential from a
description, `combination` makes one model of several, `generation` decodes what it draws, `loading`
finds models in folders, and `pretrained` has those that come with the package.
"""

from nmln.model.loading import load, load_run
from nmln.model.model import Model, Report

__all__ = ["Model", "Report", "load", "load_run"]
