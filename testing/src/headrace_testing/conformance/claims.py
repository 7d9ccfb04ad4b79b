"""What a docstring claims about an array: the dtypes and shapes in an entry of Reads or Writes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_DTYPE = re.compile(
    r"\b(u?int(?:8|16|32|64)|b?float(?:16|32|64)|complex(?:64|128)|bool(?:ean)?s?|floating|floats?|"
    r"ints?|integers?|numbers?|numeric|numerical|dtypes?)\b"
)
_ARRAY = re.compile(r"`*(?:u?int|b?float|complex|bool)\d*`*\s*\[[^\[\]]+\]")
_SHAPE = re.compile(r"(?<!\bin )(?<!\bin ``)(?<!\bwithin )\[([^\[\]]*)\]")
_FLOATING = ("float", "floats", "floating")
_WHOLE = ("int", "ints", "integer", "integers")


def claims_dtype(text: str) -> bool:
    """Return whether an entry names the dtype of the array, and not only "of the same dtype"."""
    dtypes = set(_DTYPE.findall(text))
    return bool(dtypes) and not dtypes & {"dtype", "dtypes"}


def claims_array(text: str) -> bool:
    """Return whether an entry begins with a dtype and a shape, so that a list of numbers is no such value."""
    return _ARRAY.match(text) is not None and not re.search(r"\b(list|tuple)s?\b", text)


def covers_dtype(text: str, dtype: object) -> bool:
    """Return whether a dtype is among those that an entry names."""
    name = str(dtype).rpartition(".")[2].removesuffix("_")
    return any(
        word == name
        or (word.startswith("bool") and name == "bool")
        or (word in _FLOATING and "float" in name)
        or (word in _WHOLE and "int" in name)
        or (word.startswith("num") and name != "complex64")
        for word in _DTYPE.findall(text)
    )


def shapes_of(text: str) -> list[tuple[str, ...]]:
    """Return the shapes that an entry names, ``[H, W, 3]`` as three texts; none where it leaves them open."""
    if re.search(r"\bsame\b|\bany\b|\.\.\.|\bnumber of dimensions\b|\brank\b", text):
        return []
    shapes = [tuple(part.strip() for part in shape.split(",")) for shape in _SHAPE.findall(text)]
    return [shape for shape in shapes if all(shape) and "0" not in shape]


_OR = re.compile(
    # Two bare dtypes share the shape that follows the second one: `uint8` or `float32`, [H, W].
    rf"(?<!\w)(?P<shared>{_DTYPE.pattern}`*\s+or\s+`*{_DTYPE.pattern}(?!\s*\[[^\]]*\]`))"
    r"|,?\s*(?:\bor\s+else\b|\bor\b|\belse\b|\botherwise\b)"
)
_SENTENCE = re.compile(r"[.;]\s+")


def describes(text: str, shape: Collection[int], dtype: object) -> bool:
    """Return whether an entry describes an array: the whole of it, or one of the clauses that it has.

    What is named without a dtype and a shape beside something else, as in "a label, or ``float [K]``", describes an
    array without axes.
    """
    sentences = [_alternatives(sentence) for sentence in _SENTENCE.split(text.strip(" ."))]
    each_is_whole = all(claims_dtype(sentence) and shapes_of(sentence) for sentence in sentences[0])
    if _describes(text, shape, dtype) and not (each_is_whole and len(sentences) == 1):
        return True
    for clauses in sentences:
        for clause in clauses:
            if claims_dtype(clause) or shapes_of(clause):
                if _describes(clause, shape, dtype):
                    return True
            elif len(clauses) > 1 and not shape:
                return True
    return False


def _describes(text: str, shape: Collection[int], dtype: object) -> bool:
    shapes = shapes_of(text)
    right = not claims_dtype(text) or covers_dtype(text, dtype)
    return right and (not shapes or any(fits(shape, claimed) for claimed in shapes))


def _alternatives(sentence: str) -> list[str]:
    """Cut a sentence at each "or" and "else" that parts two things."""
    cuts = [match.span() for match in _OR.finditer(sentence) if match["shared"] is None]
    begins, ends = [0, *(end for _, end in cuts)], [*(begin for begin, _ in cuts), len(sentence)]
    return [sentence[a:b].strip() for a, b in zip(begins, ends, strict=True)]


def fits(shape: Collection[int], claimed: tuple[str, ...]) -> bool:
    """Return whether an array has a claimed shape: as many axes, and the lengths that are numbers."""
    return len(shape) == len(claimed) and all(
        not axis.isdigit() or int(axis) == length
        for length, axis in zip(shape, claimed, strict=True)
    )
