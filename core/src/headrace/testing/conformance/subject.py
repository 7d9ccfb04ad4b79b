"""The backend under test: planned once, built as a pipeline builds it, called directly."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace._weights import weight_of
from headrace.testing.conformance.rule import Broken
from headrace.testing.conformance.values import difference, kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace import Backend, PipelineConfig
    from headrace._plan.element import Element, PipelinePlan
    from headrace.keys import Request
    from headrace.testing.conformance.base import BackendConformance

__all__ = ["USUAL_BATCH", "Keys", "Live", "Subject"]

USUAL_BATCH = 4
"""How many requests a batch has where the range allows it."""

NODE = "main"

_WORD = re.compile(r"(?:\w+\.)?(Required|NotRequired)\[")


class Keys(typing.NamedTuple):
    """Keys that a class declares: those that must be there, and those that may."""

    required: frozenset[str]
    optional: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        """Every declared key."""
        return self.required | self.optional


class Live:
    """The backend, built.

    Attributes:
        instances: What a scheduler would call, one per instance.
        root: The object of the outermost name, of the first instance; it may be inside the former.
    """

    def __init__(self, plan: PipelinePlan) -> None:
        from headrace._build import build_pipeline

        self._built = build_pipeline(plan)
        self.plan = plan
        node = self._built.nodes[NODE]
        self.instances: list[Backend] = [i.backend for i in node.scheduler.instances]
        self._threads = [i.thread for i in node.scheduler.instances]
        self.root: Backend = self.object_of(plan.nodes[NODE].backend) or self.instances[0]

    def object_of(self, element: Element | None) -> Backend | None:
        """Give what was built from an element in the first instance."""
        return self._built.nodes[NODE].by_element.get(id(element))

    @property
    def backend(self) -> Backend:
        """The first instance."""
        return self.instances[0]

    @property
    def range(self) -> tuple[int, int | None]:
        """Least and greatest weight; None for unbounded."""
        return self.backend.min, self.backend.max

    def close(self) -> list[Exception]:
        """Close all that was built, newest first; give the errors."""
        built = self._built
        errors = built.front_parts.close()
        for node in reversed(built.nodes.values()):
            for parts in reversed(node.instances):
                errors += parts.close()
            node.scheduler.stop_runners()
            errors += node.parts.close()
        return errors

    def call(self, batch: list[Request], index: int = 0) -> list[Exception | None]:
        """Call an instance; give an exception or None per item."""
        backend, thread = self.instances[index], self._threads[index]
        outcomes = backend(batch) if thread is None else thread.call(backend, batch)
        return [None] * len(batch) if outcomes is None else list(outcomes)

    def results(self, batch: list[Request], index: int = 0) -> list[Any]:
        """Call an instance with requests that are right; give their results.

        Raises:
            Broken: One failed, or has no result.
        """
        outcomes = self.call(batch, index)
        for place, (request, outcome) in enumerate(zip(batch, outcomes, strict=True)):
            if outcome is not None:
                raise Broken(
                    f"item {place} of a batch of {len(batch)} failed: "
                    f"{type(outcome).__name__}: {outcome}"
                ) from outcome
            if "result" not in request:
                raise Broken(f"item {place} of a batch of {len(batch)} got no 'result'")
        return [dict.__getitem__(request, "result") for request in batch]

    def filled(self, request: Request) -> list[Request]:
        """Give the smallest batch that begins with a request: shallow copies are added, as by pad."""
        batch = [request]
        while self.backend.max != 1 and weight_of(batch) < self.backend.min:
            batch.append(dict(request))
        return batch

    def alone(self, request: Request, index: int = 0) -> Exception | None:
        """Call an instance with one request, filled up to its min; give that one's outcome."""
        return self.call(self.filled(request), index)[0]

    def result_alone(self, request: Request, index: int = 0) -> Any:
        """Give the result of one request."""
        return self.results(self.filled(request), index)[0]

    def take(self, item: Callable[[int], Request], want: int = USUAL_BATCH) -> list[Request]:
        """Make a batch of up to ``want`` requests, more where the min asks for them."""
        least, most = self.range
        batch: list[Request] = []
        while len(batch) < want or weight_of(batch) < least:
            request = item(len(batch))
            full = len(batch) if most == 1 else weight_of([*batch, request]) - 1
            if batch and most is not None and full >= most:
                break
            batch.append(request)
        return batch


class Subject:
    """A conformance class and the backend it names.

    Attributes:
        kit: An instance of the class.
        promised: The class that an entry point promises, or None.
        measured: What rules have measured once and share.
    """

    def __init__(self, kit: BackendConformance, promised: type[Backend] | None = None) -> None:
        self.kit = kit
        self.promised = promised
        self._open: list[Live] = []
        self._expected: dict[int, Any] = {}
        self.measured: dict[Any, Any] = {}

    # What was written.

    def settings(self, **more: Any) -> dict[str, Any]:
        """Give the configuration: the expression, and what goes beside it."""
        return {"backend": self.kit.expression, **dict(self.kit.options), **more}

    def load(self, **more: Any) -> PipelineConfig:
        """Read the configuration; it is checked, nothing is built."""
        from headrace._config import PipelineConfig

        return PipelineConfig.load(self.settings(**more))

    @cached_property
    def config(self) -> PipelineConfig:
        """The configuration."""
        return self.load()

    @property
    def element(self) -> Element:
        """The outermost name of the expression."""
        found = self.config._plan.nodes[NODE].backend
        if found is None:
            raise Broken(f"{self.kit.expression!r} names no backend that an instance is built from")
        return found

    @property
    def cls(self) -> type[Backend]:
        """The class of the outermost name."""
        return self.element.cls

    @property
    def children(self) -> list[Element]:
        """What stands inside the outermost name, at any depth."""
        return self.element.walk()[1:]

    # What it declares.

    def declared(self, which: str, element: Element | None = None) -> Keys:
        """Give the keys that an element declares under ``reads`` or ``writes``."""
        element = self.element if element is None else element
        value = getattr(element.cls, which)
        if element is self.element:
            value = getattr(self.live.root, which)
        return declared_keys(value, element.options)

    # What is built.

    def build(self, instance_num: int = 1) -> Live:
        """Build it; it is closed at the end of the run, unless the caller does so before."""
        config = self.config if instance_num == 1 else self.load(instance_num=instance_num)
        live = Live(config._plan)
        self._open.append(live)
        return live

    def done(self, live: Live) -> None:
        """Close one.

        Raises:
            Broken: Its ``close`` failed.
        """
        self._open.remove(live)
        errors = live.close()
        if errors:
            raise Broken(f"close failed: {type(errors[0]).__name__}: {errors[0]}") from errors[0]

    def close(self) -> None:
        """Close what is still open."""
        while self._open:
            self._open.pop().close()

    @cached_property
    def live(self) -> Live:
        """The one that only ever sees requests that are right."""
        return self.build()

    @cached_property
    def tried(self) -> Live:
        """The one that gets the wrong ones."""
        return self.build()

    # Requests.

    def item(self, k: int) -> Request:
        """Give the request number ``k``."""
        return self.kit.make_item(k)

    def items(self, ks: Iterable[int]) -> list[Request]:
        """Give several requests."""
        return [self.item(k) for k in ks]

    def expected(self, k: int) -> Any:
        """Give what request ``k`` gives alone, in an instance that sees only right ones."""
        if k not in self._expected:
            self._expected[k] = kept(self.live.result_alone(self.item(k)))
        return self._expected[k]

    def given(self, live: Live, ks: list[int], *, index: int = 0) -> list[Any]:
        """Run a batch of these requests; give copies of their results.

        A batch that is too light is filled up with the last request, as by pad.
        """
        batch = self.items(ks)
        while live.backend.max != 1 and weight_of(batch) < live.backend.min:
            batch.append(self.item(ks[-1]))
        return [kept(result) for result in live.results(batch, index)][: len(ks)]

    def must_give(self, live: Live, ks: list[int], what: str, *, index: int = 0) -> None:
        """Run a batch of these requests and compare each result with what it gives alone.

        Raises:
            Broken: One fails or differs; ``what`` begins the sentence.
        """
        self.must_match(self.given(live, ks, index=index), ks, what)

    def must_match(self, results: list[Any], ks: list[int], what: str) -> None:
        """Compare the results of these requests with what each gives alone.

        Raises:
            Broken: One differs; ``what`` begins the sentence.
        """
        for k, result in zip(ks, results, strict=True):
            self.must_equal(result, self.expected(k), f"{what}, request {k} differs")

    def must_equal(self, result: Any, expected: Any, what: str) -> None:
        """Compare two results.

        Raises:
            Broken: They differ; ``what`` begins the sentence.
        """
        found = self.differ(result, expected)
        if found is not None:
            raise Broken(f"{what}: {found}")

    def differ(self, result: Any, expected: Any) -> str | None:
        """Say where two results differ, within the tolerance; None when they are equal."""
        return difference(result, expected, rtol=self.kit.rtol, atol=self.kit.atol)


def declared_keys(declared: Any, options: Any) -> Keys:
    """Give the keys of ``reads`` or ``writes``: a tuple of keys and ``{option}``, or a TypedDict.

    An option may hold one key, a list of keys, a table whose values are keys, or None for no key.
    """
    if isinstance(declared, type):
        required = set(getattr(declared, "__required_keys__", ()))
        for key, annotation in declared.__annotations__.items():
            # Under `from __future__ import annotations` Python itself does not see these words.
            word = _WORD.match(getattr(annotation, "__forward_arg__", ""))
            if word is not None:
                (required.add if word[1] == "Required" else required.discard)(key)
        return Keys(frozenset(required), frozenset(declared.__annotations__) - required)
    found: list[str] = []
    for key in declared:
        if key.startswith("{") and key.endswith("}"):
            value = getattr(options, key[1:-1], None)
            if isinstance(value, str):
                found.append(value)
            elif isinstance(value, Mapping):
                found.extend(value.values())
            else:
                found.extend(value or ())
        else:
            found.append(key)
    return Keys(frozenset(found), frozenset())
