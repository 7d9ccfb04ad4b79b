"""The text form of protobuf, as ``config.pbtxt`` has it, with line and column of everything."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import ConfigError, Problem, among
from headrace_triton.schema import ENUMS, MESSAGES, ONE_OF, Field

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Message", "Place", "of_json", "read"]

_TOKEN: Final = re.compile(
    r"(?:\s+|\#[^\n]*)*(?:"
    r"""(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"|(?P<number>-?\s*(?:0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?))(?![\w.])"
    r"|(?P<name>-?[A-Za-z_]\w*)|(?P<sign>[{}\[\]<>:,;])|(?P<end>\Z))"
)
_ESCAPE: Final = re.compile(
    r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(u[0-9a-fA-F]{4}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4})|(.))"
)
_ESCAPED: Final = dict(zip("abfnrtv\\'\"?", "\a\b\f\n\r\t\v\\'\"?", strict=True))
_CLOSES: Final = {"{": "}", "<": ">"}
_SAID: Final = {
    "text": "a text in quotes",
    "int": "a whole number",
    "uint": "a whole number, 0 or more",
    "number": "a number",
    "bool": "true or false",
}
_BOOLS: Final = {
    **dict.fromkeys(("true", "True", "t", "1"), True),
    **dict.fromkeys(("false", "False", "f", "0"), False),
}
_NONE: Final[dict[str, Any]] = {"text": "", "int": 0, "uint": 0, "number": 0.0, "bool": False}


class Place(NamedTuple):
    """Where something stands, counted from 1."""

    file: str
    line: int | None = None
    column: int | None = None

    def problem(self, text: str, hint: str | None = None) -> Problem:
        """Return what is wrong here."""
        return Problem(
            "triton", text, file=self.file, line=self.line, column=self.column, hint=hint
        )


class Message:
    """One message: the values of its fields.

    Attributes:
        kind: Its name in `MESSAGES`.
        place: Where it begins.
        places: Where each field stands, for a repeated one each value.
    """

    def __init__(self, kind: str, place: Place) -> None:
        self.kind, self.place = kind, place
        self.places: dict[str, list[Place]] = {}
        self._values: dict[str, list[Any]] = {}

    def __contains__(self, name: str) -> bool:
        return bool(self._values.get(name))

    def __iter__(self) -> Any:
        return iter(self._values)

    def add(self, name: str, value: Any, place: Place) -> None:
        """Add a value of a field."""
        self._values.setdefault(name, []).append(value)
        self.places.setdefault(name, []).append(place)

    def one(self, name: str) -> Any:
        """Return the value of a field, where it is left out its default: of a message, an empty one."""
        kind = MESSAGES[self.kind][name].type
        if self._values.get(name):
            return self._values[name][-1]
        return Message(kind, self.place) if kind in MESSAGES else _default(kind)

    def all(self, name: str) -> list[Any]:
        """Return all values of a repeated field."""
        return self._values.get(name, [])

    def table(self, name: str) -> dict[str, Any]:
        """Return the pairs of a field that maps keys to values."""
        return dict(self.all(name))

    def at(self, name: str, index: int = 0) -> Place:
        """Return where a field stands; of one that is left out, where its message begins."""
        return self.places.get(name, [self.place] * (index + 1))[index]

    def as_json(self) -> dict[str, Any]:
        """Return the message as JSON has it: fields that are left out with their defaults, messages among them left out."""
        fields: dict[str, Any] = {}
        for name, field in MESSAGES[self.kind].items():
            if field.mapped:
                fields[name] = {key: _json(value) for key, value in self.all(name)}
            elif field.repeated:
                fields[name] = [_json(value) for value in self.all(name)]
            elif name in self or field.type not in MESSAGES:
                fields[name] = _json(self.one(name))
        return fields


def _json(value: Any) -> Any:
    return value.as_json() if isinstance(value, Message) else value


def _default(kind: str) -> Any:
    return ENUMS[kind][0] if kind in ENUMS else _NONE[kind]


def read(path: Path) -> Message:
    """Read a file ``config.pbtxt``.

    Raises:
        ConfigError: It cannot be read, is not of this form, or has a field that there is not, or of another type. The error
            has line and column.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(Place(str(path)).problem(f"cannot read it: {reason}")) from None
    return _Reader(text, str(path)).message("ModelConfig", "")


def of_json(text: str, name: str) -> Message:
    """Read the JSON of a configuration in which nothing is empty, and no field maps keys to values.

    Args:
        text: The JSON.
        name: What errors call it.

    Raises:
        ConfigError: As `read` does.
    """
    return _Reader(text[1:-1], name, quoted=True).message("ModelConfig", "")


def _said(field: Field) -> str:
    return _SAID.get(field.type) or f"one of {', '.join(ENUMS[field.type])}"


def _field_of(message: Message, name: str, place: Place) -> Field:
    fields = MESSAGES[message.kind]
    if name not in fields:
        problem = f"there is no field `{name[:80]}` in {message.kind}"
        raise ConfigError(place.problem(problem, among(name, fields)))
    return fields[name]


class _Reader:
    """Reads one text, from token to token."""

    def __init__(self, text: str, file: str, *, quoted: bool = False) -> None:
        self._text, self._file, self._quoted = text, file, quoted
        self._kind = self._word = ""
        self._at = self._next = 0
        self._step()

    def message(self, kind: str, end: str) -> Message:
        """Read fields up to the sign that ends a message."""
        message = Message(kind, self._place())
        while self._word != end or (not end and self._kind != "end"):
            place, name = self._place(), self._bare()
            if not name.isidentifier():
                raise self._expected(f"a field of {kind}" + (f" or {end!r}" if end else ""))
            field = _field_of(message, name, place)
            if name in message and not (field.repeated or field.mapped):
                raise ConfigError(place.problem(f"`{name}` stands here twice"))
            choices = ONE_OF.get(kind, ())
            if name in choices and any(choice in message for choice in choices):
                problem = f"{kind} has one of {', '.join(choices)} at most"
                raise ConfigError(place.problem(problem))
            self._step()
            if not self._took(":") and (field.type not in MESSAGES and not field.mapped):
                raise self._expected("':'")
            if (field.repeated or field.mapped) and self._took("["):
                while not self._took("]"):
                    self._add(message, name, field)
                    if self._word != "]" and (not self._took(",") or self._word == "]"):
                        raise self._expected("',' or ']' and then a value")
            else:
                self._add(message, name, field)
            self._took(",") or self._took(";")
        if end:
            self._step()
        return message

    def _add(self, message: Message, name: str, field: Field) -> None:
        place = self._place()
        message.add(name, self._pair(field) if field.mapped else self._value(name, field), place)

    def _pair(self, field: Field) -> tuple[str, Any]:
        """Read one pair of a map, ``{ key: "a" value: ... }``."""
        end, place = self._opened("a pair of key and value"), self._place()
        pair: dict[str, Any] = {}
        while not self._took(end):
            name = self._word
            if name not in ("key", "value") or name in pair:
                raise self._expected(f"`key`, `value` or {end!r}, each once")
            self._step()
            if not self._took(":") and (name == "key" or field.type not in MESSAGES):
                raise self._expected("':'")
            if name == "key":
                key = self._kind == "number" and Field("int")
                pair["key"] = str(self._value(name, key or Field("text")))
            else:
                pair["value"] = self._value(name, field)
            self._took(",") or self._took(";")
        kind = field.type
        empty = Message(kind, place) if kind in MESSAGES else _default(kind)
        return pair.get("key", ""), pair.get("value", empty)

    def _value(self, name: str, field: Field) -> Any:
        kind, token = self._kind, self._bare()
        if field.type in MESSAGES:
            return self.message(field.type, self._opened(f"`{name}` is a message: '{{'"))
        if field.type == "text" and kind == "text":
            return self._strings()
        value: Any = None
        names = ENUMS.get(field.type)
        if field.type in ("int", "uint", "number") and kind == "number":
            value = _number(token, field.type)
        elif field.type == "bool" and kind != "text":
            value = _BOOLS.get(token)
        elif names and kind == "number":
            number = _number(token, "uint")
            value = next((label for index, label in enumerate(names) if index == number), None)
        elif names and token in names:
            value = token
        if value is None:
            hint = among(token, names) if names else None
            raise self._expected(f"`{name}` is {_said(field)}", hint)
        self._step()
        return value

    def _bare(self) -> str:
        """Return the word that stands here, in JSON without its quotes."""
        return self._word.strip('"') if self._quoted else self._word

    def _strings(self) -> str:
        """Read texts that follow each other, which are one."""
        text, first = "", self._at
        while self._kind == "text":
            begin = self._at + 1

            def letter(match: re.Match[str], begin: int = begin) -> str:
                octal, hexadecimal, code, sign = match.groups()
                if code:
                    return chr(int(code[1:], 16))
                if sign is None:  # a byte of UTF-8
                    byte = (int(octal, 8) if octal else int(hexadecimal, 16)) & 255
                    return bytes([byte]).decode(errors="surrogateescape")
                if sign not in _ESCAPED:
                    raise self._wrong(begin + match.start(), f"{match[0]} means nothing in a text")
                return _ESCAPED[sign]

            text += _ESCAPE.sub(letter, self._word[1:-1])
            self._step()
        try:
            return text.encode(errors="surrogateescape").decode()
        except UnicodeError:
            raise self._wrong(first, "the bytes of the text are not UTF-8") from None

    def _opened(self, expected: str) -> str:
        end = _CLOSES.get(self._word)
        if end is None or self._kind != "sign":
            raise self._expected(expected)
        self._step()
        return end

    def _took(self, sign: str) -> bool:
        """Step over a sign, if it stands here."""
        is_there = self._kind == "sign" and self._word == sign
        if is_there:
            self._step()
        return is_there

    def _step(self) -> None:
        match = _TOKEN.match(self._text, self._next)
        if match is None:
            blank = re.compile(r"(?:\s+|\#[^\n]*)*").match(self._text, self._next)
            at = blank.end() if blank else self._next
            problem = "a text has no end on its line" if self._text[at] in "\"'" else "no such sign"
            raise self._wrong(at, f"{problem}: {self._text[at : at + 20].splitlines()[0]!r}")
        self._kind = str(match.lastgroup)
        self._word, self._at, self._next = match[self._kind], match.start(self._kind), match.end()

    def _place(self, at: int | None = None) -> Place:
        at = self._at if at is None else at
        line = self._text.count("\n", 0, at) + 1
        return Place(self._file, line, at - self._text.rfind("\n", 0, at))

    def _wrong(self, at: int, problem: str, hint: str | None = None) -> ConfigError:
        return ConfigError(self._place(at).problem(problem, hint))

    def _expected(self, token: str, hint: str | None = None) -> ConfigError:
        got = "the end of the file" if self._kind == "end" else repr(self._word[:60])
        text = token if token.startswith("`") else f"expected {token}"
        return self._wrong(self._at, f"{text}, got {got}", hint)


def _number(token: str, kind: str) -> int | float | None:
    text = "".join(token.split())
    octal = kind != "number" and re.fullmatch(r"-?0[0-7]+", text)
    try:
        if kind == "number":
            return float(int(text, 16) if "x" in text.lower() else text.rstrip("fF"))
        number = int(text, 8 if octal else 0)
    except ValueError:
        return None
    return number if (0 if kind == "uint" else -(1 << 63)) <= number < 1 << 63 else None
