"""Execution providers: finds those that a user names, and checks that a session really uses them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import onnxruntime as ort

from headrace.errors import MissingDependencyError, SetupError, among
from headrace_ort.builds import TO_GPU
from headrace_ort.options import ON_CUDA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["CPU", "check_providers", "choose_providers"]

CPU = "CPUExecutionProvider"
_SUFFIX = "executionprovider"


def choose_providers(
    names: Sequence[str] | None = None,
    device: str | None = None,
    options: Mapping[str, Mapping[str, str | int | float | bool]] | None = None,
) -> list[tuple[str, dict[str, str]]]:
    """Return the providers in order, by their full names, each with its options.

    Args:
        names: Names with or without the ending "ExecutionProvider", in any case. None: the provider of
            ``device``.
        device: None or ``"cpu"``, ``"cuda"`` or ``"cuda:N"``. ``N`` becomes the ``device_id`` of
            the CUDA and TensorRT providers that have none in ``options``. 0 is left out: it is the default, and ONNX
            Runtime from 1.26 on warns in each session that gets one.
        options: Provider options by provider name (written like ``names``).

    Returns:
        The argument ``providers`` of `make_session`.

    Raises:
        SetupError: A name is unknown or stands twice in the list or in ``options``, options are for a provider that is not in the list or for the
            CPU's, which has none, or ``device`` is none of the above (and ``names`` is None).
        MissingDependencyError: The installed ONNX Runtime does not have a provider.
    """
    index = _cuda_index(device)
    if names is None:
        if device is not None and device.lower() != "cpu" and index is None:
            raise SetupError(
                f"ONNX Runtime has no device {device!r}",
                hint="Write device = 'cpu', or 'cuda' or 'cuda:0' for a GPU of NVIDIA. For others name `providers`.",
            )
        names = ["cpu"] if index is None else ["cuda"]
    chosen = [_full_name(name) for name in names]
    doubled = sorted({name for name in chosen if chosen.count(name) > 1})
    if doubled:
        raise SetupError(f"provider named twice: {', '.join(doubled)}")
    _refuse_missing(chosen)
    options = options or {}
    values_of = {_full_name(name): dict(values) for name, values in options.items()}
    if len(values_of) < len(options):
        raise SetupError(f"provider_options has a provider twice: {', '.join(options)}")
    for name in values_of:
        if name not in chosen:
            raise SetupError(f"provider_options for {name}, which `providers` does not name")
    if values_of.get(CPU):
        ignored = ", ".join(values_of[CPU])
        raise SetupError(
            f"provider_options for {CPU}, which has none and would ignore {ignored}",
            hint="What concerns the CPU is in `session_config` and `intra_op_threads`.",
        )
    result = []
    for name in chosen:
        values = {key: _text(value) for key, value in values_of.get(name, {}).items()}
        if index and name in ON_CUDA:
            values.setdefault("device_id", str(index))
        result.append((name, values))
    return result


def check_providers(names: Sequence[str], real: Sequence[str]) -> None:
    """Refuse a session that does not run on all providers that the user has named.

    Raises:
        SetupError: A provider of ``asked`` is not among the ``real`` ones of the session.
    """
    lost = [name for name in names if name not in real]
    if lost:
        raise SetupError(
            f"{', '.join(lost)} could not be created; ONNX Runtime would run on {', '.join(real)}",
            hint="Its libraries (CUDA, cuDNN, TensorRT) are missing, do not fit or see no device;"
            " log_level = 'warning' prints the reason.",
        )


def _cuda_index(device: str | None) -> int | None:
    match = re.fullmatch(r"cuda(?::(\d+))?", (device or "").lower())
    return None if match is None else int(match[1] or 0)


def _full_name(name: str) -> str:
    """Return the full name of a provider that ONNX Runtime knows, even if the installed build does not have it."""
    known = [*ort.get_all_providers(), *ort.get_available_providers()]
    short: dict[str, str] = {full.lower().removesuffix(_SUFFIX): full for full in known}
    key = name.strip().lower().removesuffix(_SUFFIX)
    if key not in short:
        problem = f"ONNX Runtime {ort.__version__} knows no provider {name!r}"
        raise SetupError(problem, hint=among(key, sorted(short)))
    return short[key]


def _refuse_missing(chosen: Sequence[str]) -> None:
    available = ort.get_available_providers()
    missing = [name for name in chosen if name not in available]
    if not missing:
        return
    problem = (
        f"{', '.join(missing)} is not in the installed ONNX Runtime {ort.__version__},"
        f" which has {', '.join(available)}"
    )
    install = "Install the build of ONNX Runtime that has it; only one may be installed at a time."
    if any(name in ON_CUDA for name in missing):
        install = f"Type: {TO_GPU}."
    raise MissingDependencyError(problem, distribution="headrace-ort", hint=install)


def _text(value: str | float | bool) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
