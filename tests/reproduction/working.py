"""`nmln`, with the fake baseline registered in all cells: python -m tests.reproduction.working."""

import sys


def child() -> None:
    """A command of a cell, in which the fake baseline is registered too."""
    from functools import partial

    from nmln.cli import cells
    from nmln.runs import baseline
    from tests.baselines import fake

    fake.register()
    baseline.run = partial(baseline.run, save_every=0.0)  # every update is kept
    cells.child()


if __name__ == "__main__":
    from nmln.cli import cells, main
    from tests.baselines import fake

    fake.register()
    cells._CHILD = "from tests.reproduction.working import child; child()"
    sys.argv[0] = "nmln"
    main()
