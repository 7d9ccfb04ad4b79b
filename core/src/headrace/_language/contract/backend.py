"""The backend contract: the methods that authors write, and what ``init`` is given."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias

from headrace._language.contract import groups
from headrace._language.contract.addresses import hold_files
from headrace._language.contract.options import Options as _Options
from headrace._run.contract.checked import Checked, Outcomes, range_problem
from headrace._texts import error_text
from headrace.errors import ContractError, MissingDependencyError, Problem, SetupError
from headrace.keys import Request


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


class Backend(Checked):
    """Computes ``result`` from ``data`` for a list of requests.

    Subclass it and write `init`, `forward` and `close`. Only `forward` is needed::

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

    **Requests** are dicts (see `headrace.keys`). A backend reads ``data`` and writes ``result``.
    Declare all other keys in `reads` and `writes`. Do not change an object you read: others may
    hold it too. A value you write owns its memory, so never write a view into a buffer you use
    again. A value in CPU memory is finished when `forward` returns. A value in device memory is
    finished at the end of the batch: see ``context.batch.at_end``.

    **Errors.** For a wrong request raise `headrace.errors.InputError` with the key, the expected
    value and the value you got. In `init` raise `headrace.errors.SetupError` if you cannot build
    the model, or if an option does not fit it. Any other exception of `init` becomes a SetupError,
    and an ImportError a MissingDependencyError. Any other exception of `forward` becomes the cause
    of a BackendError. A `headrace.errors.InstanceLostError` takes the instance out of service.

    **Life.** Headrace makes an instance without arguments, so ``__init__`` has no parameters. It
    calls `init` and `warm_up` once, `forward` any number of times, and `close` once. After a failed
    `init` it calls nothing more.

    **Threads.** One thread at a time runs an instance, but not always the same thread, unless
    `owns_thread` is True or `needs_thread` says so. Do not rely on thread-locals, and leave them
    unchanged. Context variables are the instance's own: `forward` sees none of a caller, and leaves
    them unchanged too. Several instances run side by side, so make the objects they share
    thread-safe.

    **Entry.** A class may have a function ``enter(request)``: a staticmethod, a classmethod, or a
    plain function. It is for knowledge of the caller's thread, such as its current stream. It runs
    there once per request, as the request comes in, wherever the class stands in a pipeline (except
    inside a container that `builds_elsewhere`). It must neither block nor change the request.
    `forward` reads its return value as ``context.request.entered(request)``. Its exception fails
    this request alone. With a parameter ``*, call=None`` it also gets a dict, which is empty as a
    call begins, and the same for all requests of a list.

    **Imports.** Import the library that computes in `init`, not at the top of the module. So
    ``headrace check`` works where the library is not installed.

    **Names.** The private names of this class (``_state``, ``_name``, ``_index``, ...) belong to
    core. Choose others in your subclass. The conformance kit checks this, and all you say about
    your class.

    **Docstring.** ``headrace plugins info`` shows it. Its sections Reads, Writes, Batch, Raises and
    Source give dtypes, shapes and units. The conformance kit compares them with the facts.

    A plain class with `forward` is enough for ``headrace.register("Name", cls)``. A distribution
    offers a class in the entry-point group ``headrace.backends``. To run a backend, call the object
    itself: ``backend(batch)`` checks state and range, and gives one outcome per item. Containers
    call their children (``context.children``) so, and pass on only the items without an error. To
    test one backend, call ``backend.init(Scale.Options(factor=3), headrace.InitContext())`` before,
    and `close` after.

    Attributes:
        Options: The typed options, a subclass of `headrace.Options`. Unknown keys are refused.
        min, max: The batch range in weights (see ``request_size``), both included. ``max`` None
            means unbounded. `init` may set them. With a ``max`` of 1 items come one at a time,
            whatever their weight. `forward` never gets a batch outside the range.
        owns_thread: True when `init`, every `forward` and `close` must run in one thread of the
            backend's own.
        rerun: True when `forward` has no side effects, so that the items of a failed batch may be
            tried one by one. Leave it False if you overwrite a key you read.
        keeps: True when it returns `headrace.PENDING`, or calls ``context.request.on_end``,
            ``finish`` or ``resume``, which are refused without it. At its node no caller runs a
            request past the queue, which costs up to twice the time of a call while an
            instance is idle.
        reads, writes: The keys of a request that `forward` reads and writes. ``"{option}"`` stands
            for the key that an option names, or for all keys of a list or table. You may give a
            TypedDict class in place of the tuple. If only `init` knows the keys (the inputs of a
            model), set these on the instance. A class without ``reads`` of its own leaves open
            which keys it reads beside ``data``. A container states only its own keys.
        takes: How many children stand in ``[ ]``: a number, or (least, most) with most None for any
            number.
        builds_elsewhere: True for a container with children in another place, such as another
            process. Then ``context.children`` are configurations that can be pickled, of which
            `headrace.plugins.build` makes the backends there. Names inside the container cannot
            stand for instances outside of it. `describe` may give ``children``, the trees described
            there. What they say stands in the tree of the container.
        stateful: True when answers depend on earlier requests to this process, so that later ones
            must reach the same process.
        wide: True when an instance with more threads is quicker. With ``instance_num = "auto"`` the
            node then has one with all threads, which serves a request that finds the node idle.
        uses_pipeline: True when it hands something over by ``context.store.pipeline``. Such a class
            is refused in a container that `builds_elsewhere`. The functions of
            ``context.batch.at_end`` are called before its `forward`.
        bracket: For a container: what stands in ``[ ]``, beside `takes`. A
            `headrace.words.Bracket`.
        place: For a backend that may not stand or be called everywhere. A `headrace.words.Place`.
    """

    Options: ClassVar[type[_Options]] = _Options
    min: int = 1
    max: int | None = None
    owns_thread: ClassVar[bool] = False
    rerun: ClassVar[bool] = False
    keeps: ClassVar[bool] = False
    reads: tuple[str, ...] | type = ("data",)
    writes: tuple[str, ...] | type = ("result",)
    takes: ClassVar[int | tuple[int, int | None]] = 0
    builds_elsewhere: ClassVar[bool] = False
    stateful: ClassVar[bool] = False
    wide: ClassVar[bool] = False
    uses_pipeline: ClassVar[bool] = False
    bracket: groups.Bracket = groups.Bracket()
    place: ClassVar[groups.Place] = groups.Place()

    # The methods that authors write.

    @classmethod
    def lint(cls, options: Any, largest_batch: int) -> Iterable[str | Problem]:
        """Return what is legal here but suspicious, a sentence each.

        Nothing is built, no heavy library imported.

        ``headrace check`` and ``headrace explain`` show it as warnings: what a model file says of
        itself, or options that are seldom meant together. A `headrace.errors.Problem` brings a
        code, which the key ``allow`` of a node silences, and a hint. A sentence has the code
        ``backend_warning``. The default returns nothing.

        Args:
            options: An instance of this class's `Options`, validated and frozen.
            largest_batch: The greatest weight of a batch of the node.
        """
        return ()

    @classmethod
    def needs_thread(cls, options: Any, device: str | None) -> bool:
        """Return whether an instance must run in a thread of its own, by options or device.

        The default returns `owns_thread`. If that is True, nobody asks.

        Args:
            options: An instance of this class's `Options`, validated and frozen.
            device: A device that the node's key ``device`` gives to its instances, as in
                `InitContext`.
        """
        return cls.owns_thread

    @classmethod
    def most_instances(cls, options: Any) -> int | None:
        """Return how many instances a node with this class may have.

        None, the default, for any number.

        A node that asks for more is refused before anything is built, and ``"auto"`` gives no more.
        In a process of its own an instance is alone.

        Args:
            options: An instance of this class's `Options`, validated and frozen.
        """
        return None

    @classmethod
    def auto_instances(cls, options: Any, device: str | None, threads: int) -> int | None:
        """Return how many instances ``instance_num = "auto"`` gives a node with this class.

        None, the default: it does not know.

        A class that computes on the CPU without the interpreter lock returns ``threads``, one that
        computes on a device 1. The node has the least that its classes return, and one instance
        where all return None.

        Args:
            options: An instance of this class's `Options`, validated and frozen.
            device: The node's key ``device``, which is None or begins with ``cpu``: of another
                device a node has one instance. ``headrace check`` asks for other devices, too. It
                warns of one for which the class still returns ``threads``.
            threads: The node's share of ``[global] threads``.
        """
        return None

    @classmethod
    def nodes_called(cls, options: Any) -> Iterable[str]:
        """Return the nodes to which this class sends requests. The default returns none.

        It does so by ``context.request.call``. If its `place` is ``"last"``, it lets requests go on
        there by ``context.request.resume(handle, node)``.

        Each is checked before anything is built: an unknown one is an error with the nearest name.

        Args:
            options: An instance of this class's `Options`, validated and frozen.
        """
        return ()

    @staticmethod
    def check_pipeline(config: Any) -> None:
        """Refuse a configuration as a whole, such as links that your classes cannot have.

        Called when a configuration without problems names the class, once if several classes share
        the function. Nothing is built. The default refuses nothing.

        Args:
            config: The `headrace.PipelineConfig`.

        Raises:
            ConfigError: It is wrong. `headrace.PipelineConfig.problem_at` gives a problem its
                place.
        """

    def init(self, options: Any, context: InitContext) -> None:
        """Do the heavy imports and work. The default does nothing.

        Args:
            options: An instance of this class's `Options`, validated and frozen.
            context: Where this instance stands, and what it may use: its device, threads, children,
                and the store that the node's instances share. See `headrace.InitContext`.

        Raises:
            SetupError: The backend cannot be built. ``hint`` says what to do. Any other exception
                becomes a SetupError, an ImportError becomes a MissingDependencyError.
        """

    def forward(self, batch: list[Request]) -> Outcomes:
        """Write ``result`` into each request of ``batch``.

        The range has been checked and the batch is never empty. The dicts may be changed, but not
        the list. The requests may come from different callers.

        Returns:
            None when all went well, else a list with an exception or None per item: this is the one
                way to
            fail single items. In place of an exception stands `headrace.PENDING` for an item that
            the backend answers
            later. Any other value is a ContractError for all items.

        Raises:
            Exception: Any exception fails the whole batch. Where `rerun` is True, the items are
                then run one by one, so that only the wrong ones fail.
        """
        if self.place.not_callable is not None:
            hint = "It belongs in the init of a node."
            raise ContractError(f"{self._label()} cannot be called", hint=hint)
        raise ContractError(f"{type(self).__name__} has no forward")

    def warm_up(self) -> None:
        """Run once after `init`, before the pipeline is ready. The default does nothing.

        It is for work that would otherwise slow down the first batch: a run on zeros, memory,
        compilation. An exception fails the setup.
        """

    def describe(self) -> dict[str, Any]:
        """Describe what was really built: provider, precision, shapes.

        The dict can be written as JSON.

        It stands under ``built`` in `headrace.Pipeline.describe`. The default gives an empty dict.
        """
        return {}

    def close(self) -> None:
        """Release what `init` has taken: memory, files, threads. The default does nothing.

        Called once, and only after an `init` that succeeded.
        """

    # The life from `init` to `close`, as the builder leads it: with errors that say where.

    def _start(self, options: Any, context: Any) -> None:
        """Run `init` once; its errors say which backend and node failed."""
        if self._state != "new":
            raise SetupError(f"{self._label()} was initialised twice", backend=self._label())
        self._node, self._index = context.node_name, context.instance_index
        try:
            with self._setting_up(), hold_files(options):
                self.init(options, context)
                self._note_range()
        except Exception:
            self._state = "failed"
            raise
        self._state = "ready"

    def _warm(self) -> None:
        """Run `warm_up`, with errors like those of `_start`."""
        with self._setting_up("warm_up failed: "):
            self.warm_up()

    @contextmanager
    def _setting_up(self, failed: str = "") -> Iterator[None]:
        try:
            yield
        except (MissingDependencyError, SetupError) as error:
            self._locate(error)
            raise
        except ImportError as error:
            message = f"{self._label()} needs a library that cannot be imported: {error}"
            hint = "Install it, or look at what `headrace plugins list --check` says."
            raise self._locate(MissingDependencyError(message, hint=hint)) from error
        except Exception as error:
            raise self._locate(SetupError(failed + error_text(error))) from error

    def _note_range(self) -> None:
        if (problem := range_problem(self.min, self.max)) is not None:
            raise SetupError(problem, hint="min is an int above 0, max None or at least min.")
        self._bounded = self.max is not None or self.min > 1
        self._takes_one = self.min == 1

    def _stop(self) -> None:
        """Run `close` once, and only after an `init` that succeeded."""
        if self._state == "ready":
            self._state = "closed"
            self.close()


def _never() -> bool:
    return False


@dataclass(frozen=True)
class InitContext:
    """The place of an instance of a backend, and the things it may use in ``init``.

    Most backends need the plain fields alone. Each group is for some of them, and says so. Outside
    of a pipeline every field has a default, so ``headrace.InitContext()`` is enough for a test.
    Give a group by its class: ``headrace.InitContext(batch=headrace.InitContext.Batch(max=4))``.
    Fields are only ever added.

    Attributes:
        node_name: The node, ``"main"`` when the configuration has no tables.
        instance_index: The index of this instance among those of the node, from 0.
        instance_num: How many instances the node has.
        device: The device that the node's key ``device`` gives to this instance, as text
            (``"cuda:0"``). None when unset.
        threads: How many threads this instance may use for its computation, at least 1: its share
            of ``[global] threads``. Pass it to the library.
        children: The backends in ``[ ]``, built and initialised, in the order of writing. Call them
            as ``child(batch)``. Headrace closes them. For a class that `builds_elsewhere` each
            is a `headrace.isolation.ChildConfig`.
        logger: A logger named after the backend. It has no handler of its own.
        progress: ``progress(total, unit)`` gives a context manager for long work. It yields a
            function, which you call with the number of units done since the last call. ``total``
            may be None. ``headrace run`` shows a bar on a terminal.
        cancelled: Tells whether the caller gave up, so that long work can end early. Ask between
            steps, and raise.
        span: None, or, while a probe listens, ``span(name, started, ended, track)``. It reports
            work inside the backend or on a device, from ``started`` to ``ended`` in seconds of
            ``time.monotonic()``. ``track`` names the place of the work, as ``"cuda:0"``. Measure
            only where this is not None.
        allow_import: False when the configuration may not import code. Then refuse to load code by
            path (a module, a plugin library) as well.
        batch: For models of fixed shapes and results in device memory: the node's keys, and the end
            of a batch. A `Batch`.
        store: For objects that you share with other instances, elements or nodes. A `Stores`.
        request: For answers in parts or later, and calls of other nodes: what to ask of one
            request. A `Requests`.
        expression: For containers: what stands around the backend. An `Expression`.
        health: For backends that compute with a server: whether it can be reached. A `Health`.
    """

    Batch = groups.Batch
    Stores = groups.Stores
    Requests = groups.Requests
    Expression = groups.Expression
    Health = groups.Health

    node_name: str = "main"
    instance_index: int = 0
    instance_num: int = 1
    device: str | None = None
    threads: int = 1
    children: tuple[Backend, ...] = ()
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("headrace.backend"))
    progress: ProgressFactory = no_progress
    cancelled: Callable[[], bool] = _never
    span: Callable[[str, float, float, str], None] | None = None
    allow_import: bool = True
    batch: groups.Batch = field(default_factory=groups.Batch)
    store: groups.Stores = field(default_factory=groups.Stores)
    request: groups.Requests = field(default_factory=groups.Requests)
    expression: groups.Expression = field(default_factory=groups.Expression)
    health: groups.Health = field(default_factory=groups.Health)
