"""From a configuration to a blueprint and to the pipeline: the one module that knows both wings of core."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

from headrace._language.build.builder import Builder
from headrace._run.pipeline import Pipeline, without_inner_frames
from headrace._language.contract.addresses import fetch_all, places_in
from headrace._language.contract.backend import ProgressFactory, no_progress
from headrace._language.plan.element import elements_of
from headrace._language.plan.pipeline_config import PipelineConfig
from headrace._texts import error_text
from headrace._run.blueprint import Blueprint, Limits, NodeBlueprint
from headrace.errors import ConfigError, HeadraceError, PluginError, SetupError
from headrace._run.policies import BestFit

if TYPE_CHECKING:
    from headrace._language.contract.options import Options
    from headrace._language.plan.element import NodePlan


def pipe(
    source: str | os.PathLike[str] | Mapping[str, Any] | PipelineConfig,
    *,
    allow_import: bool = True,
    progress: ProgressFactory = no_progress,
) -> Pipeline:
    """Build a pipeline. It is warm and accepts requests when this returns.

    Args:
        source: A dict, the path of a TOML file (a text is always a path), or a configuration.
        allow_import: Whether the code under ``import`` may run.
        progress: Shows long work in ``init``: ``progress(total, unit)`` gives a context manager for
            one piece of work, which yields a function that is called with the number of ``unit``
            done since its last call. ``total`` may be None. Pieces may overlap. Default: silent.

    Raises:
        ConfigError: The configuration is wrong. Nothing was built.
        SetupError: A backend could not be built. What was built is closed again.
        PluginError: A plugin or a library is missing.
    """
    try:
        return Pipeline(compose(PipelineConfig.load(source, allow_import=allow_import), progress))
    except (ConfigError, PluginError, SetupError) as error:
        raise without_inner_frames(error) from error.__cause__


def compose(
    config: PipelineConfig,
    progress: ProgressFactory = no_progress,
    seen: Mapping[str, Any] | None = None,
) -> Blueprint:
    """Make the blueprint from which a pipeline of this configuration starts; nothing is built yet."""
    builder, plan = Builder(config._plan), config._plan
    builder.progress, builder.seen = progress, seen
    owned = [(name, own) for name, node in plan.nodes.items() for own in node.own_keys]
    for one in elements_of(plan.roots) if owned else ():
        fetch_all(one.options)  # what a check compares
    builder.behind = [own.check(config, name) for name, own in owned]
    return Blueprint(
        nodes={name: _node(builder, node) for name, node in plan.nodes.items()},
        order=tuple(plan.links),
        probes={
            one.text: _Factory(f"the probe {one.text} of {one.distribution}", one.cls, one.options)
            for one in plan.probes
        },
        listen=partial(setattr, builder.commons, "probes"),
        store=builder.commons.store,
        close=builder.close,
        config=config,
        described=partial(_fetched, config),
    )


def _fetched(config: PipelineConfig) -> dict[str, Any]:
    """Return what ``Pipeline.describe()`` says of the files that were fetched."""
    options = [one.options for one in elements_of(config._plan.roots)]
    found = [one.origin() for one in places_in(options)]
    return {"fetched": found} if found else {}


def _node(builder: Builder, node: NodePlan) -> NodeBlueprint:
    plan, build = builder.plan, partial(builder.node, node.name)
    batch, dispatch = (
        _Factory(f"the policy {one.cls.__name__}", one.cls, one.options, node.name)
        for one in (node.batch_policy, node.dispatch_policy)
    )
    other = dispatch if dispatch.cls is not batch.cls else None
    limits = limits_of(node, plan.keys.deadlock_after_s)
    return NodeBlueprint(plan.links[node.name], build, batch, other, limits)


def limits_of(node: NodePlan, deadlock_after_s: float) -> Limits:
    """Return the queue keys of a node."""
    keys = node.keys
    return Limits(
        queue_size=keys.queue_size,
        queue_full=keys.queue_full,
        timeout_ms=keys.timeout_ms,
        batching_timeout_ms=keys.batching_timeout,
        batch_sizes=keys.batch_sizes or (),
        pad=keys.pad,
        deadlock_after_s=deadlock_after_s,
        shortcut=_may_skip(node.batch_policy.cls, node.dispatch_policy.cls),
    )


def _may_skip(batch: type[Any], dispatch: type[Any]) -> bool:
    """Tell whether a request may skip the policies where an instance is idle and no other request waits.

    A class allows that with ``sends_when_idle``. A subclass that has a ``cut`` of its own has to say so anew.
    """
    own = dispatch.choose is BestFit.choose
    says = next(one for one in batch.__mro__ if "sends_when_idle" in vars(one))
    cuts = next(one for one in batch.__mro__ if "cut" in vars(one))
    return own and ("sends_when_idle" in vars(batch) or issubclass(says, cuts))


@dataclass(frozen=True)
class _Factory:
    """Makes a policy or a probe, and raises a SetupError when the class raises."""

    what: str
    cls: type[Any]
    options: Options | None
    node: str | None = None

    def __call__(self) -> Any:
        try:
            takes = self.options is not None and signature(self.cls).parameters
            fetch_all(self.options)
            return self.cls(self.options) if takes else self.cls()
        except HeadraceError:
            raise
        except Exception as error:
            message = f"{self.what} could not be made: {error_text(error)}"
            raise SetupError(message, node=self.node) from error
