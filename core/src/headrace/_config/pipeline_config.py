"""A whole configuration: read, checked, frozen; nothing of it is built."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from headrace._config.document import Document, read_document
from headrace._config.problems import Problems
from headrace._config.shape import Shape, read_shape
from headrace._registry import run_imports
from headrace.errors import ConfigError, PluginError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace._plan import PipelinePlan

__all__ = ["PipelineConfig"]


class PipelineConfig:
    """A configuration that has been read, merged and checked as a whole.

    It is frozen and can be pickled; the other process checks it again with its own plugins.
    """

    __slots__ = ("_allow_import", "_document", "_plan", "_shape")

    _document: Document
    _shape: Shape
    _plan: PipelinePlan
    _allow_import: bool

    def __init__(self) -> None:
        raise TypeError("use PipelineConfig.load(source)")

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str] | Mapping[str, Any] | PipelineConfig,
        *,
        allow_import: bool = True,
    ) -> PipelineConfig:
        """Read and check a configuration; build nothing, import no heavy library.

        Args:
            source: A dict, the path of a TOML file (a text is always a path), or a configuration.
            allow_import: Whether the code under ``import`` may run. The environment variable
                ``HEADRACE_IMPORT=0`` refuses it as well.

        Raises:
            ConfigError: Something is wrong; its ``problems`` are all that is.
            TypeError: ``source`` is none of the three.
        """
        if isinstance(source, PipelineConfig):
            return source
        return cls._of(read_document(source), allow_import)

    @classmethod
    def _of(cls, document: Document, allow_import: bool) -> PipelineConfig:
        from headrace._plan import plan_pipeline

        files = _run_imports(document, allow_import)
        problems = Problems()
        shape = read_shape(document, problems)
        try:
            plan = plan_pipeline(shape, files, problems)
        except PluginError as error:
            problems.add(error.code, error.what, file=document.file, hint=error.hint)
        problems.raise_if_any()
        config = object.__new__(cls)
        for name, value in (
            ("_document", document),
            ("_shape", shape),
            ("_plan", plan),
            ("_allow_import", allow_import),
        ):
            object.__setattr__(config, name, value)
        return config

    def to_dict(self) -> dict[str, Any]:
        """Give the configuration as plain data, merged from all its files, as it was written."""
        return self._document.to_dict()

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes, in file order."""
        return tuple(self._plan.order)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a PipelineConfig is frozen: cannot set {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a PipelineConfig is frozen: cannot delete {name!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PipelineConfig):
            return NotImplemented
        mine, theirs = self._document, other._document
        return (mine.top, mine.imports) == (theirs.top, theirs.imports)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<PipelineConfig of {', '.join(self.nodes)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._document, self._allow_import)


def _restore(document: Document, allow_import: bool) -> PipelineConfig:
    return PipelineConfig._of(document, allow_import)


def _run_imports(
    document: Document, allow_import: bool
) -> tuple[tuple[str, dict[str, type[Any]]], ...]:
    if not document.imports:
        return ()
    if not allow_import or os.environ.get("HEADRACE_IMPORT") == "0":
        listed = ", ".join(item for item, _ in document.imports)
        raise ConfigError(
            Problem(
                "import_refused",
                f"the configuration imports {listed}, and running its code is not allowed",
                file=document.file,
                path="import",
                hint="Allow it with allow_import=True, without --no-import and HEADRACE_IMPORT=0.",
            )
        )
    try:
        return run_imports(document.imports)
    except PluginError as error:
        problem = Problem("import", error.what, file=document.file, path="import", hint=error.hint)
        raise ConfigError(problem) from error
