"""A whole configuration, which is read, checked and frozen; nothing of it is built."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace._language.config.document import Document, read_document
from headrace._language.config.problems import Problems, key_place, with_lines
from headrace._language.config.sections import Sections, key_schemas, read_sections
from headrace._language.contract.options import map_leaves, path_as_text, without_base
from headrace._language.expression.nesting import with_room
from headrace._language.plan.element import elements_of
from headrace._language.plan.nodes import Plan
from headrace._language.plan.parameters import place_at
from headrace._language.plan.planner import Planner
from headrace._language.plan.rewriting import rewrite
from headrace._language.registry.imports import HOW_TO_ALLOW, run_import, why_refused
from headrace._language.registry.packages import package_of
from headrace._language.registry.registry import Files, registry
from headrace._run.notebook import html_of
from headrace.errors import PluginError, Problem

_LACKS = ("unknown_backend", "unknown_policy", "unknown_probe", "missing_plugin", "plugin_")
"""A problem whose code begins with one of these may be gone once another plugin is installed."""


@dataclass(frozen=True, init=False, eq=False, repr=False)
class PipelineConfig:
    """A configuration that has been read, merged and checked as a whole.

    It is frozen and can be pickled. The other process checks it again with its own plugins.
    """

    _document: Document
    _shape: Sections
    _plan: Plan
    _allow_import: bool

    def __init__(self, *_: object) -> None:
        raise TypeError("use PipelineConfig.load(source)")

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str] | Mapping[str, Any] | PipelineConfig,
        *,
        base: str | os.PathLike[str] | None = None,
        allow_import: bool = True,
    ) -> PipelineConfig:
        """Read and check a configuration. Build nothing, import no heavy library.

        Args:
            source: A dict, the path of a TOML file (a text is always a path), or a configuration.
            base: The folder from which relative paths in a dict start, also those under ``extends``
                and ``import``. Default: the working directory.
            allow_import: Whether the code under ``import`` may run. The environment variable
                ``HEADRACE_IMPORT=0`` refuses it as well, and so does any value that is no known
                yes.

        Raises:
            ConfigError: The configuration is wrong. ``problems`` holds all its problems.
            PluginError: A plugin that reads, fetches or translates it cannot be imported, or fails.
            TypeError: ``source`` is none of the three, or ``base`` is given and ``source`` is no
                dict.
        """
        if isinstance(source, PipelineConfig):
            if base is not None:
                raise TypeError("base is for a dict: this configuration knows its folders")
            same = allow_import or not source._allow_import
            return source if same else _config_of(source._document, allow_import)
        return with_room(lambda: cls._of(read_document(source, base), allow_import))

    @classmethod
    def _of(cls, document: Document, allow_import: bool, *, again: bool = False) -> PipelineConfig:
        problems = Problems(document.environ)
        why = why_refused(allow_import=allow_import)
        files = _run_imports(document, why, problems)
        all_names = not len(problems)
        shape = rewrite(read_sections(document, problems), files, problems)
        plan = Planner(shape, files, problems, all_names, why).pipeline()
        if not again and any(problem.code.startswith(_LACKS) for problem in problems):
            registry.refresh()  # pip may have been run since, in a notebook say
            return cls._of(document, allow_import, again=True)
        problems.raise_if_any()
        config = object.__new__(cls)
        parts = {"_document": document, "_shape": shape, "_plan": plan}
        vars(config).update(parts, _allow_import=allow_import)
        for check in dict.fromkeys(
            part.cls.check_pipeline for part in elements_of(plan.expressions)
        ):
            check(config)
        return config

    @staticmethod
    def key_schemas() -> dict[str, dict[str, Any]]:
        """Return the JSON Schema of every key that is no option of a backend.

        Returns:
            ``"node"``: keys of a node that may also stand in ``[global]`` as the default of all
                nodes.
            ``"node_only"``: keys of a node alone. ``"global"``: keys of ``[global]`` alone.
        """
        return key_schemas()

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain data, merged from all its files.

        Relative paths stay as written, each relative to its own file: give their folder as ``base``
        when the dict is loaded again. (A pickled configuration keeps the folders.)
        """
        document = self._document
        plain: dict[str, Any] = {}
        if document.imports:
            plain["import"] = [item.replace("${", "$${") for item, _ in document.imports]
        return plain | {key: _plain_copy(written.value) for key, written in document.top.items()}

    def plan(self) -> Plan:
        """Return what the configuration asks for, as frozen data; see `headrace.plan`."""
        for name, node in self._plan.nodes.items():
            node._settle(threads=self._plan.threads_of(name))  # which reads the quota
        return self._plan

    def problem_at(
        self, node: str, key: str, code: str, message: str, hint: str | None = None
    ) -> Problem:
        """Make a problem at the place of a key of a node.

        At the node where the key is not written.
        """
        place = place_at(key, node, self._shape, at_key=True)
        return with_lines([Problem(code, message, hint=hint, **place)])[0]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes, in file order."""
        return tuple(self._plan.nodes)

    @property
    def files(self) -> tuple[Path, ...]:
        """The Python files that were run for it.

        Those under ``import``, and what these import beside them.
        """
        files = [Path(path) for path, _ in self._plan.files]
        return tuple(Path(run) for file in files for run in package_of(file.parent).files(file))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PipelineConfig):
            return NotImplemented
        same = self.to_dict() == other.to_dict()
        return same and self._checked_options() == other._checked_options()

    def __hash__(self) -> int:
        return hash(frozenset(self.nodes))

    def _checked_options(self) -> list[Any]:
        """Return all checked options, in which paths are absolute, and the imported files."""
        files = [path for path, _ in self._plan.files]
        probes = [probe.options for probe in self._plan.probe_plans]
        return [
            *files,
            *(element.options for element in elements_of(self._plan.expressions)),
            *probes,
        ]

    def __repr__(self) -> str:
        return f"<PipelineConfig of {', '.join(self.nodes)}>"

    _repr_html_ = html_of

    def __reduce__(self) -> tuple[Any, ...]:
        return _config_of, (self._document, self._allow_import)


def _config_of(document: Document, allow_import: bool) -> PipelineConfig:
    """Check a document that has been read, and give its configuration."""
    return with_room(lambda: PipelineConfig._of(document, allow_import))


def _plain_copy(value: Any) -> Any:
    """Copy a value, and replace path objects and texts with a folder by plain texts."""
    return map_leaves(value, lambda part: without_base(path_as_text(part)))


def _run_imports(document: Document, why: str | None, problems: Problems) -> Files:
    """Run the files and modules that the configuration imports, and report those that fail.

    Args:
        document: The configuration.
        why: Why no code may run, None when it may.
        problems: Takes the problems.
    """
    items = [item for item, _ in document.imports]
    if items and why is not None:
        place = key_place(next(iter(document.imports.values())), "import", "import", items)
        imports = f"the configuration imports {', '.join(items)}"
        message = f"{imports}, and running its code is not allowed: {why}"
        problems.add("import_refused", message, hint=HOW_TO_ALLOW, **place)
        return ()
    tables: dict[str, dict[str, type[Any]]] = {}
    for item, file in document.imports.items():
        try:
            tables.update(run_import(*item))
        except PluginError as error:
            place = key_place(file, "import", "import", [item[0]])
            start, end = place.pop("span")
            span = (start + 1, end - 1)  # without the brackets of the list
            problems.add("import", error.what, hint=error.hint, span=span, **place)
    return tuple(tables.items())


# What a configuration or an expression asks for, as a dict.


def explain(
    source: str | os.PathLike[str] | Mapping[str, Any] | PipelineConfig,
    *,
    allow_import: bool = True,
) -> dict[str, Any]:
    """Describe a configuration. Nothing is built and no heavy library is imported.

    Args:
        source: A dict, the path of a TOML file (a text is always a path), or a configuration.
        allow_import: Whether the code under ``import`` may run.

    Returns:
        `headrace.plan.Plan.to_dict` of the plan, for JSON. `headrace.plan` explains the fields.

    Raises:
        ConfigError: The configuration is wrong. ``problems`` holds all its problems.
        PluginError: A plugin that reads, fetches or translates it cannot be imported, or fails.
        TypeError: ``source`` is none of the three.
    """
    plan = PipelineConfig.load(source, allow_import=allow_import).plan()
    return with_room(plan.to_dict)
