"""The data sets of the grid. A line more in `DATA_SETS` adds one, also from a file of SMILES."""

from dataclasses import dataclass
from pathlib import Path

from nmln.errors import InputError

FILES = (".smi", ".smiles", ".txt", ".csv", ".gz")


@dataclass(frozen=True)
class DataSet:
    """Molecules of one size; all methods learn from the same four fifths of them.

    Args:
        source: a set as `nmln train` names it, such as chembl-10, or a file of SMILES.
        title: the name in figures, without the size.
        size: heavy atoms per molecule.
        paper: how many molecules the paper has; None if it does not have this set.
    """

    source: str
    title: str
    size: int
    paper: int | None = None

    @property
    def is_file(self) -> bool:
        return Path(self.source).suffix in FILES

    @property
    def key(self) -> str:
        """The name in cells and on the command line."""
        if not self.is_file:
            return self.source
        return f"{Path(self.source).name.split('.')[0]}-{self.size}"

    @property
    def source_name(self) -> str:
        """The source without the folder of a file."""
        return Path(self.source).name if self.is_file else self.source

    @property
    def family(self) -> str:
        """The name without the size, as in `--data`."""
        return self.key.rpartition("-")[0]

    @property
    def words(self) -> list[str]:
        """The data on the command line of `nmln train`."""
        return [self.source, "--size", str(self.size)] if self.is_file else [self.source]

    def __str__(self) -> str:
        return f"{self.title} {self.size}"


DATA_SETS = (
    DataSet("chembl-9", "ChEMBL", 9, paper=1_684),
    DataSet("chembl-10", "ChEMBL", 10, paper=2_589),
    DataSet("chembl-15", "ChEMBL", 15, paper=14_658),
    DataSet("chembl-20", "ChEMBL", 20, paper=44_222),
    DataSet("qm9-9", "QM9", 9, paper=109_813),
    DataSet("moses-15", "MOSES", 15, paper=579),
    DataSet("moses-20", "MOSES", 20, paper=195_650),
    DataSet("zinc250k-9", "ZINC250k", 9, paper=28),
    DataSet("zinc250k-10", "ZINC250k", 10, paper=90),
    DataSet("zinc250k-15", "ZINC250k", 15, paper=1_766),
    DataSet("zinc250k-20", "ZINC250k", 20, paper=8_590),
)

MAIN = "chembl-10"
"""The set of the ablations, of the levels, and of the comparison of ladders."""


def by_key(key: str) -> DataSet:
    """The data set of a key, such as chembl-10."""
    found = {one.key: one for one in DATA_SETS}
    if key not in found:
        raise InputError(
            f"there is no data set {key!r} in the grid. Take one of {', '.join(found)}.",
            token=key,
            kind="unknown",
        )
    return found[key]


def chosen(family: str | None, sizes: tuple[int, ...] | None) -> tuple[DataSet, ...]:
    """The sets of a family such as chembl, of all families, or of a file of one's own.

    Args:
        family: the family, a file of SMILES, or None for all families.
        sizes: the wanted sizes; by default all, and of a file they must be named.
    """
    if family is not None and Path(family).suffix in FILES:
        if sizes is None:
            raise InputError(
                f"name the sizes of the molecules in {family}, for example --sizes 9.",
                token="--sizes",
                kind="missing",
            )
        title = Path(family).name.split(".")[0]
        return tuple(DataSet(family, title, size) for size in sizes)
    families = list(dict.fromkeys(one.family for one in DATA_SETS))
    if family is not None and family not in families:
        raise InputError(
            f"--data must be one of {', '.join(families)} or a file of SMILES, got {family!r}.",
            token=family,
            kind="unknown",
        )
    within = [one for one in DATA_SETS if family in (None, one.family)]
    found = tuple(one for one in within if sizes is None or one.size in sizes)
    if not found or (sizes is not None and set(sizes) - {one.size for one in found}):
        there = ", ".join(str(size) for size in sorted({one.size for one in within}))
        raise InputError(
            f"{family or 'the grid'} has the sizes {there}. Choose among them with --sizes.",
            token="--sizes",
            kind="unknown",
        )
    return found
