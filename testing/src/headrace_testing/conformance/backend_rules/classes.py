"""Rules about the class: its name, its attributes, its options. They build nothing."""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import ConfigError
from headrace_testing.conformance.class_bodies import wrong_attribute
from headrace_testing.conformance.declared import declared_keys
from headrace_testing.conformance.outcome import Broken, NotJudged
from headrace_testing.conformance.rule import Rule, rule
from headrace_testing.conformance.subject import replaced
from headrace_testing.conformance.values import difference

if TYPE_CHECKING:
    from headrace_testing.conformance.subject import Subject

_KEY = re.compile(r"[^{}]+|\{\w+\}")
_UNIT = re.compile(
    r"\bin (?!the\b|a\b|an\b|this\b|which\b|one\b)\w+|\(.+\)|\bnumber of\b|\bhow many\b|\bmost\b|"
    r"\b(pixels?|bytes?|[mu]?s|hertz|hz|(milli|micro)?seconds?|minutes?|ratio|factor|percent|%|degrees?|"
    r"radians?|no unit|unitless|count|times|threads?|rows?|items?|elements?|requests?|boxes|"
    r"channels?|levels?|index|port|seed|tokens?|characters?|power|exponent|probability|"
    r"fraction|share|pixel values?)\b",
    re.IGNORECASE,
)
_NEVER = "no_option_has_this_name"


@rule("resolves")
def resolves(subject: Subject) -> None:
    """A configuration that names the backend must be valid, or no one can use it.

    The expression of the conformance class is read together with its `options`, as
    `headrace check` does: every name is known, every option is valid. For an entry point, the
    outermost name must be the backend that the entry point is named after.
    """
    expression = subject.kit.expression
    if not isinstance(expression, str) or not expression:
        raise Broken(
            "the conformance class has no `expression`, the text that names the backend, as "
            f"'ResizeMat(64,64)'; got {expression!r}"
        )
    try:
        cls = subject.cls
    except ConfigError as error:
        raise Broken(str(error)) from error
    except (AttributeError, TypeError, ValueError) as error:
        raise Broken(
            f"an attribute of the class is not what the planner reads: {type(error).__name__}: {error}; "
            "the rule `attributes` says what each may be"
        ) from error
    if subject.promised is not None and cls is not subject.promised:
        raise Broken(
            f"the expression {subject.kit.expression!r} certifies {cls.__name__}, the entry point "
            f"promises {subject.promised.__name__}"
        )


@rule("attributes", "resolves")
def attributes(subject: Subject) -> None:
    """The planner reads the attributes of the class before anything is built.

    `min` is an int of at least 1, `max` None or an int of at least `min`. `owns_thread`, `rerun`,
    `builds_elsewhere`, `uses_pipeline`, `stateful` and `wide` are bools. `reads` and `writes` are tuples of keys, or of
    `"{option}"` for options that exist, or a TypedDict. `takes` is a number or `(least, most)`. Of `bracket` the `phases`
    are at least 1, and `prefixes` a tuple of texts. Of `place` `stands` is "anywhere", "outermost" or "last", `not_callable` and `waits_while` are
    texts or None. A class that `builds_elsewhere` takes children. A backend can be made without arguments.
    """
    cls = subject.cls
    if wrong := wrong_attribute(cls):
        raise Broken(wrong)
    _check_range(cls.min, cls.max)
    _check_flags(cls)
    for name in ("reads", "writes"):
        _check_keys(name, getattr(cls, name), cls)
    _check_takes(cls.takes)
    phases, prefixes = cls.bracket.phases, cls.bracket.prefixes
    if not _is_count(phases) or phases < 1:
        raise Broken(f"bracket.phases is {phases!r}, not an int of at least 1")
    if not isinstance(prefixes, tuple) or not all(isinstance(p, str) for p in prefixes):
        raise Broken(f"bracket.prefixes is {prefixes!r}, not a tuple of texts")
    for name in ("init", "forward", "warm_up", "describe", "close"):
        if not callable(getattr(cls, name)):
            raise Broken(f"{name} is {getattr(cls, name)!r}, which cannot be called")


def _check_flags(cls: Any) -> None:
    own = ("owns_thread", "rerun", "builds_elsewhere", "uses_pipeline", "stateful", "wide")
    flags = {name: getattr(cls, name) for name in own}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise Broken(f"{name} is {flag!r}, not True or False")
    if cls.builds_elsewhere and cls.takes == 0:
        raise Broken("builds_elsewhere is True and it takes no children: write takes = 1")
    if cls.place.stands not in ("anywhere", "outermost", "last"):
        raise Broken(f"place.stands is {cls.place.stands!r}, none of the three that it may be")
    for name in ("not_callable", "waits_while"):
        if not isinstance(text := getattr(cls.place, name), (str, type(None))):
            raise Broken(f"place.{name} is {text!r}, neither a text nor None")
    for key in re.findall(r"{(\w*)", cls.place.waits_while or ""):
        if key not in cls.Options.model_fields:
            raise Broken(f"place.waits_while has {{{key}}}, and there is no option {key!r}")


def _check_range(least: Any, most: Any) -> None:
    if not _is_count(least) or least < 1:
        raise Broken(f"min is {least!r}, not an int of at least 1")
    if most is not None and (not _is_count(most) or most < least):
        raise Broken(f"max is {most!r}, neither None nor an int of at least min ({least})")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_keys(name: str, declared: Any, cls: Any) -> None:
    if isinstance(declared, type):
        if not hasattr(declared, "__required_keys__"):
            raise Broken(f"{name} is the class {declared.__name__}, which is no TypedDict")
        return
    if not isinstance(declared, tuple) or not all(isinstance(key, str) for key in declared):
        raise Broken(f"{name} is {declared!r}, neither a tuple of keys nor a TypedDict")
    for key in declared:
        if not _KEY.fullmatch(key):
            raise Broken(f"{name} holds {key!r}, neither a key nor one '{{option}}'")
        if key.startswith("{") and key[1:-1] not in cls.Options.model_fields:
            raise Broken(f"{name} holds {key!r}, and there is no option {key[1:-1]!r}")
    if len(set(declared)) < len(declared):
        raise Broken(f"{name} names a key twice: {declared!r}")


def _check_takes(takes: Any) -> None:
    least, most = takes if isinstance(takes, tuple) and len(takes) == 2 else (takes, takes)
    good = _is_count(least) and least >= 0
    good = good and (most is None or (_is_count(most) and most >= least))
    if not good:
        raise Broken(f"takes is {takes!r}, neither a number of children nor (least, most or None)")


_GIVEN: dict[str, tuple[str, ...]] = {
    "init": ("options", "context"),
    "forward": ("batch",),
    **dict.fromkeys(("warm_up", "describe", "close"), ()),
}
"""What is called of a backend, and with which arguments."""

_GIVEN_TO_CLASS = {"enter": ("request",), "lint": ("options", "largest_batch")}
"""What is called of its class."""


@rule("methods", "attributes")
def methods(subject: Subject) -> None:
    """Every method is called in one way, in a thread, and nobody awaits it.

    `init(self, options, context)`, `forward(self, batch)`, `warm_up(self)`,
    `describe(self)` and `close(self)` take these arguments. `enter(request)` and `lint(options, largest_batch)` are called
    on the class: write a staticmethod or a classmethod. None of them is asynchronous, and none but `lint` is a generator,
    which does nothing when it is called.
    """
    cls = subject.cls
    for name, names in {**_GIVEN, **_GIVEN_TO_CLASS}.items():
        method = getattr(cls, name, None)
        if method is None:
            continue
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            raise Broken(
                f"{name} is asynchronous, and a backend runs in a thread: write def {name}"
            )
        if inspect.isgeneratorfunction(method) and name != "lint":
            raise Broken(f"{name} is a generator, which does nothing when it is called")
        bound = name in _GIVEN_TO_CLASS or not inspect.isfunction(inspect.getattr_static(cls, name))
        if not _takes(method, names if bound else ("self", *names)):
            raise Broken(f"{name} cannot be called with ({', '.join(names)})")


def _takes(function: Any, names: tuple[str, ...]) -> bool:
    """Tell whether a function can be called with these arguments, as far as its signature is known."""
    try:
        inspect.signature(function, follow_wrapped=False).bind(*names)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


_KEPT = frozenset(
    name
    for base in headrace.Backend.__mro__
    for name in vars(base)
    if name.startswith("_") and not name.startswith("__")
)
"""The names that `headrace.Backend` keeps for itself."""


@rule("private-names", "builds", unbuilt=True)
def private_names(subject: Subject) -> str | None:
    """What `headrace.Backend` keeps under a private name cannot be something else in a subclass.

    Neither the class nor what `init` sets uses a private name of `headrace.Backend`, such as `_state`, `_name`, `_node` or
    `_index`. Choose another name.
    """
    cls = subject.cls
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] != "headrace":
            _check_unused(f"the class {base.__name__}", _KEPT & vars(base).keys())
    if subject.unavailable is not None:
        return "what init sets was not looked at"
    init, taken = cls.init, set[str]()

    def noting(self: headrace.Backend, options: Any, context: headrace.InitContext) -> None:
        before = dict(vars(self))
        init(self, options, context)
        after = vars(self)
        taken.update(name for name in _KEPT & after.keys() if after[name] is not before.get(name))

    # What fails as it is built again, or closed, is judged by the rules of the life cycle.
    with replaced(cls, "init", noting), suppress(Exception):
        subject.done(subject.build())
    _check_unused("init", taken)
    return None


def _check_unused(who: str, taken: typing.AbstractSet[str]) -> None:
    if taken:
        raise Broken(f"{who} sets {min(taken)!r}, which headrace.Backend keeps for itself")


@rule("options-described", "resolves")
def options_described(subject: Subject) -> None:
    """`headrace plugins info`, editors and error messages show what the author writes here.

    Every field of `Options`, and of tables in it, has a description, and the description of a number says its unit: "in
    pixels", "(bytes)", "number of threads", "a factor", or that it has no unit. A name that ends in
    a unit (`timeout_ms`, `max_bytes`) says it as well.
    """
    for name, field in _fields(subject.cls.Options):
        description = (field.description or "").strip()
        if not description:
            cure = "write it in the section Attributes of the docstring of Options"
            raise Broken(f"the option {name!r} has no description: {cure}")
        leaves = {leaf for leaf in _leaves(field.annotation) if leaf is not type(None)}
        if (
            leaves
            and leaves <= {int, float}
            and not _UNIT.search(description)
            and not _named_unit(name)
        ):
            raise Broken(
                f"the description of the number {name!r} names no unit: {description!r}; write "
                "one, such as 'in pixels', or '(no unit)'"
            )


def _models(cls: Any) -> dict[str, Any]:
    """Return a class of options and those of the tables in it, by the path to each, which ends in a dot."""
    models: dict[str, Any] = {}
    left = [("", cls)]
    while left:
        path, model = left.pop()
        if model in models.values() or not hasattr(model, "model_fields"):
            continue
        models[path] = model
        for name, field in model.model_fields.items():
            left += [(f"{path}{name}.", leaf) for leaf in _leaves(field.annotation)]
    return models


def _fields(cls: Any) -> list[tuple[str, Any]]:
    models = _models(cls).items()
    return [
        (path + name, field) for path, model in models for name, field in model.model_fields.items()
    ]


def _leaves(annotation: Any) -> list[Any]:
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return [str]
    if typing.get_origin(annotation) is typing.Annotated:
        return _leaves(parts[0])
    parts = tuple(part for part in parts if part is not Ellipsis)
    return [leaf for part in parts for leaf in _leaves(part)] if parts else [annotation]


def _named_unit(name: str) -> bool:
    return name.rpartition("_")[2] in ("ms", "s", "us", "bytes", "pixels", "h", "w", "hw", "num")


@rule("options-strict", "resolves")
def options_strict(subject: Subject) -> None:
    """A misspelt option must be an error where it is written, and not silently leave the default.

    `Options` is a subclass of `headrace.Options`, refuses names that it does not have (so does every table
    in it), is frozen after validation, and every name in `Options.positional` is a field.
    """
    from pydantic import ValidationError

    cls = subject.cls.Options
    if not isinstance(cls, type) or not issubclass(cls, headrace.Options):
        raise Broken(f"Options is {cls!r}, which is no subclass of headrace.Options")
    values = subject.element.options
    try:
        cls(**{**_as_given(values), _NEVER: 1})
    except ValidationError as error:
        wrong = [str(part) for problem in error.errors() for part in problem["loc"]]
    else:
        wrong = []
    if _NEVER not in wrong:
        raise Broken("an option that it does not have is not refused: extra must stay 'forbid'")
    for path, model in _models(cls).items():
        if model.model_config.get("extra") != "forbid":
            raise Broken(f"a name that the table {path[:-1]!r} does not have is not refused")
    if not cls.model_config.get("frozen"):
        raise Broken("Options is not frozen: what was validated could be changed")
    strangers = [name for name in cls.positional if name not in cls.model_fields]
    if strangers:
        raise Broken(f"Options.positional names {strangers[0]!r}, which is no option")
    if values is None:
        raise Broken("the configuration gave no options")


def _as_given(options: Any) -> dict[str, Any]:
    fields = type(options).model_fields if options is not None else {}
    return {field.alias or name: getattr(options, name) for name, field in fields.items()}


@rule("options-schema", "options-strict")
def options_schema(subject: Subject) -> None:
    """`headrace schema` gives editors one JSON Schema of all options. One bad class would spoil it.

    `Options.model_json_schema()` works and can be written as JSON. Every reference in it leads
    somewhere, and every required name is a property. Every field accepts its own default.
    """
    cls = subject.cls.Options
    try:
        schema = cls.model_json_schema()
        again = json.loads(json.dumps(schema, allow_nan=False))
    except Exception as error:
        raise Broken(f"there is no JSON Schema of its options: {error}") from error
    if schema.get("type") != "object" or not isinstance(schema.get("properties", {}), Mapping):
        raise Broken(f"its JSON Schema describes no object: {schema.get('type')!r}")
    _check_whole(again)
    _check_defaults(cls)


def _check_whole(schema: dict[str, Any]) -> None:
    for reference in _references(schema):
        place: Any = schema
        for part in reference.removeprefix("#/").split("/"):
            place = place.get(part) if isinstance(place, dict) else None
        if place is None:
            raise Broken(f"its JSON Schema refers to {reference!r}, which is not there")
    for name in schema.get("required", ()):
        if name not in schema.get("properties", {}):
            raise Broken(f"its JSON Schema requires {name!r}, which is no property")


def _check_defaults(cls: Any) -> None:
    from pydantic import TypeAdapter

    for name, field in cls.model_fields.items():
        if field.is_required() or field.default_factory is not None:
            continue
        kind: Any = field.annotation
        for bound in field.metadata:
            kind = typing.Annotated[kind, bound]
        try:
            TypeAdapter(kind).validate_python(field.default)
        except Exception as error:
            raise Broken(
                f"the default of {name!r}, {field.default!r}, is not what the option takes"
            ) from error


def _references(part: Any) -> list[str]:
    if isinstance(part, dict):
        names = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return names + [name for value in part.values() for name in _references(value)]
    if isinstance(part, list):
        return [name for value in part for name in _references(value)]
    return []


@rule("items", "resolves")
def items(subject: Subject) -> None:
    """The kit compares runs over equal requests, so the factory must give equal requests.

    `make_item(k)` gives a new dict with text keys and without `result`, equal for the same `k`, and not
    equal for all `k` where the class reads keys. It has `data`, unless `reads` of the class names other keys only.
    """
    read = declared_keys(subject.element.cls.reads, subject.element.options)
    first = []
    for k in range(3):
        try:
            item, again = subject.item(k), subject.item(k)
        except Broken:
            raise
        except Exception as error:
            if subject.unavailable is None:
                raise
            problem = f"make_item({k}) gives {type(error).__name__}: {error}"
            raise NotJudged(f"{subject.unavailable}; {problem}") from error
        if "data" in read.required and "data" not in item:
            raise Broken(f"make_item({k}) gives a request without 'data'")
        if "result" in item:
            raise Broken(f"make_item({k}) gives a request that has a 'result' already")
        if item is again:
            raise Broken(f"make_item({k}) gives the same dict twice; it must be a new one")
        differs = difference(item, again)
        if differs is not None:
            raise Broken(f"make_item({k}) gives requests that differ: {differs}")
        first.append(item)
    alike = difference(first[0], first[1]) is None and difference(first[0], first[2]) is None
    if alike and read.all:
        raise Broken("make_item gives the same request for every k; mixed up results are not seen")


RULES: tuple[Rule, ...] = (
    resolves,
    attributes,
    methods,
    private_names,
    options_described,
    options_strict,
    options_schema,
    items,
)
