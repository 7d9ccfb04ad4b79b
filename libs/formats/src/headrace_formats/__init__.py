"""JSON, the lists in headers of HTTP, and names of classes: one reader and one writer of each for all parts of Headrace.

`read_json` takes what RFC 8259 allows, and `write_json` gives what every reader takes. `write_toml` writes configurations. `joined_headers`, `listed` and `quality`
read headers as RFC 9110 has them. `read_labels` reads the names of the classes of a model. `write_whole` writes a file so that no reader
finds a part of it. `back_off` says how long to wait after a failure. Nothing here knows a pipeline or a server.
"""

from __future__ import annotations

import functools
import json
import math
import re
from typing import TYPE_CHECKING, Any, AnyStr

from headrace_formats.files import write_whole
from headrace_formats.pauses import back_off

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "FormatError",
    "back_off",
    "joined_headers",
    "listed",
    "quality",
    "read_json",
    "read_labels",
    "write_json",
    "write_toml",
    "write_whole",
]

__version__ = "0.1.0"

_ELEMENT = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+', re.DOTALL)
_PART = re.compile(r'(?:[^;"]|"(?:[^"\\]|\\.)*"?)+', re.DOTALL)
_WEIGHT = re.compile(r"q=(0(?:\.[0-9]*)?|1(?:\.0*)?)")
_NOT_FINITE = "Out of range float"
"""How the error of `json` for NaN and infinities begins."""
_UTF_8 = frozenset(("charset=utf-8",))
"""What a range may ask of every text of Headrace."""
_MOST_LABELS = 1_000_000
"""No class has a number this large: a list with a place for each would fill the memory."""


class FormatError(ValueError):
    """A text is not in its format, or a value has no form in it. The message begins with ``it``."""


def read_json(text: str | bytes) -> Any:
    """Parse JSON in UTF-8, with or without a byte order mark.

    Whole numbers are exact, however long they are. Of a name that an object has twice, the last value counts.

    Raises:
        FormatError: It is no JSON, as with NaN or Infinity, it holds a number that no float can hold, is nested too deep, or has a
            whole number of more digits than Python reads (`sys.get_int_max_str_digits`).

    Source:
        RFC 8259, sections 4, 6, 8.1 and 9.
    """
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8")
        decoded = decoded.removeprefix("\ufeff")
        return json.loads(decoded, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"it is no JSON: {error}") from None


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no value of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is more than a float can hold")
    return value


def read_labels(text: str, suffix: str = "") -> list[str]:
    r"""Read the names of classes: that of class n is ``[n]``, and ``""`` where a class has no name.

    In JSON they are a list of names, or an object: of numbers and names (``{"0": "cat"}``), of numbers and lists whose last
    element is the name (``{"0": ["n02123045", "cat"]}``), or of names and numbers (``{"cat": 0}``). An object that holds such an
    object as ``id2label`` stands for it. In any other text each line is a name, and a line ends with ``\n`` or ``\r\n`` alone.

    Args:
        text: The text of a file.
        suffix: The suffix of its name: ``.json`` for JSON.

    Raises:
        FormatError: It is no JSON, or other JSON. Two names have one number, or a number is no whole number below a million.
    """
    if suffix.lower() != ".json":
        text = text.replace("\r\n", "\n")
        return text.removesuffix("\n").split("\n") if text else []
    labels = read_json(text)
    if isinstance(labels, dict):
        labels = labels.get("id2label", labels)
    if isinstance(labels, dict):
        labels = _by_number(labels)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise FormatError("it holds no labels: a list of names, or an object of numbers and names")
    return labels


def _by_number(pairs: dict[str, Any]) -> list[Any]:
    """Return the names of an object by their numbers."""
    names: dict[int, Any] = {}
    for key, value in pairs.items():
        number, name = (value, key) if type(value) is int else (key, value)
        if type(number) is str and number.isascii() and number.isdigit() and len(number) < 10:
            number = int(number)
        if type(number) is not int or not 0 <= number < _MOST_LABELS:
            problem = "is no number of a class: they are whole numbers from 0, below a million"
            raise FormatError(f"it holds no labels: {str(number)[:40]!r} {problem}")
        if number in names:
            raise FormatError(f"it holds two labels for the class {number}")
        names[number] = name[-1] if isinstance(name, list) and name else name
    return [names.get(number, "") for number in range(max(names, default=-1) + 1)]


def write_json(
    value: Any,
    *,
    strict: bool = False,
    default: Callable[[Any], Any] | None = None,
    indent: int | None = None,
    ascii_only: bool = False,
) -> str:
    r"""Write a value as JSON that can be encoded in UTF-8.

    NaN and infinities become null. Half of a surrogate pair, as in some file names, becomes an escape (``\udc80``). If two
    keys of a dict have the same text, the later value is written, and the other is not.

    Args:
        value: The value.
        strict: Refuse those three instead: what is written is I-JSON, which every reader takes for the same.
        default: Gives something simpler for a value that JSON has no form for.
        indent: Spaces of a level. None: everything is on one line.
        ascii_only: Whether all characters beyond ASCII are escapes.

    Raises:
        FormatError: The value holds itself, or what ``strict`` refuses.
        TypeError: JSON has no form for a value or a key.

    Source:
        RFC 8259, sections 6 and 8.2; RFC 7493 (I-JSON), sections 2.1 to 2.3.
    """
    encoder = _encoder(default, indent, ascii_only)
    again = _repeats_a_name(value)
    if again and strict:
        raise FormatError("it holds two keys with the same text, as 1 and '1'")
    try:
        try:
            text = encoder.encode(_read_back(value, default) if again else value)
        except ValueError as error:
            if strict or not str(error).startswith(_NOT_FINITE):
                raise
            text = encoder.encode(_read_back(value, default))
        return text.encode(errors="strict" if strict else "backslashreplace").decode()
    except UnicodeEncodeError:
        raise FormatError("it holds half of a surrogate pair, which UTF-8 does not have") from None
    except (ValueError, RecursionError) as error:
        if str(error).startswith(_NOT_FINITE):
            raise FormatError("it holds NaN or infinity, which JSON does not have") from None
        raise FormatError(f"it has no form in JSON: {error}") from None


@functools.lru_cache(maxsize=16)
def _encoder(
    default: Callable[[Any], Any] | None, indent: int | None, ascii_only: bool
) -> json.JSONEncoder:
    return json.JSONEncoder(
        ensure_ascii=ascii_only, allow_nan=False, indent=indent, default=default
    )


def _read_back(value: Any, default: Callable[[Any], Any] | None) -> Any:
    """Return a value as its JSON is read: with null for NaN and infinities, and one value for each name."""
    return json.loads(json.dumps(value, default=default), parse_constant=lambda _: None)


def _repeats_a_name(value: Any) -> bool:
    """Return whether a dict in a value has two keys that are one text in JSON, since one of them is no text."""
    left, ids = [value], set()
    while left:
        table = left.pop()
        if not isinstance(table, (dict, list, tuple)) or id(table) in ids:
            continue
        ids.add(id(table))
        if isinstance(table, dict):
            if any(type(key) is not str for key in table):
                names = _read_back(dict.fromkeys(table), None)
                if len(names) < len(table):
                    return True
            table = table.values()
        left += [inner for inner in table if isinstance(inner, (dict, list, tuple))]
    return False


def write_toml(table: Mapping[str, Any], comment: str = "") -> str:
    """Write tables of texts, numbers, truth values and lists of these as TOML, below a comment."""
    lines = [f"# {line}" for line in comment.splitlines()]
    _toml_lines(table, (), lines)
    return "\n".join(lines) + "\n"


def _toml_lines(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    values = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if path and values:
        lines += ["", f"[{'.'.join(map(_toml_key, path))}]"]
    lines += [f"{_toml_key(key)} = {_toml_value(value)}" for key, value in values.items()]
    for key, value in table.items():
        if isinstance(value, dict):
            _toml_lines(value, (*path, key), lines)


def _toml_value(value: Any) -> str:
    """Write a value in one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_toml_key(key)} = {_toml_value(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # JSON writes texts, numbers and truth values as TOML does, but for one control character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(key: str) -> str:
    plain = key.replace("_", "").replace("-", "")
    return key if plain.isascii() and plain.isalnum() else json.dumps(key, ensure_ascii=False)


def joined_headers(lines: Iterable[tuple[AnyStr, AnyStr]]) -> dict[AnyStr, AnyStr]:
    """Return the value of each header, by its name as it is given: several lines of one name are one list.

    So a header that must come once, and came twice, has a value that no reader takes.

    Args:
        lines: Names and values in their order, as text or as bytes.

    Source:
        RFC 9110, section 5.3.
    """
    lines = list(lines)
    joined = dict(lines)
    if len(joined) < len(lines):
        for name in joined:
            values = [value for other, value in lines if other == name]
            joined[name] = (", " if isinstance(name, str) else b", ").join(values)
    return joined


def listed(value: str) -> list[str]:
    """Return the elements of a header that is a list, without the empty ones. A comma in quotes ends none.

    Source:
        RFC 9110, sections 5.6.1 and 5.6.4.
    """
    return [element.strip() for element in _ELEMENT.findall(value) if element.strip()]


def quality(accepted: str, offered: str) -> float:
    """Return how much a client wants what is offered, from 0 (not at all) to 1, by the range that fits it most closely.

    Args:
        accepted: A header such as ``Accept`` or ``Accept-Encoding``. One that is empty, or not there, accepts all.
        offered: A media type without parameters, or a coding.

    Source:
        RFC 9110, sections 12.4.2, 12.5.1 and 12.5.3.
    """
    main, slash, _ = offered.partition("/")
    if accepted.strip() in ("", "*/*" if slash else "*"):
        return 1.0
    fits = ("*/*" if slash else "*", f"{main}/*", offered)
    fitting = [own for own in _ranges(accepted) if own[0] in fits and own[1] <= _UTF_8]
    closest = max(fitting, key=lambda own: (fits.index(own[0]), len(own[1])), default=None)
    return 0.0 if closest is None else closest[2]


@functools.lru_cache(maxsize=16)
def _ranges(accepted: str) -> list[tuple[str, frozenset[str], float]]:
    """Return the ranges of a header: the name of each, its parameters, and its weight."""
    ranges = []
    for element in listed(accepted.lower()):
        name, *parameters = [part.strip() for part in _PART.findall(element)] or [""]
        at = next((n for n, part in enumerate(parameters) if part.startswith("q=")), None)
        weight = None if at is None else _WEIGHT.fullmatch(parameters[at])
        keys = frozenset(part.replace('"', "") for part in parameters[:at] if part)
        ranges.append((name, keys, 1.0 if weight is None else float(weight[1])))
    return ranges
