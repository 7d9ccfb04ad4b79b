"""Reads JSON that clients send: fast, exact, and as I-JSON (RFC 7493) has it. And numbers in headers and queries."""

from __future__ import annotations

import gc
import re
from typing import Any

import numpy as np
import orjson

from headrace.errors import InputError
from headrace_formats import FormatError, read_json

__all__ = ["loads", "whole_number"]

_LARGE_BYTES = 64 << 10
_MOST_DIGITS = 18
_DEEPEST = 200
"""The most lists and objects inside each other, as pydantic has it: what walks through a value calls itself for each."""
_OTHERS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS = bytes.maketrans(b"[{]}", b"\1\1\xff\xff")
_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG = re.compile(b"0" * 19 + b"0*")  # begins with a text, for which `re` searches fast


def loads(text: bytes) -> Any:
    """Parse JSON. A large text without the garbage collector, which would take ten times as long.

    Raises:
        InputError: The text is no JSON, or has half of a surrogate pair, or a number that no float can hold, or is nested too
            deep.
    """
    pauses = len(text) >= _LARGE_BYTES and gc.isenabled()
    if pauses:
        gc.disable()
    try:
        value = orjson.loads(text)  # refuses what is no I-JSON
        _check_depth(text)
        if not _may_have_long_numbers(text):
            return value
        del value
        return read_json(text)
    except (orjson.JSONDecodeError, FormatError) as error:
        raise InputError(f"the body is no JSON: {error}") from None
    finally:
        if pauses:
            gc.enable()


def whole_number(text: str) -> int | None:
    """Read a number of up to 18 digits. None for any other text: `int` takes signs and spaces, and raises for thousands of digits."""
    right = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if right else None


def _check_depth(text: bytes) -> None:
    """Refuse JSON with too many lists and objects inside each other."""
    if text.count(b"[") + text.count(b"{") <= _DEEPEST:
        return
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"")
    steps = b"".join(plain.split(b'"')[::2]).translate(_STEPS, _OTHERS)
    deep = np.frombuffer(steps, np.int8).cumsum(dtype=np.int64).max(initial=0)
    if deep > _DEEPEST:
        most = f"at most {_DEEPEST} lists and objects inside each other"
        raise InputError("the body", expected=most, got=str(deep))


def _may_have_long_numbers(text: bytes) -> bool:
    """Return whether there may be a whole number of more than 64 bits, of which orjson makes a float."""
    zeros = text.translate(_ZEROS)
    return any(zeros[match.start() - 1 : match.start()] != b"." for match in _LONG.finditer(zeros))
