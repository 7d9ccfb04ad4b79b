"""The backend under test: it is planned once, and its results for single requests are kept for comparison."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import headrace
from headrace_testing.conformance.declared import Keys, declared_keys
from headrace_testing.conformance.live import MOST, Live, weight_of
from headrace_testing.conformance.outcome import Broken
from headrace_testing.conformance.settings import settings
from headrace_testing.conformance.values import difference, kept

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace import Backend, PipelineConfig
    from headrace.keys import Request
    from headrace.plan import Element
    from headrace_testing.conformance.base import BackendConformance

DISTINCT = 17
"""How many different requests a large batch holds and repeats.

It is a prime number, so that results which are shifted by half or a quarter of a batch belong to other
requests.
"""


CHANGES_INPUTS = "changes what requests come with"
"""The key of `Subject.measured` under which `inputs-kept` says that it has reported this."""

_DRAWN = ((range(17, 32), 2), (range(33, 64), 1), (range(101, 200), 1), (range(200, 401), 1))
"""From which weights some are drawn, and how many: between powers of two libraries pad, and above 100 they cut."""

_BATCH_BYTES = 1 << 28
"""How large a batch of a weight that is drawn may be."""


@contextlib.contextmanager
def replaced(cls: type[Backend], name: str, method: Any) -> Iterator[None]:
    """Replace a method of a class during the ``with``."""
    own = vars(cls).get(name)
    setattr(cls, name, method)
    try:
        yield
    finally:
        if own is None:
            delattr(cls, name)
        else:
            setattr(cls, name, own)


class Subject:
    """A conformance class and the backend it names.

    Attributes:
        kit: An instance of the class.
        promised: The class that an entry point promises, or None.
        unavailable: Why the backend cannot be built by itself (what this machine lacks, or that it
            works only inside another expression). None where it can.
        share: What share of their requests and time the rules take that look for what is rare. 1 in full.
        measured: Measurements that several rules share.
        settings_before: The settings of the process before the backend was first built.
    """

    def __init__(
        self, kit: BackendConformance, promised: type[Backend] | None = None, share: float = 1.0
    ) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share is {share}, and is above 0 and at most 1")
        self.kit = kit
        self.share = share
        self.promised = promised
        self.unavailable = lacking = kit.unavailable()
        if lacking is not None and not (isinstance(lacking, str) and lacking.strip()):
            raise ValueError(
                f"{type(kit).__name__}.unavailable() gives {lacking!r}, which is neither None nor a "
                "text that says what is lacking"
            )
        if kit.inside is not None:
            self.unavailable = f"it works only inside {kit.inside.expression}"
        self._open: list[Live] = []
        self._expected: dict[int, Any] = {}
        self._given: dict[tuple[int, ...], list[Any]] = {}
        self.measured: dict[Any, Any] = {}
        self.settings_before = settings()

    # The conformance class, and its configuration.

    @cached_property
    def options(self) -> dict[str, Any]:
        """The keys beside the expression: `options` of the class, and what its `make_options` gives."""
        options = self.kit.make_options()
        if not isinstance(options, Mapping) or "backend" in options:
            raise Broken(
                f"make_options gives {options!r}, which is no dict of keys beside 'backend'"
            )
        return {**self.kit.options, **options}

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the configuration as a dict: the expression, and the keys beside it."""
        known: dict[str, Any] = {**self.options, **more}
        if self._key == "init":
            return {"backend": "Identity", "init": self.kit.expression, **known}
        return {"backend": self.kit.expression, **known}

    @cached_property
    def _key(self) -> str:
        """The key of the node that holds the expression: ``init`` for a backend that is `not_callable`."""
        try:
            headrace.PipelineConfig.load({"backend": self.kit.expression, **self.options})
        except headrace.errors.ConfigError as error:
            if any(problem.code == "not_callable" for problem in error.problems):
                return "init"
        return "backend"

    def load(self, **more: Any) -> PipelineConfig:
        """Read and check the configuration; nothing is built."""
        return headrace.PipelineConfig.load(self.settings(**more))

    @cached_property
    def config(self) -> PipelineConfig:
        """The configuration."""
        return self.load()

    @cached_property
    def element(self) -> Element:
        """The outermost name of the expression."""
        (node,) = self.config.plan().nodes.values()
        element = node.init if self._key == "init" else node.tree
        if element is None:
            raise Broken(f"{self.kit.expression!r} names no backend that an instance is built from")
        return element

    @property
    def cls(self) -> type[Backend]:
        """The class of the outermost name."""
        return self.element.cls

    @property
    def children(self) -> list[Element]:
        """All elements inside the outermost name, at any depth."""
        return self.element.walk()[1:]

    # The declared keys.

    def declared(self, which: str, element: Element | None = None) -> Keys:
        """Return the keys that an element declares under ``reads`` or ``writes``."""
        element = self.element if element is None else element
        value = getattr(element.cls, which)
        if element is self.element and self.unavailable is None:
            value = getattr(self.live.root, which)
        keys = declared_keys(value, element.options)
        if which == "writes":
            return keys
        weight = keys.required & {"request_size"}  # core reads it too, and uses 1 if it is missing
        return Keys(keys.required - weight, keys.optional | weight)

    # Building the backend.

    def build(self, instance_num: int | None = None) -> Live:
        """Build the backend, which is closed by `done`, or else at the end of the run.

        Args:
            instance_num: The number of instances, of a configuration of their own. None for one of the usual configuration.
        """
        config = self.config if instance_num is None else self.load(instance_num=instance_num)
        limit = self.settings().get("max")
        live = Live(config, None if limit is None else int(limit))
        self._open.append(live)
        return live

    def done(self, live: Live) -> None:
        """Close a backend that `build` has built.

        Raises:
            Broken: Its ``close`` raised an exception.
        """
        self._open.remove(live)
        errors = live.close()
        if errors:
            raise Broken(f"close failed: {type(errors[0]).__name__}: {errors[0]}") from errors[0]

    def close(self) -> None:
        """Close all backends that are still open."""
        while self._open:
            self._open.pop().close()

    @cached_property
    def live(self) -> Live:
        """The backend, built once for all rules, which call it with valid requests only."""
        return self.build()

    @cached_property
    def tried(self) -> Live:
        """The backend, built a second time for the rules about errors, which call it with invalid requests."""
        return self.build()

    # Requests, and their expected results.

    def item(self, k: int) -> Request:
        """Return the request number ``k``.

        Raises:
            Broken: The factory gives something else.
        """
        item: Any = self.kit.make_item(k)
        if type(item) is not dict or not all(isinstance(key, str) for key in item):
            raise Broken(f"make_item({k}) gives {type(item).__name__}, not a dict with text keys")
        return item

    def items(self, ks: Iterable[int]) -> list[Request]:
        """Return several requests."""
        return [self.item(k) for k in ks]

    def repeating(self, k: int) -> Request:
        """Return the request number ``k`` of a large batch."""
        return self.item(k % DISTINCT)

    @cached_property
    def weights(self) -> list[int]:
        """The weights of the batches in which results are compared: those of `Live.weights`, and some drawn at random."""
        least, most = self.live.range
        draw = random.Random(self.kit.expression)  # noqa: S311 - the same for each run
        drawn = [weight for span, count in _DRAWN for weight in draw.sample(span, count)]
        largest = min(MOST if most is None else most, MOST)
        room = _BATCH_BYTES // max(1, self.request_bytes(0, self.live))
        return sorted({*self.live.weights, *(w for w in drawn if least <= w <= min(largest, room))})

    def request_bytes(self, k: int, live: Live) -> int:
        """Return how many bytes of Python's memory request ``k`` takes with its result."""
        try:
            import tracemalloc
        except ImportError:  # an interpreter that does not count them
            return 0
        begun = not tracemalloc.is_tracing()
        if begun:
            tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            request = self.item(k)
            live.alone(request)
            return tracemalloc.get_traced_memory()[0] - before
        finally:
            if begun:
                tracemalloc.stop()

    def expected(self, k: int) -> Any:
        """Return the result that request ``k`` gets alone in `live`, which has run no invalid request."""
        if k not in self._expected:
            self._expected[k] = kept(self.live.result_alone(self.item(k)))
        return self._expected[k]

    def given(self, live: Live, ks: list[int], *, index: int = 0) -> list[Any]:
        """Run a batch of these requests. Give copies of their results.

        A batch below the min is filled up with copies of the last request, as ``pad`` does.
        """
        batch = self.items(ks)
        while live.backend.max != 1 and weight_of(batch) < live.backend.min:
            batch.append(self.item(ks[-1]))
        return [kept(result) for result in live.results(batch, index)][: len(ks)]

    def given_once(self, ks: list[int]) -> list[Any]:
        """Return copies of the results of these requests in one batch of `live`, which is run only once."""
        key = tuple(ks)
        if key not in self._given:
            self._given[key] = self.given(self.live, ks)
        return self._given[key]

    def must_give(self, live: Live, ks: list[int], moment: str, *, index: int = 0) -> None:
        """Run a batch of these requests, and compare each result with that of the request alone.

        Raises:
            Broken: A request fails, or its result differs. ``moment`` begins the sentence.
        """
        self.must_match(self.given(live, ks, index=index), ks, moment)

    def must_match(self, results: list[Any], ks: list[int], moment: str) -> None:
        """Compare the results of these requests with those of each request alone.

        Raises:
            Broken: A result differs. ``moment`` begins the sentence.
        """
        for k, result in zip(ks, results, strict=True):
            self.must_equal(result, self.expected(k), f"{moment}, request {k} differs")

    def must_equal(self, result: Any, expected: Any, problem: str) -> None:
        """Compare two results.

        Raises:
            Broken: They differ. ``problem`` begins the sentence.
        """
        differs = self.differ(result, expected)
        if differs is not None:
            raise Broken(f"{problem}: {differs}")

    def differ(self, result: Any, expected: Any) -> str | None:
        """Say where two results differ, within the tolerance; None when they are equal."""
        return difference(result, expected, rtol=self.kit.rtol, atol=self.kit.atol)
