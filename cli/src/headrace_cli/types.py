"""What backends of a row hand to each other, by the sections Reads and Writes of their documentation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.plugins import Element as Resolved

_DTYPES = re.compile(r"\b(?:u?int(?:8|16|32|64)|b?float(?:16|32|64))\b")
_IMAGES = re.compile(r"\[(?:H, W(?:, [C13])?|C, H, W)\]")
"""The axes of a picture, by which it and a tensor are told apart."""


def mismatches(row: Sequence[Resolved]) -> Iterator[tuple[str, str, str, str]]:
    """Yield each two neighbours of which the second does not read what the first writes, with what that is.

    A class whose documentation leaves the type open fits all others.

    Args:
        row: Backends that get the result of the one before.
    """
    given, giver = "", ""
    for one in row:
        name = one.name
        wanted = _said(one, "Reads", "data")
        if given and wanted and not _fit(given, wanted):
            yield giver, given, name, wanted
        written = _said(one, "Writes", "result")
        if not written.lower().startswith("same"):
            given, giver = written, name
        elif not _told(given):  # it passes on what it reads
            given, giver = wanted, name


def _said(one: Resolved, section: str, key: str) -> str:
    """Return what the documentation of a class says of a key, its first sentence without marks."""
    text = re.sub(r"\s+", " ", (one.cls.__doc__ or "").partition(f" {section}:")[2])
    text = re.split(r" (?:Writes|Batch):", text)[0]
    found = re.match(rf".*?\b{key}: (.*?)(?:\.(?: |$)| [a-z_]+: |$)", text)
    said = found[1].replace("`", "") if found else ""
    other = re.search(r", with (\w+)=(\w+) ", said)  # what an option makes of it
    unset = other and str(getattr(one.options, other[1], None)) != other[2]
    return said[: other.start()] if other and unset else said


def _fit(given: str, wanted: str) -> bool:
    """Return whether a value may be of both types; one that begins with bytes holds a file."""
    if not (_told(given) and _told(wanted)):
        return True
    if given.startswith("bytes") or wanted.startswith("bytes"):
        return given.startswith("bytes") and wanted.startswith("bytes")
    for kind in (_DTYPES, _IMAGES):
        one, other = (
            {re.sub(r"\d]", "C]", text) for text in kind.findall(said)} for said in (given, wanted)
        )
        if one and other and not one & other:
            return False
    return True


def _told(text: str) -> bool:
    return text.startswith("bytes") or bool(_DTYPES.search(text))
