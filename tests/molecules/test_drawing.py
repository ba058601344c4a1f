from xml.etree import ElementTree

import pytest

from nmln.errors import InputError
from nmln.molecules.chemistry.drawing import draw_svg


def test_a_molecule_is_drawn_as_one_element_that_fits_any_page() -> None:
    drawn = draw_svg("O=C(O)c1ccccc1", 240, 160)
    root = ElementTree.fromstring(drawn)
    assert root.tag.endswith("svg")
    assert root.attrib["viewBox"] == "0 0 240 160"
    assert "width" not in root.attrib
    paths = [one for one in root.iter() if one.tag.endswith("path")]
    assert len(paths) > 8  # nine bonds, some of them double, and the letters
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "")


def test_different_molecules_give_different_pictures() -> None:
    assert draw_svg("CCO") != draw_svg("CCN")
    assert draw_svg("CCO") == draw_svg("CCO")


@pytest.mark.parametrize("text", ["", "C(", "<script>"])
def test_what_is_no_molecule_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a molecule"):
        draw_svg(text)
