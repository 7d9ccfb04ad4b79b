"""The groups of `headrace.InitContext` and of `headrace.Backend`.

Each has what only some backends need, for one kind of author.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace._run.contract.shared import Shared
from headrace._run.requests.keeping import Handle
from headrace.errors import ContractError
from headrace.keys import Request


def _nothing(*_: object, **__: object) -> None:
    """Do nothing and know of nothing.

    Outside of a pipeline there is nobody to tell, and no batch ends.
    """


def _not_kept(*_: object, **__: object) -> bool:
    """Know of no request that is kept or read: outside of a pipeline there is none."""
    return False


def _keep_nothing(request: Request) -> Handle:
    """Return a handle of nothing: outside of a pipeline no request is kept."""
    return Handle()


def _no_node(request: Request, node: str, *_: object) -> Any:
    """Refuse to call a node outside of any pipeline."""
    raise ContractError(f"there is no pipeline here whose node {node!r} could be called")


def _keys_unknown(place: int = 0) -> tuple[tuple[str, ...], str | None]:
    """Know of ``data`` alone: outside of a pipeline nobody has looked at the children."""
    return ("data",), "the child"


def _result_written(place: int = 0) -> tuple[str, ...]:
    """Know of ``result`` alone, as of no other key that is read."""
    return ("result",)


@dataclass(frozen=True)
class Batch:
    """``context.batch``: what the node says of batches, and the end of one.

    You need it for a model of fixed shapes, for a container that fills up batches, and for results
    in device memory.

    Attributes:
        min, max: The node's keys ``min`` and ``max``, in weights. None when unset. They narrow the
            range of your class without your help.
        sizes: The node's key ``batch_sizes``, in weights. None when unset.
        pad: The node's key ``pad``: whether copies fill up a batch below the min of a child.
        at_end: ``at_end(function)``, in ``init`` only. Headrace calls ``function()`` once per
            batch, in the thread of the batch, after the outermost backend has returned and before
            any request leaves the instance. Several functions are called in the order of
            registration. An exception fails every item without an error, and the instance goes on.
    """

    min: int | None = None
    max: int | None = None
    sizes: tuple[int, ...] | None = None
    pad: bool = False
    at_end: Callable[[Callable[[], object]], None] = _nothing


@dataclass(frozen=True)
class Stores:
    """``context.store``: the objects that you share with other backends, by how far they reach.

    In each store ``get_or_create(key, factory)`` gives all who ask one object, which is closed with
    the store. ``get(key, default)`` gives an object already there.

    Attributes:
        node: The store of all instances of the node: for weights, an engine. It is closed with the
            node.
        instance: The store of this instance alone: for a stream, a memory pool. It is closed after
            all backends of the instance, in the thread of the instance if it has one. Outside of
            any instance it is the store of everything built together there.
        scope: The store of one copy of the innermost ``IoC`` around. Later elements find the
            objects of earlier ones there. Its ``get`` looks outwards, up to the store of the
            instance. Outside of any ``IoC`` it is `instance` itself.
        pipeline: The store of the whole pipeline: all nodes and instances have the same one. Any
            thread may use it, so its objects must be thread-safe. One thread at a time runs a
            factory. As the pipeline begins to close, Headrace calls ``end_waits()`` once, from any
            thread, on each object with this method, so that no request waits there any more. The
            objects are closed after all backends. An object under a key of two texts, ``(kind,
            name)``, with a method ``statistics()`` stands in ``Pipeline.stats()[kind][name]``. In
            another process it is a store of that process.
    """

    node: Shared = field(default_factory=Shared)
    instance: Shared = field(default_factory=Shared)
    scope: Shared = None  # type: ignore[assignment]
    pipeline: Shared = field(default_factory=Shared)

    def __post_init__(self) -> None:
        if self.scope is None:
            object.__setattr__(self, "scope", self.instance)


@dataclass(frozen=True)
class Requests:
    """``context.request``: what you may ask of one request, and do with it.

    You need it when you stream an answer in parts, keep requests as `headrace.PENDING`, call other
    nodes, or drop work that nobody waits for.

    Attributes:
        deadline: ``deadline(request)``, in ``forward``: the end of the request's time, in seconds
            of ``time.monotonic()``. None for never. For an item of a container it is the latest
            deadline of the batch.
        entered: ``entered(request)``, in ``forward``: the value your ``enter`` returned for the
            request, also for a copy of it in a node (``each``, a branch, a ``map``). None if there
            is none, and for an item of a container.
        keep: ``keep(request)``, in ``forward``, gives the handle of a request of the batch. It
            names this keeping, from now until the request has its outcome at the node, however
            often it is resumed. The next five take it, from any thread, and give False once the
            keeping has ended, whatever its dict is used for since. A dict there is a TypeError.
            Before `forward` returns `headrace.PENDING` for a request it has to be kept, else it
            fails with a ContractError.
        kept: ``kept(request)``, in ``forward``, gives the handle of a request that was kept before,
            whichever instance has run it, as ``handle.notes`` may tell. None for one that has just
            come.
        emit: ``emit(handle, part, waits=None)`` gives a part of the answer to ``on_part`` of
            ``pipe.submit`` and to the reader of ``pipe.stream``, in order. It gives False if nobody
            takes parts of the request, or it has ended. ``waits`` tells whether the thread may wait
            for a slow reader. None: it may if it belongs to the backend (``owns_thread``, or one it
            has started). Where it may not, the request ends with a LimitError. With `rerun` a
            request does not run again after a part.
        call: ``call(request, node, batch, then, parts=True)``, in ``forward``, lets the node run
            new requests on behalf of ``request``, with its deadline and priority. It does not wait.
            ``then(made, error)`` is called once for each dict of the list ``batch``, when it has
            its ``result`` or its error, in the thread that ended it and perhaps before ``call``
            returns. Keep it as short as a ``resume``. No bound of a queue counts these requests. It
            returns a function that withdraws all requests without an outcome, for which ``then`` is
            not called. Their parts are parts of ``request``: with a text as ``parts`` they come as
            ``(text, part)``, with False nobody gets them. It raises ContractError if there is no
            such node. See `Backend.nodes_called`.
        resume: ``resume(handle, node=None)`` queues a request again after `forward` has returned
            `headrace.PENDING` for it. It goes to the front of the queue of its own node, where any
            instance may take it. With ``node`` it goes on at that node, one of
            `Backend.nodes_called`. It leaves its way through the graph, and the nodes linked after
            the other one run. Where no graph leads the request (``Forward`` called the node, or it
            is the only one) the other node answers it. It may be called while `forward` still runs.
            It gives False if the request waits or runs already, or has ended. It raises
            ContractError for any other node.
        finish: ``finish(handle, outcome)`` ends such a request: with its ``result``, or with an
            error if ``outcome`` is an exception. It gives False, and changes nothing, if the
            request is not kept as PENDING. A deadline, a cancellation, a close and a fork end it
            too. Then its dict is the caller's again.
        on_end: ``on_end(handle, function)`` calls ``function(handle)`` once, in a thread of its
            own, after the request has its outcome. It gives False, and calls nothing, if it has
            ended already.
        unwanted: ``unwanted(handle)`` tells whether nobody waits any more for the request. It was
            cancelled, its time is over, or it has ended otherwise.
        alongside: ``alongside()``, in ``forward``: the handles of the requests in the batches of
            the node's other instances at this moment, also before their `forward` begins, each with
            the value your ``enter`` returned for its ``handle.request``. It is for a backend that
            keeps an order.
    """

    deadline: Callable[[Request], float | None] = _nothing
    entered: Callable[[Request], Any] = _nothing
    keep: Callable[[Request], Handle] = _keep_nothing
    kept: Callable[[Request], Handle | None] = _nothing
    emit: Callable[..., bool] = _not_kept
    call: Callable[..., Callable[[], object]] = _no_node
    resume: Callable[..., bool] = _not_kept
    finish: Callable[[Handle, Any], bool] = _not_kept
    on_end: Callable[[Handle, Callable[[Handle], object]], bool] = _not_kept
    unwanted: Callable[[Handle], bool] = _not_kept
    alongside: Callable[[], list[tuple[Handle, Any]]] = list


@dataclass(frozen=True)
class Expression:
    """``context.expression``: what stands around your backend.

    You need it when you write a container.

    Attributes:
        prefixes: The prefix before each child, as (positional, {key: value}).
        followed_by: The class of the one element that gets your output, in a sequence without
            prefixes. So two classes that know each other may agree on a form of the value that no
            other backend sees. None if any backend may get it.
        keys_read: ``keys_read(place=0)``, from ``init`` on, gives two values for the child at the
            place. The first is a sorted tuple of all keys of a request that the child's output may
            depend on. Its built backends read them (the inputs of a model), some are optional, and
            some are those of conditions. The second is the name of a backend in it that leaves open
            which keys it reads beside ``data``, None if there is none. See `Bracket.keys_option`.
        keys_written: ``keys_written(place=0)`` gives a sorted tuple of all keys that the backends
            in the child at the place say they write.
    """

    prefixes: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = ()
    followed_by: type[Any] | None = None
    keys_read: Callable[..., tuple[tuple[str, ...], str | None]] = _keys_unknown
    keys_written: Callable[..., tuple[str, ...]] = _result_written


@dataclass(frozen=True)
class Health:
    """``context.health``: for a backend that computes out of reach, as on a server.

    You may call both from any thread, also in ``init``. A running batch goes on. Outside of the
    instances of a node, and in another process, nobody is told.

    Attributes:
        away: ``away()`` says that the server or host does not answer for a while. Until ``back()``
            the instance is not ready, and gets no batch. Waiting requests go to other instances, or
            wait on, at most until their deadline. `Pipeline.ready` is False while no instance of a
            node is ready, and so is the readiness of ``headrace serve``. ``stats()["state"]`` is
            ``degraded`` while any instance is not. With ``away(takes_batches=True)`` it still gets
            batches, for a backend that refuses them itself. Each backend of an instance speaks for
            itself. A second call changes nothing but ``takes_batches``. If the instance does not
            come back, raise InstanceLostError.
        back: ``back()`` ends ``away()``. Without that it does nothing.
    """

    away: Callable[..., None] = _nothing
    back: Callable[[], None] = _nothing


@dataclass(frozen=True)
class Bracket:
    """``bracket`` of a class: what stands in its ``[ ]``. You need it when you write a container.

    Attributes:
        phases: How many phases, separated by ``;``, stand in ``[ ]``.
        prefixes: The flags and keys that you understand before your children: ``"or"``, ``"key="``.
            ``"*"`` means any positional value.
        gives: The keys that a container with one child sets before the child runs, written as
            `Backend.reads` are. No request has to bring them for the child. If only `init` knows
            them, set ``self.bracket = dataclasses.replace(self.bracket, gives=...)``.
        keys_option: The option that names the keys your children read, None without one. It is for
            a container that must know all of them (``context.expression.keys_read``). `check`
            demands the option where a backend inside leaves open which keys it reads. Its default
            is None.
        divides: True for a container that gives each item to one of its children, whose outcome is
            that of the item, or lets it pass by its only child. A child may get a single item, so
            its min must be 1. The range is 1 to the smallest max.
        combine_ranges: A function. It gets a list with the ``name``, the ``range`` and
            ``conditional`` (whether a prefix stands before it) of each child, and returns the range
            (min, max) of the container. None, the default, for the weights that all children take,
            or as `divides` says. See `headrace.words.combine_ranges`.
        keys_of_child: The place of the child whose keys a request must have, of a container that
            reads nothing itself. None, the default, for one that says in `Backend.reads` what it
            reads. If only `init` knows it, set ``self.bracket`` as for `gives`.
        late: True for a container that builds its children itself: each of ``context.children`` has
            ``name``, the range that its class states as ``min`` and ``max``, and ``build()``, which
            gives the backend. Call it in `init`. What a build that fails has left is closed, and
            its error raised. The range of the container is that of `combine_ranges` until `init`
            sets ``min`` and ``max``.
        left_out_option: The option that says what was left out of the bracket before it was
            planned, None without one. Where it has a value, a key that no backend here has may be
            an option of what was left out.
    """

    phases: int = 1
    prefixes: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    keys_option: str | None = None
    divides: bool = False
    combine_ranges: Callable[..., tuple[int, int | None]] | None = None
    keys_of_child: int | None = None
    late: bool = False
    left_out_option: str | None = None


@dataclass(frozen=True)
class Place:
    """``place`` of a class: where it may stand.

    You need it for a backend that waits, resumes or only declares something.

    Attributes:
        stands: ``"outermost"`` when it may stand only outermost in a node, since each request it
            resumes runs through the whole expression of the node again. A thread around it
            (``BackgroundThread``) is allowed. ``"last"`` when it lets requests go on at the nodes
            of `Backend.nodes_called`, so it stands where its node ends: outermost, last in an ``S``
            there, or in a branch of ``HasKey`` there. In no node with ``each``, and in none of
            several branches.
        not_callable: Why it cannot be called, as ``"only declares a queue"``, for a backend of a
            node's key ``init`` that works in `init` only. None for all others.
        waits_while: When it waits and holds its instance, as ``"queue {queue!r} is full"``.
            ``{option}`` stands for the value of an option. None if it does not wait. `headrace
            explain` shows it.
    """

    stands: Literal["anywhere", "outermost", "last"] = "anywhere"
    not_callable: str | None = None
    waits_while: str | None = None
