"""Questions of a backend elsewhere to the process that started its own: they go the other way than batches, at any moment.

The class of the backend answers: it has ``answerer(options, context)``, which is called in the process of the container, and
returns a function of a `Question`. Over there `ask` asks it. Both travel on the socket of the reports.
"""

from __future__ import annotations

import pickle
import threading
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from headrace.errors import ContractError
from headrace.isolation import elsewhere, error_text, portable

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from headrace.keys import Request
    from headrace_process.running import RunningBatch

    Take = Callable[[Any, bool, Exception | None], object]

__all__ = ["Answers", "Home", "Question", "ask", "is_elsewhere", "limits_of"]


@dataclass(frozen=True)
class Question:
    """What a backend elsewhere asks. Any thread may answer it, with any number of values.

    Attributes:
        content: What it asks.
        send: Sends a value, whether it is the last, and an error or None, which is the last too.
        thread: The thread that waits for the answer of the batch to which the request belongs that it asks for. 0 once
            that batch is over, and where it asks for none.
        unwanted: Whether the caller of that request waits no more.
    """

    content: Any
    send: Callable[[Any, bool, Exception | None], object]
    thread: int = 0
    unwanted: bool = False


class Answers:
    """Gives the questions of one process to the functions that answer them, each in a thread of its own.

    Args:
        functions: What answers, by the name of the class that asks.
        connection: The socket on which the questions come, and the answers go.
    """

    def __init__(
        self, functions: Mapping[str, Callable[[Question], object]], connection: socket.socket
    ) -> None:
        self._functions, self._socket = functions, connection
        self._sending = threading.Lock()
        self._batch: tuple[int, int, list[Request], RunningBatch | None] = (0, 0, [], None)

    def note_batch(
        self, number: int, batch: list[Request], running: RunningBatch | None, holder: int
    ) -> None:
        """Note the requests of the batch that runs from now on, and which thread waits for it; none between two."""
        self._batch = number, holder, batch, running

    def take(self, number: int, name: str, item: tuple[int, int] | None, content: Any) -> None:
        """Begin to answer a question."""
        args = (number, name, item, content)
        threading.Thread(
            target=self._answer, args=args, daemon=True, name=f"headrace-{name}"
        ).start()

    def _answer(self, number: int, name: str, item: tuple[int, int] | None, content: Any) -> None:
        def send(value: Any, is_last: bool, error: Exception | None = None) -> None:
            failure = None if error is None else portable(error)
            try:
                packed = pickle.dumps((value, is_last, failure), 5)
            except Exception as raised:  # noqa: BLE001 - whatever pickle raises for a value
                problem = f"an answer cannot be sent to another process: {error_text(raised)}"
                packed = pickle.dumps((None, True, ContractError(problem)), 5)
            with self._sending, suppress(OSError):  # the process has ended
                self._socket.sendall(pickle.dumps((number, packed), 5))

        batch, thread, requests, running = self._batch
        question = Question(content, send)
        if item is not None and item[0] == batch and running is not None:
            question = Question(content, send, thread, running.has_left(requests[item[1]]))
        try:
            self._functions[name](question)
        except Exception as error:  # noqa: BLE001 - it is the answer
            send(None, True, error)


class Home:
    """The process that started this one, as that of which a backend asks.

    Args:
        connection: The socket on which its answers come.
        send: Sends it a report.
        answers: Whether its answers come here.
    """

    def __init__(
        self, connection: socket.socket, send: Callable[[str, Any], object], *, answers: bool
    ) -> None:
        self._socket, self._send, self._answers = connection, send, answers
        self._open: dict[int, Take] = {}
        self._numbers = count(1)
        self._turn = threading.Lock()
        self._reads = False

    def ask(self, name: str, content: Any, request: Request | None, take: Take) -> None:
        """Ask. See `ask` of this module."""
        if not self._answers:
            raise ContractError(
                f"{name} asks here, and gets no answer", hint=f"Process[{name}] does."
            )
        with self._turn:
            number, begins, self._reads = next(self._numbers), not self._reads, True
            self._open[number] = take
        if begins:
            threading.Thread(target=self._read, daemon=True, name="headrace-answers").start()
        part = elsewhere.get(id(request))
        self._send("ask", (number, name, getattr(part, "item", None), content))

    def wait_for_end(self) -> None:
        """Read answers until the process that started this one has ended."""
        self._reads = True
        self._read()

    def _read(self) -> None:
        with suppress(OSError, EOFError, ValueError), self._socket.makefile("rb") as answers:
            while True:
                number, packed = pickle.load(answers)  # noqa: S301 - from the process that started this one
                value, is_last, error = pickle.loads(packed)  # noqa: S301 - the same
                take = self._open.pop(number, None) if is_last else self._open.get(number)
                if take is not None:
                    take(value, is_last, error)


home: Home | None = None
"""Of this process. None where none has started it for a container."""


def is_elsewhere() -> bool:
    """Return whether this process was started for the part of a container."""
    return home is not None


def ask(name: str, content: Any, request: Request | None, take: Take) -> None:
    """Ask the process that started this one. Any thread may.

    Args:
        name: The name of the class that asks, whose ``answerer`` answers.
        content: What it asks: anything that pickle takes.
        request: The request of the running batch that it asks for. None for none.
        take: Called with each value of the answer, whether it is the last, and an error or None.

    Raises:
        ContractError: This process was not started so, or not by ``Process``.
    """
    if home is None:
        raise ContractError("there is no process of which this one could ask")
    home.ask(name, content, request, take)


def limits_of(request: Request) -> tuple[float | None, int]:
    """Return deadline (``time.monotonic()``, seconds, None for never) and priority of a request of the running batch."""
    limits: tuple[float | None, int] = getattr(elsewhere.get(id(request)), "limits", (None, 0))
    return limits
