"""Write docs/results/main-job.json, the numbers that docs quote, from the run of the main job.

nmln run && nmln likelihood runs/main-pubchem-10
python scripts/main_job_results.py runs/main-pubchem-10 docs/results/main-job.json
"""

import json
import sys
from pathlib import Path
from typing import Any

import nmln
from nmln.runs import evaluate as evaluation
from nmln.runs import pages, stream

AT = (100, 300, 1000, 3000, 10000)


def results(folder: Path) -> dict[str, Any]:
    told = pages.read_run(folder)
    samples = folder / "samples"
    summary = json.loads((samples / stream.SUMMARY).read_text())
    found = evaluation.run(
        [samples], folder / "evaluation", folder=folder, level="all", with_fcd=False
    )
    return {
        "version": nmln.__version__,
        "commands": ["nmln run", f"nmln likelihood {folder}"],
        "training_minutes": round(told.seconds / 60, 2),
        "sampling_minutes": round(summary["seconds"] / 60, 2),
        "processes": summary["processes"],
        "steps": int(told.history.steps[-1]),
        "levels": [
            {
                "rate": summary["levels"][one.level or 0]["rate"],
                "attempts": summary["attempts"],
                "valid": one.found.valid.value,
                "in_train": one.found.known_train.value,
                "in_test": one.found.known_test.value,
                "covered_test": one.found.coverage_test.value,
                "vun": one.found.vun.value,
                "recall_test": {str(at): one.found.test.at(at) for at in AT},
                "recall_train": {str(at): one.found.train.at(at) for at in AT},
            }
            for one in found.evaluated
        ],
        "likelihood": json.loads((folder / "likelihood.json").read_text()),
    }


if __name__ == "__main__":
    content = results(Path(sys.argv[1]))
    Path(sys.argv[2]).write_text(json.dumps(content, indent=1) + "\n")
