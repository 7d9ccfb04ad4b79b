"""Collecting everything that is wrong, so that it can be reported together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Problems"]


class Problems:
    """The problems found so far, each once."""

    def __init__(self) -> None:
        self._found: dict[Problem, None] = {}

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._found)

    def add(
        self,
        code: str,
        message: str,
        *,
        file: str | None = None,
        path: str | None = None,
        span: tuple[int, int] | None = None,
        text: str | None = None,
        suggestion: str | None = None,
        hint: str | None = None,
    ) -> None:
        """Take note of one problem; see `headrace.errors.Problem`."""
        self._found.setdefault(
            Problem(code, message, file, path, span, suggestion, text, hint), None
        )

    def extend(
        self, problems: Iterable[Problem], *, file: str | None = None, path: str | None = None
    ) -> None:
        """Take note of problems found elsewhere, with the place filled in where it is missing."""
        for problem in problems:
            placed = replace(problem, file=problem.file or file, path=problem.path or path)
            self._found.setdefault(placed, None)

    def raise_if_any(self) -> None:
        """Raise one ConfigError with all of them, if there are any."""
        if self._found:
            raise ConfigError(tuple(self._found))
