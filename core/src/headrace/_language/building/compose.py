"""From a configuration to a blueprint and to the pipeline.

This is the one module that knows both halves of core.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

from headrace._language.building.builder import Builder
from headrace._language.contract.addresses import hold_files, places_in
from headrace._language.contract.backend import ProgressFactory, no_progress
from headrace._language.plan.element import elements_of
from headrace._language.plan.pipeline_config import PipelineConfig
from headrace._run.blueprint import Blueprint, NodeBlueprint
from headrace._run.contract.policies import BestFit
from headrace._run.contract.settings import Limits
from headrace._run.pipeline import Pipeline, without_inner_frames
from headrace._texts import error_text
from headrace.errors import ConfigError, HeadraceError, PluginError, SetupError

if TYPE_CHECKING:
    from headrace._language.contract.addresses import Fetched
    from headrace._language.plan.nodes import NamedPlan, NodePlan


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
    """Make the blueprint from which a pipeline of this configuration starts.

    Nothing is built yet.
    """
    builder, plan = Builder(config._plan), config._plan
    builder.progress, builder.seen = progress, seen
    owned = [(name, keys) for name, node in plan.nodes.items() for keys in node.own_keys]
    for element in elements_of(plan.expressions) if owned else ():
        with hold_files(element.options):  # what a check compares
            pass
    builder.behind = [keys.check(config, name) for name, keys in owned]
    return Blueprint(
        nodes={name: _node(builder, plan.nodes[name]) for name in plan.order},
        order=tuple(plan.nodes),
        probes={
            probe.text: partial(_make, f"the probe {probe.text} of {probe.distribution}", probe)
            for probe in plan.probe_plans
        },
        heard=builder.probes,
        store=builder.store,
        close=builder.close,
        config=config,
        described=partial(_describe_fetched, _places_of(config)),
    )


def _places_of(config: PipelineConfig) -> list[Fetched]:
    return places_in([element.options for element in elements_of(config._plan.expressions)])


def _describe_fetched(places: list[Fetched]) -> dict[str, Any]:
    """Return what ``Pipeline.describe()`` says of the files that were fetched."""
    origins = [place.origin() for place in places]
    return {"fetched": origins} if origins else {}


def _node(builder: Builder, node: NodePlan) -> NodeBlueprint:
    batch, dispatch = (
        partial(_make, f"the policy {policy.cls.__name__}", policy, node.name)
        for policy in (node.batch_policy, node.dispatch_policy)
    )
    if node.instance_num > 1 and node.auto is not None:
        batch = partial(_spreading, batch)
    keys = node.keys
    return NodeBlueprint(
        links=node.links,
        build=partial(builder.node, node.name),
        batch_policy=batch,
        dispatch_policy=dispatch if node.dispatch_policy.cls is not node.batch_policy.cls else None,
        limits=Limits(
            queue_size=keys.queue_size,
            queue_full=keys.queue_full,
            timeout_ms=keys.timeout_ms,
            batching_timeout_ms=keys.batching_timeout,
            batch_sizes=keys.batch_sizes or (),
            pad=keys.pad,
            deadlock_after_s=builder.plan.keys.deadlock_after_s,
            shortcut=_may_skip(node.batch_policy.cls, node.dispatch_policy.cls),
        ),
    )


def _may_skip(batch: type[Any], dispatch: type[Any]) -> bool:
    """Tell whether a request may skip the policies: an instance is idle and no other request waits.

    A class allows that with ``sends_when_idle``. A subclass that has a ``cut`` of its own has to
    say so anew.
    """
    is_default = dispatch.choose is BestFit.choose
    says = next(base for base in batch.__mro__ if "sends_when_idle" in vars(base))
    cuts = next(base for base in batch.__mro__ if "cut" in vars(base))
    return is_default and ("sends_when_idle" in vars(batch) or issubclass(says, cuts))


def _spreading(make: Callable[[], Any]) -> Any:
    """Make a policy, and have it share what waits among idle instances if it can."""
    policy = make()
    if hasattr(policy, "spreads"):
        policy.spreads = True
    return policy


def _make(subject: str, plan: NamedPlan, node: str | None = None) -> Any:
    """Make a policy or a probe.

    Raises:
        SetupError: Its class has raised.
    """
    try:
        takes = plan.options is not None and signature(plan.cls).parameters
        with hold_files(plan.options):
            return plan.cls(plan.options) if takes else plan.cls()
    except HeadraceError:
        raise
    except Exception as error:
        raise SetupError(f"{subject} could not be made: {error_text(error)}", node=node) from error
