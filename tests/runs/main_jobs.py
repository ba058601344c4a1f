"""A small main job for the tests: few tiny molecules, in a file with a name that is hard to show."""

from pathlib import Path

from nmln.runs.pipeline import JobSettings

MOLECULES = [
    "CCCC", "CC(C)C", "CCCO", "CC(C)O", "CCOC", "CCCN", "CC(C)N", "CCNC", "CN(C)C", "C=CCC",
    "CC=CC", "C=C(C)C", "CCC=O", "CC(C)=O", "CC(=O)O", "CC(N)=O", "C=CC=C", "C#CCC", "CC#CC",
    "C1CCC1", "CC1CC1", "NC1CC1", "OC1CC1", "C1COC1", "C1CNC1", "OCCO", "NCCO", "NCCN", "COC=O",
    "CNC=O", "CCC#N", "C=CC=O", "C=CCO", "C=CCN", "COCO", "COOC", "OCC=O", "NC(N)=O", "O=CC=O",
    "C1=CCC1",
]  # fmt: skip
HOSTILE = "a <img src=x onerror=alert(1)> & $b_c$.smi"
CHANGES = {
    "ladder.rates": [0.3, 0.1, 0.02],
    "model.layers": 1,
    "model.hidden": 8,
    "chains.moves": 2,
    "chains.replicas": 8,
    "training.batch": 8,
    "training.steps": 20,
}


def write_molecules(folder: Path, name: str = HOSTILE) -> Path:
    path = folder / name
    path.write_text("\n".join(MOLECULES) + "\nCCO\n")
    return path


def small(data: Path, **changes: object) -> JobSettings:
    """JobSettings of a job that takes a few seconds."""
    given: dict = {"size": 4, "samples": 300, "chains": 12, "burn_in": 5, "changes": CHANGES}
    return JobSettings(str(data), **{**given, **changes})
