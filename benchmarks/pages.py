"""Tables in the pages of the documentation, between two comments that name them."""

from collections.abc import Sequence
from pathlib import Path

from nmln.files import write_lines

EXPLANATION = Path(__file__).parent.parent / "docs" / "explanation"


def put(page: str, name: str, lines: Sequence[str]) -> None:
    """Replace what stands between `<!-- NAME -->` and `<!-- end of the NAME -->` of a page."""
    path = EXPLANATION / page
    begin, end = f"<!-- {name} -->", f"<!-- end of the {name} -->"
    before, rest = path.read_text(encoding="utf-8").split(begin)
    _, after = rest.split(end)
    made = [before + begin, "", *lines, "", end + after.rstrip("\n")]
    write_lines(path, "\n".join(made).split("\n"))
