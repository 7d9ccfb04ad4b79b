"""The installed TensorRT: finds the package, and detects features in the module itself, not by its version."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import MissingDependencyError, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["LIBRARIES", "Library", "find_library", "load_library"]

LIBRARIES: Final = ("tensorrt", "tensorrt_rtx")
"""Packages in the order of preference of ``library = "auto"``."""

TESTED: Final = "TensorRT 10 and 11 and TensorRT-RTX"
"""The tested versions. TensorRT 9.3 has the same calls and is not refused, but was never tried."""

_INSTALL: Final = (
    '`pip install "headrace-trt[tensorrt]"` brings TensorRT, `pip install "headrace-trt[rtx]"`'
    " TensorRT for RTX."
)


@dataclass(frozen=True)
class Library:
    """One installed package of TensorRT.

    Attributes:
        trt: The module.
        name: ``"tensorrt"`` or ``"tensorrt_rtx"``.
        version: Its version, for messages and for the key of the engine cache.
    """

    trt: Any
    name: str
    version: str

    @property
    def is_rtx(self) -> bool:
        """Whether it is TensorRT for RTX, which builds ahead of time, also without a GPU."""
        return self.name == "tensorrt_rtx"

    @property
    def text(self) -> str:
        """Name and version, for messages."""
        return f"{self.name} {self.version}"

    def has(self, path: str) -> bool:
        """Return whether the module has ``path``, such as ``"BuilderFlag.REFIT"``."""
        part_of = self.trt
        for part in path.split("."):
            if not hasattr(part_of, part):
                return False
            part_of = getattr(part_of, part)
        return True

    def need(self, path: str, option: str) -> Any:
        """Return the object of the module that ``path`` names.

        Raises:
            SetupError: The installed library does not have it. The error names ``option``, which needs it.
        """
        if not self.has(path):
            raise SetupError(
                f"`{option}` needs {path}, which {self.text} does not have",
                hint="Leave the option out, or install a version of TensorRT that has it.",
            )
        part_of = self.trt
        for part in path.split("."):
            part_of = getattr(part_of, part)
        return part_of

    def choice(self, enum: str, name: str, option: str) -> Any:
        """Return the member ``name`` (in any case) of an enumeration of the library.

        Raises:
            SetupError: The library has no such member. The message lists those it has.
        """
        members = self.need(enum, option)
        member = name.strip().upper()
        if hasattr(members, member):
            return getattr(members, member)
        known = [n for n in dir(members) if n.isupper() and not n.startswith("_")]
        raise SetupError(
            f"`{option}` names {name!r}, which {self.text} does not have",
            hint=f"It has: {', '.join(name.lower() for name in known)}.",
        )


def find_library(name: str = "auto") -> Library:
    """Return the installed TensorRT.

    Args:
        name: One of `LIBRARIES`, or ``"auto"``: the first of them that can be imported.

    Raises:
        MissingDependencyError: The package is not installed, or cannot be imported.
        SetupError: ``name`` is none of these, or the package is too old for Headrace.
    """
    if name not in ("auto", *LIBRARIES):
        raise SetupError(
            f"there is no TensorRT named {name!r}",
            hint=f"`library` is auto or one of {', '.join(LIBRARIES)}.",
        )
    return load_library(LIBRARIES if name == "auto" else (name,), importlib.import_module)


def load_library(names: Iterable[str], import_module: Callable[[str], Any]) -> Library:
    """Import the first installed package of ``names``, and check that it is not too old.

    Raises:
        MissingDependencyError: No package can be imported. The error has the reason for each.
        SetupError: The first package that was imported is too old.
    """
    reasons = []
    cause: ImportError | None = None
    for name in names:
        try:
            module = import_module(name)
        except ImportError as error:
            cause = cause or error
            reasons.append(f"{name}: {error}")
            continue
        library = Library(module, name, str(getattr(module, "__version__", "unknown")))
        _refuse_old(library)
        return library
    raise MissingDependencyError(
        f"TensorRT is not installed ({'; '.join(reasons)})",
        distribution="headrace-trt",
        hint=_INSTALL,
    ) from cause


def _refuse_old(library: Library) -> None:
    """Refuse a library without ``execute_async_v3``, or without strongly typed networks."""
    runs = library.has("IExecutionContext.execute_async_v3")
    # A version that only has strong typing lacks the flags of weak typing (as FP16), and may lack STRONGLY_TYPED too.
    weak = library.has("BuilderFlag.FP16")
    typed = library.has("NetworkDefinitionCreationFlag.STRONGLY_TYPED")
    if not runs or (weak and not typed):
        raise SetupError(
            f"{library.text} is too old: it has no strongly typed networks",
            hint=f"Headrace works with {TESTED}; 9.3 has the calls it needs, but is not tested.",
        )
