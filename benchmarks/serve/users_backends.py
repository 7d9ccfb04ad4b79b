"""Backends as a user writes them, which `benchmarks.serve.identity` serves by their file."""

from __future__ import annotations

from typing import Any

import numpy as np

import headrace


@headrace.register("CopyArray")
class CopyArray(headrace.Backend):
    """Copies an array: the result has memory of its own, as that of a network has."""

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Copy the array of each request."""
        for request in batch:
            request["result"] = request["data"].copy()


@headrace.register("CountBytes")
class CountBytes(headrace.Backend):
    """Gives the number of bytes of a file."""

    max = 8

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Count the bytes of each request."""
        for request in batch:
            request["result"] = len(request["data"])


@headrace.register("LettersVector")
class LettersVector(headrace.Backend):
    """Gives a vector of 16 numbers for a text: how often it has letters."""

    max = 8

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Count the letters of each text."""
        for request in batch:
            letters = np.frombuffer(request["data"].encode(), np.uint8) % 16
            request["result"] = np.bincount(letters, minlength=16).astype(np.float32)
