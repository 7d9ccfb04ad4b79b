"""`RowRunner`: what an instance of any engine does with a batch of requests. An `EngineAdapter` is what differs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from typing_extensions import NotRequired, TypedDict

from headrace.errors import InputError
from headrace_tensors.combinations import SetupFacts, refuse_at_setup
from headrace_tensors.grouping import cut_groups, group_items, refuse_ragged
from headrace_tensors.lengths import prove_crops, runs_of_lengths
from headrace_tensors.padding import Padding, prepare_padding
from headrace_tensors.reading import check_equal_axes
from headrace_tensors.warming import read_warm_up, warm_up_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from headrace import InitContext
    from headrace.keys import Request
    from headrace_tensors.ports import Signature
    from headrace_tensors.reading import Item

__all__ = ["EngineAdapter", "RowRunner"]


class EngineAdapter(Protocol):
    """One engine for one instance: takes rows in, runs them, gives rows out."""

    @property
    def cut_axes(self) -> frozenset[int] | None:
        """The axes of outputs, counted with the batch axis, that can be cut to the lengths of a request. None: all."""

    @property
    def settle(self) -> Callable[[], object] | None:
        """What waits for the runs that are queued, as far as results need it. None: `run` returns at their end."""

    def run(self, items: Sequence[Item], padding: Padding) -> Iterable[Any]:
        """Run items that share a run, or queue the run. Give the result or the error of each, read after ``settle``."""


class RowRunner:
    """Runs the requests of one instance as rows: reads, groups, pads and runs them, and gives each its result.

    Args:
        adapter: The engine.
        read: Reads a request. See `read_item`.
        signature: Inputs and outputs of the model.
        keys: The key of the request for each input.
        options: The options that the user wrote: `UnbatchedOptions`, maybe with ``output_device`` and ``row_sizes``.
        context: The context of the instance.
        alike: Gives what must be equal of the tensors of a run. None: the shape of their samples.
        unfit: Gives the errors of items that cannot run with the first of them, by their places. None: with
            ``ragged = "refuse"`` those whose samples have another shape.
        note: Called with each request that brought rows, and its result. None: nothing is.
        of_engine: Tells the engine from the node's other engines, where the options do not.

    Attributes:
        signature: The signature.
        keys: The keys.
        padding: How samples are padded, and outputs cut. The warm-up proves it.
        shared_by: The node whose requests share runs. None if its `max` is 1, or another instance compares them.

    Raises:
        SetupError: Samples cannot be padded as the options say, or outputs not cut.
    """

    def __init__(  # noqa: PLR0913 - all but six by name
        self,
        adapter: EngineAdapter,
        read: Callable[[Request], Item],
        signature: Signature,
        keys: Mapping[str, str],
        options: Any,
        context: InitContext,
        *,
        alike: Callable[[Any], object] | None = None,
        unfit: Callable[[Sequence[Item]], Mapping[int, InputError]] | None = None,
        note: Callable[[Request, Any], object] | None = None,
        of_engine: Hashable = None,
    ) -> None:
        self._adapter, self.signature, self.keys = adapter, signature, keys
        self._options, self._logger = options, context.logger
        self._most, self._batch_sizes = context.batch.max, context.batch.sizes
        self._store, self._of_engine = context.store.node, of_engine
        alone = self._most == 1 or context.instance_index > 0  # one instance speaks for all
        self.shared_by = None if alone else context.node_name
        # If the model fixes the shape of all samples, they need not be compared.
        free = any(port.batched and port.exact is None for port in signature.inputs)
        self._by_shape = options.ragged == "group" and (free or alike is not None)
        self._alike: Any = {} if alike is None else {"shape_of": alike}
        self._unfit = unfit
        if unfit is None and options.ragged == "refuse" and free:
            batched = {port.name: keys[port.name] for port in signature.inputs if port.batched}
            self._unfit = partial(_unlike_first, keys=batched)
        self._note = note
        self._cuts = signature.one_at_a_time or signature.high_rows is not None
        self.padding = prepare_padding(options, signature, context.logger)
        pads = self.padding.values is not None
        self._read = partial(_read_to_pad, read, signature, keys) if pads else read
        self._check_together()

    @property
    def reads(self) -> tuple[str, ...] | type:
        """The keys that requests hold; those of optional inputs need not be there."""
        ports, keys = self.signature.inputs, self.keys
        needed = [keys[port.name] for port in ports if not port.optional]
        optional = [keys[port.name] for port in ports if port.optional and port.name in keys]
        if not optional:
            return tuple(dict.fromkeys(needed))
        kinds: dict[str, Any] = dict.fromkeys(optional, NotRequired[Any])
        return TypedDict("Reads", {**kinds, **dict.fromkeys(needed, Any)})  # type: ignore[operator, no-any-return]

    def forward(self, batch: Sequence[Request]) -> list[Exception | None] | None:
        """Run all valid requests and write their results. Give an outcome per request, or None when all went well.

        Raises:
            BackendError: The engine refused a run, or an output does not have the rows of the batch.
        """
        if len(batch) == 1 and self._unfit is None:
            outcome = self._run_alone(batch[0])
            return None if outcome is None else [outcome]
        outcomes, items, places = self.read(batch)
        run, padding = self._adapter.run, self.padding
        runs = self.plan(items, places, outcomes)
        queued = [(members, run([items[i] for i in members], padding)) for members in runs]
        if self._adapter.settle is not None:
            self._adapter.settle()
        for members, results in queued:
            for i, result in zip(members, results, strict=True):
                outcomes[places[i]] = self._give(batch[places[i]], items[i], result)
        return outcomes if any(outcomes) else None

    def _run_alone(self, request: Request) -> Exception | None:
        try:
            item = self._read(request)
        except InputError as error:
            return error
        results = self._adapter.run([item], self.padding)
        if self._adapter.settle is not None:
            self._adapter.settle()
        (result,) = results
        return self._give(request, item, result)

    def _give(self, request: Request, item: Item, result: Any) -> Exception | None:
        if isinstance(result, Exception):
            return result
        request["result"] = result
        if self._note is not None and not item.sample:
            self._note(request, result)
        return None

    def read(
        self, batch: Sequence[Request]
    ) -> tuple[list[Exception | None], list[Item], list[int]]:
        """Read requests.

        Returns:
            An outcome per request, the items of the valid requests, and the places of these in ``batch``.
        """
        outcomes: list[Exception | None] = [None] * len(batch)
        items, places = [], []
        for place, request in enumerate(batch):
            try:
                items.append(self._read(request))
            except InputError as error:
                outcomes[place] = error
            else:
                places.append(place)
        return outcomes, items, places

    def plan(
        self, items: Sequence[Item], places: Sequence[int], outcomes: list[Exception | None]
    ) -> list[list[int]]:
        """Divide items into runs; an item that fits into no run gets its error in ``outcomes``.

        Args:
            items: The items.
            places: The place of each in ``outcomes``.
            outcomes: Gets the errors.

        Returns:
            For each run the positions of its items.
        """
        runs = []
        signature = self.signature
        for group in group_items(items, signature.inputs, by_shape=self._by_shape, **self._alike):
            parts = [group]
            if self._cuts:
                alone, most = signature.one_at_a_time, signature.high_rows
                parts = cut_groups(group, items, most, one_at_a_time=alone)
            for part in parts:
                fitting = part
                errors = {} if self._unfit is None else self._unfit([items[i] for i in part])
                if errors:
                    for position, error in errors.items():
                        outcomes[places[part[position]]] = error
                    fitting = [i for position, i in enumerate(part) if position not in errors]
                if fitting:
                    runs.append(fitting)
        return runs

    def warm_up(
        self,
        run: Callable[[Mapping[str, Any], int], Sequence[Any]],
        *,
        free_axes: bool = True,
        bounded: bool = False,
    ) -> None:
        """Run few rows, refuse outputs that do not follow them, and prove how outputs follow unequal lengths.

        Args:
            run: Runs inputs by name. See `warm_up_rows`, also for what follows.
            free_axes: Whether to invent lengths for axes whose length is not known.
            bounded: Whether the engine refuses an index out of range.

        Raises:
            SetupError: An output does not follow the rows, or the lengths of padded samples.
        """
        options, signature = self._options, self.signature
        real = None
        if options.warm_up_input is not None:
            real = read_warm_up(options.warm_up_input, signature)
        names = [port.name for port in signature.outputs]
        warm_up_rows(
            run,
            signature,
            self._logger,
            real=real,
            told=names if options.unbatched == "all" else options.unbatched,
            free_axes=free_axes,
            node=None if options.output_device == "device" else self.shared_by,
            most=self._most,
            sizes=signature.sizes or self._batch_sizes,
            bounded=bounded,
            shared=self._most != 1,
        )
        if self.padding.values is not None:
            self.prove(runs_of_lengths(run, signature, self.padding.values, real), real)

    def prove(self, run: Callable[..., Any], real: Item | None) -> None:
        """Find by `prove_crops` how outputs follow unequal lengths, once for all instances of the node."""
        crops = self._store.get_or_create(
            ("headrace_tensors.crops", self._of_engine, repr(self._options)),
            lambda: prove_crops(run, self.signature, self._options, real=real, most=self._most),
        )
        self.padding = self.padding._replace(crops=crops)
        self._check_together()

    def _check_together(self) -> None:
        cut_axes = self._adapter.cut_axes
        cuts = {crop.axis for crops in self.padding.crops.values() for crop in crops}
        cannot_cut = () if cut_axes is None else sorted(cuts - cut_axes)
        batch_sizes, row_sizes = self._batch_sizes, getattr(self._options, "row_sizes", ())
        refuse_at_setup(SetupFacts(row_sizes, batch_sizes, cannot_cut))

    def describe(self) -> dict[str, Any]:
        """Return the inputs with their keys, apart from them those that may be missing, and the outputs. JSON-able."""
        inputs: dict[str, Any] = {}
        optional: dict[str, Any] = {}
        for port in self.signature.inputs:
            if port.name in self.keys:
                about = {"key": self.keys[port.name], **port.describe()}
                (optional if port.optional else inputs)[port.name] = about
        outputs = {port.name: port.describe() for port in self.signature.outputs}
        ports = {"inputs": inputs, "outputs": outputs}
        return {**ports, "optional_inputs": optional} if optional else ports


def _read_to_pad(
    read: Callable[[Request], Item], signature: Signature, keys: Mapping[str, str], request: Request
) -> Item:
    item = read(request)
    check_equal_axes(item, signature, keys)
    return item


def _unlike_first(items: Sequence[Item], keys: Mapping[str, str]) -> dict[int, InputError]:
    refused = [(place, refuse_ragged(items[0], item, keys)) for place, item in enumerate(items)]
    return {place: error for place, error in refused if error is not None}
