"""Makes the builder's configuration from settings; a setting that the library does not have is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.errors import SetupError
from headrace_trt.building.profiles import choose_profiles
from headrace_trt.libraries.logs import warn

if TYPE_CHECKING:
    from headrace_trt.building.network import Network
    from headrace_trt.building.profiles import Profile
    from headrace_trt.building.settings import BuildSettings
    from headrace_trt.libraries.tensorrt import Library

__all__ = ["add_profiles", "make_config"]

_FLAGS = (
    ("sparsity", "SPARSE_WEIGHTS"),
    ("refit", "REFIT"),
    ("strip", "STRIP_PLAN"),
    ("weight_streaming", "WEIGHT_STREAMING"),
)

_IGNORED_BY_RTX: Final = {
    "hardware_compatibility": "Its plans run on every GPU that it is built for",
    "sparsity": "It chooses kernels when the plan is loaded, and writes the same plan",
}


def make_config(library: Library, network: Network, settings: BuildSettings) -> Any:
    """Make the ``IBuilderConfig`` of a build, without profiles.

    Raises:
        SetupError: The installed library or this device does not have what a setting asks for.
    """
    trt = library.trt
    config = network.builder.create_builder_config()
    for option, why in _IGNORED_BY_RTX.items() if library.is_rtx else ():
        if getattr(settings, option) not in (False, None, "none"):
            raise SetupError(
                f"`{option}` is set, and {library.text} ignores it",
                hint=f"{why}; leave the option out.",
            )
    for option, flag in _FLAGS:
        if getattr(settings, option):
            config.set_flag(library.need(f"BuilderFlag.{flag}", option))
    _set_tf32(library, config, tf32=settings.tf32)
    # Two contexts may then use one profile at a time. Versions without this flag always allow it.
    if library.has("PreviewFeature.PROFILE_SHARING_0806"):
        sharing = trt.PreviewFeature.PROFILE_SHARING_0806
        if not config.get_preview_feature(sharing):
            config.set_preview_feature(sharing, True)
    _set_search(library, config, settings)
    if settings.hardware_compatibility != "none":
        config.hardware_compatibility_level = library.choice(
            "HardwareCompatibilityLevel",
            settings.hardware_compatibility,
            "hardware_compatibility",
        )
    config.profiling_verbosity = library.choice(
        "ProfilingVerbosity", settings.verbosity, "verbosity"
    )
    return config


def _set_search(library: Library, config: Any, settings: BuildSettings) -> None:
    """Set how long the builder searches, and with how much memory."""
    if settings.optimization_level is not None:
        config.builder_optimization_level = settings.optimization_level
    if settings.workspace_bytes is not None:
        pool = library.trt.MemoryPoolType.WORKSPACE
        config.set_memory_pool_limit(pool, settings.workspace_bytes)


def _set_tf32(library: Library, config: Any, *, tf32: bool) -> None:
    flag = library.need("BuilderFlag.TF32", "tf32")
    if tf32:
        config.set_flag(flag)
    else:
        config.clear_flag(flag)


_LONGEST: Final = (1 << 31) - 1
"""The longest axis that a profile can have."""


def add_profiles(
    library: Library, network: Network, config: Any, settings: BuildSettings
) -> tuple[Profile, ...]:
    """Add the optimization profiles of the settings.

    Raises:
        SetupError: The profiles do not fit the network.
    """
    profiles = choose_profiles(
        network.inputs, settings.profiles, min=settings.min, max=settings.max
    )
    # No warning if any input has a fixed batch axis of the length `max`.
    fixed = {length for port in network.inputs for length in port.shape[:1]}
    if not profiles and settings.max is not None and settings.max not in (1, *fixed):
        warn(f"`max` = {settings.max} changes nothing: no input of the model has a dynamic axis")
    shapes = {port.name: port for port in network.inputs}
    for profile in profiles:
        optimization = network.builder.create_optimization_profile()
        for name, limits in profile.ranges.items():
            if shapes[name].is_shape:
                optimization.set_shape_input(name, limits.min, limits.opt, limits.max)
                continue
            if (
                max(limits.max, default=0) > _LONGEST
            ):  # the library would use other lengths, or raise
                raise SetupError(
                    f"input {name!r}: {limits.text()} has an axis longer than {_LONGEST}",
                    hint="It comes from `profiles`, or from `max` of the node.",
                )
            optimization.set_shape(name, limits.min, limits.opt, limits.max)
        if config.add_optimization_profile(optimization) < 0:
            raise SetupError(f"{library.text} refused the optimization profile {profile.as_dict()}")
    return profiles
