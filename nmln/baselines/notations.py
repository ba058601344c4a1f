"""Molecules as rows of tokens: the three notations of Molecule-RNN, and plain characters.

A notation splits a SMILES into tokens and joins tokens to a SMILES. Two of them have the vocabulary
that was published with Molecule-RNN for ChEMBL; that of the others is made of the training molecules.

- `char`: 19 atoms and 26 symbols; an atom of two characters (Br, Cl, Si, Se, se, ...) is one token.
- `regex`: Br is written R and Cl is written L; a bracketed atom of up to six characters is one token,
  and so is every other character.
- `selfies`: the symbols of SELFIES, of which almost any row is a molecule.
- `plain`: single characters.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int64
from torch import Tensor

from nmln.errors import InputError
from nmln.extras import later, require
from nmln.molecules.chemistry import Refusal

if TYPE_CHECKING:
    import selfies
else:
    selfies = later("selfies")

Codes = Int64[Tensor, "strings places"]

END = 0  # the code after the last token, and of all places behind it

_CHAR = """
Al As B Br C Cl F H I K Li N Na O P S Se Si Te
( ) [ ] = # % 0 1 2 3 4 5 6 7 8 9 + - se te c n o p s
"""
_REGEX = """
# % ( ) - = 0 1 2 3 4 5 6 7 8 9 B C F I L N O P R S c n o s
[Al] [As] [B-] [BH-] [BH2-] [BH3-] [C+] [C-] [H] [I+] [IH2] [L+3] [N+] [N-] [NH+] [NH-] [NH2+]
[Na] [O+] [O-] [OH+] [O] [P+] [PH] [S+] [S-] [SH] [Se+] [SeH] [Se] [Si] [Te] [cH-] [n+] [n-] [nH]
[o+] [s+] [se+] [se] [te+] [te]
"""
CHAR_TOKENS, REGEX_TOKENS = tuple(_CHAR.split()), tuple(_REGEX.split())
_PAIRS = frozenset(token for token in CHAR_TOKENS if len(token) == 2)

_BRACKET = re.compile(r"(\[[^\[\]]{1,6}\])")


@dataclass(frozen=True)
class Notation:
    """How a SMILES becomes tokens, and tokens a SMILES.

    `split` gives a refusal for a molecule that cannot be written. `join` is its inverse; it gives an
    empty text for tokens that have no SMILES. Without a `published` vocabulary, the data make one.
    """

    split: Callable[[str], Sequence[str] | Refusal]
    join: Callable[[Sequence[str]], str]
    published: tuple[str, ...] | None = None
    needs: str | None = None  # an optional module


def split_characters(smiles: str) -> list[str]:
    """Characters, where the two of an atom with a token of its own stay together."""
    tokens, place = [], 0
    while place < len(smiles):
        width = 2 if smiles[place : place + 2] in _PAIRS else 1
        tokens.append(smiles[place : place + width])
        place += width
    return tokens


def split_brackets(smiles: str) -> list[str] | Refusal:
    """Bracketed atoms, and characters; halogens of two characters are written as one."""
    if found := re.search("[LR]", smiles):
        return _foreign(smiles, found[0])
    parts = _BRACKET.split(smiles.replace("Br", "R").replace("Cl", "L"))
    return [token for part in parts for token in ([part] if _BRACKET.match(part) else part)]


def join_brackets(tokens: Sequence[str]) -> str:
    return "".join(tokens).replace("L", "Cl").replace("R", "Br")


def split_selfies(smiles: str) -> list[str] | Refusal:
    """The symbols of SELFIES."""
    try:
        return list(selfies.split_selfies(selfies.encoder(smiles)))
    except selfies.EncoderError as error:
        reason = " ".join(str(error).split())
        return Refusal("SELFIES cannot write it", f"{smiles}: {reason[:200]}")


def join_selfies(tokens: Sequence[str]) -> str:
    try:
        return str(selfies.decoder("".join(tokens)))
    except selfies.DecoderError:
        return ""


NOTATIONS: Mapping[str, Notation] = {
    "char": Notation(split_characters, "".join, CHAR_TOKENS),
    "regex": Notation(split_brackets, join_brackets, REGEX_TOKENS),
    "selfies": Notation(split_selfies, join_selfies, needs="selfies"),
    "plain": Notation(list, "".join),
}


def notation_named(name: str) -> Notation:
    """A notation whose packages are installed."""
    if name not in NOTATIONS:
        raise InputError(
            f"there is no notation {name!r}. Take one of {', '.join(NOTATIONS)}.",
            token=name,
            kind="unknown",
        )
    if (needed := NOTATIONS[name].needs) is not None:
        require(f"the notation {name}", needed)
    return NOTATIONS[name]


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that strings are made of; the code of a token is its place, counted from 1."""

    tokens: tuple[str, ...]

    @staticmethod
    def of(strings: Iterable[Sequence[str]]) -> "Vocabulary":
        """The tokens of some strings, sorted."""
        return Vocabulary(tuple(sorted({token for string in strings for token in string})))

    def refuse(self, smiles: str, tokens: Sequence[str]) -> Refusal | None:
        """A refusal of a molecule with a token that is not known."""
        known = set(self.tokens)
        return next((_foreign(smiles, token) for token in tokens if token not in known), None)

    def encode(self, strings: Sequence[Sequence[str]]) -> Codes:
        """One row for every string, with at least one end."""
        places = {token: code for code, token in enumerate(self.tokens, 1)}
        codes = torch.full((len(strings), 1 + max(map(len, strings), default=0)), END)
        for row, string in zip(codes, strings, strict=True):
            row[: len(string)] = torch.tensor([places[token] for token in string], dtype=torch.long)
        return codes

    def decode(self, codes: Codes) -> list[list[str] | None]:
        """The tokens before the first end of every row; None for a row without an end."""
        names = ("", *self.tokens)
        rows: list[list[int]] = codes.tolist()
        return [[names[code] for code in row[: row.index(END)]] if END in row else None
                for row in rows]  # fmt: skip


def _foreign(smiles: str, token: str) -> Refusal:
    return Refusal(
        f"{token} is not in the vocabulary",
        f"{smiles} has {token}, which is not in the vocabulary.",
    )
