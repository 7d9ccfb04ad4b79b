"""The rule about interrupts: Ctrl-C, and what else ends a thread, passes through a backend."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from headrace_testing.conformance.outcome import Broken
from headrace_testing.conformance.rule import Rule, rule
from headrace_testing.conformance.watching import WatchedRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_testing.conformance.subject import Subject

_KINDS = (KeyboardInterrupt, SystemExit)


class _Interrupting(WatchedRequest):
    """A request at which a thread is interrupted once: as soon as it reads or writes one of some keys."""

    def __init__(
        self, request: dict[str, Any], keys: frozenset[str], kind: type[BaseException]
    ) -> None:
        super().__init__(request)
        self.thread = threading.get_ident()
        self.keys_waited_for = keys
        self.kind = kind
        self.raised = ""


class _WhereRead(_Interrupting):
    """It interrupts whoever reads a key."""

    def _look(self, key: str) -> None:
        super()._look(key)
        if key in self.keys_waited_for and not self.raised and threading.get_ident() == self.thread:
            self.raised = f"while it reads {key!r}"
            raise self.kind("told to by the conformance kit")


class _WhereWritten(_Interrupting):
    """It interrupts whoever writes a key."""

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self.keys_waited_for and not self.raised and threading.get_ident() == self.thread:
            self.raised = f"while it writes {key!r}"
            raise self.kind("told to by the conformance kit")
        super().__setitem__(key, value)


@rule("interrupts-pass", "works-after-failure", "missing-key")
def interrupts_pass(subject: Subject) -> str:
    """Ctrl-C and SystemExit belong to the thread that they hit, and no backend may hold them up.

    KeyboardInterrupt, and then SystemExit, is raised in the thread that runs a batch, while the backend reads a
    key of the first request or of a later one, and while it writes one. It leaves `backend(batch)` as it is.
    Afterwards a valid batch gives the same results as before. Catch `Exception` where single items are tried,
    never `BaseException`, and give back locks in a `with` or `finally`. Threads of the backend's own are never
    interrupted.
    """
    live = subject.build()
    ks = list(range(len(live.take(subject.item))))
    kinds = set()
    for watched, which in ((_WhereRead, "reads"), (_WhereWritten, "writes")):
        keys = subject.declared(which).all
        for kind in _KINDS:
            for place in {0, len(ks) - 1}:
                batch = subject.items(ks)
                request = batch[place] = watched(batch[place], keys, kind)
                passed = _passed(lambda batch=batch: live.call(batch), kind)  # type: ignore[misc]
                if not request.raised:
                    continue  # it is read by another thread, or in a way that cannot be watched
                if passed is not None:
                    raise Broken(
                        f"{kind.__name__} {request.raised} of item {place} of {len(ks)} {passed}; catch Exception, "
                        "never BaseException"
                    )
                kinds.add(request.raised)
                subject.must_give(live, ks, f"after a {kind.__name__} {request.raised}")
    subject.done(live)
    names = " and ".join(sorted(kinds))
    return f"interrupted {names}" if kinds else "no thread of a caller runs it"


def _passed(call: Callable[[], list[Exception | None]], kind: type[BaseException]) -> str | None:
    """Make a call that is interrupted; say what became of the interrupt, None where it passed as it is."""
    try:
        outcomes = call()
    except kind:
        return None
    except BaseException as error:  # noqa: BLE001 - whatever it has made of the interrupt
        return f"becomes {type(error).__name__}"
    errors = [outcome for outcome in outcomes if outcome is not None]
    return "is swallowed" + (f" and given back as {type(errors[0]).__name__}" if errors else "")


RULES: tuple[Rule, ...] = (interrupts_pass,)
