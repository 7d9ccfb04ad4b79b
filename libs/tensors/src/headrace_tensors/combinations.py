"""Which options of engines are refused together: one table, read where options are checked and where an engine is set up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "AT_SETUP",
    "OF_OPTIONS",
    "Combination",
    "SetupFacts",
    "check_together",
    "refuse_at_setup",
]


class Combination(NamedTuple):
    """Options that are refused together.

    Attributes:
        names: The options that meet.
        is_met: Tells of given values whether they do, by what is true.
        text: What is wrong, to be formatted with what ``is_met`` gets and gives.
        hint: What to do.
    """

    names: tuple[str, str]
    is_met: Callable[[Any], object]
    text: str
    hint: str


class SetupFacts(NamedTuple):
    """What is known once a model is read, or its warm-up has run.

    Attributes:
        row_sizes: The option.
        batch_sizes: The key of the node.
        cannot_cut: The axes of outputs, counted with the batch axis, that would be cut and cannot be where they lie.
    """

    row_sizes: tuple[int, ...] = ()
    batch_sizes: Any = None
    cannot_cut: Sequence[int] = ()


def _of_padding(name: str, default: object) -> Combination:
    return Combination(
        (name, "ragged"),
        lambda options: getattr(options, name) != default and options.ragged != "pad",
        f"`{name}` is for ragged = 'pad', and ragged is {{0.ragged!r}}",
        "set ragged = 'pad', or leave it out",
    )


def _in_both_places(options: Any) -> str | None:
    names = options.batch_axis if options.unbatched == "all" else options.unbatched
    return next((name for name in sorted(names) if name in options.batch_axis), None)


def _of_first_axis(name: str, value: object) -> Combination:
    return Combination(
        ("batch_axis", name),
        lambda options: any(options.batch_axis.values()) and getattr(options, name) == value,
        "batch_axis goes with arrays on the CPU only",
        "leave output_device and cuda_graph out, or export the batch axis in front",
    )


OF_OPTIONS: Final = (
    _of_padding("pad_value", 0),
    _of_padding("pad_multiple", 1),
    _of_padding("crop", None),
    Combination(
        ("cuda_graph", "ragged"),
        # With `cuda_graph_limit` an engine records one for each shape.
        lambda options: (
            options.cuda_graph
            and options.ragged == "pad"
            and not hasattr(options, "cuda_graph_limit")
        ),
        "cuda_graph needs one shape, ragged = 'pad' makes several",
        "leave one of them out",
    ),
    Combination(
        ("unbatched", "batch_axis"),
        _in_both_places,
        "{1!r} stands in `unbatched` and in `batch_axis`",
        "leave it out of one of them",
    ),
    _of_first_axis("output_device", "device"),
    _of_first_axis("cuda_graph", True),
)
"""What the values of options show, so that ``headrace check`` tells it."""

AT_SETUP: Final = (
    Combination(
        ("row_sizes", "batch_sizes"),
        lambda facts: facts.row_sizes and facts.batch_sizes,
        "row_sizes = {0.row_sizes} and batch_sizes = {0.batch_sizes} both say with how many rows the model runs",
        "Leave batch_sizes out: row_sizes fills up each run, also of requests that bring rows.",
    ),
    Combination(
        ("crop", "output_device"),
        lambda facts: facts.cannot_cut,
        "on the device axis {1[0]} of an output is not cut to the lengths of a request",
        "crop = {} leaves outputs as long as the padded inputs; output_device = 'cpu' cuts all.",
    ),
)
"""What is known of a node and its model only."""


def check_together(options: Any) -> None:
    """Refuse what of `OF_OPTIONS` options meet. Rules of which their class lacks an option are not looked at.

    Raises:
        ValueError: Two options are refused together.
    """
    known = type(options).model_fields.keys()
    for combination in OF_OPTIONS:
        if known >= {*combination.names} and (met := combination.is_met(options)):
            raise ValueError(f"{combination.text.format(options, met)}: {combination.hint}")


def refuse_at_setup(facts: SetupFacts) -> None:
    """Refuse what of `AT_SETUP` is met.

    Raises:
        SetupError: Two options are refused together.
    """
    for combination in AT_SETUP:
        if met := combination.is_met(facts):
            raise SetupError(combination.text.format(facts, met), hint=combination.hint)
