"""What a plugin can bring besides backends: names in its metadata, and hooks.

Names
=====

What an ordinary configuration asks for by name are entry points, as backends are. They are read
from metadata, and nothing of the plugin is imported before one of its names is used::

    [project.entry-points."headrace.readers"]
    ".net" = "headrace_x.reading:tables_of"

``headrace.node_keys``: keys of nodes that ask for a check before anything is built
    The key, and a subclass of `headrace.Options` that has a field of this name and a method
    ``check(config, node)``::

        import headrace

        class Owner(headrace.Options):
            owner: str

            def check(self, config, node):
                if self.owner not in {"vision", "speech"}:
                    what = f"nobody is called {self.owner!r}"
                    raise headrace.errors.ConfigError(
                        config.problem_at(node, "owner", "owner", what)
                    )

    The class is imported for nodes that have one of its keys, in their table or in ``[global]``.
    Its options are checked with the configuration. ``check`` is called before a pipeline of the
    configuration is built. It gets the configuration as it will run. If it returns a function, that
    is called once all nodes are built, and may refuse as well. Its property ``batch_sizes``, where
    it is not None, takes the place of this key of the node.

``headrace.rewriters``: keys and words that you translate into others before anything is planned
    The key or word, and a function ``f(tables, parse)``. A key begins with a small letter, and
    stands in a node or in ``[global]``. A word begins with a capital letter, and stands in an
    expression::

        def translate(tables, parse):
            for table in tables.values():
                if "replicas" in table:
                    table["instance_num"] = table.pop("replicas")
            return tables

    The function is called once for a configuration that has one of its names, whose files are
    merged by then. It changes ``tables``, or makes others, and returns them: the keys of each node
    by its name, in order, those of ``[global]`` as ``"global"``. Values are as written, with their
    placeholders.

    ``parse(table, key)`` gives an expression as a tree, as `headrace.parse` does, with the
    placeholders replaced. A key that a node lacks is that of ``"global"``. It gives None where
    neither has it. A tree, or one made of its parts by ``tree.replace(...)``, may be the value of a
    key: an error in it is shown where its text was written. A value that is moved keeps its place
    as well.

    Raise `headrace.errors.ConfigError` for what has no translation, with the place that a part of a
    tree carries::

        source = part.source
        place = {"file": source.file, "path": source.path, "span": part.name_span}
        raise ConfigError(Problem(code, message, text=part.text, **place))

``headrace.readers``: what else than a TOML file may stand where a configuration does
    A suffix in small letters (``.onnx``), or a file of a folder, perhaps a pattern
    (``modules.json``, ``*/config.pbtxt``), and a function ``f(path)``. ``.toml`` is core's::

        def tables_of(path):
            return {"backend": "NetTensor", "model": path.name, "max": 8}

    The function gets an absolute `pathlib.Path` and returns the tables of the TOML file that it
    stands for, as ``tomllib`` gives them: those of a pipeline, or ``{"models": {...}}``, those of a
    file for ``headrace serve``. In the tables of a pipeline a relative path starts from the folder
    of the file, or from the folder itself. In ``models`` paths are absolute. Write ``$${`` for a
    ``${`` of a name. The tables may be extended, and may have ``extends`` and keys that are
    rewritten. The function is called where a configuration is read, so it reads little, and loads
    no model.

    A reader that refuses what it does not know has a second parameter, ``ignore``. It gets the
    names, keys of its format or files, that a configuration has under ``ignore`` beside
    ``extends``, and looks not at them. Without any it is called with the path alone.

    Raise `headrace.errors.ConfigError` for what you refuse. Another exception is shown with the
    name of your plugin.

``headrace.records``: files of records, of which each is a request
    A suffix in small letters (``.jsonl``), and a function ``f(path)`` that reads them one after the
    other::

        def records(path):
            with path.open() as file:
                for line in file:
                    yield {"data": line.rstrip()}

    ``headrace run x.toml file.jsonl`` sends each. A record is a dict, whose keys are those of the
    request. An exception in the place of a record says why it is none, and fails it alone.
    `headrace.plugins.records_of` reads a file so.

``headrace.fetchers``: where files come from that a configuration names by an address
    The scheme of the address, and a function ``f(address)``::

        from headrace_models import Cached

        def net(address):
            return Cached(address, read)

        def read(address, folder):
            path = folder / "model"
            path.write_bytes(read_from_net(address))
            return path

    An option of the type `headrace.FilePath`, ``extends`` and a configuration itself may be an
    address. The function is called when the configuration is checked, and connects to nobody. It
    raises `headrace.errors.ConfigError` for an address that is wrong, and returns an object with

    ``path``
        Where the file or folder lies, or will lie: a `pathlib.Path` in a folder of its own.
    ``fetch()``
        Have it there. It is called as each node is built that names it. It raises
        `headrace.errors.SetupError`.
    ``origin()``
        ``{"address": ..., "revision": ..., "sha256": ...}``, for ``describe()``. Of what is not
        there the address alone. ``"moves": True`` says that the address may stand for something
        else tomorrow.
    ``check()``
        May be left out. Called when the file was loaded. It raises `headrace.errors.SetupError` if
        ``path`` has changed since ``fetch()``.

    ``headrace_models.Cached`` is such an object: it fetches by a function of yours, once per
    machine, into a cache.

Hooks
=====

Policies, probes, commands and APIs are what functions of a light module answer, the hooks. The
module stands in the group ``headrace.plugins``. The name on the left is free::

    [project.entry-points."headrace.plugins"]
    hooks = "headrace_x.hooks"

It implements a hook by a function of the same name with the marker `hookimpl`::

    from headrace.hookspecs import hookimpl

    @hookimpl
    def headrace_commands():
        return {"label": "headrace_x.label:main"}

Rules for all hooks:

- Each is called without arguments when something is first looked for that hooks offer, and again
  where a configuration names what nobody has: a plugin may have been installed since. A
  configuration that names only backends and names of the groups above imports no module of hooks.
- It returns texts: import paths ``package.module:Name``. The object of a path is imported when a
  configuration or a command uses it. So the module of the hooks is light: it imports nothing but
  the standard library and `headrace.hookspecs`.
- The marker takes the options of ``pluggy.HookimplMarker``, within the modules of one plugin. Mark
  a function ``optionalhook=True`` whose hook only a later version of Headrace has.
- A function of an unknown hook, an exception, or an answer of another type makes the plugin
  ``broken``: ``headrace plugins list --check`` lists it with the reason, and nothing of its hooks
  can be used. Its backends and the names of the groups above can, and other plugins are not
  affected.
- ``HEADRACE_HOOK_TRACE=1`` prints each call of a hook, and its answer, to stderr.

Rules for names and hooks:

- If two plugins offer the same name, the bare name is an error where it is used. ``x:Name``, with
  the distribution's name without a leading ``headrace-``, chooses one. A name of core always means
  the backend of core.
- ``HEADRACE_PLUGINS`` switches off all that a plugin offers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pluggy

from headrace._run.pipeline import Pipeline  # noqa: TC001 - a program may read the annotations
from headrace._run.records.probes import PROBE_METHODS, BatchRecord, BatchRequest, GuardedProbe

__all__ = [
    "BatchRecord",
    "BatchRequest",
    "attached",
    "headrace_apis",
    "headrace_batch_policies",
    "headrace_commands",
    "headrace_dispatch_policies",
    "headrace_probes",
    "hookimpl",
]

hookspec = pluggy.HookspecMarker("headrace")

hookimpl: pluggy.HookimplMarker = pluggy.HookimplMarker("headrace")
"""The decorator of a plugin's own function, which has the name of a hook."""


@hookspec
def headrace_batch_policies() -> dict[str, str]:
    """Return batch policies: classes that decide when a batch is formed.

    Returns:
        Name to the import path of a subclass of `headrace.policies.BatchPolicy`. Since 0.1.

    Example::

        @hookimpl
        def headrace_batch_policies():
            return {"Patient": "headrace_x.policies:Patient"}

    A node switches it on by ``batch_policy = "Patient"`` or ``"Patient(wait_ms=5)"``. The fields of
    its ``Options`` may also be keys of the node. It is made once per node: ``Patient(options)``.
    When a class that is both kinds of policy is named for both keys, one object is made, which can
    share its state between the two.
    """
    return {}


@hookspec
def headrace_dispatch_policies() -> dict[str, str]:
    """Return dispatch policies: classes that decide which free instance takes the next batch.

    Returns:
        Name to the import path of a subclass of `headrace.policies.DispatchPolicy`. Since 0.1.

    Example::

        @hookimpl
        def headrace_dispatch_policies():
            return {"RoundRobin": "headrace_x.policies:RoundRobin"}

    A node switches it on by ``dispatch_policy = "RoundRobin"``. See `headrace_batch_policies`.
    """
    return {}


@hookspec
def headrace_probes() -> dict[str, str]:
    r"""Return probes: classes that receive every batch and every request of a pipeline.

    A probe is a plain class with any of these methods, each called with positional arguments.
    Return values are ignored:

    ``batch_done(node, instance, size, started, ended, errors)``
        A batch has run. ``node`` is the name of the node, ``instance`` the index of the instance
        from 0, and ``size`` the number of requests in it (not their weight, and without the copies
        of ``pad``). ``errors`` is a list of ``size`` exceptions or None, in the order of the
        requests. A request run by its own caller is a batch of one.
    ``request_done(node, request, started, ended, error)``
        A request has its outcome at a node. Called exactly once per request. ``error`` is None for
        success, else the error of its caller. Requests that never ran are reported as well, with
        ``InputError``, ``OverloadedError``, ``DeadlineExceededError``, ``ClosedError`` or
        ``concurrent.futures.CancelledError``. The number of calls per node is ``submitted`` in
        ``stats()``, less the open requests. ``request`` is the request itself: its dict, with
        ``data`` put back, and ``result`` on success. Read it, do not change or keep it. An item
        that is no dict comes as it was sent, with its InputError.
    ``request_failed(node, request, error)``
        As ``request_done``, for the requests that failed alone. Who wants no more has this method
        alone: the others have every batch of a fast backend timed.
    ``batch_ran(record)``
        A batch has run: called with ``batch_done``, and tells its requests. ``record`` is a
        `BatchRecord`: the requests that ran together, when each arrived and joined the batch, and
        the thread.
    ``request_entered(request)``
        A request enters the pipeline: called in the thread and the context of its caller, before
        any backend runs. It may change ``context`` of the request, and nothing else.
    ``element_done(node, instance, element, size, started, ended)``
        One backend inside the expression of a node has run on ``size`` items. ``element`` is its
        path in ``describe()["nodes"][node]["tree"]``: the names from the root on, each but the
        first after its place among ``children``, as ``S/1:ResizeMat``. It is called in the thread
        of the batch, before its ``batch_ran``. A backend that runs item by item, or again, is
        reported each time. A backend that only builds others (``IoC``), or passes the batch to a
        thread or a node, is not reported. Backends inside ``Process`` are reported by the thread
        that waits for the process, when the answer is there: ``started`` and ``ended`` tell when
        they ran.
    ``element_began(node, instance, element, size)``
        The same backend is about to run, in the same thread. Not reported of backends inside
        ``Process``.
    ``span_done(node, instance, element, name, started, ended, track)``
        A backend has reported work inside it or on a device by ``context.span``.
    ``instance_changed(node, instance, state)``
        The state of an instance has changed: ``"ready"``, it is in service. ``"paused"``, what it
        computes with is away, as a process that restarts. ``"lost"``, it can serve no more.
        ``"closed"``, together with the pipeline.
    ``pipeline_started(pipeline)``
        Called once, when the pipeline is built. You may call it from now on, for ``stats()`` or the
        like. Keep no more than a `weakref.ref` to it: otherwise it is not closed when its last user
        drops it.
    ``statistics()``
        Return a dict for JSON, which ``stats()`` shows under the name of the probe. Called by
        ``stats()``, in its thread.
    ``close()``
        Called once, after all other parts of the pipeline are closed, and when it could not be
        built.

    Headrace measures only for the methods that a probe has when the pipeline is built. ``started``
    and ``ended`` are in seconds of ``time.monotonic()``: for a batch from before to after its run,
    for a request from its arrival at the node to its outcome.

    In a graph every node has its own requests: each visit of a request to a node, each element of
    ``each`` and each branch counts as one. An item sent through ``Forward[node.x]`` is a request of
    the node ``x``.

    The thread that ends the batch or request calls the probe, before the caller has the answer.
    Several threads may call it at a time, and never under a lock of Headrace. It may call
    ``stats()``, ``submit()`` or ``close()``, but must not wait for a request of this pipeline. Keep
    it quick, since the answer, and often the instance, waits for it. Guard your data. The thread
    may be the main thread, where a signal handler can come in the midst of a probe and lead to it
    again: take a ``threading.RLock`` and no ``Lock``. Ctrl-C in a probe in the main thread is
    raised. Any other error of a probe harms no request: it counts under ``"probes"`` in
    ``stats()``, ``{"Name": {"errors": n, "last": "TypeError: ..."}}``, and the logger
    ``headrace.probes`` logs the first. A batch still running when ``close()`` gives up on it is not
    reported.

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

    A pipeline switches it on by ``[global] probes = ["Diary(path=diary.txt)"]``. The fields of its
    ``Options`` may also be keys of ``[global]``. One object is made per entry and pipeline, when
    the pipeline is built: ``Diary(options)``, or ``Diary()`` when the class has no ``Options``. Its
    module is imported when the configuration is checked. Heavy imports belong in ``__init__``. A
    pipeline without probes spends nothing on them. A program attaches one for a while by
    `attached`.
    """
    return {}


@contextmanager
def attached(pipeline: Pipeline, probe: object) -> Iterator[None]:
    """Attach a probe to a running pipeline while the block runs.

    Nothing is built again: requests that wait or run go on, and after the block the probe costs
    nothing. It receives ``pipeline_started`` and the instances in service first, then everything
    that begins later. It receives elements and spans only if a configured probe asked for them when
    the pipeline was built. ``close`` is called only if the pipeline is closed within the block.
    After the block, the thread of a batch that is still running may still be inside a method of the
    probe.

    Args:
        pipeline: The pipeline.
        probe: An object with methods of `headrace_probes`. ``stats()`` shows it under the name of
            its class.

    Raises:
        ClosedError: The pipeline is closed.
        TypeError: The probe is a class, or has none of the methods.
    """
    if isinstance(probe, type):
        raise TypeError(f"a probe is an object: attached(pipe, {probe.__name__}(...))")
    if not any(callable(getattr(probe, name, None)) for name in PROBE_METHODS):
        methods = " or ".join(PROBE_METHODS)
        raise TypeError(f"{type(probe).__name__} is no probe: it has no {methods}")
    guarded = GuardedProbe(type(probe).__name__, probe)
    try:
        pipeline._attach(guarded)
        yield
    finally:
        pipeline._detach(guarded)


@hookspec
def headrace_commands() -> dict[str, str]:
    """Return commands of ``headrace``: ``headrace NAME ...``.

    Returns:
        Name to the import path of a ``typer.Typer``, a ``click`` command or group, or a function,
        whose parameters become arguments and options as typer reads them. An ``int`` that a
        function returns is the exit status. A name is a letter, then letters, digits, ``_`` and
        ``-``. Since 0.1.

    Example::

        @hookimpl
        def headrace_commands():
            return {"label": "headrace_x.label:main"}

    and in ``headrace_x/label.py``::

        def main(folder: str, limit: int = 100) -> None:
            \"\"\"Label the images of a folder.\"\"\"

    ``headrace --help`` lists the names. The object of the path is imported when the command is
    called. A command of core of the same name wins, and ``headrace plugins list --check`` says so.
    Errors of `headrace.errors` end with their message and exit status 2.
    """
    return {}


@hookspec
def headrace_apis() -> dict[str, str]:
    """Return the APIs of other servers, which ``headrace serve --api NAME`` answers.

    Returns:
        Name to the import path of a table from ``"METHOD /path"`` to an asynchronous function.
        Since 0.1.

    A function gets what was asked, and returns plain data, bytes with their media type, or an
    asynchronous generator of events. A generator gets the JSON of the body as well, and yields the
    requests to run. The table may also have ``"error"``, a function from status, code and text of a
    refusal to its body, and ``"open"``, a list of the routes that need no key.
    The module needs to import nothing of the server. `docs/other_apis.md` has all of it.

    Example::

        @hookimpl
        def headrace_apis():
            return {"shout": "headrace_x.shout:ROUTES"}

    and in ``headrace_x/shout.py``::

        async def shout(asked):
            body = await asked.json()
            return {"said": await asked.run(asked.path["model"], {"data": body["say"]})}

        ROUTES = {"POST /shout/{model}": shout}
    """
    return {}
