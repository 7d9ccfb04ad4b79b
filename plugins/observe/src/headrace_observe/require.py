"""The node keys ``require`` and ``invariant``: a node that is built only as it was certified."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from pydantic import Field, TypeAdapter, ValidationInfo, field_validator, model_validator

import headrace
from headrace.errors import ConfigError, HeadraceError
from headrace_observe.files import read_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Require", "agreeing_sizes", "without_certificates"]

_MOST = 3
"""How many differences an error names."""

_FILE: TypeAdapter[Any] = TypeAdapter(headrace.FilePath)
_certifies: ContextVar[bool] = ContextVar("certifies", default=False)


@contextmanager
def without_certificates() -> Iterator[None]:
    """Let configurations be loaded and built without the certificates that they require, to make these."""
    token = _certifies.set(True)
    try:
        yield
    finally:
        _certifies.reset(token)


class Require(headrace.Options):
    """The keys of a node that is built only as it was certified."""

    require: headrace.OutputPath = Field(
        description="The certificate of this configuration, made by headrace certify."
    )
    invariant: bool = Field(
        False, description="Form only batches of the sizes whose results agree (true or false)."
    )

    @field_validator("require")
    @classmethod
    def _existing(cls, path: Any, info: ValidationInfo) -> Any:
        return path if _certifies.get() else _FILE.validate_python(path, context=info.context)

    @model_validator(mode="after")
    def _readable(self) -> Require:
        if not _certifies.get():
            _ = self.certificate, self.batch_sizes
        return self

    @cached_property
    def certificate(self) -> dict[str, Any]:
        """The certificate.

        Raises:
            ValueError: The file is none.
        """
        try:
            found = read_json(self.require)
        except HeadraceError as error:
            raise ValueError(str(error)) from error
        if not isinstance(found, dict) or found.get("kind") != "certify" or "modules" not in found:
            raise ValueError(f"{self.require} is no certificate of headrace certify")
        return cast("dict[str, Any]", found)

    @property
    def batch_sizes(self) -> tuple[int, ...] | None:
        """The sizes whose results agree, if the node is ``invariant``.

        Raises:
            ValueError: There are none.
        """
        certifies = _certifies.get() or not self.invariant
        return None if certifies else agreeing_sizes(self.certificate)

    def check(self, config: headrace.PipelineConfig, node: str) -> None:
        """Refuse a configuration that is not as it was certified.

        Raises:
            ConfigError: It differs, or the certificate says that results differ.
        """
        if _certifies.get():
            return
        from headrace_observe.identity import differences, identity

        found = differences(self.certificate, identity(config, in_use=False))
        if not (self.certificate["agrees"] or self.invariant):
            found.append("its results differ, as headrace certify says")
        if found:
            more = f"; and {len(found) - _MOST} more" if found[_MOST:] else ""
            what = f"{self.require.name} does not certify this: {'; '.join(found[:_MOST])}{more}"
            hint = "Go back to what was certified, or make a new one: headrace certify CONFIG --output FILE"
            raise ConfigError(config.problem_at(node, "require", "certificate", what, hint))


def agreeing_sizes(certificate: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the sizes of batches in which a certificate says that each row has the result that it has alone.

    Raises:
        ValueError: There are none.
    """
    if certificate["compared"] != "batches":
        raise ValueError("invariant is for one node: the certificate compares lists, not batches")
    outputs, sizes = certificate["outputs"], set(certificate["sizes"])
    for name, one in outputs.items():
        if one["verdict"] == "random" or not (one["reference"] or {"agrees": True})["agrees"]:
            raise ValueError(f"no size makes {name} agree, as the certificate says")
        sizes -= {*one["sizes"], *one["sizes_beside_instances"]}
    if not sizes:
        raise ValueError("no size has results that agree, as the certificate says")
    return tuple(sorted(sizes))
