"""What errors are made of: problems and texts. And how errors are pickled, copied and shortened."""

from __future__ import annotations

import builtins
import difflib
import pickle
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import islice
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

_MOST_SHOWN = 200

Error = TypeVar("Error", bound=BaseException)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong in a configuration or expression.

    Attributes:
        code: Stable name of the kind of problem, for programs.
        message: What is wrong and what was expected, in one sentence.
        file: The file that holds the place, or None for a dict or a bare expression.
        path: The keys that lead to the place, ``"node.key"``, or None.
        span: Start and end offset (in characters) inside ``text``, or None.
        suggestion: The nearest known name, or None.
        text: The text into which ``span`` points, usually an expression.
        hint: What to do about it, or None.
        line, column: The place in ``file``, both from 1, or None.
    """

    code: str
    message: str
    file: str | None = None
    path: str | None = None
    span: tuple[int, int] | None = None
    suggestion: str | None = None
    text: str | None = None
    hint: str | None = None
    line: int | None = None
    column: int | None = None

    def __post_init__(self) -> None:
        """Shorten message and hint: a name in them may have a million characters."""
        object.__setattr__(self, "message", shorten(self.message))
        object.__setattr__(self, "hint", self.hint and shorten(self.hint))

    def to_dict(self) -> dict[str, Any]:
        """Return the problem as plain data for JSON."""
        return {**asdict(self), "span": self.span and [*self.span]}

    def render(self) -> str:
        """Return the text for people: place, message, the expression with a caret, suggestion."""
        file = self.file if self.line is None else f"{self.file}:{self.line}:{self.column}"
        place = shorten(": ".join(part for part in (file, self.path) if part))
        lines = [f"{place}: {self.message}" if place else self.message]
        if self.text is not None and self.span is not None:
            lines += _caret(self.text, *self.span)
        if self.suggestion is not None:
            lines.append(f"  Did you mean {self.suggestion!r}?")
        if self.hint is not None:
            lines.append(f"  {self.hint}")
        return "\n".join(lines)


_LONG_WORD, _LONG_TEXT = 400, 4000
"""The longest word and the longest text that a message shows, in characters."""


def shorten(text: str) -> str:
    """Cut words, and then a text, that are too long to read, in their middle."""
    if len(text) > _LONG_WORD:
        text = re.sub(rf"\S{{{_LONG_WORD},}}", lambda m: f"{m[0][:60]}…{m[0][-20:]}", text)
    if len(text) > _LONG_TEXT:
        text = f"{text[: _LONG_TEXT - 400]} … {text[-300:]}"
    return text


_WINDOW = 100
"""The longest piece of an expression that an error shows, in characters."""


def _caret(text: str, start: int, end: int) -> list[str]:
    """Show the line of ``text`` that holds ``start`` with carets under [start, end)."""
    # Ends of lines are looked for only within the piece that is shown: the text may be very long.
    first = start - len(re.split(r"[\r\n]", text[max(0, start - _WINDOW // 2) : start])[-1])
    piece = re.split(r"[\r\n]", text[first : first + _WINDOW])[0]
    last = first + len(piece)
    before = "…" if first and text[first - 1] not in "\r\n" else ""
    after = "…" if last < len(text) and text[last] not in "\r\n" else ""
    shown = before + "".join(c if c.isprintable() else " " for c in piece) + after
    width = max(1, min(end, last) - start)
    return [f"    {shown}", f"    {' ' * (len(before) + start - first)}{'^' * width}"]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like ``name``, or None when none is like it."""
    by_lower: dict[str, str] = {}
    for one in known:
        by_lower.setdefault(one.lower(), one)
    if not by_lower or len(name) > 200:
        return None  # comparing takes the square of the length
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def starting(name: str, known: Iterable[str]) -> str | None:
    """Return the shortest known name that begins as ``name`` does, of three letters or more, whatever their case."""
    begins = name.lower()
    found = [one for one in known if one.lower().startswith(begins)] if len(begins) > 2 else []
    return min(found, key=len, default=None)


def nearest_file(path: Path) -> str | None:
    """Give the file beside a missing one that was perhaps meant: of a similar name, or of its name with ``.toml``.

    A name that cannot be printed, such as one that is no UTF-8, is left out: an error could not show it. So is a link
    to nothing.
    """
    try:
        found = islice(path.parent.iterdir(), 1000)
        beside = [one.name for one in found if one.name.isprintable() and one.exists()]
    except OSError:
        return None
    alike = [one for one in beside if nearest(path.stem, [path.with_name(one).stem])]
    near = nearest(path.name, alike) or next((f for f in beside if f == f"{path.name}.toml"), None)
    return None if near is None else str(path.with_name(near))


def no_file(path: Path) -> str | None:
    """Say what stands in the place of a file; None where there is a file, or nothing."""
    if path.is_file() or not path.exists():
        return None
    return "a folder" if path.is_dir() else "a pipe or a device"


# Working with errors of any class, whose methods may raise.


def error_text(error: BaseException) -> str:
    """Return type and text of an error, even when its ``__str__`` raises."""
    try:
        return f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception as broken:  # noqa: BLE001 - the __str__ is a user's
        return f"{type(error).__name__} (its __str__ raised {type(broken).__name__})"


_INDEXED = "TypeError: list indices must be integers or slices, not str"
_LACKS = "AttributeError: 'list' object has no attribute "


def list_taken_for_a_dict(error: BaseException, code: CodeType) -> str | None:
    """Return the name of the list of requests that ``forward`` has used as one request. None for any other error.

    Args:
        error: What ``forward`` has raised.
        code: The code of ``forward``.
    """
    text, names = error_text(error), code.co_varnames[1 : code.co_argcount]
    indexed = text == _INDEXED
    if not (indexed or text.startswith(_LACKS)) or not names:
        return None
    last: TracebackType | None = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or last.tb_frame.f_code is not code:
        return None
    import dis  # takes long to import, and is needed here alone

    # As in `data["x"]`: load data, load the key, index. Or in `data.get`: load data, load the attribute.
    before = [one for one in dis.get_instructions(code) if one.offset <= last.tb_lasti]
    wanted = ("LOAD_CONST",) if indexed else ("LOAD_ATTR", "LOAD_METHOD")
    if indexed:
        before.pop()
    if len(before) < 2 or before.pop().opname not in wanted:
        return None
    if not re.search("LOAD_FAST|LOAD_DEREF", before[-1].opname):
        return None
    # An instruction may be two in one: STORE_FAST_LOAD_FAST of "a, b".
    parts = [(one.opname.count("STORE_FAST"), one.argrepr.split(", ")) for one in before]
    stored = {name for count, several in parts for name in several[:count]}
    return names[0] if parts[-1][1][-1] == names[0] and names[0] not in stored else None


def none_if_all_ok(outcomes: list[Error | None]) -> list[Error | None] | None:
    """Return the outcomes of a batch, None where no item has failed; a user's error may count as false."""
    for outcome in outcomes:
        if outcome is not None:
            return outcomes
    return None


def is_abandoned(error: BaseException | None) -> bool:
    """Tell whether an error says that a backend still runs on its request; an attribute that raises says no."""
    try:
        return getattr(error, "abandoned", False) is True
    except Exception:  # noqa: BLE001 - a user's class may have a property that raises
        return False


def with_cause(error: Error, by: BaseException | None) -> Error:
    """Give an error with its cause, as ``raise error from by`` sets it."""
    error.__cause__ = by
    return error


def caught(error: Error) -> Error:
    """Clear an error that was just caught; one that was caught here before loses its traceback, which keeps a batch."""
    # Each time an error object is raised, Python puts the new traceback before the old one.
    codes = [frame.f_code for frame, _ in traceback.walk_tb(_part(error, "__traceback__"))]
    if codes.count(codes[0]) > 1:
        BaseException.with_traceback(error, None)
    return without_locals(error)


def without_locals(error: Error) -> Error:
    """Clear the local variables in the tracebacks of an error and its causes. Give the error.

    While the error lives, they would live: after an out-of-memory error that is the batch itself. Files and
    lines stay. In Python's development mode (``python -X dev``) the variables stay as well.
    """
    if sys.flags.dev_mode:
        return error
    group = getattr(builtins, "BaseExceptionGroup", ())  # since Python 3.11
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen and (one is error or _is_over(one)):
            seen.add(id(one))
            traceback.clear_frames(_part(one, "__traceback__"))
            left += [_part(one, "__cause__"), _part(one, "__context__")]
            left += _part(one, "exceptions") if issubclass(type(one), group) else ()
    return error


def _is_over(error: BaseException) -> bool:
    """Tell whether the outermost frame of an error's traceback has ended; one that runs is a caller's."""
    last: TracebackType | None = _part(error, "__traceback__")
    try:
        if last is not None:
            last.tb_frame.clear()
    except RuntimeError:
        return False
    return True


_part: Callable[[BaseException, str], Any] = object.__getattribute__
"""Reads an attribute of an error, past any ``__getattribute__`` of its class."""


def rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    """Make an error again from what ``__reduce__`` gave, without calling its ``__init__``."""
    error = cls.__new__(cls, *args)
    error.args = args  # a subclass of OSError with an own __init__ would have empty args
    cause = state.pop("__cause__", None)
    error.__dict__.update(state)
    error.__cause__ = cause
    return error


def twin_of(error: BaseException) -> Any:
    """Make a second error of the same content, with the traceback and the cause of the first."""
    twin = rebuild(type(error), error.args, dict(error.__dict__))
    twin.__cause__, twin.__context__ = error.__cause__, error.__context__
    twin.__suppress_context__ = error.__suppress_context__
    return twin.with_traceback(error.__traceback__)


def portable(value: Any) -> Any:
    """Return ``value`` itself if it can be pickled and unpickled, else a stand-in with its text.

    An exception whose ``__init__`` takes more than its text is pickled well and raises when it is unpickled.
    """
    if value is None or issubclass(type(value), (str, int)):
        return value
    if type(value) in (list, tuple):
        return type(value)(map(portable, value))
    try:
        pickle.loads(pickle.dumps(value))  # noqa: S301 - pickled in this very line
    except Exception:  # noqa: BLE001 - the value's class may raise anything
        return (
            RuntimeError(error_text(value)) if isinstance(value, BaseException) else repr_of(value)
        )
    return value


def repr_of(value: object) -> str:
    """Return the repr of any value, cut to 200 characters, even when its ``__repr__`` raises."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a user's __repr__, or an int of too many digits
        if isinstance(value, int):
            return f"an int of {value.bit_length()} bits"
        text = object.__repr__(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
