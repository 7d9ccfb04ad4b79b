"""The text that an element was written in, and the args on the definitions around it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace._config.document import Written
    from headrace._expression import Call

__all__ = ["Layer", "ScopedArgs"]


@dataclass(eq=False)
class ScopedArgs:
    """The args written on a definition: ``a=1`` in ``Z(a=1)``, for every backend of Z that has it.

    Attributes:
        call: Where they were written.
        layer: The text they were written in.
        values: By key.
        used: Keys that some backend of the definition has.
        asked: All keys that backends of the definition have.
    """

    call: Call
    layer: Layer
    values: dict[str, Any]
    used: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)


@dataclass(frozen=True, eq=False)
class Layer:
    """The text that an element was written in.

    Attributes:
        path: The keys that lead to the text, ``main.backend`` or ``define.Z``.
        file: The file that holds it, None for a dict.
        base: The folder that relative paths in it start from, as text.
        depth: 0 for what the user wrote, 1 inside a definition, 2 inside one used there, ...
        scoped: Args on the definitions around, outermost first.
        written: The value of the configuration that the text is, None for one that is made up.
    """

    path: str
    file: str | None = None
    base: str = "."
    depth: int = 0
    scoped: tuple[ScopedArgs, ...] = ()
    written: Written | None = None

    @classmethod
    def of(cls, written: Written, path: str) -> Layer:
        """Give the layer of a text of the configuration."""
        return cls(path, written.file, str(written.base), written=written)

    def place(self, call: Call, argument: int | str | None = None) -> dict[str, Any]:
        """Give the place of an element of this text, or of one of its args, for a problem."""
        span = call.name_span or call.span
        if argument is not None:
            span = call.args.span_of(argument) or span
        return {"file": self.file, "path": self.path, "span": span, "text": call.text}
