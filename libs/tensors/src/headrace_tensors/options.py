"""The options that the engines share, with their texts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

import headrace
from headrace_tensors.combinations import check_together

__all__ = ["BatchAxisOptions", "RowSizes", "TensorOptions", "UnbatchedOptions"]

_Key = Annotated[str, Field(min_length=1)]


def _pad_value(value: Any) -> Any:
    """Refuse what is neither a number nor a table of numbers, with a single error."""
    if isinstance(value, dict):
        return {name: _number(number) for name, number in value.items()}
    return _number(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(  # noqa: TRY004 - pydantic reports these
            "it is a number, or a table of numbers by input"
        )
    return float(value)


def _unbatched(value: Any) -> Any:
    if isinstance(value, str) and value != "all":
        raise ValueError(f"it is a list of names, or 'all': write ['{value}']")
    return value


def once(names: tuple[str, ...] | Literal["all"] | None) -> Any:
    """Refuse a list that has a name twice."""
    if isinstance(names, tuple):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(map(repr, twice))} is listed twice")
    return names


class TensorOptions(headrace.Options):
    """Options of every backend that runs a model on tensors.

    Attributes:
        inputs: Key of the request per input name; default: `data` for the only input that a request must bring, else
            the input's name.
        outputs: Names of the outputs to give; default: all.
        ragged: Samples of different shapes in one batch: run those of one shape together, pad all to the largest, or
            refuse those unlike the first.
        pad_value: What ragged = pad fills with, at the end of axes (in units of the data): one number for all inputs,
            or a table by input ({input_ids = 1}), where others get 0.
        pad_multiple: With ragged = pad: lengths of dynamic axes are rounded up to a multiple of this number of
            elements, at most to the greatest that the model declares.
        crop: With ragged = pad: where the warm-up can prove nothing, outputs that are cut to the length that the
            request brought, as input by output ({output = 'input'}); {} cuts nothing.
        warm_up_input: A .npz file of arrays by input (a .npy file for the only one), one sample or rows, with which the
            warm-up runs in place of random numbers.
    """

    inputs: dict[str, _Key] = Field({})
    outputs: Annotated[tuple[_Key, ...], Field(min_length=1)] | None = None
    ragged: Literal["group", "pad", "refuse"] = "group"
    pad_value: Annotated[float | dict[str, float], BeforeValidator(_pad_value)] = 0.0
    pad_multiple: int = Field(1, ge=1)
    crop: dict[str, _Key] | None = None
    warm_up_input: headrace.FilePath | None = None

    @field_validator("outputs")
    @classmethod
    def _once(cls, names: tuple[str, ...] | None) -> Any:
        return once(names)

    @model_validator(mode="after")
    def _fit_together(self) -> Any:
        check_together(self)
        return self


class UnbatchedOptions(TensorOptions):
    """Options of a backend for models with inputs and outputs without batch axis.

    Attributes:
        unbatched: Names of inputs and outputs whose first axis is not the batch axis, or 'all'. Requests with equal
            small inputs share a run; with such an output they are run one at a time.
    """

    unbatched: Annotated[Literal["all"] | tuple[_Key, ...], BeforeValidator(_unbatched)] = ()

    @field_validator("unbatched")
    @classmethod
    def _unbatched_once(cls, names: Any) -> Any:
        return once(names)


RowSizes = Annotated[
    tuple[Annotated[int, Field(ge=1)], ...],
    Field(
        description="The only numbers of rows with which the model runs: a run of fewer is filled up to the next "
        "with copies of its last row, whose results are dropped; more than the largest run as they are. Default: any. Not beside `batch_sizes`.",
    ),
]
"""The option ``row_sizes`` of the engines that are slow after a change of the shape, see `Signature.with_sizes`."""


class BatchAxisOptions(UnbatchedOptions):
    """Options of a backend for models with the batch axis elsewhere than first.

    Attributes:
        batch_axis: Which axis is the batch axis, counted from 0, per input or output where it is not the first (the
            state of a recurrent model), or where its name tells otherwise.
    """

    batch_axis: dict[str, Annotated[int, Field(ge=0)]] = Field({})
