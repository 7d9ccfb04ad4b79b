"""The node keys ``require`` and ``invariant``: a node that is built only as it was certified."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

import headrace
from headrace.errors import ConfigError, HeadraceError
from headrace_observe.files import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Certificate", "Require", "agreeing_sizes", "without_certificates"]

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


class _Part(BaseModel):
    """A part of a certificate. What headrace certify writes besides is for readers."""

    model_config = ConfigDict(strict=True)


class _Agreement(_Part):
    agrees: bool


class _Output(_Part):
    verdict: Literal["equal", "within", "dependent", "random"]
    sizes: list[int]
    sizes_beside_instances: list[int]
    reference: _Agreement | None


class _Device(_Part):
    name: str
    compute_capability: str


class _Gpu(_Part):
    driver: str | None
    cuda: str | None
    devices: list[_Device]
    versions: dict[str, str]
    precision: dict[str, Any]


class Certificate(_Part):
    """What headrace certify writes, as far as a build depends on it."""

    kind: Literal["certify"]
    agrees: bool
    compared: Literal["batches", "lists"]
    sizes: list[Annotated[int, Field(ge=1)]]
    outputs: dict[str, _Output]
    config_sha256: str
    files: dict[str, str]
    external_data: bool | None
    modules: dict[str, str | None]
    versions: dict[str, str]
    python: str
    machine: str
    gpu: _Gpu | None


class Require(headrace.Options):
    """The keys of a node that is built only as it was certified.

    Attributes:
        require: The certificate of this configuration, made by headrace certify.
        invariant: Form only batches of the sizes whose results agree (true or false).
    """

    require: headrace.OutputPath
    invariant: bool = False

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
    def certificate(self) -> Certificate:
        """The certificate.

        Raises:
            ValueError: The file is none, or parts of it are missing or wrong.
        """
        try:
            return Certificate.model_validate(read_json(self.require))
        except ValidationError as error:
            wrong = [
                f"{'.'.join(map(str, problem['loc'])) or 'the whole file'}: {problem['msg']}"
                for problem in error.errors(include_url=False, include_input=False)
            ]
            text = (
                f"{self.require} is no certificate of headrace certify: {'; '.join(wrong[:_MOST])}"
            )
            more = f"; and {len(wrong) - _MOST} more" if wrong[_MOST:] else ""
            raise ValueError(text + more) from None
        except HeadraceError as error:
            raise ValueError(str(error)) from error

    @property
    def batch_sizes(self) -> tuple[int, ...] | None:
        """The sizes whose results agree, if the node is ``invariant``.

        Raises:
            ValueError: There are none.
        """
        certifies = _certifies.get() or not self.invariant
        return None if certifies else agreeing_sizes(self.certificate)

    def check(self, config: headrace.PipelineConfig, node: str) -> Callable[[], None] | None:
        """Refuse a configuration that is not as it was certified.

        Returns:
            A function that refuses it behind the build, if a file has changed since.

        Raises:
            ConfigError: It differs, or the certificate says that results differ.
        """
        if _certifies.get():
            return None
        from headrace_observe.certify.identity import Held, differences, identity

        hashes, document = Held(), self.certificate.model_dump()

        def found_here() -> list[str]:
            here = identity(config, in_use=False, hashes=hashes, modules=document["modules"])
            return differences(document, here)

        differs = found_here()
        if not (document["agrees"] or self.invariant):
            differs.append("its results differ, as headrace certify says")

        def refuse(differs: list[str]) -> None:
            more = f"; and {len(differs) - _MOST} more" if differs[_MOST:] else ""
            text = f"{self.require.name} does not certify this: {'; '.join(differs[:_MOST])}{more}"
            hint = "Go back to what was certified, or make a new one: headrace certify CONFIG --output FILE"
            raise ConfigError(config.problem_at(node, "require", "certificate", text, hint))

        def look_again() -> None:
            changed = [f"{name} was replaced while it was loaded" for name in hashes.changed()]
            differs = changed or found_here()
            hashes.close()
            if differs:
                refuse(differs)

        if differs:
            hashes.close()
            refuse(differs)
        return look_again


def agreeing_sizes(certificate: Certificate) -> tuple[int, ...]:
    """Return the sizes of batches in which a certificate says that each row has the result that it has alone.

    Raises:
        ValueError: There are none.
    """
    if certificate.compared != "batches":
        raise ValueError("invariant is for one node: the certificate compares lists, not batches")
    sizes = {*certificate.sizes}
    for name, output in certificate.outputs.items():
        if output.verdict == "random" or not (output.reference is None or output.reference.agrees):
            raise ValueError(f"no size makes {name} agree, as the certificate says")
        sizes -= {*output.sizes, *output.sizes_beside_instances}
    if not sizes:
        raise ValueError("no size has results that agree, as the certificate says")
    return tuple(sorted(sizes))
