"""What runs in a process of its own: it builds its part, runs batches, and closes.

Its first message says what to build; each other one is a batch. The end of the channel is the end. What is
built, log records and warnings go through a socket of their own, at any moment.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import struct
import threading
import warnings
from contextlib import ExitStack, suppress
from logging.handlers import QueueHandler
from typing import TYPE_CHECKING, Any

from headrace._build.channel import Channel, Told, changes, pack, unpack
from headrace._portable import caused, error_text, portable
from headrace._process import end_with_parent
from headrace.errors import BackendError, InputError

if TYPE_CHECKING:
    from headrace._backend import Backend
    from headrace._build.elsewhere import BuiltElsewhere

    Answer = tuple[Told, list[tuple[dict[str, str], list[str]]], dict[int, str]]

_LENGTH = struct.Struct("<Q")


def main(files: tuple[int, int, int, int], parent: int) -> None:
    """Serve the process that started this one, until it closes the channel.

    Args:
        files: Descriptors: those of the channel, and the socket for all that is no answer.
        parent: The number of that process.
    """
    for file in files:
        os.set_inheritable(file, False)
    teller = _Teller(socket.socket(fileno=files[3]))
    end_with_parent(parent, teller.wait_for_end)
    channel = Channel(*files[:3])
    with suppress(EOFError), ExitStack() as closing:
        _serve(channel, teller, closing)
    teller.end()


class _Teller(QueueHandler):
    """Tells the process that started this one what is no answer; used by any thread."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.count = 0
        self._socket = connection
        self._sending = threading.RLock()

    def tell(self, kind: str, content: Any) -> None:
        """Send one message."""
        message = pickle.dumps((kind, content), 5)
        with self._sending, suppress(OSError):
            self.count += 1
            self._socket.sendall(_LENGTH.pack(len(message)) + message)

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a log record, as `QueueHandler` has made it ready."""
        self.tell("log", {key: portable(one) for key, one in vars(record).items()})

    def warn(self, message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
        """Send a warning; in the place of `warnings.showwarning`."""
        try:
            self.tell("warning", (str(message), category, filename, lineno))
        except Exception:  # noqa: BLE001 - a class that cannot be pickled
            self.tell("warning", (str(message), UserWarning, filename, lineno))

    def wait_for_end(self) -> None:
        """Wait until the other process has gone."""
        self._socket.recv(1)

    def end(self) -> None:
        """Send nothing any more."""
        logging.getLogger().removeHandler(self)
        warnings.simplefilter("ignore")
        self._socket.close()

    def begin(self, levels: dict[str, int]) -> None:
        """Send log records and warnings from now on that are shown in the other process."""
        for name, level in levels.items():
            logging.getLogger(name or None).setLevel(level)
        logging.getLogger().addHandler(self)
        warnings.simplefilter("always")  # the filters there decide
        warnings.showwarning = self.warn  # type: ignore[assignment]


def _serve(channel: Channel, teller: _Teller, closing: ExitStack) -> None:
    try:
        first = channel.receive()
        teller.begin(first["levels"])
        backend = first["plan"].build(own_thread=False)
        closing.callback(backend.close)
        about = _about(backend)
    except Exception as error:
        if isinstance(error, EOFError):
            raise
        teller.tell("built", portable(error))
        return
    teller.tell("built", about)
    while True:
        answer = run(backend, channel.receive(), channel)
        channel.send((teller.count, *answer))


def _about(built: BuiltElsewhere) -> dict[str, Any]:
    """Give what the other process is told of what was built."""
    return {
        "min": built.min,
        "max": built.max,
        "rerun": built.rerun,
        "needs": built.needs,
        "reads": built.reads,
        "keys": built.keys,
        "process": os.getpid(),
        "tree": built.describe(),
    }


def run(backend: Backend, told: Told, channel: Channel) -> Answer:
    """Run a batch; give what has become of it.

    Returns:
        What the requests hold now, their outcomes under None; per request the keys that hold what another
        one held, and those that were taken out; what cannot be sent, by its number.
    """
    requests, bad = unpack(told, channel)
    batch = (
        [one for one, faults in zip(requests, bad, strict=True) if not faults] if bad else requests
    )
    before = [dict(request) for request in batch]
    outcomes: Any
    try:
        outcomes = backend(batch)
    except BaseException as error:  # noqa: BLE001 - SystemExit, say: an outcome as any other
        what = f"{backend._label()} raised {type(error).__name__}"
        outcomes = [caused(BackendError(what, backend=backend._label()), error) for _ in batch]
    outcomes = iter(outcomes or [None] * len(batch))
    pairs = zip(before, batch, strict=True)
    answers: list[dict[Any, Any]] = []
    others: list[tuple[dict[str, str], list[str]]] = []
    for faults in bad or [{}] * len(requests):
        if faults:
            answers.append({None: _unknown(faults)})
            others.append(({}, []))
            continue
        same, new, gone = changes(*next(pairs))
        outcome = portable(next(outcomes))
        answers.append(new if outcome is None else {**new, None: outcome})
        others.append((same, gone))
    new_told, lost = pack(answers, channel)
    return new_told, others, {number: error_text(error) for number, error in lost.items()}


def _unknown(faults: dict[str, Exception]) -> InputError:
    key, error = next(iter(faults.items()))
    return InputError(
        f"what was sent is unknown in another process: {error_text(error)}",
        key=key,
        expected="something of a class in a module, or in a file that the configuration imports",
    )
