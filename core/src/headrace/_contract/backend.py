"""The backend contract: the methods that authors write, and what ``init`` is given."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias

from headrace._contract.checked import Checked, Outcomes
from headrace._contract.options import Options as _Options
from headrace._contract.shared import Shared
from headrace.errors import ContractError
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

    **Requests** are dicts (see `headrace.keys`). A backend reads ``data`` and writes ``result``. Declare all other
    keys in `reads` and `writes`. Do not change an object you read: others may hold it too. A value you write owns its
    memory, so never write a view into a buffer you use again. A value in CPU memory is finished when `forward`
    returns. A value in device memory is finished at the end of the batch: see ``context.at_batch_end``.

    **Errors.** For a wrong request raise `headrace.errors.InputError` with the key, the expected value and the value
    you got. In `init` raise `headrace.errors.SetupError` if you cannot build the model, or if an option does not fit
    it. Any other exception of `init` becomes a SetupError, and an ImportError a MissingDependencyError. Any other
    exception of `forward` becomes the cause of a BackendError. A `headrace.errors.InstanceLostError` takes the
    instance out of service.

    **Life.** Headrace makes an instance without arguments, so ``__init__`` has no parameters. It calls `init` and
    `warm_up` once, `forward` any number of times, and `close` once. After a failed `init` it calls nothing more.

    **Threads.** One thread at a time runs an instance, but not always the same thread, unless `owns_thread` is True
    or `needs_thread` says so.
    Do not rely on thread-locals, and leave them unchanged. Context variables are the instance's own: `forward` sees
    none of a caller, and leaves them unchanged too. Several instances run side by side, so make the objects they
    share thread-safe.

    **Entry.** A class may have a function ``enter(request)``: a staticmethod, a classmethod, or a plain function. It
    is for knowledge of the caller's thread, such as its current stream. It runs there once per request, as the
    request comes in, wherever the class stands in a pipeline (except inside a container that `builds_elsewhere`). It
    must neither block nor change the request. `forward` reads its return value as ``context.entered(request)``. Its
    exception fails this request alone. With a parameter ``*, call=None`` it also gets a dict, which is empty as a call
    begins, and the same for all requests of a list.

    **Imports.** Import the library that computes in `init`, not at the top of the module. So ``headrace check`` works
    where the library is not installed.

    **Names.** The private names of this class (``_state``, ``_name``, ``_index``, ...) belong to core. Choose others in
    your subclass. The conformance kit checks this, and all you say about your class.

    **Docstring.** ``headrace plugins info`` shows it. Its sections Reads, Writes, Batch, Raises and Source give dtypes,
    shapes and units. The conformance kit compares them with the facts.

    A plain class with `forward` is enough for ``headrace.register("Name", cls)``. A distribution offers a class in the
    entry-point group ``headrace.backends``. To run a backend, call the object itself: ``backend(batch)`` checks state
    and range, and gives one outcome per item. Containers call their children (``context.children``) so, and pass on
    only the items without an error. To test one backend, call ``backend.init(Scale.Options(factor=3),
    headrace.InitContext())`` before, and `close` after.

    Attributes:
        Options: The typed options, a subclass of `headrace.Options`. Unknown keys are refused.
        min, max: The batch range in weights (see ``request_size``), both included. ``max`` None means unbounded. `init`
            may set them. With a ``max`` of 1 items come one at a time, whatever their weight. `forward` never gets a
            batch outside the range.
        owns_thread: True when `init`, every `forward` and `close` must run in one thread of the backend's own.
        rerun: True when `forward` has no side effects, so that the items of a failed batch may be tried one by one.
            Leave it False if you overwrite a key you read.
        keeps: True when it returns `headrace.PENDING`, or calls ``context.on_end``, ``finish``, ``resume`` or ``kept``,
            which are refused without it. At its node no caller runs a request past the queue, which costs up to twice the
            time of a call while an instance is idle.
        reads, writes: The keys of a request that `forward` reads and writes. ``"{option}"`` stands for the key that an
            option names, or for all keys of a list or table. You may give a TypedDict class in place of the tuple. If
            only `init` knows the keys (the inputs of a model), set these on the instance. A class without ``reads`` of
            its own leaves open which keys it reads beside ``data``. A container states only its own keys.
        gives: The keys that a container with one child sets before the child runs, written as `reads` are. No request
            has to bring them for the child.
        takes: How many children stand in ``[ ]``: a number, or (least, most) with most None for any number.
        phases: How many phases, separated by ``;``, stand in ``[ ]``.
        builds_elsewhere: True for a container with children in another place, such as another process. Then
            ``context.children`` are configurations that can be pickled, of which `headrace.plugins.build` makes the
            backends there. Names inside the container cannot stand for instances outside of it. `describe` may give
            ``children``, the trees described there. What they say stands in the tree of the container.
        prefixes: The flags and keys that this container understands before its children: ``"or"``, ``"key="``. ``"*"``
            means any positional value.
        combine_ranges: A staticmethod of a container. It gets a list with the ``name``, the ``range`` and
            ``conditional`` (whether a prefix stands before it) of each child, and returns the range (min, max) of the
            container. The default is the weights that all children take. See `headrace.words.combine_ranges`.
        not_callable: Why it cannot be called, as ``"only declares a queue"``, for a backend of a node's key ``init``
            that works in `init` only. None for all others.
        waits_while: When it waits and holds its instance, as ``"queue {queue!r} is full"``. ``{option}`` stands for the
            value of an option. None if it does not wait. `headrace explain` shows it.
        outermost: True when it may stand only outermost in a node, since each request it resumes runs through the whole
            expression of the node again. A thread around it (``BackgroundThread``) is allowed.
        stateful: True when answers depend on earlier requests to this process, so that later ones must reach the same
            process.
        name_option: The option written as the one name in ``[ ]``, as ``node`` in ``Repost[node]``. None if backends
            stand there.
        keys_option: The option of a container that names the keys its children read, None without one. It is for a
            container that must know all of them (``context.keys_read``). `check` demands the option where a backend
            inside leaves open which keys it reads. Its default is None.
        uses_pipeline: True when it hands something over by ``context.pipeline``. Such a class is refused in a container
            that `builds_elsewhere`. The functions of ``context.at_batch_end`` are called before its `forward`.
    """

    Options: ClassVar[type[_Options]] = _Options
    min: int = 1
    max: int | None = None
    owns_thread: ClassVar[bool] = False
    rerun: ClassVar[bool] = False
    keeps: ClassVar[bool] = False
    reads: tuple[str, ...] | type = ("data",)
    writes: tuple[str, ...] | type = ("result",)
    combine_ranges: ClassVar[Callable[..., tuple[int, int | None]]]
    gives: tuple[str, ...] = ()
    takes: ClassVar[int | tuple[int, int | None]] = 0
    phases: ClassVar[int] = 1
    builds_elsewhere: ClassVar[bool] = False
    prefixes: ClassVar[tuple[str, ...]] = ()
    not_callable: ClassVar[str | None] = None
    waits_while: ClassVar[str | None] = None
    uses_pipeline: ClassVar[bool] = False
    outermost: ClassVar[bool] = False
    stateful: ClassVar[bool] = False
    keys_option: ClassVar[str | None] = None
    name_option: ClassVar[str | None] = None

    # The methods that authors write.

    @classmethod
    def lint(cls, options: Any, largest_batch: int) -> Iterable[str]:
        """Return what is legal here but suspicious, a sentence each. Nothing is built, no heavy library imported.

        ``headrace check`` and ``headrace explain`` show it as warnings: what a model file says of itself, or options
        that are seldom meant together. The default returns nothing.

        Args:
            options: An instance of this class's `Options`, validated and frozen.
            largest_batch: The greatest weight of a batch of the node.
        """
        return ()

    @classmethod
    def needs_thread(cls, options: Any, device: str | None) -> bool:
        """Return whether an instance must run in a thread of its own, where that hangs on options or device.

        The default returns `owns_thread`. If that is True, nobody asks.

        Args:
            options: An instance of this class's `Options`, validated and frozen.
            device: A device that the node's key ``device`` gives to its instances, as in `InitContext`.
        """
        return cls.owns_thread

    @classmethod
    def most_instances(cls, options: Any) -> int | None:
        """Return how many instances a node with this class may have. None, the default, for any number.

        A node that asks for more is refused before anything is built. In a process of its own an instance is alone.

        Args:
            options: An instance of this class's `Options`, validated and frozen.
        """
        return None

    @classmethod
    def nodes_called(cls, options: Any) -> Iterable[str] | None:
        """Return the nodes that this class calls by ``context.call``, as far as the options say. None where it calls none.

        Each is checked before anything is built: an unknown one is an error with the nearest name. Requests enter at the
        node that calls. The default returns None.

        Args:
            options: An instance of this class's `Options`, validated and frozen.
        """
        return None

    @classmethod
    def goes_on_at(cls, options: Any) -> Iterable[str]:
        """Return the nodes at which this class lets requests go on by ``context.resume(request, node)``. None by default.

        Each is checked before anything is built. Such a class stands where its node ends: outermost, last in an ``S``
        there, or in a branch of ``HasKey`` there. In no node with ``each``, and in none of several branches.

        Args:
            options: An instance of this class's `Options`, validated and frozen.
        """
        return ()

    def init(self, options: Any, context: InitContext) -> None:
        """Do the heavy imports and work. The default does nothing.

        Args:
            options: An instance of this class's `Options`, validated and frozen.
            context: Where this instance stands, and what it may use: its device, threads, children, and the
                store that the node's instances share. See `headrace.InitContext`.

        Raises:
            SetupError: The backend cannot be built. ``hint`` says what to do. Any other exception becomes a
                SetupError, an ImportError becomes a MissingDependencyError.
        """

    def forward(self, batch: list[Request]) -> Outcomes:
        """Write ``result`` into each request of ``batch``.

        The range has been checked and the batch is never empty. The dicts may be changed, but not the
        list. The requests may come from different callers.

        A container with one child may have ``forward_with_dep(batch, dependency)`` instead: the
        dependency is given at each call, and is called as ``dependency(batch)``.

        Returns:
            None when all went well, else a list with an exception or None per item: this is the one way to
            fail single items. In place of an exception stands `headrace.PENDING` for an item that the backend answers
            later. Any other value is a ContractError for all items.

        Raises:
            Exception: Any exception fails the whole batch. Where `rerun` is True, the items are then run
                one by one, so that only the wrong ones fail.
        """
        if self.not_callable is not None:
            hint = "It belongs in the init of a node."
            raise ContractError(f"{self._label()} cannot be called", hint=hint)
        with_dependency = getattr(self, "forward_with_dep", None)
        if with_dependency is None:
            raise ContractError(f"{type(self).__name__} has no forward")
        if self._dependency is None:
            raise ContractError(f"{type(self).__name__} was called without its dependency")
        outcomes: Outcomes = with_dependency(batch, self._dependency)
        return outcomes

    def warm_up(self) -> None:
        """Run once after `init`, before the pipeline is ready. The default does nothing.

        It is for work that would otherwise slow down the first batch: a run on zeros, memory, compilation.
        An exception fails the setup.
        """

    def describe(self) -> dict[str, Any]:
        """Describe what was really built: provider, precision, shapes. The dict can be written as JSON.

        It stands under ``built`` in `headrace.Pipeline.describe`. The default gives an empty dict.
        """
        return {}

    def close(self) -> None:
        """Release what `init` has taken: memory, files, threads. The default does nothing.

        Called once, and only after an `init` that succeeded.
        """


def _never() -> bool:
    return False


def _no_batch(function: Callable[[], object]) -> None:
    """Ignore the function: outside of a pipeline there is no end of a batch."""


def _not_kept(request: Request, *_: object) -> bool:
    """Know of no request that is kept: outside of a pipeline there is none."""
    return False


def _nothing_kept(request: Request) -> dict[Any, Any]:
    """Return a new dict: outside of a pipeline no request is kept."""
    return {}


def _no_node(request: Request, node: str, *_: object) -> Any:
    """Refuse to call a node outside of any pipeline."""
    raise ContractError(f"there is no pipeline here whose node {node!r} could be called")


def _nobody_reads(request: Request, part: Any, *, waits: bool | None = None) -> bool:
    """Drop a part of an answer: outside of a pipeline nobody takes it."""
    return False


def _nobody_hears(*, takes_batches: bool = False) -> None:
    """Tell nobody: outside of a pipeline no instance is waited for."""


def _keys_unknown(place: int = 0) -> tuple[tuple[str, ...], str | None]:
    """Know of ``data`` alone: outside of a pipeline nobody has looked at the children."""
    return ("data",), "the child"


def _result_written(place: int = 0) -> tuple[str, ...]:
    """Know of ``result`` alone, as of no other key that is read."""
    return ("result",)


def _nothing_entered(request: Request) -> None:
    """Know of nothing: outside of a pipeline no request enters, and none has a deadline."""


@dataclass(frozen=True)
class InitContext:
    """The place of an instance of a backend, and the things it may use in ``init``.

    Fields are only ever added.

    Attributes:
        node_name: The node, ``"main"`` when the configuration has no tables.
        instance_index: The index of this instance among those of the node, from 0.
        instance_num: How many instances the node has.
        device: The device that the node's key ``device`` gives to this instance, as text (``"cuda:0"``).
            None when unset.
        min, max: The node's keys ``min`` and ``max``, in weights. None when unset. They narrow the
            range of the class without the backend's help.
        batch_sizes: The node's key ``batch_sizes``, in weights. None when unset.
        threads: How many threads this instance may use for its computation, at least 1: its share of
            ``[global] threads``. Pass it to the library.
        children: The backends in ``[ ]``, built and initialised, in the order of writing. Call them: ``child(batch)``.
            Headrace closes them. For a class that `builds_elsewhere` each is a `headrace.isolation.ChildConfig`.
        prefixes: The prefix before each child, as (positional, {key: value}).
        logger: A logger named after the backend. It has no handler of its own.
        shared: One store per node. ``shared.get_or_create(key, factory)`` gives all instances of the node one object,
            closed with the node. ``shared.get(key, default)`` gives an object already there.
        instance: A store like ``shared`` for this instance alone: for a stream, a memory pool. It is closed after all
            backends of the instance, in the thread of the instance if it has one. Outside of any instance it is the
            store of everything built together there.
        scope: A store like ``shared`` for one copy of the innermost ``IoC`` around. Later elements find the objects of
            earlier ones there. `Shared.get` looks outwards, up to the store of the instance. Outside of any ``IoC`` it
            is `instance` itself.
        at_batch_end: ``at_batch_end(function)``, in ``init`` only. Headrace calls ``function()`` once per batch, in the
            thread of the batch, after the outermost backend has returned and before any request leaves the instance.
            Several functions are called in the order of registration. An exception fails every item without an error,
            and the instance goes on.
        allow_import: False when the configuration may not import code. Then refuse to load code by path (a module, a
            plugin library) as well.
        span: None, or, while a probe listens, ``span(name, started, ended, track)``. It reports work inside the backend
            or on a device, from ``started`` to ``ended`` in seconds of ``time.monotonic()``. ``track`` names the place
            of the work, as ``"cuda:0"``. Measure only where this is not None.
        pipeline: A store like ``shared`` for the whole pipeline: all nodes and instances have the same one. As the
            pipeline begins to close, Headrace calls ``end_waits()`` once, from any thread, on each object with this method, so that no
            request waits there any more. The objects are closed after all backends. An object under a key of two texts,
            ``(kind, name)``, with a method ``statistics()`` stands in ``Pipeline.stats()[kind][name]``. Any thread may
            use the store. One thread at a time runs a factory of ``get_or_create``. The objects must be thread-safe. In
            another process it is a store of that process.
        pad: The node's key ``pad``: whether copies fill up a batch below the min of a child.
        deadline: ``deadline(request)``, in ``forward``: the end of the request's time, in seconds of
            ``time.monotonic()``. None for never. For an item of a container it is the latest deadline of the batch.
        entered: ``entered(request)``, in ``forward``: the value your ``enter`` returned for the request, also for a
            copy of it in a node (``each``, a branch, a ``map``). None if there is none, and for an item of a container.
        resume: ``resume(request, node=None)`` queues a request again after `forward` has returned `headrace.PENDING`
            for it. It goes to the front of the queue of its own node, where any instance may take it. With ``node`` it
            goes on at that node, which `Backend.goes_on_at` names: it leaves its way through the graph, and the nodes
            linked after the other one run. Where no graph leads the request (``Forward`` called the node, or it is the
            only one) the other node answers it. You may call this and the next three from any thread, also while
            `forward` still runs. It gives False if the request is not kept as PENDING (it has ended, or waits or runs
            already). It raises ContractError for any other node.
        finish: ``finish(request, outcome)`` ends such a request: with its ``result``, or with an error if ``outcome``
            is an exception. It gives False, and changes nothing, if the request is not kept as PENDING. A deadline, a
            cancellation, a close and a fork end it too. Then its dict is the caller's again.
        on_end: ``on_end(request, function)`` calls ``function(request)`` once, in a thread of its own, after the
            request has its outcome. The request is kept as PENDING, or in the running batch. If it has ended already,
            the function is called at once.
        kept: ``kept(request)`` gives a dict for your own notes on a request that is kept as PENDING, or was given to
            ``on_end``. It is the same dict until the request has its outcome, whichever instance runs it. For any other
            request it is a new dict.
        call: ``call(request, node, batch, then, parts=True)``, in ``forward``, lets the node run new requests on behalf
            of ``request``, with its deadline and priority. It does not wait. ``then(made, error)`` is called once for
            each dict of the list ``batch``, when it has its ``result`` or its error, in the thread that ended it and
            perhaps before ``call`` returns. Keep it as short as a ``resume``. No bound of a queue counts these requests.
            It returns a function that withdraws all requests without an outcome, for which ``then`` is not called.
            Their parts are parts of ``request``: with a text as ``parts`` they come as ``(text, part)``, with False
            nobody gets them. It raises ContractError if there is no such node. See `Backend.nodes_called`.
        unwanted: ``unwanted(request)`` tells whether nobody waits any more for a request that is kept as PENDING or in a
            running batch. It was cancelled, its time is over, or it has ended otherwise.
        alongside: ``alongside()``, in ``forward``: the requests in the batches of the node's other instances at this
            moment, also before their `forward` begins, each with the value your ``enter`` returned for it. It is for a
            backend that keeps an order.
        emit: ``emit(request, part, waits=None)`` gives a part of the answer to ``on_part`` of ``pipe.submit`` and to the
            reader of ``pipe.stream``, in order: from any thread until ``forward`` returns, and later for a request that
            is kept as PENDING. It gives False if nobody takes parts of the request, or it has ended. ``waits`` tells
            whether the thread may wait for a slow reader. None: it may if it belongs to the backend (``owns_thread``, or
            one it has started). Where it may not, the request ends with a LimitError. With `rerun` a request does not
            run again after a part.
        away: ``away()`` says that the backend computes with something out of reach for a while: a server, a host that
            does not answer. Until ``back()`` the instance is not ready, and gets no batch. Waiting requests go to other
            instances, or wait on, at most until their deadline. `Pipeline.ready` is False while no instance of a node is
            ready, and so is the readiness of ``headrace serve``. ``stats()["state"]`` is ``degraded`` while any
            instance is not. With ``away(takes_batches=True)`` it still gets batches, for a backend that refuses them
            itself. Each backend of an instance speaks for itself. A second call changes nothing but ``takes_batches``.
            You may call both from any thread, also in ``init``. A running batch goes on. If the instance does not come
            back, raise InstanceLostError. Outside of the instances of a node, and in another process, nobody is told.
        back: ``back()`` ends ``away()``. Without that it does nothing.
        followed_by: The class of the one element that gets your output, in a sequence without prefixes. So two classes
            that know each other may agree on a form of the value that no other backend sees. None if any backend may
            get it.
        progress: ``progress(total, unit)`` gives a context manager for long work. It yields a function, which you call
            with the number of units done since the last call. ``total`` may be None. ``headrace run`` shows a bar on a
            terminal.
        cancelled: Tells whether the caller gave up, so that long work can end early. Ask between steps, and raise.
        keys_read: ``keys_read(place=0)``, from ``init`` on, gives two values for the child at the place. The first is a
            sorted tuple of all keys of a request that the child's output may depend on: those its built backends read
            (the inputs of a model), optional keys, and those of conditions. The second is the name of a backend in it
            that leaves open which keys it reads beside ``data``, None if there is none. See `Backend.keys_option`.
        keys_written: ``keys_written(place=0)`` gives a sorted tuple of all keys that the backends in the child at the
            place say they write.
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
    instance: Shared = field(default_factory=Shared)
    scope: Shared = None  # type: ignore[assignment]
    at_batch_end: Callable[[Callable[[], object]], None] = _no_batch
    allow_import: bool = True
    span: Callable[[str, float, float, str], None] | None = None
    followed_by: type[Backend] | None = None
    entered: Callable[[Request], Any] = _nothing_entered
    pipeline: Shared = field(default_factory=Shared)
    pad: bool = False
    deadline: Callable[[Request], float | None] = _nothing_entered
    resume: Callable[..., bool] = _not_kept
    finish: Callable[[Request, Any], bool] = _not_kept
    on_end: Callable[[Request, Callable[[Request], object]], object] = _not_kept
    unwanted: Callable[[Request], bool] = _not_kept
    kept: Callable[[Request], dict[Any, Any]] = _nothing_kept
    call: Callable[..., Callable[[], object]] = _no_node
    emit: Callable[..., bool] = _nobody_reads
    alongside: Callable[[], list[tuple[Request, Any]]] = list
    away: Callable[..., None] = _nobody_hears
    back: Callable[[], None] = _nobody_hears
    keys_read: Callable[..., tuple[tuple[str, ...], str | None]] = _keys_unknown
    keys_written: Callable[..., tuple[str, ...]] = _result_written

    def __post_init__(self) -> None:
        if self.scope is None:
            object.__setattr__(self, "scope", self.instance)
