"""Valid examples with a few bytes or values changed: what damage and malice look like to a reader."""

import json
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from hypothesis import strategies as st

KINDS = (
    "set", "flip", "delete", "cut", "insert", "over", "repeat", "splice", "number", "swap",
)  # fmt: skip

NUMBERS = (
    b"0", b"-1", b"1", b"00", b"1e400", b"-1e400", b"1e-400", b"1e15", b"1e16", b"nan", b"inf",
    b"2147483648", b"9223372036854775807", b"9223372036854775808", b"9" * 400, b"9" * 5000, b"0.0",
    b"1.5.2", b"0x" + b"f" * 5000, "\u0663".encode(), "\u00b2".encode(),
)  # fmt: skip
LETTERS = (
    b"\0", b"\n", b"\r", b"\t", b" ", b'"', b"'", b"\\", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\xc3",
    b"\x1b[31m", "\u2028".encode(), "\x85".encode(), b"\x0b", b"\x0c", "\U0001f600".encode(),
    b"(" * 200, b")" * 200, b"[" * 5000, b"{" * 5000, b"!" * 3000, b"a" * 300_000, b" " * 300_000,
    b"1" * 300_000, b",,,,", b";;",
    b"---\n", b"//", b"/*", b"*/", b"#", b"%", b"=", b"<", b">", b"&", b"^", b"v", b"$", b"..", b"...",
    b"-", b"+", b"/dev/zero", b"../../x", b"\x1f\x8b",
)  # fmt: skip


class Change(NamedTuple):
    """One change of a text: of what kind, where, how much, and with what."""

    kind: str
    place: int
    amount: int
    token: bytes


def texts(examples: Sequence[bytes], words: Sequence[bytes] = ()) -> st.SearchStrategy[bytes]:
    """Changed examples; `words` are what the format at hand gives a meaning."""
    tokens = st.sampled_from((*NUMBERS, *LETTERS, *words, *words, *words))
    amounts = st.integers(0, 2**16 - 1)
    change = st.builds(Change, st.sampled_from(KINDS), amounts, amounts, tokens)
    changed = st.builds(
        _changed,
        st.sampled_from(list(examples)),
        st.sampled_from(list(examples)),
        st.lists(change, min_size=1, max_size=3),
    )
    return changed | changed | changed | changed | st.binary(max_size=200)


def _changed(example: bytes, other: bytes, changes: list[Change]) -> bytes:
    data = bytearray(example)
    for kind, place, amount, token in changes:
        at = place % (len(data) + 1)
        match kind:
            case "set" if at < len(data):
                data[at] = amount % 256
            case "flip" if at < len(data):
                data[at] ^= 1 << amount % 8
            case "delete":
                del data[at : at + amount % 30]
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = token
            case "over":
                data[at : at + len(token)] = token
            case "repeat":
                data[at:at] = data[at : at + amount % 60] * (amount // 60 % 60)
            case "splice":
                start = amount % (len(other) + 1)
                data[at : at + 80] = other[start : start + 80]
            case "number":
                numbers = list(re.finditer(rb"\d+(?:\.\d+)?", data))
                if numbers:
                    chosen = numbers[place % len(numbers)]
                    data[chosen.start() : chosen.end()] = token
            case "swap":
                lines = bytes(data).split(b"\n")
                one, two = place % len(lines), amount % len(lines)
                lines[one], lines[two] = lines[two], lines[one]
                data = bytearray(b"\n".join(lines))
    return bytes(data[:2_000_000])


# JSON, as trees whose values are changed.

_RAW = {
    "@large@": "1e400", "@small@": "-1e400", "@long@": "9" * 5000, "@longer@": "9" * 400, "@nan@": "NaN",
    "@deep@": "[" * 3000 + "]" * 3000, "@deeper@": '{"a":' * 100_000 + "1" + "}" * 100_000,
}  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 2**31, 2**63, 2**64, -(2**63) - 1, 0.5, -0.5, 1e308, 1e-320, 1e15,
    "", "x", "0", "\0", "\ud800", "../../x", "/dev/zero", "a\u2028b", "a\nb", [], {}, [[]], {"": None},
    [1], [0] * 1000, [None], [True], ["x"], [{}], [-1, 0], {"$tensor": "x"}, {"$tuple": []},
    {"$dict": 1}, {"$float": "nan"}, *_RAW,
)  # fmt: skip


def trees(examples: Sequence[Any], odd: Sequence[Any] = ()) -> st.SearchStrategy[bytes]:
    """JSON of changed examples; `odd` are further values to put somewhere."""
    change = st.tuples(
        st.sampled_from(("set", "set", "set", "delete", "key", "append", "copy")),
        st.integers(0, 2**16 - 1),
        st.integers(0, 2**16 - 1),
        st.sampled_from((*ODD, *odd)),
    )
    return st.builds(
        _changed_tree, st.sampled_from(list(examples)), st.lists(change, min_size=1, max_size=4)
    )


def _changed_tree(example: Any, changes: list[tuple[str, int, int, Any]]) -> bytes:
    tree = [json.loads(json.dumps(example))]
    for kind, place, other, odd in changes:
        value = deepcopy(odd)  # or the next change of it would be one of all examples
        places = list(_places(tree))
        parent, key = places[place % len(places)]
        match kind:
            case "set":
                parent[key] = value
            case "delete" if parent is not tree:
                del parent[key]
            case "key" if isinstance(parent, dict):
                parent[str(value)[:50]] = parent.pop(key)
            case "append" if isinstance(parent[key], list):
                parent[key].append(value)
            case "copy":
                source, at = places[other % len(places)]
                parent[key] = json.loads(json.dumps(source[at]))
            case _:
                parent[key] = value
    text = json.dumps(tree[0])
    for mark, raw in _RAW.items():
        text = text.replace(f'"{mark}"', raw)
    return text.encode()


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every value of a tree as its parent and the key there, those near the root more often."""
    waiting = [(tree, 0)]
    while waiting:
        parent, key = waiting.pop()
        yield parent, key
        value = parent[key]
        if isinstance(value, dict):
            waiting += [(value, inner) for inner in value]
        elif isinstance(value, list):
            waiting += [(value, inner) for inner in range(min(len(value), 20))]
