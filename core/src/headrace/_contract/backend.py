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

    **Requests** are dicts (see `headrace.keys`). A backend reads ``data`` and writes ``result``, and
    declares all other keys in `reads` and `writes`. It must not change an object that it reads: others may
    hold the same object. A value that it writes owns its memory: it is no view into a buffer that is used
    again. A value in the memory of the CPU is finished when `forward` returns, a value in the memory of a
    device at the end of the batch: see ``context.at_batch_end``.

    **Errors.** For a wrong request a backend raises `headrace.errors.InputError`, which names the key, what
    was expected and what came. For a model that cannot be built, or an option that does not fit the model, it
    raises `headrace.errors.SetupError` in `init`. In `init` an ImportError becomes a MissingDependencyError,
    and any other exception a SetupError. In `forward` any other exception becomes the cause of a
    BackendError. A `headrace.errors.InstanceLostError` takes the instance out of service.

    **Life.** An instance is made, then `init` and `warm_up` are called once, `forward` any number of times,
    and `close` once. After an `init` that failed no other method is called. The class is called without
    arguments: it has no ``__init__`` with parameters.

    **Threads.** One thread at a time runs an instance, but not always the same thread, unless `owns_thread`
    is True: a backend must not rely on thread-locals, nor leave any of them changed. Context variables are the
    instance's own: `forward` sees none that a caller has set, and must leave them unchanged too.
    Several instances run side by side, so objects that they share must be thread-safe.

    **Entry.** A class may have a function ``enter(request)``: a staticmethod, a classmethod, or a plain function that
    is called on the class. It is for what only the caller's thread knows, such as the stream on which it works. Wherever
    the class stands in a pipeline, except inside a container that `builds_elsewhere`, it is called in that thread, once per
    request, as the request comes in. It must neither block nor change the request. What it returns rides beside the
    request, and `forward` reads it as ``context.entered(request)``. What it raises fails that request alone.

    **Imports.** The module of the class can be imported without the library that computes, which `init`
    imports. So ``headrace check`` works where that library is not installed.

    **Names.** The private names of this class (``_state``, ``_name``, ``_index``, ...) belong to core: a subclass and its
    `init` choose others. The conformance kit checks that, and what a class says of itself.

    **Docstring.** ``headrace plugins info`` shows it. Its sections Reads, Writes, Batch, Raises and
    Source say dtypes, shapes and units, and the conformance kit compares them with what happens.

    A plain class with `forward` is enough for ``headrace.register("Name", cls)``. A distribution offers
    a class in the entry-point group ``headrace.backends``. To run a backend, call the object itself:
    ``backend(batch)`` checks state and range and gives one outcome per item. Containers do so with their
    children, ``context.children``, and pass on only the items that have not failed. A test of one backend
    calls ``backend.init(Scale.Options(factor=3), headrace.InitContext())`` before, and `close` after it.

    Attributes:
        Options: The typed options, a subclass of `headrace.Options`. Unknown keys are refused.
        min, max: The batch range in weights (see ``request_size``), both included. ``max`` None
            means unbounded. `init` may set them. With a ``max`` of 1 items come one at a time,
            whatever their weight. `forward` never gets a batch outside the range.
        owns_thread: True when `init`, every `forward` and `close` must run in one thread of the backend's own.
        thread_safe: True when several threads may call one object at a time. This counts in ``entrypoint`` alone, where one
            thread at a time calls what does not say so.
        rerun: True when `forward` has no side effects, so that after a failed batch its items may be
            tried one by one. A backend that overwrites a key that it reads must leave it False.
        reads, writes: The keys of a request that `forward` reads and writes. ``"{option}"`` stands for the key
            that an option names, or for all keys of a list or table. A TypedDict class may be given in place of the
            tuple. Where only `init` knows the keys (the inputs of a model), it may set these on the instance. A class
            that does not state ``reads`` leaves open what it reads beside ``data``. A container states those of its own.
        gives: The keys that a container with one child sets before that child runs, written as `reads` are: no
            request has to bring them for that child.
        takes: How many children stand in ``[ ]``: a number, or (least, most) with most None for any number.
        phases: How many phases, separated by ``;``, stand in ``[ ]``.
        builds_elsewhere: True for a container whose children live in another place, such as another
            process. Then ``context.children`` are picklable plans, whose ``build()`` makes the backends in
            that place. Names inside the container cannot stand for instances outside of it. Where
            `describe` gives ``children``, the trees that what was built there describes, these stand in the
            tree of the container.
        prefixes: The flags and keys that this container understands before its children: ``"or"``,
            ``"key="``. ``"*"`` means any positional value.
        combine_ranges: A staticmethod of a container that returns its range (min, max): it is given a list with the
            ``name``, the ``range`` and ``conditional`` (whether a prefix stands before it) of each child. The default
            is the weights that all children take. See `headrace.words.combine_ranges`.
        not_callable: Why it cannot be called, as ``"only declares a queue"``, for a backend that only works in
            `init` and stands in a node's key ``init``. None for all others.
        waits_while: In what state of something it waits and holds its instance, as ``"queue {queue!r} is full"``,
            where ``{option}`` stands for the value of an option. None where it does not wait. `headrace explain`
            shows it.
        outermost: True when it may only stand outermost in a node, since each request that it resumes runs through the
            whole expression of the node again. A thread around it (``BackgroundThread``) is allowed.
        stateful: True when answers depend on what earlier requests have left in this process, so that later ones have to
            reach the same process.
        name_option: The option that is written as the one name in ``[ ]``, as ``node`` in ``Repost[node]``. None where
            backends stand there.
        keys_option: The option of a container that names keys which its children read, None without one. It is for a
            container that has to know all of them (``context.keys_read``): where a backend inside does not say what it
            reads, `check` demands the option, whose default is None.
        uses_pipeline: True when it hands something over by ``context.pipeline``. It is refused in a container that
            `builds_elsewhere`, and what ``context.at_batch_end`` has registered is called before its `forward`.
    """

    Options: ClassVar[type[_Options]] = _Options
    min: int = 1
    max: int | None = None
    owns_thread: ClassVar[bool] = False
    thread_safe: ClassVar[bool] = False
    rerun: ClassVar[bool] = False
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

        Each is checked before anything is built: an unknown one is an error with the nearest name. A class that calls
        nodes may call any: where it stands in the ``entrypoint``, every node can be reached. The default returns None.

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


def _nobody_reads(request: Request, part: Any) -> None:
    """Drop a part of an answer: outside of a pipeline nobody reads it."""


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
    """Where an instance of a backend stands, and what it may use in ``init``.

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
        children: The backends in ``[ ]``, built and initialised, in the order of writing. Call them,
            ``child(batch)``. They are closed for you. For a class that `builds_elsewhere` these are plans
            with ``name``, ``expression``, ``min``, ``max``, ``keys``, ``build()``.
        prefixes: The prefix before each child, as (positional, {key: value}).
        logger: A logger named after the backend. It has no handler of its own.
        shared: One store per node: ``shared.get_or_create(key, factory)`` gives all instances of the
            node one object, which is closed with the node. ``shared.get(key, default)`` gives an object
            that is there already.
        instance: A store like ``shared`` for this instance alone: for a stream, a memory pool. It is closed
            after all backends of the instance, in the thread of the instance if it has one. Outside of any
            instance it is the store of all that is built together there.
        scope: A store like ``shared`` for one copy of the innermost ``IoC`` around: later elements and the
            entrypoint find what the first phase has stored. `Shared.get` looks outwards, up to the store of the
            instance. Outside of any ``IoC`` it is `instance` itself.
        at_batch_end: ``at_batch_end(function)``, in ``init`` only: ``function()`` is called once per
            batch, in the thread that ran the batch, after the outermost backend has returned and before
            any request of the batch leaves the instance. Several functions are called in the order of
            registration. An error that one raises fails every item that has not failed yet, and the
            instance goes on.
        allow_import: False when the configuration may not import code: a backend that loads code by path
            (a module, a plugin library) has to refuse that as well.
        span: None, or, where a probe listens, ``span(name, started, ended, track)``: it reports work inside
            the backend or on a device, from ``started`` to ``ended`` in seconds on the clock of
            ``time.monotonic()``. ``track`` names the place of the work, as ``"cuda:0"``. A backend measures
            only where this is not None.
        pipeline: A store like ``shared`` for the whole pipeline: all nodes and instances have the same one, before
            and after a reload. What a reload that fails has put there is closed and taken out again. When the pipeline
            begins to close, ``end_waits()`` of each object that has it is called once, from any thread, so that no
            request waits there any more. The objects are closed after all backends. An object under a key of two
            texts, ``(kind, name)``, that has ``statistics()`` stands in ``Pipeline.stats()[kind][name]``. The store
            may be used by any thread. A factory of ``get_or_create`` runs in one thread at a time, and what is stored
            must be thread-safe itself. In another process it is a store of that process.
        pad: The node's key ``pad``: whether copies fill up a batch below the min of a child.
        deadline: ``deadline(request)``, in ``forward``: when the time of the request is over, in seconds on the clock
            of ``time.monotonic()``. None for never. For an item that a container has made it is the latest deadline
            of the batch.
        entered: ``entered(request)``, in ``forward``: what the class's ``enter`` returned for the request, also for a
            copy that a node runs on (``each``, a branch, a ``map``). None where it returned nothing, and for an
            item that a container has made itself.
        resume: ``resume(request, node=None)`` queues a request again for which `forward` has returned
            `headrace.PENDING`. It goes to the front of the queue of its own node, where any instance may take it, or
            goes on at the node of that name, which `Backend.goes_on_at` names: it leaves the graph's way here, the nodes
            linked after that one run and not those after its own, and its own ends without an error. Where no graph
            leads the request (``Forward`` called the node, or it is the only one) that node answers it. This and the next
            three may be called from any thread, also while `forward` still runs. It gives False where the request is not
            kept as PENDING (it has ended, or waits or runs already), and raises ContractError for any other node.
        finish: ``finish(request, outcome)`` ends such a request, with ``result``, or with an error where ``outcome``
            is an exception. It gives False, and changes nothing, where the request is not kept as PENDING. A deadline,
            a cancellation, a close, a reload of the node and a fork end it too, then its dict is the caller's again.
        on_end: ``on_end(request, function)`` has ``function(request)`` called once, in a thread of its own, after a
            request has its outcome, whichever that is. The request is kept as PENDING, or in the batch that runs.
            Where it has ended, the function is called at once.
        kept: ``kept(request)`` gives the dict that belongs to a request which is kept as PENDING, or for which something
            was asked by ``on_end``: it is the request's alone from then until it has its outcome, whichever instance
            runs it. For any other request it gives a new dict.
        call: ``call(request, node, batch, then, parts=True)``, in ``forward``, lets the node of that name run new requests on behalf
            of one that runs here, whose deadline and priority they have. It waits for nothing:
            ``then(made, error)`` is called once for each dict of the list ``batch``, when it has its ``result``, or its
            error, in the thread that ended it and perhaps before ``call`` returns. It must be short, as a ``resume`` is.
            No bound of a queue counts them. It gives a function that withdraws those that have not ended, for
            which ``then`` is not called. Parts that are given there are parts of ``request``: with a text as ``parts`` they
            come as ``(text, part)``, with False nobody gets them. It raises ContractError where there is no such node. See
            `Backend.nodes_called`.
        unwanted: ``unwanted(request)`` tells whether nobody waits any more for a request that is kept as PENDING,
            or is in the batch that runs, since it was cancelled, its time is over, or it has ended otherwise.
        alongside: ``alongside()``, in ``forward``: the requests that other instances of the node have in their batches
            at this moment, also where `forward` has not begun, each with what the class's ``enter`` returned for it.
            It is for a backend that keeps an order.
        emit: ``emit(request, part)`` gives a part of the answer of a request to who reads it by ``pipe.stream``, in order: from
            any thread until ``forward`` has returned, and later for a request that is kept as PENDING. After that it raises
            ContractError. For all other callers it does nothing, and so it does for an item that a container has made
            itself. Where ``parts_waiting`` parts wait, it waits until some were read, in a thread that belongs to the backend
            (``owns_thread``, one that it has started). Elsewhere, as in the ``forward`` of a plain backend, the request ends with
            a LimitError. With `rerun` a request of which a part was given is not run again.
        away: ``away()`` says that what the backend computes with is away for a while: a server, a host that does not
            answer. Until ``back()`` the instance is not ready. `Pipeline.ready` is False while no instance of a node is,
            and so is the readiness of ``headrace serve``. ``stats()["state"]`` is ``degraded`` while any is not. The
            instance gets no batch meanwhile. What waits goes to other instances, or waits on, at most until its deadline.
            With ``away(takes_batches=True)`` it gets batches all the same, for a backend that refuses them itself. Each
            backend of an instance says it for itself. A second call changes nothing, or the word about batches. Both may
            be called from any thread, also in ``init``. A batch that runs goes on. Where the instance does not come
            back raise InstanceLostError. Outside of the instances of a node, and in another process, nobody is told.
        back: ``back()`` ends what ``away()`` has said, without that it does nothing.
        followed_by: The class of the one element that is given what this one writes, in a sequence without
            prefixes. So two classes that know each other may agree on a form of the value that no other
            backend sees. None where any backend may be given it.
        progress: ``progress(total, unit)`` gives a context manager for work that takes long, which yields
            a function to be called with the number of units done since the last call. ``total`` may be
            None. ``headrace run`` shows a bar on a terminal. Everything else shows nothing.
        cancelled: Tells whether the caller gave up, so that long work can end early: ask it between
            steps, and raise.
        keys_read: ``keys_read(place=0)``, from ``init`` on, gives two values for the child at that place. The first is a
            sorted tuple of all keys of a request on which what the child writes may depend. These are what its backends read
            as they were built (the inputs of a model), also optional keys and those of conditions. The second is the name
            of a backend in it that does not say what it reads beside ``data``, None where all say it. See
            `Backend.keys_option`.
        keys_written: ``keys_written(place=0)`` gives a sorted tuple of all keys that the backends in the child at that place say
            they write.
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
    emit: Callable[[Request, Any], None] = _nobody_reads
    alongside: Callable[[], list[tuple[Request, Any]]] = list
    away: Callable[..., None] = _nobody_hears
    back: Callable[[], None] = _nobody_hears
    keys_read: Callable[..., tuple[tuple[str, ...], str | None]] = _keys_unknown
    keys_written: Callable[..., tuple[str, ...]] = _result_written

    def __post_init__(self) -> None:
        if self.scope is None:
            object.__setattr__(self, "scope", self.instance)
