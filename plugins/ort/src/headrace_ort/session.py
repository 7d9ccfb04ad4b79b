"""Makes ONNX Runtime sessions that run on the chosen providers, or raises an error."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import onnxruntime as ort

from headrace.errors import SetupError
from headrace_ort.providers import CPU, check_providers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["LEVELS", "SEVERITIES", "SPINNING", "bare_run", "make_session", "run_options"]

LEVELS: Final[Mapping[str, Any]] = {
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
"""Graph optimisation levels by name."""

SEVERITIES: Final[Mapping[str, int]] = {
    "verbose": 0,
    "info": 1,
    "warning": 2,
    "error": 3,
    "fatal": 4,
}
"""Levels of ONNX Runtime's own log by name."""

_NO_FALLBACK = "session.disable_cpu_ep_fallback"
SPINNING = "session.intra_op.allow_spinning"
"""The entry of the session's configuration by which idle threads of the pool spin: ``"1"`` or ``"0"``."""


def make_session(  # noqa: PLR0913 - all but two by name
    model: str | os.PathLike[str] | bytes,
    providers: Sequence[tuple[str, Mapping[str, str]]] = ((CPU, {}),),
    *,
    intra_op_threads: int = 1,
    spinning: bool = False,
    arena: bool = True,
    graph_optimization: str = "all",
    session_config: Mapping[str, str] | None = None,
    log_level: str = "fatal",
    custom_ops: Sequence[Path] = (),
) -> Any:
    """Make an ``InferenceSession`` that runs on the given providers, or fail.

    Nothing falls back silently. A provider that cannot be created is an error. A node that would run on the CPU
    instead is an error too, unless ``providers`` names the CPU or ``session_config`` allows it. A provider that fails
    during a run fails that run.

    Args:
        model: The path of the model, or its bytes.
        providers: The result of `choose_providers`.
        intra_op_threads: The threads that one operator may use, with 1 the calling thread runs it, without a pool.
        spinning: Whether idle threads of the pool keep their core busy, which makes runs start sooner.
        arena: Whether ONNX Runtime keeps freed memory of the CPU in an arena, and plans one block for all tensors of a run.
        graph_optimization: A key of `LEVELS`.
        session_config: Further entries of the session's configuration, which win over those set here.
        log_level: A key of `SEVERITIES`: the least level of messages that ONNX Runtime itself prints to stderr.
        custom_ops: Libraries with operators of one's own.

    Returns:
        The session. Its ``run`` may be called from several threads at once.

    Raises:
        SetupError: ONNX Runtime cannot load the model, or cannot run it on these providers.
        ValueError: ``graph_optimization`` or ``log_level`` is unknown, or ``intra_op_threads`` is below 1.
    """
    if intra_op_threads < 1:  # ONNX Runtime would take all cores
        raise ValueError(f"intra_op_threads is at least 1, got {intra_op_threads}")
    _check_choice("graph_optimization", graph_optimization, LEVELS)
    _check_choice("log_level", log_level, SEVERITIES)
    names = [name for name, _ in providers]
    options = ort.SessionOptions()
    options.intra_op_num_threads = intra_op_threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = LEVELS[graph_optimization]
    options.log_severity_level = SEVERITIES[log_level]
    options.enable_cpu_mem_arena = arena
    # A pattern is one block of its own size for each shape, which the system's allocator keeps once it is freed.
    options.enable_mem_pattern = arena
    config = {SPINNING: "1" if spinning else "0"}
    if CPU not in names:
        config[_NO_FALLBACK] = "1"
    config.update(session_config or {})
    label = f"a model of {len(model)} bytes" if isinstance(model, bytes) else str(model)
    if not isinstance(model, bytes):
        try:  # Python reads a path in the encoding of the locale, ONNX Runtime writes it in UTF-8
            label = os.fsencode(model).decode()
        except UnicodeDecodeError:
            raise SetupError(
                f"ONNX Runtime takes only paths in UTF-8, and this one is not: {label!r}",
                hint="Rename the file or the folder, or link to it from another path.",
            ) from None
    try:
        for key, value in config.items():
            options.add_session_config_entry(key, value)
        for library in custom_ops:
            options.register_custom_ops_library(str(library))
        session = ort.InferenceSession(
            model if isinstance(model, bytes) else label,
            sess_options=options,
            enable_fallback=0,
            providers=[(name, dict(values)) for name, values in providers],
        )
    except SetupError:
        raise
    except Exception as error:  # its error classes share no base but Exception
        raise SetupError(
            f"ONNX Runtime {ort.__version__} cannot load {label}: {_reason(error)}",
            hint=_hint(str(error), model),
        ) from error
    check_providers(names, session.get_providers())
    return session


def _check_choice(name: str, value: object, known: Mapping[str, Any]) -> None:
    if value not in known:
        raise ValueError(f"{name} is one of {', '.join(known)}, not {value!r}")


def run_options(log_level: str = "fatal") -> Any:
    """Make the options of a run; with the default, ONNX Runtime does not also print errors that it raises."""
    options = ort.RunOptions()
    options.log_severity_level = SEVERITIES[log_level]
    return options


def bare_run(session: Any) -> Callable[..., list[Any]]:
    """Return the inner function that a session's ``run`` calls after it has checked its arguments.

    The caller gives every input and the names of the outputs, so there is nothing to check. For a light model the
    check takes as long as all other Python code of a run.
    """
    run: Callable[..., list[Any]] = getattr(session, "_sess", session).run
    return run


_ERRNO = re.compile(r"system error number (\d{1,4})\b")


def _reason(error: Exception) -> str:
    """Return the text of ONNX Runtime's error without its prefix, and what a number of the system means."""
    text = str(error).strip()
    text = _ERRNO.sub(lambda match: f"{match[0]} ({os.strerror(int(match[1]))})", text)
    return text.removeprefix("[ONNXRuntimeError] : ") or type(error).__name__


def _beginning(model: str | os.PathLike[str] | bytes) -> bytes:
    """Return the first bytes of what is no model: of a page of HTML and of a pointer of Git LFS they say what it is."""
    if not isinstance(model, bytes):
        with Path(model).open("rb") as file:
            model = file.read(40)
    return model[:40]


def _hint(text: str, model: str | os.PathLike[str] | bytes) -> str | None:
    lower = text.lower()
    if "external initializer" in lower and "file_length" in lower:
        return "The second file, with the weights, is shorter than the model says: a part, or that of another model."
    if "max supported ir version" in lower or "released onnx opset" in lower:
        return "The model is newer than ONNX Runtime here: upgrade it, or export for an older opset and IR version."
    if "external data" in lower:
        return "The weights are in a second file, which must lie beside the model."
    if "protobuf" in lower or "no graph" in lower or "not have a graph" in lower:
        return f"It is no ONNX model, or only a part of one: it begins with {_beginning(model)!r}."
    if "fallback to" in lower and "cpu" in lower:
        return "Name 'cpu' last in `providers` to let it run the nodes that the others lack."
    return None
