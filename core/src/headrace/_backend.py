"""The backend contract: what authors write, and what they are given at ``init``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from headrace._checked import Checked, Outcomes
from headrace._options import Options as _Options
from headrace.errors import ContractError, SetupError
from headrace.keys import Request

T = TypeVar("T")

_log = logging.getLogger("headrace.build")


class Progress(Protocol):
    """A progress bar, or the silent one."""

    def __call__(self, done: int) -> None:
        """Say that ``done`` more units are done."""


ProgressFactory: TypeAlias = Callable[[int | None, str], AbstractContextManager[Progress]]


def _silent(done: int) -> None:
    """Show nothing."""


def no_progress(total: int | None, unit: str) -> AbstractContextManager[Progress]:
    """Show the progress of no work."""
    return nullcontext(_silent)


class Shared:
    """A store by key: of a node, of one of its instances, or of one copy of an ``IoC``.

    It is closed with what it belongs to: what has a ``close`` method is closed, newest first.

    Args:
        outer: The store in which `get` looks for what is not in this one; None for none.
    """

    def __init__(self, outer: Shared | None = None) -> None:
        self._outer = outer
        self._lock = threading.RLock()
        self._items: dict[object, Any] = {}

    def get(self, key: object, default: Any = None) -> Any:
        """Give what is stored under ``key``, here or in the stores around; else ``default``.

        It does not wait for what another thread is making.
        """
        store: Shared | None = self
        while store is not None:
            if key in (items := store._items):
                return items[key]
            store = store._outer
        return default

    def get_or_create(self, key: object, factory: Callable[[], T]) -> T:
        """Give what this store has under ``key``; the first one to ask makes it with ``factory``.

        The others wait until it is made. An error of the factory is raised and stores nothing.
        Unlike `get` it does not look into the stores around.
        """
        with self._lock:
            if key not in self._items:
                self._items[key] = factory()
            value: T = self._items[key]
            return value

    def close(self) -> None:
        """Close what is stored, newest first: all of it, then the first error is raised.

        An interrupt goes before errors; what is not raised is logged.
        """
        with self._lock:
            items, self._items = list(self._items.values()), {}
        errors: list[BaseException] = []
        for item in reversed(items):
            try:
                close = getattr(item, "close", None)
                if callable(close):
                    close()
            except BaseException as error:  # noqa: BLE001 - the others must be closed as well
                errors.append(error)
        errors.sort(key=lambda one: isinstance(one, Exception))
        for other in errors[1:]:
            _log.warning("closing what a store holds failed", exc_info=other)
        if errors:
            raise errors[0]


class Backend(Checked):
    """Something that computes ``result`` from ``data`` for a list of requests.

    Authors subclass it and write `init`, `forward` and `close`, of which only `forward` is needed::

        class Scale(headrace.Backend):
            \"\"\"Multiply a number.

            Reads: data: A number.
            Writes: result: A number.
            Batch: 1 or more; a bad item fails alone.
            Raises: InputError: ``data`` is missing or no number.
            Source: own
            \"\"\"

            class Options(headrace.Options):
                factor: float = pydantic.Field(2.0, description="The factor (no unit).")

            rerun = True

            def init(self, options, context):
                self.factor = options.factor

            def forward(self, batch):
                for request in batch:
                    data = request.get("data")
                    if not isinstance(data, (int, float)):
                        raise InputError(key="data", expected="a number", got=repr(data))
                    request["result"] = data * self.factor

    **Requests** are dicts (see `headrace.keys`). A backend reads ``data`` and writes ``result``; other
    keys it declares in `reads` and `writes`. It changes no object that it reads: others may hold it.
    What it writes owns its memory: no view into a buffer that is used again. What a CPU can read is
    finished when `forward` returns, what is in the memory of a device at the end of the batch: see
    ``context.at_batch_end``.

    **Errors.** A request that is wrong gets a `headrace.errors.InputError`, which names key, what was
    expected and what came; a model that cannot be built, or an option that does not fit it, a
    `headrace.errors.SetupError` in `init`. An ImportError in `init` becomes a MissingDependencyError,
    anything else there a SetupError, anything else in `forward` a BackendError around it. A
    `headrace.errors.InstanceLostError` takes the instance out of service.

    **Life.** An instance is made, then `init`, `warm_up`, any number of `forward`, `close`, each
    once but `forward`; after an `init` that failed nothing more is called. A class is
    instantiated without arguments: it has no ``__init__`` with parameters.

    **Threads.** An instance is run by one thread at a time, though not always by the same one unless
    `owns_thread` is True: it must neither rely on thread-locals or context variables nor leave any
    changed. Several instances run side by side, so what they share must be safe.

    **Imports.** The module of the class imports without the library that computes; `init` imports it.
    So ``headrace check`` works where that library is not installed.

    **Docstring.** ``headrace plugins info`` shows it; its sections Reads, Writes, Batch, Raises and
    Source say dtypes, shapes and units, and the conformance kit compares them with what happens.

    A plain class with `forward` is enough for ``headrace.register("Name", cls)``; a distribution offers
    a class in the entry-point group ``headrace.backends``. Everybody else calls the backend,
    ``backend(batch)``, which checks state and range and gives one outcome per item. Containers do so
    with their children, ``context.children``, and pass on only the items that are still alive.

    Attributes:
        Options: The typed options, a subclass of `headrace.Options`; unknown keys are refused.
        min, max: The batch range in weights (see ``request_size``), both included; ``max`` None
            means unbounded. `init` may set them. Where ``max`` is 1 items come one at a time,
            whatever their weight. `forward` never gets a batch outside the range.
        owns_thread: True when `init`, every `forward` and `close` must run in one thread of the
            backend's own.
        rerun: True when `forward` has no side effects, so that the items of a batch that failed
            may be tried one by one. A backend that overwrites a key it reads must leave it False.
        reads, writes: The keys of a request that `forward` reads and writes; ``"{option}"`` stands
            for the key that an option names, or for all keys of a list or table; a TypedDict class
            may stand for the tuple. Where only `init` knows them (the inputs of a model), it may set
            them on the instance.
        takes: How many children stand in ``[ ]``: a number, or (least, most) with most None for
            any number.
        phases: How many phases, separated by ``;``, stand in ``[ ]``.
        builds_elsewhere: True for a container whose children live in another place, such as another
            process. Then ``context.children`` are picklable plans of them, whose ``build()`` makes the
            backends over there. What stands inside can name nothing outside.
        prefixes: The flags and keys this container understands before its children: ``"or"``,
            ``"key="``; ``"*"`` means any positional.
    """

    Options: ClassVar[type[_Options]] = _Options
    min: int = 1
    max: int | None = None
    owns_thread: ClassVar[bool] = False
    rerun: ClassVar[bool] = False
    reads: tuple[str, ...] | type = ("data",)
    writes: tuple[str, ...] | type = ("result",)
    takes: ClassVar[int | tuple[int, int | None]] = 0
    phases: ClassVar[int] = 1
    builds_elsewhere: ClassVar[bool] = False
    prefixes: ClassVar[tuple[str, ...]] = ()

    # What authors write.

    def init(self, options: Any, context: InitContext) -> None:
        """Do the heavy imports and work. The default does nothing.

        Args:
            options: An instance of this class's `Options`, validated and frozen.
            context: Where this instance stands, and what it may use: its device, threads, children,
                what the node's instances share; see `headrace.InitContext`.

        Raises:
            SetupError: It cannot be built; say what to do in ``hint``. Another exception becomes one,
                an ImportError a MissingDependencyError.
        """

    def forward(self, batch: list[Request]) -> Outcomes:
        """Write ``result`` into each request of ``batch``.

        The range has been checked and the batch is never empty. The dicts may be changed, the list
        not. The requests may come from different callers.

        A container with one child may have ``forward_with_dep(batch, dependency)`` instead: the
        dependency is given at each call, and is called as ``dependency(batch)``.

        Returns:
            None when all went well, else a list with an exception or None per item, the one way to
            fail single items. Anything else is a ContractError for all.

        Raises:
            Exception: Anything raised fails the whole batch; where `rerun` is True its items are
                then run one by one, so that only those that are wrong fail.
        """
        with_dependency = getattr(self, "forward_with_dep", None)
        if with_dependency is None:
            raise ContractError(f"{type(self).__name__} has no forward")
        if self._dependency is None:
            raise ContractError(f"{type(self).__name__} was called without its dependency")
        outcomes: Outcomes = with_dependency(batch, self._dependency)
        return outcomes

    def warm_up(self) -> None:
        """Run once after `init`, before the pipeline is ready. The default does nothing.

        For what the first batch would else pay: a run on zeros, memory, compilation. An exception
        fails the setup.
        """

    def describe(self) -> dict[str, Any]:
        """Give what was really built: provider, precision, shapes. JSON-able.

        It stands under ``built`` in `headrace.Pipeline.describe`. The default gives nothing.
        """
        return {}

    def close(self) -> None:
        """Give back what `init` took: memory, files, threads. The default does nothing.

        Called once, and only after an `init` that succeeded.
        """


def _never() -> bool:
    return False


def _no_batch(function: Callable[[], object]) -> None:
    """Take note of nothing: outside of a pipeline no batch ends."""


def _no_build(expression: str) -> Backend:
    raise SetupError(f"there is no pipeline here to build {expression!r} in")


@dataclass(frozen=True)
class InitContext:
    """Where an instance of a backend stands, and what it may use in ``init``.

    Fields are only ever added.

    Attributes:
        node_name: The node, ``"main"`` when the configuration has no tables.
        instance_index: Which of the node's instances this is, from 0.
        instance_num: How many instances the node has.
        device: What the node's key ``device`` says for this instance, as text (``"cuda:0"``); None
            when unset.
        min, max: The node's keys ``min`` and ``max``, in weights; None when unset. They narrow the
            range of the class, whatever the backend does.
        batch_sizes: The node's key ``batch_sizes``, in weights; None when unset.
        threads: How many threads this instance may use for its computation, at least 1: its share of
            ``[global] threads``. Pass it to the library.
        children: The backends in ``[ ]``, built and initialised, in the order of writing. Call them,
            ``child(batch)``; they are closed for you. For a class that `builds_elsewhere` their plans:
            ``name``, ``expression``, ``min``, ``max``, ``reads``, ``writes``, ``keys``, ``build()``.
        prefixes: Per child the prefix before it, as (positional, {key: value}).
        logger: A logger named after the backend; it has no handler of its own.
        shared: One store per node: ``shared.get_or_create(key, factory)`` gives all instances of the
            node one object, which is closed with the node; ``shared.get(key, default)`` gives what
            is there.
        instance: The same for this instance alone: a stream, a memory pool. It is closed after all
            backends of the instance, in the thread of the instance if it has one. Outside of any
            instance, for what is being built there.
        scope: The same for one copy of the innermost ``IoC`` around: what its first phase stores,
            later elements and the front find. `Shared.get` looks outwards, up to the store of the
            instance. Outside of any ``IoC`` it is `instance` itself.
        at_batch_end: ``at_batch_end(function)``, in ``init`` only: ``function()`` is called once per
            batch, in the thread that ran it, after the outermost backend has returned and before
            anything of the batch leaves the instance; in the order of registration. What it raises
            fails every item that has not failed yet, and the instance goes on.
        allow_import: False when the configuration was loaded so: a backend that brings in code by
            path (a module, a plugin library) refuses as well.
        span: None, or, where a probe listens, ``span(name, started, ended, track)``: it reports what
            happened inside the backend or on a device, from ``started`` to ``ended`` in seconds on
            the clock of ``time.monotonic()``; ``track`` names where, as ``"cuda:0"``. A backend
            measures only where it is not None.
        followed_by: In a sequence without prefixes the class of the element that alone is given what
            this one writes, so that two classes that know each other may agree on a form of it that
            nobody else sees. None where anybody may be given it.
        progress: ``progress(total, unit)`` gives a context manager for work that takes long; call
            what it yields with the number of units done since the last call. ``total`` may be None.
            ``headrace run`` shows it on a terminal; everything else shows nothing.
        cancelled: Tells whether the caller gave up, so that long work can end early: ask it between
            steps, and raise.
        build: ``build(expression)`` makes a backend from an expression, as ``Reflect`` does. It
            is closed after this backend, which must not close it.
    """

    node_name: str = "main"
    instance_index: int = 0
    instance_num: int = 1
    device: str | None = None
    min: int | None = None
    max: int | None = None
    batch_sizes: tuple[int, ...] | None = None
    threads: int = 1
    children: tuple[Backend, ...] = ()
    prefixes: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = ()
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("headrace.backend"))
    shared: Shared = field(default_factory=Shared)
    progress: ProgressFactory = no_progress
    cancelled: Callable[[], bool] = _never
    build: Callable[[str], Backend] = _no_build
    instance: Shared = field(default_factory=Shared)
    scope: Shared = None  # type: ignore[assignment]
    at_batch_end: Callable[[Callable[[], object]], None] = _no_batch
    allow_import: bool = True
    span: Callable[[str, float, float, str], None] | None = None
    followed_by: type[Backend] | None = None

    def __post_init__(self) -> None:
        if self.scope is None:
            object.__setattr__(self, "scope", self.instance)
