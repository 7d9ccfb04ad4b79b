"""Rules about the docstring: its sections are there, and agree with the class."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError
from headrace_testing.conformance.claims import claims_array, describes
from headrace_testing.conformance.outcome import Broken, NotJudged
from headrace_testing.conformance.rule import Rule, rule
from headrace_testing.conformance.values import is_array, said

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace import Backend
    from headrace_testing.conformance.subject import Subject

_IN_WORDS = "what words tell"

SECTIONS = ("Reads", "Writes", "Batch", "Raises", "Source")

_HEADING = re.compile(r"([A-Z][a-z]+):(?:\s+(\S.*))?")
_BULLET = re.compile(r"^[-*] ", re.MULTILINE)
_UNDERLINED = re.compile(r"^([A-Z][a-z]+)\n---+$", re.MULTILINE)
_ENTRY = re.compile(r"([\w{}`., /-]+?)\s*(\([^()]*\)\s*)?:(?:\s|$)")
_MAX = r"(?:up\s+to|at\s+most|<=|\u2264|max(?:imum)?\W{0,3})\s*"
_AT_LEAST = re.compile(
    r"(\d+|one)(?:\s*\+|\s+(?:or|and)\s+more\b|\s*\.\.+\s*$)|\[?(\d+)\s*(?:,|to)\s*(?:inf(?:inity)?\b|\u221e)"
    r"|(?:at\s+least\s+|(?:>=|\u2265)\s*|from\s+(?=\d+\s*(?:on\b|up\b|upwards\b|[.;\n]|$))|min(?:imum)?\W{0,3})"
    r"(\d+|one)\b(?!(?:\W{0,3}max(?:imum)?|[\s,]*(?:<=|\u2264))\W{0,3}\d)|any\b|un(?:bounded|limited)\b",
    re.IGNORECASE,
)
_FROM_TO = re.compile(
    rf"(?:\[|\(|from\s+|(?:>=|\u2265)\s*|min(?:imum)?\W{{0,3}})?(\d+)(?:\s*(?:to|-|\u2013|\u2026|\.\.+)|,?\s+{_MAX}|,(?=[^\])]*[\])]))\s*(\d+)\b",
    re.IGNORECASE,
)
_UP_TO = re.compile(rf"{_MAX}(\d+)\b", re.IGNORECASE)
_FROM = re.compile(rf"(?:from\s+)?(\d+)\s+to\s|{_MAX}(?=[`\w])", re.IGNORECASE)
_CONDITION = re.compile(r"\b(where|when|if|else|unless|otherwise|depend\w*)\b", re.IGNORECASE)
_LIMIT = re.compile(
    r"\d|\b(max|min|range|batch(es)?|at a time|most|least|models?|engines?|profiles?)\b",
    re.IGNORECASE,
)
_ONE = re.compile(
    r"(?:exactly\s+)?(\d+|one)\b(?=\s*(?:$|[.;,:(\n]|items?\b|requests?\b|at a time\b))",
    re.IGNORECASE,
)


def documentation(cls: type[Backend]) -> str:
    """Return the docstring of a class, or the one that it inherits; empty when that is `Backend`'s."""
    from headrace import Backend

    doc = inspect.getdoc(cls) or ""
    return "" if doc == inspect.getdoc(Backend) else doc


def sections(doc: str) -> dict[str, str]:
    """Return the sections of a docstring: heading to text. Headings may be underlined, as those of numpy are."""
    first, *underlined = _UNDERLINED.split(doc)
    for name, text in zip(underlined[::2], underlined[1::2], strict=True):
        first += f"{name}:\n" + textwrap.indent(text, "    ")
    lines_by_section: dict[str, list[str]] = {}
    into: list[str] | None = None
    for line in first.splitlines():
        heading = _HEADING.fullmatch(line)
        if heading is not None:
            into = lines_by_section.setdefault(heading[1], [])
            if heading[2]:
                into.append(heading[2])
        elif into is not None and (not line or line.startswith(" ")):
            into.append(line)
        else:
            into = None
    return {
        name: _BULLET.sub("", inspect.cleandoc("\n".join(["", *lines]))).strip()
        for name, lines in lines_by_section.items()
    }


def entries(text: str) -> dict[str, str]:
    """Return the entries of a section: ``name: what`` or ``name, name: what``, by name."""
    entry_of: dict[str, str] = {}
    names: list[str] = []
    for line in text.splitlines():
        entry = None if line.startswith(" ") else _ENTRY.match(line)
        if entry is not None:
            names = [name.strip().strip("`") for name in re.split(r",| and | or ", entry[1])]
            description = f"{entry[2] or ''}{line[entry.end() :]}".strip()
            entry_of.update(dict.fromkeys(names, description))
        elif names:
            entry_of.update({name: f"{entry_of[name]} {line.strip()}".strip() for name in names})
    return entry_of


@rule("docstring-sections", "resolves")
def docstring_sections(subject: Subject) -> None:
    """Users who compose backends read the docstring: `headrace plugins info` prints it.

    The docstring of the class has a first sentence and the sections `Reads:`, `Writes:`, `Batch:`,
    `Raises:` and `Source:` (where formulas and constants come from), none of them empty.
    """
    if sys.flags.optimize > 1:
        raise Broken("Python has dropped all docstrings: run it without -OO and PYTHONOPTIMIZE=2")
    doc = documentation(subject.cls)
    if not doc.strip():
        raise Broken("the class has no docstring")
    if _HEADING.fullmatch(doc.splitlines()[0]):
        raise Broken("the docstring begins with a section, not with what the backend does")
    present = sections(doc)
    missing = [name for name in SECTIONS if not present.get(name)]
    if missing:
        raise Broken(f"the docstring lacks {', '.join(f'{name}:' for name in missing)}")


@rule("docstring-keys", "docstring-sections", "attributes", "builds", unbuilt=True)
def docstring_keys(subject: Subject) -> str | None:
    """The sections Reads and Writes must name the keys that the class declares, and no others.

    Each section has one entry per key, `data: uint8 [H, W, C]`, or names them in a sentence. A key that an option names is listed
    under its default, its present value or the name of the option. Where nothing is read or
    written, the section says `Nothing.` A container without `reads` or `writes` of its own may say
    in words what it passes on.
    """
    present = sections(documentation(subject.cls))
    for which in ("reads", "writes"):
        section = which.capitalize()
        documented = set(entries(present.get(section, "")))
        if not documented and subject.children and which not in vars(subject.cls):
            continue
        if not documented:  # a sentence that names the keys
            words = set(re.findall(r"\w+", present.get(section, "")))
            documented = words & subject.declared(which).all
        _compare(subject, which, section, documented)
    return None


def _compare(subject: Subject, which: str, section: str, documented: set[str]) -> None:
    declared = getattr(subject.cls, which)
    options = subject.element.options
    now = subject.declared(which).all
    left = set(documented)
    if not isinstance(declared, type) and any(_holds_many(key, options) for key in declared):
        # An option with a list or table of keys has other keys in each configuration.
        declared = tuple(key for key in declared if not _holds_many(key, options))
        left = set()
        if not documented:
            raise Broken(f"the section {section} of the docstring names no key")
    if isinstance(declared, type):
        names = [{name} for name in declared.__annotations__]
    else:
        names = [_names_of(key, options) for key in declared]
    for accepted in names:
        if not accepted & left and not (accepted & documented):
            raise Broken(
                f"{which} declares {' or '.join(sorted(map(repr, accepted)))}, the section "
                f"{section} of the docstring does not name it"
            )
        left -= accepted
    left -= now | ({"request_size"} if which == "reads" else set())  # belongs to core
    if left:
        raise Broken(
            f"the section {section} of the docstring names {min(left)!r}, {which} does not "
            "declare it"
        )


def _names_of(key: str, options: object) -> set[str]:
    """Return every name under which a declared key may be documented."""
    if not key.startswith("{"):
        return {key}
    name = key[1:-1]
    field = type(options).model_fields[name]  # type: ignore[attr-defined]
    values = (getattr(options, name), field.default)
    return {name, key, *(value for value in values if isinstance(value, str))}


def _holds_many(key: str, options: object) -> bool:
    value = getattr(options, key[1:-1], None) if key.startswith("{") else None
    return isinstance(value, (dict, list, tuple))


@rule("docstring-batch", "docstring-sections", "builds", unbuilt=True)
def docstring_batch(subject: Subject) -> str | None:
    """The section Batch must give the range that the backend has.

    It begins with the range: `1 or more`, `any`, `1 to 8`, `up to 8`, `4`, `2 to the size of the window`. Words
    may follow. It must be the range that the backend has once it is built. Where `init` sets another
    range than the class declares, the section may begin with the range of the class and say on what the
    range depends: it names an option, or says "where", "else", "unless". The range of a container is not
    compared: it comes from its children.
    """
    text = sections(documentation(subject.cls)).get("Batch", "")
    documented = _range_of(text)
    if subject.children:
        return "a container has the range of what is inside"
    if documented is None:
        raise Broken(f"the section Batch begins with no range such as '1 or more': {text!r}")
    declared = subject.cls.min, subject.cls.max
    if subject.unavailable is not None:
        if not _is(documented, declared):
            raise NotJudged(
                f"{subject.unavailable}, and only init could make its range another one"
            )
        return "the range of the class"
    actual = subject.live.root.min, subject.live.root.max
    if _is(documented, actual):
        return None
    if not _is(documented, declared):
        raise Broken(f"the section Batch says {_said(documented)}, the backend has {_said(actual)}")
    if not _depends(text, subject.cls.Options.model_fields):
        raise Broken(
            f"the section Batch says {_said(documented)}, and init makes that {_said(actual)}; say "
            "where it is another one, with the name of the option"
        )
    return f"here it is {_said(actual)}"


def _is(documented: tuple[int, int | str | None], range_: tuple[int, int | None]) -> bool:
    return documented[0] == range_[0] and documented[1] in (range_[1], _IN_WORDS)


def _depends(text: str, options: Iterable[str]) -> bool:
    """Return whether a section says on what the range depends; not every "if" is about the range."""
    clauses = re.split(r"[;:.\n]\s", text)
    return any(_CONDITION.search(clause) and _LIMIT.search(clause) for clause in clauses) or any(
        re.search(rf"\b{re.escape(name)}\b", text) for name in options
    )


def _range_of(text: str) -> tuple[int, int | str | None] | None:
    """Read a range; its end is `_IN_WORDS` where it is written in words."""
    at_least = _AT_LEAST.match(text)
    if at_least is not None:
        word = next(filter(None, at_least.groups()), "1")
        return (int(word) if word.isdigit() else 1), None
    between = _FROM_TO.match(text)
    if between is not None:
        return int(between[1]), int(between[2])
    up_to = _UP_TO.match(text)
    if up_to is not None:
        return 1, int(up_to[1])
    begin = _FROM.match(text)
    if begin is not None:
        return int(begin[1] or 1), _IN_WORDS
    match = _ONE.match(text)
    if match is not None:
        number = 1 if match[1].lower() == "one" else int(match[1])
        return number, number
    return None


def _said(sizes: tuple[int, int | str | None]) -> str:
    least, most = sizes
    return f"{least} or more" if most is None else f"{least} to {most}"


@rule("docstring-raises", "docstring-sections", "attributes", "missing-key", unbuilt=True)
def docstring_raises(subject: Subject) -> str | None:
    """The section Raises must name what callers will meet.

    A backend that refuses a request without one of its keys names `InputError` there, or a subclass of it.
    """
    text = sections(documentation(subject.cls)).get("Raises", "")
    if subject.children:
        return "what it raises is that of its children"
    names = any(name in text for name in _names_with_subclasses(InputError))
    if subject.declared("reads").required and not names:
        raise Broken(
            "it raises InputError for a request that is wrong; the section Raises does "
            f"not name it: {text!r}"
        )
    return None


def _names_with_subclasses(cls: type[Any]) -> Iterator[str]:
    yield cls.__name__
    for subclass in cls.__subclasses__():
        yield from _names_with_subclasses(subclass)


@rule("docstring-results", "docstring-keys", "writes")
def docstring_results(subject: Subject) -> str:
    """Who reads a result relies on the dtype and the shape that the section Writes names.

        Where the entry of a key names dtypes (`uint8`, "floating") or shapes (`[H, W, 3]`), an array that is
        written under that key has one of them: as many axes, and the lengths that are numbers. Where it names several things, the array is one
    of them: in "a label, or ``float [K]``" the label is any value without axes. An entry with
        "same", "any" or "..." in place of a shape, or that speaks of a `dtype`, is not compared. Where it begins
        with both (`float32 [N]`) and speaks of no list or tuple, what is written is no list, tuple or generator.
    """
    written = entries(sections(documentation(subject.cls)).get("Writes", ""))
    count = 0
    for k in range(3):
        request = subject.item(k)
        subject.live.result_alone(request)
        for key in sorted(written.keys() & request.keys()):
            text, value = written[key], request[key]
            if (
                isinstance(value, (list, tuple, Iterator))
                and claims_array(text)
                and not subject.children
            ):
                raise Broken(
                    f"the section Writes says of {key!r} {text!r}, and it is a {type(value).__name__}"
                )
            if not is_array(value) or not hasattr(value, "shape") or subject.children:
                continue
            count += 1
            if not describes(text, tuple(value.shape), value.dtype):
                raise Broken(
                    f"the section Writes says of {key!r} {text!r}, and it is {said(value)}"
                )
    return f"{count} arrays" if count else "it writes no array"


RULES: tuple[Rule, ...] = (
    docstring_sections,
    docstring_keys,
    docstring_batch,
    docstring_raises,
    docstring_results,
)
