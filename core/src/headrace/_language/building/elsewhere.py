"""Children that another process builds.

A container with ``builds_elsewhere`` is given their configurations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from headrace._language.building.elements import ElementBuilder, fields_of
from headrace._language.contract.options import keys_of
from headrace._language.expression.tree import Args, Call
from headrace._language.plan.data import plain_copy
from headrace._language.plan.pipeline_config import PipelineConfig
from headrace._language.plan.word import word_of

if TYPE_CHECKING:
    from pathlib import Path

    from headrace._language.building.parts import BuildSite
    from headrace._language.plan.element import Element, Prefix


class ChildConfig:
    """One child of a container with ``builds_elsewhere``, built elsewhere from its `config`.

    Attributes:
        name: The child's name, as written.
        min, max: The child's range in weights, both included, as its classes state it. ``max`` None
            for unbounded. The child may have another range once it is built.
        instances: How many instances of the node are built together, each with such a child of its
            own. 0 where the container is built alone.
        origin: Equal for the children of those instances.
        liveness: Shows the kernel whether the instance can serve, see `Liveness`.
        asked: The methods of a probe for which runs of the child's backends are to be reported.
            Empty where nobody listens.
    """

    def __init__(self, builder: ElementBuilder, element: Element, at: BuildSite) -> None:
        self.name, (self.min, self.max) = element.name, element.range
        self.instances = builder.node.instance_num if at.index is not None else 0
        self.origin: Any = element
        self.liveness, self._index, self._builder = at.liveness, at.index or 0, builder
        self.asked = tuple(builder.measuring.methods_reported(element))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to the node.

        A copy has no `origin` and `liveness`, and cannot be asked for `seen`.
        """
        left_out = dict.fromkeys(("origin", "liveness", "_builder"))
        return {**vars(self), "config": self.config, **left_out}

    @cached_property
    def config(self) -> PipelineConfig:
        """The configuration of a node with the name of this one, and the child as its backend.

        It holds the options that count here. It can be pickled, and is checked again where it is
        unpickled.

        Raises:
            ConfigError: The child cannot be written as a configuration.
        """
        builder, keys = self._builder, dict[str, Any]()
        plan, base = builder.build.plan, self.origin.call.source.base
        keys["backend"] = str(_write(self.origin, base, keys))
        source = {
            "import": [path for path, _ in plan.files],
            "global": {"threads": plan.threads_of(builder.name)},
            builder.name: keys,
        }
        return PipelineConfig.load(source, base=base, allow_import=plan.allow_import)

    def seen(self, index: int) -> dict[str, Any]:
        """Return what the child's backends see in their context for an instance.

        It is ``seen`` of `headrace.plugins.build`.
        """
        return fields_of(self._builder.node, index)

    def report(self, runs: Iterable[Any]) -> None:
        """Let probes and ``stats()`` know of runs in the other process.

        Args:
            runs: Per run the method of the probe, the path of the backend below the child, and what
                the method is given after that path.
        """
        self._builder.measuring.report(self.origin, self._index, runs)

    def _label(self) -> str:
        return self.name


def _write(element: Element, base: Path, keys: dict[str, Any]) -> Call:
    """Return an element as it is written by itself.

    Add to ``keys`` what keys and ``[global]`` have given it here.
    """
    call, fields = element.call, keys_of(element.cls.Options)
    # In another file other folders count than those of the first.
    as_is, args = call.source.base == base, list[tuple[str, Any]]()
    for key, origin in element.origins.items():
        if origin == "default":
            continue
        value = getattr(element.options, fields[key])
        if origin in ("node", "global") or (isinstance(value, Mapping) and not as_is):
            keys[f"{call.name}::{key}"] = _as_text(value)
        else:
            args.append((key, plain_copy(value)))
    names = call.children[: word_of(element.cls)._names]
    prefixes = chain(element.prefixes, repeat(((), {})))
    phases = tuple(
        (*names, *(_behind(next(prefixes), _write(child, base, keys)) for child in phase))
        for phase in element.phases
    )
    args_here = call.args if as_is else Args(named=tuple(args))
    return call.replace(args=args_here, phases=phases or call.phases, prefix=None)


def _behind(prefix: Prefix, call: Call) -> Call:
    positional, named = prefix
    return call.replace(prefix=Args(positional, tuple(named.items()))) if any(prefix) else call


def _as_text(value: Any) -> Any:
    """Return a value as it is written, where a ``$`` may begin a placeholder."""
    if isinstance(value, Mapping):
        return {str(key): _as_text(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, frozenset, set)):
        return [*map(_as_text, value)]
    return value.replace("${", "$${") if isinstance(value, str) else value
