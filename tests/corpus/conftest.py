from collections.abc import Iterator

import pytest

from tests.corpus.prepared import Shelf
from tests.warm import Warm, warm


@pytest.fixture(scope="session")
def call() -> Iterator[Warm]:
    """Runs `nmln` with some arguments in a process that has imported everything."""
    with warm() as one:
        yield one


@pytest.fixture(scope="session")
def shelf(call: Warm, tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    """Prepared files and runs, each made when a case first asks for it."""
    return Shelf(call, tmp_path_factory.mktemp("shelf"))
