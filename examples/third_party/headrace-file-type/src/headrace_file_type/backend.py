"""`FileType`: contract and options. What computes is in `compute`, which `init` imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import headrace

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["FileType"]


class FileType(headrace.Backend):
    """Tell what type of file bytes are, and refuse the types that are not wanted.

    Reads:
        data: bytes, bytearray, a memoryview or a 1-D ``uint8`` array: the whole file.

    Writes:
        result: ``data`` itself, so that a decoder may come next.
        file_type: Magika's name of the type, ``"jpeg"``, ``"png"``, ``"pdf"``, ...

    Batch:
        1 to 4; items are independent, a bad one fails alone. Magika takes some 10 ms a file, one after
        the other: larger batches would only keep those waiting who come next.

    Raises:
        InputError: ``data`` is missing or no such bytes, or its type is not among ``allowed``.

    Source:
        Magika's ``identify_bytes``.
    """

    class Options(headrace.Options):
        """Which types pass.

        Attributes:
            allowed: The types that pass, as Magika names them (names); none lets all pass.
        """

        positional = ("allowed",)
        allowed: tuple[str, ...] | None = None

    # Running again does no harm: when a batch fails, each of its items is run alone.
    rerun = True
    max = 4
    writes = ("result", "file_type")

    def init(self, options: Options, context: headrace.InitContext) -> None:
        """Load Magika's model, once for all instances of the node, and check the names."""
        from headrace_file_type import compute

        self._detector = context.store.node.get_or_create("headrace_file_type", compute.Detector)
        self._detector.check_names(options.allowed or ())
        self._allowed = options.allowed

    def forward(self, batch: list[Request]) -> None:
        """Write ``result`` and ``file_type`` into each request."""
        for request in batch:
            file_type = self._detector.detect(request.get("data"), self._allowed)
            request["file_type"] = file_type
            request["result"] = request["data"]
