"""Potentials: what turns worlds into unnormalised log-probabilities."""
