"""The sizes of the data sets beside those of the paper."""

from typing import Any

from nmln.files import write_json
from nmln.molecules.datasets import describe
from nmln.reproduction.datasets import DATA_SETS
from nmln.reproduction.work import Grid

_TRAINED = 0.8  # the share of the molecules that all methods learn from


def count(grid: Grid) -> list[dict[str, Any]]:
    """The molecules of every data set, written to tables.json in the results of the grid."""
    rows = []
    for data in DATA_SETS:
        molecules = describe(data.source).sizes.get(data.size, 0)
        train = round(_TRAINED * molecules)
        rows.append(
            {
                "data": data.key,
                "title": str(data),
                "paper": data.paper,
                "molecules": molecules,
                "train": train,
                "test": molecules - train,
            }
        )
    write_json(grid.results / "tables.json", {"rows": rows})
    return rows
