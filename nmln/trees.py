"""Nested states, such as an optimiser's, as named tensors and JSON."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from nmln.errors import InputError

RESERVED = "__metadata__"  # a word of the safetensors format

_MOST_LEVELS = 100
_FOREIGN = "It was not made by flatten, or it belongs to other tensors."


FOREIGN = (
    KeyError,
    IndexError,
    TypeError,
    ValueError,
    AttributeError,
    RuntimeError,
    ArithmeticError,
)
"""The errors that using a tree of an unexpected shape can raise."""


def flatten(tree: object) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Take a nested state apart into named tensors and JSON; `unflatten` puts it together exactly.

    A tree is made of tensors, numbers, strings, None, lists, tuples, and mappings whose keys are
    strings, integers or None. Subclasses come back as the plain types: named tuples as tuples,
    parameters as tensors. NaN and infinities are kept. The tensors are those of the tree, not copies.
    """
    tensors: dict[str, Tensor] = {}
    return tensors, {"tree": _encode(tree, (), tensors)}


def unflatten(tensors: Mapping[str, Tensor], content: Mapping[str, Any]) -> Any:
    """The nested state that `flatten` took apart; anything that it cannot have made is refused."""
    if "tree" not in content:
        raise InputError(
            f"content must have the key tree, but has {list(content)}. {_FOREIGN}", kind="damaged"
        )
    return _decode(content["tree"], 0, tensors)


def _encode(node: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    """The JSON form of a node. Objects whose only key starts with $ represent values that JSON lacks."""
    place = "/".join(path).encode("utf-8", "backslashreplace").decode() or "tree"
    if len(path) > _MOST_LEVELS:
        raise InputError(
            f"a tree may have {_MOST_LEVELS} levels, but at {place[:60]}… there are more.",
            kind="size",
        )
    match node:
        case Tensor():
            while place in tensors or place == RESERVED:  # keys 1 and "1", or "a/b" and "a", "b"
                place += "'"
            tensors[place] = node
            return {"$tensor": place}
        case None | bool():
            return node
        case int():
            return int(node)
        case str():
            return str.__str__(node)
        case float():
            return float(node) if math.isfinite(node) else {"$float": repr(float(node))}
        case list() | tuple():
            items = [_encode(item, (*path, str(index)), tensors) for index, item in enumerate(node)]
            return items if isinstance(node, list) else {"$tuple": items}
        case Mapping():
            for key in node:
                if not isinstance(key, str | int | None):
                    raise InputError(
                        f"keys must be strings, integers or None, but {place} has {key!r}. Rename it."
                    )
            values = [_encode(value, (*path, str(key)), tensors) for key, value in node.items()]
            if all(isinstance(key, str) and not key.startswith("$") for key in node):
                return dict(zip(node, values, strict=True))
            return {"$dict": [list(pair) for pair in zip(node, values, strict=True)]}
    raise InputError(
        f"{place} is of type {type(node).__name__}, which cannot be saved. Convert it to a tensor, a "
        "number, a string, a list or a dict.",
        kind="unsupported",
    )


def _decode(node: Any, level: int, tensors: Mapping[str, Tensor]) -> Any:
    if level > _MOST_LEVELS:
        raise InputError(
            f"a tree may have {_MOST_LEVELS} levels, but content has more. {_FOREIGN}",
            kind="damaged",
        )
    match node:
        case list():
            return [_decode(item, level + 1, tensors) for item in node]
        case {"$tensor": str(name)} if len(node) == 1 and name in tensors:
            return tensors[name]
        case {"$float": "nan" | "inf" | "-inf" as text} if len(node) == 1:
            return float(text)
        case {"$tuple": list(items)} if len(node) == 1:
            return tuple(_decode(item, level + 1, tensors) for item in items)
        case {"$dict": list(pairs)} if len(node) == 1 and all(map(_is_pair, pairs)):
            return {key: _decode(value, level + 1, tensors) for key, value in pairs}
        case dict() if any(key.startswith("$") for key in node):
            raise InputError(
                f"content has an object with {list(node)[:3]}, which has no meaning. {_FOREIGN}",
                kind="damaged",
            )
        case dict():
            return {key: _decode(value, level + 1, tensors) for key, value in node.items()}
    return node


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str | int | None)
