"""Potentials: functions from worlds to unnormalised log-probabilities."""
