"""What backends of a row hand to each other, by the sections Reads and Writes of their documentation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.plan import Element

_DTYPES = re.compile(r"\b(?:u?int(?:8|16|32|64)|b?float(?:16|32|64))\b")
_IMAGES = re.compile(r"\[(?:H, W(?:, [C13])?|C, H, W)\]")
"""The axes of a picture, by which it and a tensor are told apart."""


def mismatches(
    row: Sequence[Element], built: Sequence[Mapping[str, Any]] = ()
) -> Iterator[tuple[str, str, str, str]]:
    """Yield each two neighbours of which the second does not read what the first writes, with what that is.

    A class whose documentation leaves the type open fits all others.

    Args:
        row: Backends that get the result of the one before.
        built: What each of them has said since it was built. A model with one input says its dtype and shape.
    """
    gives = giver = ""
    sides: Any = None
    for number, part in enumerate(row):
        reads = _said(part, "Reads", "data")
        port = _only_input(built[number]) if built else {}
        reads = f"{port['dtype']} {port['shape']}".replace("None", "*") if port else reads
        if gives and reads and not (_fit(gives, reads) and _fit_sides(sides, port)):
            size = f" of {sides[0]} x {sides[1]}" if sides and port else ""
            yield giver, gives + size, part.name, reads
        written = _said(part, "Writes", "result")
        sides = _sides_after(sides, part, reads, written)
        if not written.lower().startswith("same"):
            gives, giver = written, part.name
        elif not _told(gives):  # it passes on what it reads
            gives, giver = reads, part.name


def _only_input(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return dtype and shape of the only input of a model, from the answer of its backend to ``describe``."""
    ports = facts.get("inputs")
    port = next(iter(ports.values())) if isinstance(ports, dict) and len(ports) == 1 else None
    return port if isinstance(port, dict) and {"dtype", "shape"} <= {*port} else {}


def _sides_after(
    sides: tuple[Any, ...] | None, taker: Element, reads: str, written: str
) -> tuple[Any, ...] | None:
    """Return height and width of a picture behind a backend: those that its options name, or as before; None if unknown."""
    axes = re.search(r"\[(?:[C13], )?(\w+), (\w+)(?:, [C13])?\]", written)
    if axes is None:
        return None
    if axes.groups() == ("H", "W"):
        return sides if "H, W" in reads else None
    lengths = tuple(getattr(taker.options, name, None) for name in axes.groups())
    return lengths if all(isinstance(side, int) for side in lengths) else None


def _fit_sides(sides: Any, port: Mapping[str, Any]) -> bool:
    """Return whether a model takes pictures with these sides; its axes are [N, C, H, W] or [N, H, W, C]."""
    shape: Any = port.get("shape") or ()
    planar = len(shape) == 4 and shape[1] in (1, 3, 4)
    if sides is None or len(shape) != 4 or planar == (shape[3] in (1, 3, 4)):
        return True
    taken = shape[2:] if planar else shape[1:3]
    return all(side in (None, own) for side, own in zip(taken, sides, strict=True))


def _said(part: Element, section: str, key: str) -> str:
    """Return what the documentation of a class says of a key, its first sentence without marks."""
    text = re.sub(r"\s+", " ", (part.cls.__doc__ or "").partition(f" {section}:")[2])
    text = re.split(r" (?:Writes|Batch):", text)[0]
    match = re.match(rf".*?\b{key}: (.*?)(?:\.(?: |$)| [a-z_]+: |$)", text)
    facts = match[1].replace("`", "") if match else ""
    other = re.search(r", with (\w+)=(\w+) ", facts)  # what an option makes of it
    unset = other and str(getattr(part.options, other[1], None)) != other[2]
    return facts[: other.start()] if other and unset else facts


def _fit(gives: str, reads: str) -> bool:
    """Return whether a value may be of both types; one that begins with bytes holds a file."""
    if not (_told(gives) and _told(reads)):
        return True
    if gives.startswith("bytes") or reads.startswith("bytes"):
        return gives.startswith("bytes") and reads.startswith("bytes")
    for kind in (_DTYPES, _IMAGES):
        name, other = (
            {re.sub(r"\d]", "C]", text) for text in kind.findall(words)} for words in (gives, reads)
        )
        if name and other and not name & other:
            return False
    return True


def _told(text: str) -> bool:
    return text.startswith("bytes") or bool(_DTYPES.search(text))
