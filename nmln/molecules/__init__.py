"""Molecules as worlds: SMILES in, SMILES out, and sets of small molecules."""
