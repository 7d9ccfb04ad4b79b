"""Builds a plan from settings: parses, configures, builds, verifies; shows progress, and can be cancelled."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import SetupError
from headrace_trt.building.config import add_profiles, make_config
from headrace_trt.building.network import Network, make_network
from headrace_trt.building.plugin_libraries import load_plugins
from headrace_trt.building.progress import BuildProgress, make_monitor
from headrace_trt.building.settings import require_settings
from headrace_trt.building.timing import using_timing_cache
from headrace_trt.engines.layers import Layer, count_types, layers_from_log, verify_precision
from headrace_trt.libraries.logs import Collected, collecting, logger_for
from headrace_trt.libraries.tensorrt import Library, find_library

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from headrace_trt.building.profiles import Profile
    from headrace_trt.building.settings import BuildSettings

__all__ = ["BuildCancelledError", "BuiltPlan", "build_plan"]


class BuildCancelledError(SetupError):
    """The build was cancelled before the engine was built; no file was written."""

    code = "cancelled"


@dataclass(frozen=True)
class BuiltPlan:
    """A plan that was just built.

    Attributes:
        plan: The bytes of the plan, as TensorRT gave them.
        library: Name and version of the library that built the plan.
        layers: The layers, as the builder listed them. Empty without verbosity.
        profiles: The optimization profiles.
        seconds: How long parsing and building took.
        warnings: The warnings that TensorRT logged.
        network_types: TensorRT's names of the types of the network's tensors.
    """

    plan: bytes
    library: str
    layers: tuple[Layer, ...]
    profiles: tuple[Profile, ...]
    seconds: float
    warnings: tuple[str, ...]
    network_types: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return what was built, JSON-able, without the plan itself."""
        return {
            "library": self.library,
            "plan_bytes": len(self.plan),
            "seconds": round(self.seconds, 3),
            "layers_by_type": count_types(self.layers),
            "profiles": [profile.as_dict() for profile in self.profiles],
            "network_types": list(self.network_types),
            "warnings": list(self.warnings),
        }


def build_plan(
    settings: BuildSettings,
    *,
    library: Library | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Callable[[int | None, str], AbstractContextManager[Any]] | None = None,
    allow_import: bool = True,
) -> BuiltPlan:
    """Build a plan, without cache.

    The precision that was built is read back from the list of layers. If the main thread calls it, another thread
    builds while the main thread waits. So Ctrl-C is received, and ends the build at the builder's next step.

    Args:
        settings: What to build.
        library: The TensorRT to build with. None: the one that ``settings`` names.
        cancelled: Called at every step that the builder reports. True ends the build.
        progress: ``progress(total, unit)`` shows a phase, as `headrace.InitContext.progress`.
        allow_import: Whether ``network`` and ``plugins`` may bring in code.

    Raises:
        TypeError: ``settings`` is no `BuildSettings`.
        SetupError: The model or a setting does not fit, or the build failed, with the reasons of
            the parser, and what TensorRT logged.
        BuildCancelledError: ``cancelled()`` was true.
        MissingDependencyError: TensorRT is not installed.
    """
    require_settings(settings)
    if library is None:
        library = find_library(settings.library)
    if settings.network is not None and not allow_import:
        raise SetupError(
            f"`network` would import {settings.network!r}, and imports are refused",
            hint="Give an ONNX file in `model`, or allow imports.",
        )
    shown = BuildProgress(cancelled, progress)
    chosen = library

    def work() -> BuiltPlan:
        try:
            return _build(chosen, settings, shown, allow_import=allow_import)
        finally:
            shown.close()

    if threading.current_thread() is threading.main_thread():
        return _aside(work, shown)
    return work()


def _aside(work: Callable[[], BuiltPlan], shown: BuildProgress) -> BuiltPlan:
    """Do ``work`` in another thread, while this thread waits and can be interrupted.

    The first interrupt asks the builder to stop, and this thread waits for it. A second one ends that wait.
    """
    outcome: list[BuiltPlan | BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            outcome.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=run, name="headrace-trt-build", daemon=True)
    thread.start()
    try:
        done.wait()
    except BaseException:
        shown.stopped = True
        done.wait()
        raise
    thread.join()
    (result,) = outcome
    if isinstance(result, BaseException):
        raise result
    return result


def _build(
    library: Library, settings: BuildSettings, shown: BuildProgress, *, allow_import: bool
) -> BuiltPlan:
    started = time.monotonic()
    logger = logger_for(library)
    with collecting() as collected:
        load_plugins(library, settings.plugins, allow_import=allow_import)
        network = make_network(library, logger, settings, collected)
        if shown.stopped or shown.cancelled():
            raise _given_up(settings)
        config = make_config(library, network, settings)
        profiles = add_profiles(library, network, config, settings)
        monitor = make_monitor(library, shown)
        config.progress_monitor = monitor
        with using_timing_cache(library, config, settings.timing_cache):
            plan = _serialized(library, network, config, settings, shown, collected)
        layers = layers_from_log(collected.layers[-1]) if collected.layers else []
        verify_precision(layers, settings.precision, network.tensor_types(), label=settings.label)
        return BuiltPlan(
            plan,
            library.text,
            tuple(layers),
            profiles,
            time.monotonic() - started,
            tuple(collected.warnings),
            tuple(sorted(network.tensor_types())),
        )


def _serialized(
    library: Library,
    network: Network,
    config: Any,
    settings: BuildSettings,
    shown: BuildProgress,
    collected: Collected,
) -> bytes:
    serialized = network.builder.build_serialized_network(network.definition, config)
    if serialized is None or shown.stopped:
        if shown.error is not None:
            raise shown.error
        if shown.stopped:
            raise _given_up(settings)
        raise SetupError(
            f"{library.text} could not build {settings.label}: {collected.text()}",
            hint=_hint(collected.text()),
        )
    return bytes(memoryview(serialized))


def _given_up(settings: BuildSettings) -> BuildCancelledError:
    return BuildCancelledError(f"the build of {settings.label} was cancelled; no file was written")


def _hint(text: str) -> str | None:
    lower = text.lower()
    if "out of memory" in lower or "outofmemory" in lower:
        return "Lower `workspace_bytes`, the `max` of the profiles, or free memory of the device."
    if "cuda" in lower and any(word in lower for word in ("driver", "device", "cuda_success")):
        return "Is there a CUDA device, and is its driver new enough for this TensorRT?"
    return None
