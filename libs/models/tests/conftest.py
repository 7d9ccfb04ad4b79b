"""A backend that says which configuration it was built from, and fails or waits when a test wants that."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import pytest
from pydantic import Field

import headrace


class Says(headrace.Backend):
    """Write a text.

    Reads:
        data: Anything.
    Writes:
        result: The option ``text``.
    Batch:
        1 or more.

    Raises:
        SetupError: The text is among those that are broken.
    Source:
        own
    """

    class Options(headrace.Options):
        """Options of Says."""

        positional = ("text",)
        text: str = Field("one", description="The text.")
        model: headrace.FilePath | None = Field(None, description="A file whose text is taken.")

    broken: ClassVar[set[str]] = set()
    """Texts with which an instance cannot be built."""
    gate: ClassVar[threading.Event | None] = None
    """What an instance waits for before it is built."""
    built: ClassVar[list[str]] = []
    """The text of every instance that was built, in order."""
    building: ClassVar[threading.Semaphore] = threading.Semaphore(0)
    """Released by each instance that is about to be built."""
    closed: ClassVar[threading.Semaphore] = threading.Semaphore(0)
    """Released by each instance that was built and is closed."""
    living: ClassVar[int] = 0
    """How many instances are built and not closed."""

    def init(self, options: Any, context: Any) -> None:
        self.text = options.text if options.model is None else options.model.read_text()
        Says.building.release()
        if self.gate is not None:
            assert self.gate.wait(60)
        if self.text in self.broken:
            raise ValueError(f"{self.text} is broken")
        self.device = context.device
        self.built.append(self.text)
        Says.living += 1

    def forward(self, batch: list[Any]) -> None:
        for request in batch:
            request["result"] = self.text

    def close(self) -> None:
        if hasattr(self, "device"):
            Says.living -= 1
            Says.closed.release()


@pytest.fixture(autouse=True)
def _no_sizes_of_other_tests(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def says():
    """The class of the backend Says, as it is before a test."""
    headrace.register("Says", Says, replace=True)
    Says.broken, Says.gate, Says.built = set(), None, []
    Says.building, Says.closed, Says.living = threading.Semaphore(0), threading.Semaphore(0), 0
    return Says
