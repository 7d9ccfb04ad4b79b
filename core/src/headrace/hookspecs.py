"""The hooks of plugins: functions of a light module named in the group ``headrace.plugins``.

A distribution names the module in its ``pyproject.toml``; the name on the left is free::

    [project.entry-points."headrace.plugins"]
    hooks = "headrace_x.hooks"

The module implements a hook by a function of the same name with the marker `hookimpl`::

    from headrace.hookspecs import hookimpl

    @hookimpl
    def headrace_definitions():
        return {"Classify": "S[DecodeMat,ResizeMat,OnnxTensor]"}

Rules for all hooks:

- Each is called once per process, without arguments, when names of plugins are first looked for.
- It returns texts: expressions, or import paths ``package.module:Name``. What a path names is
  imported when a configuration or a command uses it. So the module of the hooks is light: it
  imports nothing but the standard library and `headrace.hookspecs`.
- A function that begins with ``headrace_`` and is none of these hooks, an exception, or an answer of
  another type makes the plugin ``broken``: it is listed with the reason by
  ``headrace plugins doctor``, and nothing of it is used. Other plugins go on.
- Two plugins that offer one name are an error where the bare name is used; ``x:Name``, with the
  distribution's name without a leading ``headrace-``, chooses one. A name of core always means
  core's.
- ``HEADRACE_PLUGINS`` switches the hooks of a plugin off together with its backends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import pluggy

from headrace._scheduling.probes import BatchRecord, BatchRequest, Guarded

__all__ = [
    "BatchRecord",
    "BatchRequest",
    "attached",
    "headrace_batch_policies",
    "headrace_commands",
    "headrace_definitions",
    "headrace_dispatch_policies",
    "headrace_node_entrypoint",
    "headrace_probes",
    "hookimpl",
    "hookspec",
]

hookspec = pluggy.HookspecMarker("headrace")
hookimpl = pluggy.HookimplMarker("headrace")


@hookspec
def headrace_definitions() -> dict[str, str]:
    """Give definitions: names that stand for expressions, as ``[define]`` gives them.

    A definition is checked when a configuration uses it, so it should name only backends that the
    distribution brings or requires. Args inside it are defaults; what the user writes wins. A
    definition may not be named like a backend or another definition.

    Returns:
        Name to expression. Since 0.1.

    Example::

        @hookimpl
        def headrace_definitions():
            return {"Classify": "S[DecodeMat,ResizeMat(224,224),OnnxTensor]"}

    ``backend = "Classify"`` then means that expression, and ``Classify[X]`` gives the bracket to
    its last innermost name.
    """
    return {}


@hookspec
def headrace_batch_policies() -> dict[str, str]:
    """Give batch policies: classes that decide when a batch is cut.

    Returns:
        Name to the import path of a subclass of `headrace.policies.BatchPolicy`, often of
        `headrace.policies.ConditionPolicy`. Since 0.1.

    Example::

        @hookimpl
        def headrace_batch_policies():
            return {"Patient": "headrace_x.policies:Patient"}

    A node switches it on by ``batch_policy = "Patient"`` or ``"Patient(wait_ms=5)"``; the fields of
    its ``Options`` may also be keys of the node. It is made once per node: ``Patient(options)``. A
    class that is both kinds of policy, named for both keys, is made once, and so can share what it
    knows between the two.
    """
    return {}


@hookspec
def headrace_dispatch_policies() -> dict[str, str]:
    """Give dispatch policies: classes that decide which free instance takes the next batch.

    Returns:
        Name to the import path of a subclass of `headrace.policies.DispatchPolicy`. Since 0.1.

    Example::

        @hookimpl
        def headrace_dispatch_policies():
            return {"RoundRobin": "headrace_x.policies:RoundRobin"}

    A node switches it on by ``dispatch_policy = "RoundRobin"``; see `headrace_batch_policies`.
    """
    return {}


@hookspec
def headrace_probes() -> dict[str, str]:
    r"""Give probes: classes that hear of every batch and every request of a pipeline.

    A probe is a plain class with any of these methods, each called with positional arguments; what
    it returns is not looked at:

    ``batch_done(node, instance, size, started, ended, errors)``
        A batch has run. ``node`` is the name of the node, ``instance`` the index of the instance
        from 0, ``size`` the number of requests in it (not their weight; copies that ``pad`` added
        do not count), ``errors`` a list of ``size`` exceptions or None, in the order of the
        requests. A batch of one that its caller ran itself is one, too.
    ``request_done(node, request, started, ended, error)``
        A request has its outcome at a node, exactly once: ``error`` is None for success, else what
        its owner gets. Also for requests that never ran: ``InputError``, ``OverloadedError``,
        ``DeadlineExceededError``, ``ClosedError``, ``concurrent.futures.CancelledError``. The number
        of calls per node is ``submitted`` less what is open, in ``stats()``. ``request`` is the
        request itself: its dict, with ``data`` put back, and ``result`` on success; read it, do not
        change or keep it. What was sent and is no dict comes as it is, with its InputError.
    ``batch_ran(record)``
        A batch has run: the same moments as ``batch_done``, with its requests. ``record`` is a
        `BatchRecord`: which requests ran together, when each arrived and was cut, in which thread.
    ``element_done(node, instance, element, size, started, ended)``
        One backend inside the expression of a node has run on ``size`` items. ``element`` is its path
        in ``describe()["nodes"][node]["tree"]``: the names from the root on, each but the first after
        its place among ``children``, as ``S/1:ResizeMat``. It is called in the thread that ran it,
        before the ``batch_ran`` of its batch. Backends that are called item by item, or again, are
        heard of each time. What only builds others (``IoC``), or passes on to a thread or a node, is
        no element that runs; inside of ``Process`` nothing is heard of.
    ``element_began(node, instance, element, size)``
        The same backend is about to run, in the same thread.
    ``span_done(node, instance, element, name, started, ended, track)``
        A backend has reported by ``context.span`` what happened inside it or on a device.
    ``instance_changed(node, instance, state)``
        An instance is ``"ready"``, in service; ``"lost"``, it can serve no more; ``"retired"``, a
        ``reload`` has put another in its place; ``"closed"``, with the pipeline.
    ``pipeline_started(pipeline)``
        Once, when the pipeline is built: it may be called from now on, as for ``stats()``. Keep no
        more than a `weakref.ref` to it, or it is never closed when its last user drops it.
    ``close()``
        Once, after everything else of the pipeline is closed, and when it could not be built.

    What no probe asks for is not measured. ``started`` and ``ended`` are in seconds on the clock of ``time.monotonic()``: those of a batch
    from before to after its run, those of a request from its arrival at the node to its outcome.

    In a graph every node has its own requests: each node a request visits, each element of
    ``each``, each branch is one. What goes through ``Forward[node.x]`` is a request of the node ``x``. The front
    that ``entrypoint`` makes is no node.

    A probe is called by the thread that ended the batch or request, before the owner has the answer,
    by several threads at a time, and never under a lock of Headrace: it may call ``stats()``,
    ``submit()`` or ``close()``, but must not wait for a request of this pipeline. It must be quick,
    since the answer, and often the instance, waits for it, and must guard what it changes.
    The main thread calls no probe, for a signal handler that interrupts it may come to that probe again: a
    helper thread runs its requests, which costs each some 30 microseconds. A class that says ``reentrant =
    True`` takes no lock, and may be called by a signal handler in the midst of its methods; where all probes
    say so, the main thread runs its requests itself.
    Whatever it raises harms no request: it is counted under ``"probes"`` in ``stats()``,
    ``{"Name": {"errors": n, "last": "TypeError: ..."}}``, and the first is logged by
    ``headrace.probes``. A batch that still runs when ``close()`` gives up on it is not reported to a probe.

    Returns:
        Name to the import path of the class. Since 0.1.

    Example::

        @hookimpl
        def headrace_probes():
            return {"Diary": "headrace_x.diary:Diary"}

    and in ``headrace_x/diary.py``::

        import headrace

        class Diary:
            class Options(headrace.Options):
                path: headrace.OutputPath

            def __init__(self, options):
                self._file = open(options.path, "a")

            def request_done(self, node, request, started, ended, error):
                code = "ok" if error is None else type(error).__name__
                self._file.write(f"{node} {1000 * (ended - started):.3f} {code}\n")

            def close(self):
                self._file.close()

    A pipeline switches it on by ``[global] probes = ["Diary(path=diary.txt)"]``; the fields of its
    ``Options`` may also be keys of ``[global]``. One object is made per entry and pipeline, when the
    pipeline is built: ``Diary(options)``, or ``Diary()`` when the class has no ``Options``. Its
    module is imported when the configuration is checked; heavy imports belong in ``__init__``. A
    pipeline without probes spends nothing on them. A program attaches one for a while by `attached`.
    """
    return {}


class _Pipeline(Protocol):  # `headrace.Pipeline`, which needs what is here
    def _attach(self, probe: Guarded) -> None: ...

    def _detach(self, probe: Guarded) -> None: ...


@contextmanager
def attached(pipeline: _Pipeline, probe: object) -> Iterator[None]:
    """Let a probe hear of what happens in a pipeline that runs, within the block.

    Nothing is built again: what waits and runs goes on, and it costs nothing after the block. The probe
    hears of ``pipeline_started`` and of the instances in service first, and of all that begins after that.
    A backend that asked for ``context.span`` when it was built, and was given none, reports nothing.
    ``close`` is called only if the pipeline is closed within the block. Until a batch ends that runs at
    the end of the block, its thread may still be inside a method of the probe.

    Args:
        pipeline: The pipeline.
        probe: An object with methods of `headrace_probes`; ``stats()`` shows it under the name of its class.

    Raises:
        ClosedError: The pipeline is closed.
    """
    guarded = Guarded(type(probe).__name__, probe)
    try:
        pipeline._attach(guarded)
        yield
    finally:
        pipeline._detach(guarded)


@hookspec
def headrace_commands() -> dict[str, str]:
    """Give commands of ``headrace``: ``headrace NAME ...``.

    Returns:
        Name to the import path of a ``typer.Typer``, a ``click`` command or group, or a function,
        whose parameters become arguments and options as typer reads them; an ``int`` that a
        function returns is the exit status. A name is a letter, then letters, digits, ``_`` and
        ``-``. Since 0.1.

    Example::

        @hookimpl
        def headrace_commands():
            return {"label": "headrace_x.label:main"}

    and in ``headrace_x/label.py``::

        def main(folder: str, limit: int = 100) -> None:
            \"\"\"Label the images of a folder.\"\"\"

    ``headrace --help`` lists the names; what the path names is imported when the command is called.
    A command of core of the same name wins, and ``headrace plugins doctor`` says so. Errors of
    `headrace.errors` end with their message and exit status 2.
    """
    return {}


@hookspec
def headrace_node_entrypoint() -> str | None:
    """Give the expression of a node that configures none, in place of the default.

    It holds for all nodes of all pipelines in the process that set neither ``node_entrypoint`` nor
    ``init``. Two plugins that set one are an error of every configuration.

    Returns:
        The expression, in which ``{node_name}`` is the node's name; None for no change. Since 0.1.

    Example::

        @hookimpl
        def headrace_node_entrypoint():
            return "Batching[Reflect[backend]]"
    """
    return None
