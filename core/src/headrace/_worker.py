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

from headrace._build.channel import Channel, UnreadableError, pickled
from headrace._build.parcels import apart, changes, parcels, together, unpack
from headrace._build.spawn import end_with_parent
from headrace._portable import error_text, portable
from headrace.errors import ContractError, InputError

if TYPE_CHECKING:
    from headrace._backend import Backend
    from headrace._build.channel import Content
    from headrace._build.elsewhere import BuiltElsewhere
    from headrace.keys import Request

    Answer = tuple[tuple[dict[str, str], Request, list[str]], Exception | None]
    """What has become of a request, see `changes`, and its outcome."""

_LENGTH = struct.Struct("<Q")


def main(files: tuple[int, int, int, int], parent: int) -> None:
    """Serve the process that started this one, until it closes the channel.

    Args:
        files: Descriptors: the socket of the channel, the file to write, the file to read, and the
            socket for all that is no answer.
        parent: The number of that process.
    """
    for file in files:
        os.set_inheritable(file, False)
    teller = _Teller(socket.socket(fileno=files[3]))
    end_with_parent(parent, teller.wait_for_end)
    channel = Channel(socket.socket(fileno=files[0]), files[1], files[2])
    with suppress(EOFError), ExitStack() as closing:
        _serve(channel, teller, closing)
    channel.close()
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
        content = dict(vars(record))
        good, bad = apart(content)
        self.tell("log", {key: content[key] for key in good} if bad else content)

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
    answers: list[Any] = []
    while True:
        try:
            kind, batch = channel.receive()
        except UnreadableError:
            channel.send(pickled(("unread", teller.count, None)))
            continue
        if kind == "again":
            channel.send(_apart(answers, teller.count))
            continue
        answers = []  # before the next are made
        if kind == "batch":
            answers = _run(backend, [unpack(one) for one in batch])
        else:
            answers = _run_apart(backend, batch)
        batch = None
        channel.send(_answered(answers, teller.count))


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


def _run(backend: Backend, batch: list[Request]) -> list[Answer]:
    """Run a batch; give per request what has become of it, and its outcome."""
    before = [dict(request) for request in batch]
    outcomes: Any = (backend(batch) if batch else None) or [None] * len(batch)
    return [
        (changes(was, now), portable(outcome))
        for was, now, outcome in zip(before, batch, outcomes, strict=True)
    ]


def _run_apart(backend: Backend, batch: list[dict[str, bytes]]) -> list[Answer]:
    """Run a batch of which each value was sent by itself: what is unknown here fails its request."""
    remade = [together(parcel) for parcel in batch]
    answers = iter(_run(backend, [good for good, bad in remade if not bad]))
    return [next(answers) if not bad else (_NOTHING, _unknown(bad)) for _, bad in remade]


_NOTHING: tuple[dict[str, str], Request, list[str]] = ({}, {}, [])


def _unknown(bad: dict[str, Exception]) -> InputError:
    key, error = next(iter(bad.items()))
    return InputError(
        f"what was sent is unknown in another process: {error_text(error)}",
        key=key,
        expected="something of a class in a module, or in a file that the configuration imports",
    )


def _answered(answers: list[Answer], count: int) -> Content:
    """Pickle answers, the values of each in a parcel."""
    try:
        new = iter(parcels([made[1] for made, _ in answers]))
        told = [((same, next(new), gone), error) for (same, _, gone), error in answers]
        return pickled(("answers", count, told))
    except Exception:  # noqa: BLE001 - whatever its values raise; which of them, is told
        return _apart(answers, count)


def _apart(answers: list[Answer], count: int) -> Content:
    """Pickle answers with each value by itself: what cannot be sent fails its request."""
    each = []
    for (same, new, gone), outcome in answers:
        good, bad = apart(new)
        for key, error in bad.items():
            outcome = outcome or ContractError(
                f"what it wrote to {key!r} cannot be sent back from its process: {error_text(error)}",
                hint="Write what pickle takes: arrays, numbers, texts, lists, dicts.",
            )
        each.append((same, {} if bad else good, [] if bad else gone, pickle.dumps(outcome, 5)))
    return pickled(("apart", count, each))
