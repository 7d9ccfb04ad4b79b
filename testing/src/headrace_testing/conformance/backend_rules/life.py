"""Rules about imports, and about building and closing more than once."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from headrace.errors import MissingDependencyError, SetupError
from headrace_testing.conformance.outcome import Broken
from headrace_testing.conformance.probe import probe
from headrace_testing.conformance.requirements import distributions_of, not_required
from headrace_testing.conformance.rule import Rule, rule
from headrace_testing.conformance.subject import replaced
from headrace_testing.conformance.values import difference, kept

if TYPE_CHECKING:
    from headrace import Backend, InitContext
    from headrace_testing.conformance.subject import Subject


@rule("imports-lazily", "resolves")
def imports_lazily(subject: Subject) -> str:
    """`check` and `explain` must work on a machine without the heavy library.

    In a fresh process the module of the backend is imported and the configuration is checked. This
    may load the standard library, headrace and the libraries that it requires itself, modules of
    the backend's own distribution, and light libraries. A library is heavy where what it loads is more than 1 MB of code, source and
    compiled. What a light one imports is judged in the same way. Import numpy, torch and the like in `init`, best through a module of
    plain functions.

    What is loaded then and in `init` must be there wherever the distribution is installed: its `Requires-Dist` brings each of these
    libraries (those of its extras and of what it requires count), or the backend can be built without it. What a
    model brings, and no other needs, is named in `model_brings` of the conformance class.
    """
    probed = probe(subject, build=subject.unavailable is None)
    if probed.error and probed.stage != "build":
        raise Broken(f"in a fresh process its {probed.stage} fails: {probed.error_text}")
    if probed.imported:
        raise Broken(
            f"importing {probed.module} loads {', '.join(probed.imported)}; import it in init"
        )
    if probed.configured:
        raise Broken(f"checking the configuration loads {', '.join(probed.configured)}")
    _check_required(subject, probed.required, "importing it")
    if subject.unavailable is not None:
        return "what init loads was not looked at"
    _check_required(subject, probed.built, "init", subject.kit.model_brings)
    return (
        f"init loads {', '.join(probed.built)}" if probed.built else "init loads no further library"
    )


def _check_required(
    subject: Subject, loaded: list[str], moment: str, brought: tuple[str, ...] = ()
) -> None:
    """Refuse a backend that needs a library which its distribution does not require."""
    elements = subject.element.walk()
    modules = {element.cls.__module__.partition(".")[0] for element in elements}
    distributions = distributions_of({element.distribution for element in elements}, modules)
    if not distributions:  # a module or file that nobody installs
        return
    strange = not_required(loaded, [*distributions, *distributions_of(brought, ())])
    if not strange:
        return
    without = probe(subject, blocked=tuple(strange), build=subject.unavailable is None)
    if without.error:
        raise Broken(
            f"{moment} loads {', '.join(strange)}, which no Requires-Dist of {', '.join(distributions)} "
            f"brings: where nothing else has installed it, the backend fails: {without.error_text}"
        )


@rule("missing-library", "imports-lazily", "builds")
def missing_library(subject: Subject) -> str:
    """Without its library, building a backend ends with an error that says what to install.

    In a fresh process in which the libraries that `init` loads cannot be imported, the
    configuration is still checked, and building it raises MissingDependencyError, or works without
    them. Core makes a MissingDependencyError of an ImportError that leaves `init`.
    """
    probed = probe(subject)
    if not probed.built:
        return "init loads no library that could be missing"
    without = probe(subject, blocked=tuple(probed.built))
    names = ", ".join(probed.built)
    if not without.error:
        return f"it is built without {names} as well"
    if without.stage != "build":
        raise Broken(f"without {names} the configuration cannot be checked: {without.error_text}")
    if without.error != MissingDependencyError.__name__:
        got = without.error_text
        raise Broken(f"without {names}, building gives {got}, not a MissingDependencyError")
    return f"tried without {names}"


@rule("life-cycle-again", "finished-when-answered")
def life_cycle_again(subject: Subject) -> None:
    """A pipeline is built, closed and built again in one process, and parts of one may fail.

    The backend is built, used and closed twice, then built once more with a `warm_up` that fails
    (so that it is closed without ever being used), and again. Each time it gives the same results,
    and `close` raises nothing.
    """
    expected = kept(subject.live.results(subject.live.take(subject.item)))
    for turn in ("second", "third", "fourth"):
        if turn == "fourth":
            _fail_once(subject)
        try:
            live = subject.build()
        except Exception as error:
            raise Broken(
                f"built a {turn} time it fails: {type(error).__name__}: {error}"
            ) from error
        results = kept(live.results(live.take(subject.item)))
        subject.done(live)
        subject.must_equal(results, expected, f"built a {turn} time, it gives other results")


def _fail_once(subject: Subject) -> list[Exception]:
    """Build the backend with a ``warm_up`` that fails, so that it is closed again; give the errors."""

    def warm_up(self: object) -> None:
        raise RuntimeError("told to fail by the conformance kit")

    failed: list[Exception] = []
    close = subject.cls.close

    def noting(self: Backend) -> None:
        try:
            close(self)
        except Exception as error:
            failed.append(error)
            raise

    with (
        replaced(subject.cls, "warm_up", warm_up),
        replaced(subject.cls, "close", noting),
        contextlib.suppress(SetupError),
    ):
        subject.done(subject.build())  # core builds some words without their warm_up
    return failed


@rule("closes-unused", "errors-returned")
def closes_unused(subject: Subject) -> None:
    """A pipeline may be closed before its first request, and after requests that failed.

    The backend is built and closed without a call, built, called with a bad request and closed, and
    closed after a `warm_up` that failed. `close` raises nothing, and closing once more does nothing.
    """
    subject.done(subject.build())
    live = subject.build()
    live.alone({})
    subject.done(live)
    live.close()
    for error in _fail_once(subject):
        raise Broken(
            f"after a warm_up that failed, close fails: {type(error).__name__}: {error}"
        ) from error


@rule("options-kept", "closes-unused")
def options_kept(subject: Subject) -> str:
    """All instances of a node get the options that were validated once, so none of them may change these.

    After a whole life of two instances, or of one where it refuses two (`init`, `warm_up`, a batch, a bad request, `close`) the options that `init` was given
    have the same values, and the lists and tables in them the same content. Copy what is to be changed.
    """
    pairs: list[tuple[Any, dict[str, Any]]] = []
    init = subject.cls.init

    def noting(self: Backend, options: Any, context: InitContext) -> None:
        copies = {name: (value, kept(value)) for name, value in _values(options).items()}
        same = {name: copy for name, (value, copy) in copies.items() if not difference(value, copy)}
        pairs.append((options, same))
        init(self, options, context)

    with replaced(subject.cls, "init", noting):
        # Of a configuration of its own, whose options nobody has seen.
        try:
            live = subject.build(instance_num=2)
        except Exception:  # noqa: BLE001 - that it refuses two, `instances-agree` reports
            live = subject.build(instance_num=1)
    live.results(live.take(subject.item))
    live.alone({})
    subject.done(live)
    for options, before in pairs:
        after = _values(options)
        changed = difference({name: after[name] for name in before}, before)
        if changed is not None:
            raise Broken(f"it changes the options that it was given: {changed}")
    return "they stay the same" if pairs else "core builds it without its init"


def _values(options: Any) -> dict[str, Any]:
    return {name: getattr(options, name) for name in type(options).model_fields}


@rule("describe", "closes-unused")
def describe(subject: Subject) -> None:
    """`pipe.describe()` shows what was really built, to people and as JSON.

    `describe()` gives a dict with text keys that can be written as JSON (which has no NaN), and the same
    dict at a second call. Requests, and a request that fails, do not change its keys.
    """
    live = subject.build()
    first = _described(live.root)
    changed = difference(first, _described(live.root))
    if changed is not None:
        raise Broken(f"describe() gives something else when asked again: {changed}")
    for call in (lambda: live.results(live.take(subject.item)), lambda: live.alone({})):
        call()
        later = _described(live.root)
        if sorted(later) != sorted(first):
            raise Broken(f"after a request describe() has other keys: {difference(later, first)}")


def _described(root: Backend) -> dict[str, object]:
    """Return a backend's description; check that it is a dict that JSON can hold."""
    first = root.describe()
    if not isinstance(first, dict):
        raise Broken(f"describe() gives {type(first).__name__}, not a dict")
    try:
        json.dumps(first, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Broken(f"describe() cannot be written as JSON: {error}") from error
    if not all(isinstance(key, str) for key in first):
        raise Broken("describe() has keys that are no text")
    return first


RULES: tuple[Rule, ...] = (
    imports_lazily,
    missing_library,
    life_cycle_again,
    closes_unused,
    options_kept,
    describe,
)
