"""Judging backends in a process of their own, whose end is a verdict, too."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import time
import warnings
from dataclasses import replace
from multiprocessing.connection import Pipe
from typing import TYPE_CHECKING, Any, NoReturn

from headrace_testing.conformance.outcome import BLOCKED, FAILED, Verdict
from headrace_testing.conformance.run import ConformanceRun, certify, describe, rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    import headrace
    from headrace_testing.conformance.base import BackendConformance
    from headrace_testing.conformance.certificate import Certificate

_LOOK_S = 0.2
"""How often to look whether the process is there still: what it has started may hold its pipe open."""


class _Judged:
    """What has been heard about one backend."""

    def __init__(self) -> None:
        self.certificate: Certificate | None = None
        self.verdicts: dict[str, Verdict] = {}
        self.rule = "resolves"
        self.since = time.monotonic()
        self.limit_s = 0.0
        self.error: Exception | None = None
        self.done = False

    def hear(self, kind: str, value: Any) -> None:
        """Take in a message of the process that judges."""
        if kind == "rule":
            self.rule, self.since = value, time.monotonic()
        elif kind == "verdict":
            self.verdicts[value.id] = value
        elif kind == "error":
            self.error, self.done = value, True
        else:
            self.certificate, self.done = value, kind == "certificate"

    def ended(self, status: int) -> Certificate:
        """Return the certificate of a backend whose process has ended."""
        if self.certificate is None:
            raise RuntimeError(f"the process that judges {_how(status)}")
        if status == 1 and time.monotonic() - self.since >= self.limit_s:
            text = (
                f"it did not end within {self.limit_s:g} s, and nothing could interrupt it: a library waits with the "
                "interpreter's lock held, or each interrupt is swallowed; the stacks of all threads stand above"
            )
        else:
            text = (
                f"while it was judged, the process {_how(status)}: no backend may end its process"
            )
        verdicts = []
        for rule in rules().values():
            verdict = self.verdicts.get(rule.id)
            if rule.id == self.rule:
                verdict = Verdict(rule.id, FAILED, rule.reason, text)
            elif verdict is None:
                detail = f"the process ended at {self.rule!r}"
                verdict = Verdict(rule.id, BLOCKED, rule.reason, detail, blocked_by=self.rule)
            verdicts.append(verdict)
        return replace(self.certificate, rules=tuple(verdicts))


def _how(status: int) -> str:
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"crashed ({signal.Signals(-status).name})"
    return f"ended with status {status}"


def certify_apart(
    jobs: Sequence[tuple[type[BackendConformance], type[headrace.Backend] | None]],
) -> Iterator[Certificate | Exception]:
    """Judge backends in a process of their own, where the platform can fork. Give each certificate when it is there.

    A backend that crashes, ends the process or never lets go of the interpreter's lock gets a certificate in which
    the rule that was judged then has failed. Those after it are judged in a new process. Nothing that a backend
    does to its process stays. Ctrl-C ends that process at once.

    Args:
        jobs: Per backend its conformance class, and the class that an entry point promises (`certify`) or None.

    Returns:
        Per job a certificate, or the exception that `certify` would raise.
    """
    if not hasattr(os, "fork") or sys.platform == "darwin":  # whose own libraries do not survive it
        yield from (_certified(*job) for job in jobs)
        return
    left = list(jobs)
    while left:
        for judged in _in_one_process(left):
            del left[0]
            yield judged


def _certified(
    cls: type[BackendConformance], promised: type[headrace.Backend] | None
) -> Certificate | Exception:
    try:
        return certify(cls, promised=promised)
    except Exception as error:  # noqa: BLE001 - a class may raise anything
        return error


def _in_one_process(jobs: Sequence[Any]) -> Iterator[Certificate | Exception]:
    """Judge in a new process as many as it lives for, one at least."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or the process would write the same again
    reader, writer = Pipe(duplex=False)
    # A fork waits for ever for the thread of a timer that its parent has set, as pytest's faulthandler_timeout does.
    faulthandler.cancel_dump_traceback_later()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other threads of this process wait, and hold no lock
        pid = os.fork()
    if not pid:
        reader.close()
        _judge_all(jobs, writer)
    writer.close()
    status: int | None = None
    try:
        with reader:
            for cls, _ in jobs:
                judged = _Judged()
                judged.limit_s = cls.limit_s if isinstance(cls.limit_s, (int, float)) else 0.0
                while not judged.done and status is None:
                    status = _heard(judged, reader, pid)
                if status is not None:
                    yield judged.ended(status)
                    return
                if judged.error is not None:
                    yield judged.error
                elif judged.certificate is not None:
                    yield judged.certificate
    finally:
        if status is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _heard(judged: _Judged, reader: Connection, pid: int) -> int | None:
    """Wait a moment for a message and take it in; give the exit status of the process when it has ended."""
    if reader.poll(_LOOK_S):
        try:
            judged.hear(*reader.recv())
        except EOFError:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return None
    gone, how = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(how) if gone else None


def _judge_all(jobs: Sequence[Any], writer: Connection) -> NoReturn:
    """Judge backends in this process, which is a fork, and tell the other one."""
    status = 1
    try:
        # What the application has set up for its signals belongs to the other process.
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.unraisablehook = sys.__unraisablehook__

        def tell(kind: str, value: Any) -> None:
            writer.send((kind, value))

        for cls, promised in jobs:
            _judge(cls, promised, tell)
        status = 0
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _judge(
    cls: type[BackendConformance],
    promised: type[headrace.Backend] | None,
    tell: Callable[[str, Any], None],
) -> None:
    try:
        with ConformanceRun(cls, promised=promised) as run:
            tell("begun", describe(run.subject, ()))
            run.tell = tell
            certificate = run.certificate()
    except Exception as error:  # noqa: BLE001 - a class may raise anything
        try:
            tell("error", error)
        except Exception:  # noqa: BLE001 - and what it raises may refuse to be pickled
            tell("error", RuntimeError(f"{type(error).__name__}: {error}"))
    else:
        tell("certificate", certificate)
