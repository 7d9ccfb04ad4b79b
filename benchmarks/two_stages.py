"""The floor of Python threads: a program of two stages, written by hand, without any framework.

Workers decode, model threads gather and run batches, clients wait. The program leaves out everything
else that a server needs (errors of single requests, deadlines, closing under load). A framework in
Python with the same threads can come close to its throughput, but hardly exceed it.
"""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["TwoStages"]


class _Slot:
    """One waiting client: its request, its answer, and a lock that is held until the answer is there."""

    __slots__ = ("answer", "file", "lock", "picture")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.file: Any = None
        self.picture: Any = None
        self.answer: Any = None


class TwoStages:
    """Threads that decode, and threads that run a model on what they decoded.

    Args:
        decode: From a file to a picture, called in ``decoders`` threads, or by the clients.
        runners: One function per model thread: from at most ``batch`` pictures to as many answers. A
            function that needs state of its thread (a current stream) must set that state itself.
        decoders: Threads that decode; 0: each client decodes what it sends.
        batch: Most pictures in one batch.
        timeout_ms: How long a model thread waits for a batch to fill up, from its first picture.
    """

    def __init__(
        self,
        decode: Callable[[Any], Any],
        runners: Sequence[Callable[[list[Any]], Sequence[Any]]],
        *,
        decoders: int,
        batch: int,
        timeout_ms: float,
    ) -> None:
        self._files: SimpleQueue[_Slot | None] = SimpleQueue()
        self._pictures: SimpleQueue[_Slot | None] = SimpleQueue()
        self._gathering = threading.Lock()
        self._own = threading.local()
        self._decode_file = decode
        self._batch, self._timeout_s = batch, timeout_ms / 1e3
        self._failure: BaseException | None = None
        self._decoding = [
            threading.Thread(target=self._decode, daemon=True) for _ in range(decoders)
        ]
        self._running = [
            threading.Thread(target=self._run, args=(runner,), daemon=True) for runner in runners
        ]
        for thread in (*self._decoding, *self._running):
            thread.start()

    def __call__(self, file: Any) -> Any:
        """Send one file and wait for its answer.

        Raises:
            RuntimeError: One of the threads has failed.
        """
        slot: _Slot | None = getattr(self._own, "slot", None)
        if slot is None:
            slot = self._own.slot = _Slot()
        if self._decoding:
            slot.file = file
            self._files.put(slot)
        else:
            slot.picture = self._decode_file(file)
            self._pictures.put(slot)
        while not slot.lock.acquire(timeout=5):
            if self._failure is not None:
                raise RuntimeError("a thread of the program has failed") from self._failure
        return slot.answer

    def _decode(self) -> None:
        try:
            while (slot := self._files.get()) is not None:
                slot.picture = self._decode_file(slot.file)
                self._pictures.put(slot)
        except BaseException as error:  # noqa: BLE001 - the clients are told
            self._failure = error

    def _run(self, runner: Callable[[list[Any]], Sequence[Any]]) -> None:
        try:
            while slots := self._gathered():
                for slot, answer in zip(
                    slots, runner([slot.picture for slot in slots]), strict=True
                ):
                    slot.answer = answer
                    slot.lock.release()
        except BaseException as error:  # noqa: BLE001 - the clients are told
            self._failure = error

    def _gathered(self) -> list[_Slot]:
        """Return a batch: pictures that wait already, then those that come in time; empty at the end.

        Only one thread gathers at a time. If two threads waited on the queue, one could take the
        picture whose arrival woke the other; CPython (3.11) then may let the other thread wait without
        end, although it gave a timeout.
        """
        with self._gathering:
            first = self._pictures.get()
            slots, until = ([] if first is None else [first]), time.perf_counter() + self._timeout_s
            while 0 < len(slots) < self._batch:
                try:
                    left = until - time.perf_counter()
                    slot = self._pictures.get(timeout=max(left, 0))
                except Empty:
                    break
                if slot is None:
                    self._pictures.put(None)  # the next call must find the end too, in any thread
                    break
                slots.append(slot)
        return slots

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for queue, threads in ((self._files, self._decoding), (self._pictures, self._running)):
            for _ in threads:
                queue.put(None)
            for thread in threads:
                thread.join()
