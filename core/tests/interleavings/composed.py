"""What the programs share whose pipelines need the language: backends with a context, and threads of their own."""

from __future__ import annotations

import contextlib
import threading

import shared

import headrace
from headrace.errors import SetupError
from headrace_testing.interleavings import check


class Work(shared.Work, headrace.Backend):
    """The same as a backend, which keeps the items that say so."""

    max = None

    class Options(headrace.Options):
        tag: str = "a"
        ms: float = 0.0
        most: int = 0

    def init(self, options, context):
        self.be(options.tag, options.ms, options.most)
        self.c = context

    def outcome(self, r, item):
        if self.tag in item.bad or self.tag not in item.keep or item.resumed:
            return super().outcome(r, item)
        later(self.c, self.c.request.keep(r), item, (self.tag, r["data"]))
        return headrace.PENDING


def later(context, handle, item, outcome):
    """Finish or resume a kept request in a thread of its own."""

    def act():
        if item.how == "resume":
            item.resumed = True
            context.request.resume(handle)
            return
        first = context.request.finish(handle, outcome)
        again = context.request.finish(handle, ("late", item))
        check(not again or not first, "finish gave True twice")

    threading.Thread(target=act, name=f"later{item.n}", daemon=True).start()


class KeepingWork(Work):
    """Keeps the items that say so."""

    keeps = True


headrace.register("Work", Work)
headrace.register("KeepingWork", KeepingWork)


def loaded(config, *, deadlock_after_s=0):
    """Read a configuration before the first schedule, and import what is imported once; `headrace.pipe` takes it.

    Nobody looks for circles of calls, so that who is forgotten waits for ever, and is seen.
    """
    config = {
        **config,
        "global": {"deadlock_after_s": deadlock_after_s, **config.get("global", {})},
    }
    with contextlib.suppress(SetupError):  # a backend may need a thread
        headrace.pipe(config)  # never used
    return headrace.PipelineConfig.load(config)


CHAIN = loaded(
    {"a": {"backend": "Work(tag=a)", "max": 2, "next": "b"}, "b": {"backend": "Work(tag=b)"}}
)
KEPT_CHAIN = loaded(
    {
        "a": {"backend": "KeepingWork(tag=a)", "max": 2, "next": "b"},
        "b": {"backend": "KeepingWork(tag=b)"},
    }
)
