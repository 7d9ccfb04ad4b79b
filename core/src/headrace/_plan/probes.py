"""The probes of a pipeline: ``probes = ["Name", "Other(a=1)"]``, each checked like a policy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace._config.problems import key_place
from headrace._options import Options
from headrace._plan.element import ProbePlan
from headrace._plan.options import OptionsReader
from headrace._plan.parameters import Parameters
from headrace._plan.scope import Layer, Scope
from headrace._registry.loading import load
from headrace._registry.registry import nearest, registry
from headrace.errors import PluginError

if TYPE_CHECKING:
    from headrace._config.document import Written
    from headrace._expression import Call
    from headrace._plan.planner import Pipeline
    from headrace._registry.hooks import Offer

__all__ = ["PROBE_METHODS", "plan_probes"]

PROBE_METHODS = ("batch_done", "request_done")
"""A probe is a class with any of these."""

_PATH = "global.probes"
_HOOK = "headrace_probes"


def plan_probes(pipeline: Pipeline) -> tuple[ProbePlan, ...]:
    """Plan what ``[global] probes`` lists; what is wrong is reported and left out."""
    table = pipeline.shape.globals
    written = table.get("probes")
    if written is None or written.value is None:
        return ()
    value = [written.value] if isinstance(written.value, str) else written.value
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        pipeline.problems.add(
            "type",
            "probes is a list of texts",
            hint='Write probes = ["Name"] or ["Name(a=1)"].',
            **key_place(written.file, _PATH, "probes", value),
        )
        return ()
    items = [replace(written, value=item) for item in value]
    resolver = pipeline.resolver
    parameters = Parameters("global", {}, table, pipeline.used_globals)
    pipeline.parameters.append(parameters)
    resolver.enter("global", None, parameters)
    planned: dict[str, ProbePlan] = {}
    for item in items:
        probe = _plan(pipeline, item)
        if probe is None:
            parameters.incomplete = True
        elif probe.text in planned:
            pipeline.problems.add(
                "twice",
                f"the probe {probe.text} is listed twice",
                **key_place(written.file, _PATH, "probes", value),
            )
        else:
            planned[probe.text] = probe
    resolver.leave("global")
    return tuple(planned.values())


def _plan(pipeline: Pipeline, written: Written) -> ProbePlan | None:
    resolver = pipeline.resolver
    call = pipeline.read(written, _PATH, None)
    if call is None:
        return None
    scope = Scope(Layer(_PATH, written.file, str(written.base), written=written))
    found = _class(pipeline, call, scope)
    if found is None:
        return None
    offer, cls = found
    if call.phases:
        resolver.add("arity", f"the probe {call.name} takes nothing in [ ]", call, scope)
    names = (call.name, call.part, f"{offer.record.plugin}:{call.part}")
    options, _ = OptionsReader(
        call,
        getattr(cls, "Options", Options),
        scope,
        resolver.parameters,
        resolver.problems,
        tuple(dict.fromkeys(names)),
    ).read()
    if options is None or call.phases:
        return None
    given = options if hasattr(cls, "Options") else None
    return ProbePlan(
        written.value.strip(), cls, given, offer.record.distribution, offer.record.version
    )


def _class(pipeline: Pipeline, call: Call, scope: Scope) -> tuple[Offer, type[Any]] | None:
    """Give the class behind the name of a probe; report what is in the way."""
    add = pipeline.resolver.add
    try:
        offer = registry.offer(_HOOK, call.name, "probe")
        if offer is None:
            known = registry.offered(_HOOK)
            there_are = f"There are: {', '.join(known)}." if known else "No plugin offers a probe."
            add(
                "unknown_probe",
                f"unknown probe {call.name!r}",
                call,
                scope,
                suggestion=nearest(call.part, known),
                hint=" ".join([there_are, *registry.unusable_hooks()]),
            )
            return None
        cls = load(offer.path, offer.record.distribution)
    except PluginError as error:
        add(error.code, error.what, call, scope, hint=error.hint)
        return None
    if isinstance(cls, type) and any(callable(getattr(cls, m, None)) for m in PROBE_METHODS):
        return offer, cls
    add(
        "probe",
        f"{offer.path!r} of {offer.record.distribution} is no probe: a class with "
        f"{' or '.join(PROBE_METHODS)}",
        call,
        scope,
    )
    return None
