"""Plans of children, which a container with ``builds_elsewhere`` is given in place of built children.

A plan can be pickled, says what is known before anything is built, and builds the child where its ``build``
is called: in another process, on another machine, or in this process.
"""

from __future__ import annotations

import copy
import io
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

from headrace._build.elements import Build, ElementBuilder
from headrace._build.measuring import Reports
from headrace._build.parts import BuildSite, CloseStack, PipelineState
from headrace._build.wrappers import Wrapper
from headrace._contract.backend import Backend
from headrace._contract.checked import Liveness, Outcomes
from headrace._plan.declared import OPTIONAL
from headrace._plan.element import Element, NodePlan, PipelinePlan
from headrace._plan.word import Word, give_thread, keys_read_by, required_keys
from headrace._portable import error_text
from headrace._registry.backends import FunctionBackend, as_backend, of_function, source_of
from headrace._registry.imports import run_imports
from headrace._running.parts import elsewhere
from headrace._version import __version__
from headrace.errors import SetupError
from headrace.keys import DATA, Request

_INTO_A_MODULE = "into a module, or into a file that the configuration names under `import`."
_IMPORTABLE = f"Put it {_INTO_A_MODULE}"


class ChildPlan:
    """One child of a container with ``builds_elsewhere``, described so that another process can build it.

    A plan can be pickled. To unpickle it, nothing but `headrace` is imported.

    Attributes:
        name: The child's name, as written.
        expression: The text of the child, with its bracket.
        min, max: The child's range in weights, both included, as its classes state it. ``max`` None for
            unbounded. The child may have another range once it is built.
        keys: The keys to send, if a request has them: the declared inputs of the child's backends, and the optional
            reserved keys (``request_size``, ``context``, ``request_id``, ...).
        requires: The versions needed to build it elsewhere, by distribution: core, every plugin with a class in the
            child, and ``python``, as ``"3.11"``.
        options: The names in the child as they were written, parents first, each with its checked options.
        files: The paths of the files imported by the configuration. They run where the child is built.
        instances: How many instances of the node are built together, each with such a plan of its own. 0 where
            the container is built alone.
        origin: Equal for the plans of those instances. None in an unpickled plan.
        liveness: Shows the scheduler whether the instance can serve, see `Liveness`. None in an unpickled plan.
    """

    def __init__(self, builder: ElementBuilder, element: Element, at: BuildSite) -> None:
        """Make the plan of a child for the container in which it stands.

        Raises:
            SetupError: The child names classes or functions that cannot be pickled.
        """
        plan, every = builder.build.plan, [*element.walk()]
        self.origin: Any = element
        self.liveness: Liveness | None = at.liveness
        reported = builder.measuring.methods_reported(element)
        self._measuring = builder.measuring if reported else None
        self._index = at.index or 0
        self.instances = builder.keys.instance_num if at.index is not None else 0
        self.name = element.name
        self.expression = str(element.call)
        self.min, self.max = element.range
        self.keys = _keys_to_send(_reads(element, {}))
        self.requires = {
            one.offer.distribution: one.offer.version for one in every if one.offer.version
        }
        self.requires |= {
            "python": "{}.{}".format(*sys.version_info),
            "headrace": __version__,
        }
        self.options = [(str(one.call), one.options) for one in every]
        self.files = tuple(path for path, _ in plan.files)
        content = (
            builder.name,
            builder.keys,
            element,
            builder.build.threads,
            plan.allow_import,
            reported,
        )
        self._content = _pickle(content, self.expression, builder.name)

    def __repr__(self) -> str:
        return f"<plan of {self.expression}>"

    def __getstate__(self) -> dict[str, Any]:
        here = ("origin", "liveness", "options", "_measuring")
        return {**vars(self), **dict.fromkeys(here)}

    @property
    def measures(self) -> bool:
        """Whether a probe, or ``timings``, asks for the runs of the child's backends: see `report`."""
        return self._measuring is not None

    def report(self, runs: list[Any]) -> None:
        """Let probes and ``stats()`` know what `BuiltElsewhere.measured` has given, in the container's process."""
        if self._measuring is not None:
            self._measuring.report(self.origin, self._index, runs)

    def _label(self) -> str:
        return self.name

    def of_instance(self, index: int) -> ChildPlan:
        """Return the plan of the same child for another instance of its node."""
        other = copy.copy(self)  # as it is pickled: without its options
        other._index, other.options = index, self.options
        return other

    def build(self, *, own_thread: bool = True) -> BuiltElsewhere:
        """Build the child in this process.

        The files imported by the configuration run first. Environment variables and relative paths are those of this
        process.

        Args:
            own_thread: Whether a backend with ``owns_thread`` gets a thread. Pass False if the calling thread makes all
                calls of the child and closes it: then it is this thread.

        Raises:
            SetupError: The child could not be built. Its finished parts are closed again.
            PluginError: A plugin, a library or an imported file is missing here, or raised.
        """
        files = run_imports([(path, Path()) for path in self.files])
        try:
            content = pickle.loads(self._content)  # noqa: S301 - `__init__` has pickled it
        except Exception as error:
            what = f"something in {self.expression} is not known here: {error_text(error)}"
            raise SetupError(what, hint=_IMPORTABLE) from error
        name, keys, element, threads, allow_import, reported = content
        if own_thread:
            give_thread(element)
        else:
            element.own_thread = False
        node = NodePlan(name, keys, {}, element, None, None)  # type: ignore[arg-type]
        plan = PipelinePlan({}, files=files, allow_import=allow_import)
        parts, reports = CloseStack(), Reports(element, reported)
        commons = PipelineState(probes=reports.probes)
        builder = ElementBuilder(Build(plan, ChildPlan, commons, threads=threads), node, parts)
        try:
            at = BuildSite.begin(parts, index=self._index)
            child = at.end.around(builder.element(element, at), element)
        except BaseException:
            parts.close()
            raise
        return BuiltElsewhere(child, element, builder, reports)


class BuiltElsewhere(Wrapper):
    """The child built by a `ChildPlan`: call it with ``built(batch)``, close it with ``close()``.

    Attributes:
        name: The child's name, as written.
        min, max: The child's range, as ``init`` has left it.
        rerun: Whether all backends in the child say ``rerun``.
        reads: The keys read by the child's backends, as ``init`` has left them.
        keys: The keys to send. See `ChildPlan`.
        needs: The keys without which a request cannot be run.
    """

    def __init__(
        self, child: Backend, element: Element, builder: ElementBuilder, reports: Reports
    ) -> None:
        super().__init__(child)
        built = builder.by_element
        self.rerun = all(_may_rerun(one, built) for one in element.walk())  # type: ignore[misc]
        self.reads: tuple[str, ...] = _reads(element, built)
        self.keys = _keys_to_send(self.reads)
        self.needs = required_keys(element, built)
        self.name = self._label()
        self._element, self._builder, self._reports = element, builder, reports

    @property
    def lost(self) -> bool:
        """Whether the child can serve no more: a backend in it has raised InstanceLostError."""
        return self._liveness is not None and self._liveness.lost

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run the child on a batch."""
        return self.child(batch)

    def measured(self, batch: list[Request]) -> tuple[Outcomes, list[Any]]:
        """Run the child on a batch, and measure its backends.

        Returns:
            The outcomes, and what `ChildPlan.report` takes: plain values.
        """
        runs: list[Any] = []
        self._reports.kept = runs
        try:
            return self(batch), runs
        finally:
            self._reports.kept = None

    @contextmanager
    def sending_parts(
        self, requests: list[Request], send: Callable[[int, Any], object] | None
    ) -> Iterator[None]:
        """Let ``send(number, part)`` have the parts of answers in the meantime; None where nobody reads any."""
        elsewhere.start(requests, send)
        try:
            yield
        finally:
            elsewhere.parts.clear()

    def describe(self) -> dict[str, Any]:
        """Return the tree of the child, as in ``Pipeline.describe()``."""
        # A process that only runs batches does not need it.
        from headrace._plan.publish import public_element

        return public_element(self._element, self._builder.by_element).to_dict()

    def close(self) -> None:
        """Close all that was built, newest first, and log errors. A second call does nothing."""
        self._state = "closed"
        self._builder.parts.close()


def _reads(element: Element, built: Mapping[Element, Backend]) -> tuple[str, ...]:
    """Return all keys that the backends in an element say they read."""
    return tuple(sorted({DATA, *filter(None, keys_read_by(element, built))}))


def _keys_to_send(reads: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*reads, *OPTIONAL} - {"result"}))


def _may_rerun(element: Element, built: dict[Element, Backend]) -> bool:
    """Tell whether a backend says ``rerun``; for a word of core with children only the children count."""
    inner = bool(element.children) and issubclass(element.cls, Word)
    return inner or element.named is not None or built.get(element, element.cls).rerun


# A backend class that core has made of a user's class or function cannot be imported by name in another
# process: it is pickled as that class or function, and made again over there.


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType)) and obj.__module__ == "__main__":
            what = f"{obj.__qualname__} is part of the program itself, __main__"
            raise pickle.PicklingError(what)
        made = isinstance(obj, type) and issubclass(obj, Backend) and source_of(obj) is not obj
        if not made:
            return NotImplemented
        if issubclass(obj, FunctionBackend):
            return partial(of_function, batched=obj.batched), (source_of(obj),)
        return as_backend, (source_of(obj),)


def _pickle(content: Any, expression: str, node: str) -> bytes:
    packed = io.BytesIO()
    try:
        _Pickler(packed, pickle.HIGHEST_PROTOCOL).dump(content)
    except Exception as error:
        what = f"{expression} cannot be sent to another process: {error_text(error)}"
        hint = f"Let its classes and functions be importable: put them {_INTO_A_MODULE}"
        raise SetupError(what, node=node, hint=hint) from error
    return packed.getvalue()
