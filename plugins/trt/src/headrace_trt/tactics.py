"""Fixes the choice of tactics in a file: the first build records it, later builds replay it."""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import SetupError
from headrace_trt.timing import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from headrace_trt.library import Library

__all__ = ["TacticFile", "is_recorded", "read_tactics", "using_tactics"]

_log = logging.getLogger("headrace.trt")

FORMAT = "headrace tactics 1"

_NO_KERNEL: Final = "could not find any implementation"
"""TensorRT's error text for a layer without an allowed tactic."""


@dataclass
class TacticFile:
    """The content of a file of tactics.

    Attributes:
        library: Name and version of the library that recorded it.
        chosen: For each layer, the chosen implementation and tactic, as one text. Layers of
            further optimization profiles have the number of the profile after their name.
        formats: For each layer, types and strides of its tensors under the chosen tactic.
        excluded: Choices (``"implementation:tactic"``, or ``"layer@implementation:tactic"`` for one
            layer) that a build must not make.
    """

    library: str = ""
    chosen: dict[str, str] = field(default_factory=dict)
    excluded: list[str] = field(default_factory=list)
    formats: dict[str, str] = field(default_factory=dict)

    def allows(self, layer: str, choice: str) -> bool:
        """Return whether a choice is not excluded."""
        return choice not in self.excluded and f"{layer}@{choice}" not in self.excluded

    def write(self, path: Path) -> None:
        """Write the file."""
        content = {"format": FORMAT, **self.__dict__}
        write_atomically(path, json.dumps(content, indent=1, sort_keys=True).encode())


def read_tactics(path: Path) -> TacticFile | None:
    """Read a file of tactics; None if it does not exist yet.

    Raises:
        SetupError: It is no file of tactics.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        kind = content.pop("format")
        found = TacticFile(**content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, str(error)) from error
    if kind != FORMAT:
        raise _unreadable(path, f"it is of the format {kind!r}")
    return found


def is_recorded(path: Path) -> bool:
    """Return whether a build with this file replays it; without one, or after an exclusion, a build records it."""
    try:
        found = read_tactics(path)
    except SetupError:  # a timing cache, or a file that the build refuses
        return True
    return found is not None and (bool(found.chosen) or not found.excluded)


def _unreadable(path: Path, why: str) -> SetupError:
    return SetupError(
        f"{path} is no file of tactics that Headrace wrote ({why})",
        hint="Remove it to let the next build record one.",
    )


@contextlib.contextmanager
def using_tactics(
    library: Library,
    config: Any,
    path: Path | None,
    *,
    timed: bool = False,
    optimization_level: int | None = None,
) -> Iterator[None]:
    """Record the choice of tactics in the file ``path``, or replay the choice that is there.

    In a version with algorithm selectors the file has the choice of every layer. In newer versions, which have no
    selector, the file is an editable timing cache, and a layer that is not in it is an error.

    Args:
        library: The installed TensorRT.
        config: The builder's configuration.
        path: The file; None: the choice is free.
        timed: Whether the configuration has a timing cache of its own.
        optimization_level: The optimization level of the build, which must not be 0. At level 0 TensorRT takes the
            first kernel that runs, without comparing kernels or using a timing cache, so there is no choice to fix.

    Raises:
        SetupError: The library has neither selectors nor editable timing caches, the level is 0, the file was
            recorded by another version, the file is a timing cache and ``timed`` is true, or the built layers differ
            from the file.
    """
    if path is None:
        yield
        return
    editable = library.has("BuilderFlag.EDITABLE_TIMING_CACHE") and not library.is_rtx
    if not library.has("IAlgorithmSelector") and not editable:
        raise SetupError(
            f"`tactics` is set, and {library.text} does not let them be chosen",
            hint="Leave `tactics` out: it has neither an algorithm selector nor an editable"
            " timing cache that it uses.",
        )
    if optimization_level == 0:
        raise SetupError(
            "`tactics` is set with optimization_level = 0, at which TensorRT takes the first kernel"
            " that runs instead of choosing one",
            hint="Set optimization_level to 1 or more, or leave `tactics` out.",
        )
    if library.has("IAlgorithmSelector"):
        with _selecting(library, config, path, timed=timed):
            yield
        return
    if timed:
        raise SetupError(
            f"`tactics` and `timing_cache` are set, and with {library.text} both are a timing"
            " cache: a build has one",
            hint="Leave `timing_cache` out.",
        )
    with _caching(library, config, path):
        yield


@contextlib.contextmanager
def _selecting(library: Library, config: Any, path: Path, *, timed: bool) -> Iterator[None]:
    recorded = read_tactics(path)
    if recorded is not None and recorded.library not in ("", library.text):
        raise SetupError(
            f"{path} was recorded by {recorded.library}, and this is {library.text}",
            hint="Tactics of one version mean nothing to another: name another file.",
        )
    held = recorded or TacticFile(library.text)
    replay = bool(recorded and recorded.chosen)
    selector = _make_selector(library, held, replay=replay)
    config.algorithm_selector = selector
    if not timed and library.has("BuilderFlag.DISABLE_TIMING_CACHE"):
        config.set_flag(library.trt.BuilderFlag.DISABLE_TIMING_CACHE)
    # REJECT_EMPTY_ALGORITHMS is not set: for some layers TensorRT offers no choices, and would then end the build.
    # Instead, its choices are compared with the file afterwards.
    try:
        yield
    except SetupError as error:
        if _NO_KERNEL not in error.what.lower():
            raise
        if selector.missed:
            raise _not_followed(path, next(iter(selector.missed.values()))) from error
        raise SetupError(
            f"with a choice of tactics (`tactics`) {error.what}",
            hint="Without `tactics` it may build: TensorRT 10.8 and newer fix them by an editable"
            f" timing cache, {library.text} by an algorithm selector, which not every network takes.",
        ) from error
    wrong = _wrong_choice(held, selector.chosen, selector.missed, replay=replay)
    if wrong is not None:
        raise _not_followed(path, wrong)
    if not replay:
        if not selector.chosen:
            _log.warning("%s reported no choice of tactics: %s fixes nothing", library.text, path)
        held.library = library.text
        held.chosen, held.formats = dict(selector.chosen), dict(selector.formats)
        held.write(path)


def _wrong_choice(
    held: TacticFile, chosen: Mapping[str, str], missed: Mapping[str, str], *, replay: bool
) -> str | None:
    """Describe a layer that was not built as the file says; None if there is none."""
    for layer, choice in chosen.items():
        wanted = held.chosen.get(layer, choice) if replay else choice
        if choice != wanted:
            return missed.get(layer) or f"layer {layer!r} was built with {choice}, not {wanted}"
        if not held.allows(layer, choice):
            why = f"layer {layer!r} was built with {choice}, which is excluded"
            return missed.get(layer) or why
    if replay:
        for layer in held.chosen:
            if layer not in chosen:
                return missed.get(layer) or f"layer {layer!r} is not in the built engine"
    return None


def _not_followed(path: Path, why: str) -> SetupError:
    return SetupError(
        f"the tactics of {path} cannot be followed: {why}",
        hint="Is it the same model, profile and device? Remove the file to record anew.",
    )


def _make_selector(library: Library, held: TacticFile, *, replay: bool) -> Any:
    base: Any = library.trt.IAlgorithmSelector

    class Selector(base):  # type: ignore[misc]
        """Offers the builder the choices that the file allows, and records the choices that it takes."""

        def __init__(self) -> None:
            base.__init__(self)
            self.chosen: dict[str, str] = {}
            self.formats: dict[str, str] = {}
            self.missed: dict[str, str] = {}
            self._profile = 0

        def select_algorithms(self, context: Any, choices: Any) -> list[int]:
            """Return the indices of the choices that the builder may take."""
            layer = self._layer(context)
            names = [choice_of(choice) for choice in choices]
            wanted = held.chosen.get(layer) if replay else None
            allowed = [i for i, name in enumerate(names) if held.allows(layer, name)]
            if wanted is not None:
                allowed = [i for i in allowed if names[i] == wanted]
                # One tactic is offered once per format of its tensors.
                formats = held.formats.get(layer)
                same = [i for i in allowed if formats_of(context, choices[i]) == formats]
                allowed = same or allowed
            if names and not allowed:
                what = f"needs {wanted}" if wanted else "has every choice excluded"
                self.missed[layer] = f"layer {layer!r} {what}"
            return allowed

        def report_algorithms(self, contexts: Any, choices: Any) -> None:
            """Record the choices for one profile; the layers of the next profile follow."""
            for context, choice in zip(contexts, choices, strict=False):
                layer = self._layer(context)
                self.chosen[layer] = choice_of(choice)
                self.formats[layer] = formats_of(context, choice)
            self._profile += 1

        def _layer(self, context: Any) -> str:
            return f"{context.name} [profile {self._profile}]" if self._profile else context.name

    return Selector()


def choice_of(choice: Any) -> str:
    """Return implementation and tactic of an ``IAlgorithm`` as ``"implementation:tactic"``."""
    variant = choice.algorithm_variant
    return f"{variant.implementation:#x}:{variant.tactic & (2**64 - 1):#x}"


def formats_of(context: Any, choice: Any) -> str:
    """Return type, strides and vectorized axis of every tensor of an ``IAlgorithm``, as one text."""
    infos = map(choice.get_algorithm_io_info, range(context.num_inputs + context.num_outputs))
    return " ".join(
        f"{info.dtype.name}({','.join(map(str, info.strides))})"
        f"/{info.vectorized_dim}x{info.components_per_element}"
        for info in infos
    )


@contextlib.contextmanager
def _caching(library: Library, config: Any, path: Path) -> Iterator[None]:
    trt = library.trt
    config.set_flag(trt.BuilderFlag.EDITABLE_TIMING_CACHE)
    replay = path.is_file()
    cache = config.create_timing_cache(path.read_bytes() if replay else b"")
    if cache is None or not config.set_timing_cache(cache, False):
        raise SetupError(
            f"{path} is no timing cache of {library.text} and this device",
            hint="Tactics of one version mean nothing to another: name another file.",
        )
    if replay:
        config.set_flag(trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)
    yield
    if not replay:
        made = config.get_timing_cache() or cache
        write_atomically(path, memoryview(made.serialize()))
