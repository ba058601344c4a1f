"""Drawings of molecules, as self-contained SVG for a page."""

import re
from functools import cache
from typing import TYPE_CHECKING

from nmln.errors import InputError
from nmln.extras import later

if TYPE_CHECKING:
    from rdkit import Chem
    from rdkit.Chem import rdDepictor
    from rdkit.Chem.Draw import rdMolDraw2D
else:
    Chem = later("rdkit.Chem")
    rdDepictor = later("rdkit.Chem.rdDepictor")
    rdMolDraw2D = later("rdkit.Chem.Draw.rdMolDraw2D")


def draw_svg(smiles: str, width: int = 200, height: int = 150) -> str:
    """One molecule on a transparent background; it scales with the page, in the given proportions."""
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None or not molecule.GetNumAtoms():
        raise InputError(
            f"{smiles!r} is not a molecule that RDKit can read.", token=smiles, kind="syntax"
        )
    rdDepictor.Compute2DCoords(molecule)
    canvas = rdMolDraw2D.MolDraw2DSVG(width, height)
    options = canvas.drawOptions()
    options.clearBackground = False
    options.bondLineWidth = 1.4
    options.padding = 0.08
    options.fixedBondLength = 30
    rdMolDraw2D.PrepareAndDrawMolecule(canvas, molecule)
    canvas.FinishDrawing()
    return _without_head(canvas.GetDrawingText(), width, height)


@cache
def _head() -> re.Pattern[str]:
    return re.compile(r"<\?xml.*?\?>|<!--.*?-->|<rect[^>]*opacity:0[^>]*>\s*(</rect>)?", re.DOTALL)


def _without_head(svg: str, width: int, height: int) -> str:
    """The bare element: no XML declaration, no comments, no fixed size."""
    bare = _head().sub("", svg).strip()
    return re.sub(
        r"<svg\b.*?>",
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        bare,
        count=1,
        flags=re.DOTALL,
    )
