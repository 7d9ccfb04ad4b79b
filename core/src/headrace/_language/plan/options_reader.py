"""Reading ``Name(a=1)``: the options of a backend, a policy or a probe.

And finding policies and probes.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pydantic import ValidationError

from headrace._language.config.problems import format_value, quotient
from headrace._language.config.sections import KEYS_ELSEWHERE, NODE_KEYS, NodeKeys
from headrace._language.contract.options import Options, keys_of, value_problems
from headrace._language.contract.policy_options import BatchPolicy, DispatchPolicy
from headrace._language.expression.tree import Call
from headrace._language.plan.element import Source, place_of, value_of_expression
from headrace._language.plan.nodes import NamedPlan
from headrace._language.plan.parameters import OWN_KEYS, Found, argument, nearest_choice
from headrace._language.registry.discovery import ELSEWHERE, REPLACED, how_to_install
from headrace._language.registry.files import find_place
from headrace._language.registry.registry import Offer, registry
from headrace._run.records.probes import PROBE_METHODS
from headrace._texts import error_text, nearest
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic_core import ErrorDetails

    from headrace._language.plan.planner import Planner


Given: TypeAlias = "Mapping[str, tuple[Any, str]]"
"""Values that keys of the node give to options, by key, with their origins."""


@dataclass(eq=False)
class OptionsReader:
    """Finds and checks the options of one element of an expression.

    Args:
        call: The element.
        options: The class of its options.
        planning: The planner, with the keys of its node.
        plugin: The qualifier of the plugin that brings the backend, empty where none does.
    """

    call: Call
    options: type[Options]
    planning: Planner
    plugin: str = ""
    _found: dict[str, Found] = field(default_factory=dict)
    _reported: set[str] = field(default_factory=set)
    _wrong: bool = False

    def __post_init__(self) -> None:
        part = self.call.part
        qualified = (f"{self.plugin}:{part}",) if self.plugin else ()
        self.names = tuple(dict.fromkeys((self.call.name, part, *qualified)))
        self.keys = keys_of(self.options)

    def read(self, given: Given | None = None) -> tuple[Options | None, dict[str, str]]:
        """Find the options and check them.

        Args:
            given: Values that keys of the node give to the options, with their origins. Args win
                over them.

        Returns:
            The checked options, None when they are wrong (which is reported), and the origin of
            each value.
        """
        arguments, parameters = self._arguments(), self.planning.parameters
        origins = dict.fromkeys(self.keys, "default")
        values: dict[str, Any] = {}
        for key in self.keys:
            winner = parameters.find(self.names, key, arguments.get(key))
            if winner is not None:
                self._found[key], origins[key] = winner, winner.origin
                values[key] = self._value(key, winner)
            elif given is not None and key in given:
                values[key], origins[key] = given[key]
        options = self._validate(values)
        return None if self._wrong else options, origins

    def _arguments(self) -> dict[str, Found]:
        """Return the args of the element by key, and report those that its class does not take."""
        call = self.call
        positional = getattr(self.options, "positional", ())
        arguments: dict[str, Found] = {}
        for index, value in enumerate(call.args.positional):
            if index >= len(positional) or positional[index] not in self.keys:
                self._refuse_positional(index, positional)
                break
            arguments[positional[index]] = argument(call, index, value_of_expression(value))
        for index, (key, value) in enumerate(call.args.named, len(call.args.positional)):
            if key not in self.keys:
                suggestion = self.planning.problems.nearest(key, self.keys)
                hint = hint_for(key, self.keys)
                message = f"{call.name} has no option {key!r}"
                self._add("unknown_option", message, index, suggestion=suggestion, hint=hint)
            elif key in arguments:
                self._add("twice", f"{key!r} stands there twice", key)
            else:
                arguments[key] = argument(call, key, value_of_expression(value))
        return arguments

    def _refuse_positional(self, index: int, positional: tuple[str, ...]) -> None:
        name, got = self.call.name, len(self.call.args.positional)
        message, hint = f"{name} takes no positional args", hint_for("", self.keys)
        if index < len(positional):
            message = f"{name}.Options.positional names {positional[index]!r}, which is no option"
        elif positional:
            takes = f"{len(positional)} positional ({', '.join(positional)})"
            message = f"{name} takes at most {takes}, got {got}"
        self._add("args", message, index, hint=hint)

    def _value(self, key: str, written: Found) -> Any:
        try:
            return written.read(self.planning.problems)
        except ConfigError:
            self._wrong = True
            self._reported.add(key)
            return written.value

    def _validate(self, values: dict[str, Any]) -> Options | None:
        bases = {}
        for key, winner in self._found.items():
            bases[self.keys[key]] = winner.source.base
        context = {"bases": bases, "of": self.options, "find_place": find_place}
        context["allow_import"] = self.planning.refused is None
        try:
            return self.options.model_validate(values, context=context)
        except ValidationError as error:
            try:
                for detail in value_problems(error, self.options):
                    self._report(detail)
            except Exception as broken:  # noqa: BLE001 - the str() of a validator's error may raise
                self._add_raised(broken)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the author's validators may raise anything
            self._add_raised(error)
        return None

    # Reporting.

    def _add(self, code: str, message: str, which: int | str | None = None, **more: Any) -> None:
        self._wrong = True
        self.planning.problems.add(code, message, **{**place_of(self.call, which), **more})

    def _add_raised(self, error: BaseException) -> None:
        cls = f"{self.options.__module__}.{self.options.__qualname__}"
        message = f"{self.call.name}: checking its options raised {error_text(error)}"
        self._add("option", message, hint=f"Ask the author of {cls} for a correction.")

    def _report(self, detail: ErrorDetails) -> None:
        """Report one problem of a value at the place where the value was written."""
        location = detail["loc"]
        key = str(location[0]) if location else None
        if key in self._reported:
            return
        if detail["type"].endswith(("_type", "_parsing")) and isinstance(location[-1], int):
            self._reported.add(str(key))  # one report for all items of a list is enough
        if detail["type"] == "missing" and len(location) == 1:
            self._report_missing(str(key))
            return
        inner = "".join(f"[{part!r}]" for part in location[1:])
        message, about = detail["msg"], detail.get("ctx", {})
        is_whole = detail["type"] == "no_file" or message.endswith((".", "?"))
        got = "" if is_whole else f", got {format_value(detail['input'])}"
        text = f"{key}{inner}: {message}{got}" if key else message
        written = self._found.get(key or "")
        place = {} if written is None else written.place()
        suggestion = nearest_choice(detail) or about.get("nearest")
        bare = detail["type"] == "string_type" and isinstance(detail["input"], (int, float))
        hint = "Quotes make it a text." if bare else about.get("hint") or quotient(detail["input"])
        self._add("option", f"{self.call.name}: {text}", suggestion=suggestion, hint=hint, **place)

    def _report_missing(self, key: str) -> None:
        ways = f'"{self.call.name}::{key}" = ...' if key in OWN_KEYS else f"{key} = ..."
        ways += " under [global]" if self.planning.known_node is None else " in the node"
        message = f"{self.call.name} needs the option {key!r}"
        hint = f"Write {ways}, or {self.call.name}({key}=...)."
        self._add("missing_option", message, hint=hint)


def hint_for(key: str, keys: Iterable[str]) -> str:
    """Return the hint for a key that is no option.

    It is a key of the node, or these options are there.
    """
    meant = KEYS_ELSEWHERE.get(key, key)
    if meant in NODE_KEYS:
        return f"{meant!r} is a key of the node: {meant} = ..."
    none = "none: a function is registered as functools.partial(f, a=1), a class has Options"
    return REPLACED.get(key) or f"It has {', '.join(keys) or none}."


# Policies and probes.


class Kind(NamedTuple):
    """The kinds of things that a key may name as ``Name`` or ``Name(a=1)``.

    Two policies, and the probe.

    Attributes:
        noun: The word for one of the kind, in errors.
        hook: The table of hooks in which plugins offer the kind.
        requirement: What a class of the kind has to be, in errors.
        base: The base class. None for a probe, which has some of `PROBE_METHODS` instead.
        method: The method with which a policy decides, and which its class has to define.
    """

    noun: str
    hook: str
    requirement: str
    base: type[Any] | None = None
    method: str = ""

    def has(self, cls: Any) -> bool:
        """Tell whether a class is of this kind."""
        if self.base is not None:
            return isinstance(cls, type) and issubclass(cls, self.base)
        methods = (getattr(cls, method, None) for method in PROBE_METHODS)
        return isinstance(cls, type) and any(map(callable, methods))

    def lacks(self, cls: Any) -> str | None:
        """Say what a class of this kind lacks to be usable; None when it lacks nothing."""
        options = getattr(cls, "Options", None) or Options
        if not (isinstance(options, type) and issubclass(options, Options)):
            return "its Options is no subclass of headrace.Options"
        for name in PROBE_METHODS if self.base is None else (self.method,):
            if inspect.iscoroutinefunction(getattr(cls, name, None)):
                return f"{name} is asynchronous, and nobody awaits it"
        if self.base is not None:
            decides = getattr(cls, self.method, None)
            has_own = callable(decides) and decides is not getattr(self.base, self.method)
            return None if has_own else f"it has no method {self.method}"
        lacking = [name for name in PROBE_METHODS if not hasattr(cls, name)]
        public = [name for name in dir(cls) if callable(getattr(cls, name)) and name[0] != "_"]
        alike = ((name, get_close_matches(name, lacking, 1, 0.9)) for name in public)
        asks = (f"nobody calls {name}; did you mean {hook[0]}?" for name, hook in alike if hook)
        return next(asks, None)


BATCH_POLICY = Kind("policy", "batch_policies", "BatchPolicy", BatchPolicy, "cut")
DISPATCH_POLICY = Kind("policy", "dispatch_policies", "DispatchPolicy", DispatchPolicy, "choose")
PROBE = Kind("probe", "probes", f"probe: a class with {' or '.join(PROBE_METHODS)}")


def _find_class(
    planning: Planner, kind: Kind, text: str, call: Call | None, given: Given | None = None
) -> NamedPlan | None:
    """Find the class that a text names, read as ``call``, and check its options.

    Report all problems.
    """
    offers = [] if call is None else registry.find(call.name, planning.files, kind.hook)
    cls = None if call is None else _class(planning, kind, call, offers)
    if call is None or cls is None:
        planning.parameters.unresolved += 1
        return None
    model, (offer,) = getattr(cls, "Options", None), offers
    options, origins = OptionsReader(call, model or Options, planning, offer.plugin).read(given)
    if options is None:
        return None
    stated = None if model is None else options
    by = (offer.distribution, offer.version) if offer.cls is None else ("", "")
    return NamedPlan(text.strip(), call.args, cls, stated, origins, *by)


def _class(planning: Planner, kind: Kind, call: Call, offers: Sequence[Offer]) -> Any:
    """Give the class that a name means; None where that is wrong, which is reported."""
    if call.phases:
        planning.add("arity", f"the {kind.noun} {call.name} takes nothing in [ ]", call)
    if not offers:
        if kind is PROBE or planning.all_names:
            _report_unknown(planning, kind, call)
        return None
    if (cls := planning.load(call, offers, kind.noun)) is None:
        return None
    if not kind.has(cls):
        shown = f"{offers[0].path!r} of {offers[0].distribution}"
        shown = shown if offers[0].cls is None else repr(call.name)
        hint = _names_offered(planning, kind)[1]
        planning.add(kind.noun, f"{shown} is no {kind.requirement}", call, hint=hint)
        return None
    if (lacks := kind.lacks(cls)) is not None:
        planning.add("contract", f"the {kind.noun} {call.name} is wrong: {lacks}", call)
    return cls if lacks is None else None


def _names_offered(planning: Planner, kind: Kind) -> tuple[list[str], str]:
    """Return the names of a kind, and a sentence that lists them."""
    known = {offer.name for offer in registry.offers(kind.hook)}
    if kind.base is not None:
        for table in (registry.local, *(table for _, table in planning.files)):
            known.update(name for name, cls in table.items() if kind.has(cls))
    are = f"There are: {', '.join(sorted(known))}." if known else f"No plugin offers a {kind.noun}."
    return sorted(known), are


def _report_unknown(planning: Planner, kind: Kind, call: Call) -> None:
    plugins = registry.plugins(hooks=True)
    faulty = [plugin for plugin in plugins if plugin.state != "ok"]
    unusable = [f"{plugin.distribution} cannot be used: {plugin.reason}." for plugin in faulty]
    brings = ELSEWHERE["probes" if kind is PROBE else "policies"].get(call.part)
    if brings is not None and brings not in {plugin.distribution for plugin in plugins}:
        unusable.append(f"{call.part!r} comes with {brings}. {how_to_install(brings)}.")
    known, are = _names_offered(planning, kind)
    more = {"suggestion": nearest(call.part, known), "hint": " ".join([*unusable, are])}
    planning.add(f"unknown_{kind.noun}", f"unknown {kind.noun} {call.name!r}", call, **more)


# Policies.


def plan_policies(planning: Planner) -> tuple[NamedPlan, NamedPlan] | None:
    """Plan the two policies of the present node; None when one is wrong."""
    batch = _policy(planning, "batch_policy", BATCH_POLICY)
    dispatch = _policy(planning, "dispatch_policy", DISPATCH_POLICY)
    if batch is None or dispatch is None:
        return None
    if batch.cls is not dispatch.cls:
        return batch, dispatch
    # One class for both keys makes one object for both, with the args of the key that has some.
    written = planning.parameters.key("dispatch_policy")
    if (
        written is not None
        and len(batch.args)
        and len(dispatch.args)
        and batch.args != dispatch.args
    ):
        once = "stands for both policies and is made once"
        message = f"{dispatch.text!r} {once}, with other args in batch_policy"
        hint = "Write its args at one of the two."
        planning.problems.add("policy", message, hint=hint, **written.place())
    policy = batch if len(batch.args) else dispatch
    return policy, policy


def _policy(planning: Planner, key: str, kind: Kind) -> NamedPlan | None:
    """Plan a policy, whose options may also be set by the keys of the node of the same name."""
    parameters = planning.parameters
    written, default = parameters.key(key), NodeKeys.model_fields[key].default
    origins = {name: origin for name, origin in parameters.origins.items() if origin != "default"}
    node_values = {
        name: (getattr(parameters.keys, name), origin) for name, origin in origins.items()
    }
    if written is None:
        inner = Call(default, source=Source(f"{planning.node}.{key}"))
        return _find_class(planning, kind, default, inner, node_values)
    call = planning.read(written.value, written.source)
    return _find_class(planning, kind, written.value, call, node_values)


# Probes.


def plan_probes(planning: Planner) -> tuple[NamedPlan, ...]:
    """Plan the probes that ``[global] probes`` lists, and leave out those that are wrong.

    The present parameters must be those of ``[global]``.
    """
    if (written := planning.parameters.key("probes")) is None:
        return ()
    texts = [written.value] if isinstance(written.value, str) else written.value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        hint = 'Write probes = ["Name"] or ["Name(a=1)"].'
        planning.problems.add("type", "probes is a list of texts", hint=hint, **written.place())
        return ()
    planned: dict[str, NamedPlan] = {}
    for text in texts:
        probe = _find_class(planning, PROBE, text, planning.read(text, written.source))
        if probe is not None and probe.text in planned:
            message = f"the probe {probe.text} is listed twice"
            planning.problems.add("twice", message, **written.place())
        elif probe is not None:
            planned[probe.text] = probe
    return tuple(planned.values())
