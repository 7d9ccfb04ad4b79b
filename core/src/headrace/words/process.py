"""Process: a backend in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from headrace._backend import Backend

if TYPE_CHECKING:
    from headrace._backend import Outcomes
    from headrace._context import InitContext
    from headrace.keys import Request

__all__ = ["Process"]


class Far(Protocol):
    """What is in the other process, as this one sees it."""

    about: dict[str, Any]
    """What was built there: ``min``, ``max``, ``rerun``, ``reads``, ``process``, ``tree``."""

    def start(self, context: InitContext) -> None:
        """Start the process and build what lives there."""

    def run(self, batch: list[Request]) -> Outcomes:
        """Run a batch there."""

    def stop(self) -> None:
        """Close what lives there, and end the process."""


class Process(Backend):
    """Let X live in a process of its own: ``Process[X]``.

    As `BackgroundThread`, but X has an interpreter, an interpreter lock and a memory of its own: for
    Python code that computes and holds the lock, for a library that several instances cannot share in
    one process, for one that may crash. A process that dies fails its batch, and its instance is out
    of service. ``init``, every ``forward`` and ``close`` of X happen in the main thread there.

    Requests go there and back as copies, made by ``pickle``: that costs time for large arrays. A key
    that cannot be copied stays here if X does not say that it reads it. What X names must be inside:
    queues, nodes and registered instances of the pipeline are not there. A class or function that
    X uses must be importable: part of an installed module, or of a file that the configuration
    imports.

    Reads:
        What X reads.
    Writes:
        What X writes.
    Batch:
        The range of X.

    Raises:
        What X raises; InputError when a key that X reads cannot be copied; InstanceLostError when
        the process has died.
    Source:
        own
    """

    takes = 1
    far: Far

    def init(self, options: Any, context: InitContext) -> None:
        """Start the process, and take over the range of X."""
        self.far.start(context)
        about = self.far.about
        self.min, self.max, self.rerun = about["min"], about["max"], about["rerun"]  # type: ignore[misc]
        self.reads = about["reads"]

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run X on the batch in its process."""
        return self.far.run(batch)

    def describe(self) -> dict[str, Any]:
        """Give the number of the process, and what was built there."""
        return {"process": self.far.about["process"], "tree": self.far.about["tree"]}

    def close(self) -> None:
        """Close X and end the process."""
        self.far.stop()
