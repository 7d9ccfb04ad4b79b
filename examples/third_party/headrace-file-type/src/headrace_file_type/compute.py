"""What is computed: Magika behind one small class, useful without a pipeline."""

from __future__ import annotations

import difflib
import os
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError, SetupError

# Magika runs on ONNX Runtime, which sends nothing and writes nothing if this is set when it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from magika import ContentTypeLabel, Magika

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["Detector"]


class Detector:
    """Magika with its model loaded; may be called by several threads at a time."""

    def __init__(self) -> None:
        self._magika = Magika()

    def check_names(self, names: Collection[str]) -> None:
        """Refuse names of types that Magika does not have.

        Raises:
            SetupError: There is no type of that name.
        """
        known = [str(label) for label in ContentTypeLabel]
        for name in names:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"Did you mean {close[0]!r}?" if close else "See the list in Magika's docs."
                raise SetupError(f"`allowed` names {name!r}, which Magika does not know", hint=hint)

    def detect(self, data: Any, allowed: Collection[str] | None = None) -> str:
        """Return the type of a file.

        Args:
            data: bytes, bytearray, a memoryview or a 1-D ``uint8`` array.
            allowed: The types that pass; None for all.

        Returns:
            Magika's name of the type.

        Raises:
            InputError: ``data`` is something else, or its type is not among ``allowed``.
        """
        file_type = str(self._magika.identify_bytes(as_bytes(data)).output.label)
        if allowed is not None and file_type not in allowed:
            wanted = " or ".join(allowed) or "no type at all"
            raise InputError(
                "the file is of a type that is not allowed",
                key="data",
                expected=wanted,
                got=file_type,
            )
        return file_type


def as_bytes(data: Any) -> bytes:
    """Return ``data`` as bytes.

    Raises:
        InputError: It is neither bytes nor a 1-D buffer of single bytes.
    """
    if isinstance(data, bytes):
        return data
    try:
        view = memoryview(data)
    except TypeError:
        view = None
    if view is None or view.ndim != 1 or view.format not in ("B", "c"):
        got = type(data).__name__
        if view is not None:
            got += f" of format {view.format!r}, {list(view.shape or ())}"
        raise InputError(key="data", expected="the bytes of a file", got=got)
    return view.tobytes()
