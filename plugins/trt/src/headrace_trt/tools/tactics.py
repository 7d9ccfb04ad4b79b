"""Tools for files of tactics: show them, exclude choices, and find the choice that causes wrong results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import SetupError
from headrace_trt.tactics import TacticFile, read_tactics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["bisect_tactics", "exclude_tactics", "show_tactics"]


def show_tactics(path: Path | str) -> dict[str, Any]:
    """Return the content of a file of tactics.

    Raises:
        SetupError: The file does not exist, or is no file of tactics.
    """
    path = Path(path)
    found = read_tactics(path)
    if found is None:
        raise SetupError(
            f"there is no file {path}",
            hint="`headrace trt tactics fix MODEL FILE` records one by a build.",
        )
    return {
        "library": found.library,
        "chosen": dict(found.chosen),
        "excluded": list(found.excluded),
    }


def exclude_tactics(path: Path | str, choices: Sequence[str]) -> dict[str, Any]:
    """Exclude choices: ``implementation:tactic``, ``layer@implementation:tactic``, or a layer's name.

    If a recorded choice is excluded, the recording is dropped, and the next build chooses anew without it.

    Raises:
        SetupError: A choice is of another form, or a layer is unknown.
    """
    path = Path(path)
    found = read_tactics(path) or TacticFile()
    for choice in choices:
        if choice in found.chosen:
            found.excluded.append(f"{choice}@{found.chosen[choice]}")
        elif ":" in choice.rpartition("@")[2]:
            found.excluded.append(choice)
        else:
            raise SetupError(
                f"{choice!r} is neither a layer of {path} nor a choice",
                hint="Write the name of a layer, implementation:tactic, or"
                " layer@implementation:tactic.",
            )
    found.excluded = list(dict.fromkeys(found.excluded))
    # A build either replays all choices or records all, so a recording that lacks a choice is of no use.
    if any(not found.allows(layer, choice) for layer, choice in found.chosen.items()):
        found.chosen, found.formats = {}, {}
    found.write(path)
    return show_tactics(path)


def bisect_tactics(
    good: TacticFile, bad: TacticFile, is_wrong: Callable[[TacticFile], bool]
) -> list[str]:
    """Find the layers whose choice causes wrong results, by halving the set of layers whose choices differ.

    Args:
        good: Choices with right results.
        bad: Choices with wrong results.
        is_wrong: Builds with a file of choices, and returns whether the results are wrong.

    Returns:
        The smallest set of layers that was found whose bad choices, with good ones for all other layers, cause wrong
        results.

    Raises:
        SetupError: The files differ in no layer, or the bad one is not wrong.
    """
    layers = [name for name, choice in bad.chosen.items() if good.chosen.get(name) != choice]
    if not layers:
        raise SetupError("the two files choose the same for every layer")

    def mixed(bad_layers: Sequence[str]) -> TacticFile:
        chosen = {**good.chosen, **{name: bad.chosen[name] for name in bad_layers}}
        formats = {**good.formats, **{n: bad.formats[n] for n in bad_layers if n in bad.formats}}
        return TacticFile(bad.library, chosen, formats=formats)

    if not is_wrong(mixed(layers)):
        raise SetupError("with all choices of the bad file the answers are right")
    # Delta debugging: try halves, then smaller and smaller pieces and their complements; go on with one that is wrong.
    pieces = 2
    while len(layers) > 1:
        size = -(-len(layers) // pieces)
        parts = [layers[i : i + size] for i in range(0, len(layers), size)]
        rest = [[x for x in layers if x not in part] for part in parts] if len(parts) > 2 else []
        smaller = next((part for part in [*parts, *rest] if part and is_wrong(mixed(part))), None)
        if smaller is not None:
            layers = smaller
            pieces = 2
        elif size == 1:
            break
        else:
            pieces = min(len(layers), 2 * pieces)
    return layers
