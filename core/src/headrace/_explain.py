"""``explain``: the plan of a configuration or an expression as a dict."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import headrace
from headrace._config.problems import Problems, with_room
from headrace._expression.parser import parse
from headrace._expression.tree import Call
from headrace._pipeline_config import PipelineConfig
from headrace._plan.planner import plan_expression
from headrace._plan.publish import asked_for, public_element


def explain(
    source: str | os.PathLike[str] | Mapping[str, Any] | PipelineConfig | Call,
    *,
    allow_import: bool = True,
) -> dict[str, Any]:
    """Tell what a configuration asks for; nothing is built and no heavy library is imported.

    Args:
        source: A dict, the path of a TOML file (a text is always a path), or a configuration; or a bare
            expression, as `headrace.parse` gives it, in which options may be missing.
        allow_import: Whether the code under ``import`` may run.

    Returns:
        What `headrace.plan.Plan.to_dict` gives, which can be written as JSON; `headrace.plan` says what the
        fields mean. For an expression: ``{"headrace", "expression", "range", "asks_for", "tree"}``.

    Raises:
        ConfigError: The configuration is wrong; ``problems`` holds everything that is.
        SetupError: The only problem is a ``Fallback`` whose branches are not installed here.
    """
    if isinstance(source, Call):
        return with_room(lambda: _explained_expression(source))
    plan = PipelineConfig.load(source, allow_import=allow_import).plan()
    return with_room(plan.to_dict)


def _explained_expression(call: Call) -> dict[str, Any]:
    problems = Problems()
    text = str(call)
    if call.text is not None and parse(call.text) == call:
        text = call.text  # so that errors show the expression as it was written
    element = plan_expression(text, problems)
    problems.raise_if_any()
    assert element is not None  # noqa: S101 - without a problem there is an element
    return {
        "headrace": headrace.__version__,
        "expression": str(element.call),
        "range": list(element.range),
        "asks_for": [one.to_dict() for one in asked_for([element])],
        "tree": public_element(element).to_dict(),
    }
