"""Keys of clients: their names and hashes, with the rights and the models of each."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import pydantic

from headrace.errors import ConfigError, Problem, nearest
from headrace_serve.errors import NotAllowedError, UnauthenticatedError
from headrace_serve.toml_tables import problem_of, read_tables

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["Keys", "Right"]

Right = Literal["infer", "describe", "repository"]
"""What a key may do. ``infer``: inference. ``describe``: metadata, configuration,
statistics, metrics and the index. ``repository``: loading and unloading of models. Health needs no key."""

_PREFIX = "bearer "


class _Key(pydantic.BaseModel):
    model_config: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(extra="forbid", frozen=True)

    sha256: str = pydantic.Field(pattern="^[0-9a-f]{64}$")
    rights: tuple[Right, ...] = ("infer", "describe")
    models: tuple[str, ...] | None = None


class Keys:
    """The keys of a file, which has a table ``[NAME]`` for each.

    ``sha256`` is the hash of the key, 64 hexadecimal digits in lower case. ``rights`` a list of ``infer``,
    ``describe`` and ``repository`` (default: the first two). ``models`` the names of the models for which the key
    holds (default: all). A key must be long and random: SHA-256 is fast, so a short key can be guessed from its hash.
    """

    def __init__(self, by_hash: Mapping[str, tuple[str, _Key]], file: str | None = None) -> None:
        self._by_hash = dict(by_hash)
        self._file = file

    @classmethod
    def load(cls, path: str | Path) -> Keys:
        """Read a file.

        Raises:
            ConfigError: The file cannot be read, or has another shape.
        """
        file = str(path)
        keys: dict[str, tuple[str, _Key]] = {}
        for name, table in read_tables(path).items():
            try:
                key = _Key.model_validate(table)
            except pydantic.ValidationError as error:
                wrong = [problem_of(name, mistake, _Key, file) for mistake in error.errors()]
                raise ConfigError(wrong) from None
            if key.sha256 in keys:
                same = f"keys {keys[key.sha256][0]!r} and {name!r} have the same sha256"
                raise ConfigError(Problem("serve", same, file=file))
            keys[key.sha256] = name, key
        if not keys:
            raise ConfigError(Problem("serve", "it holds no key", file=file))
        return cls(keys, file)

    @classmethod
    def of(cls, keys: Keys | str | Path | None) -> Keys | None:
        """Return the keys for an argument ``keys``: `Keys`, the path of a file that has them, or None.

        Raises:
            ConfigError: The file cannot be read, or has another shape.
            TypeError: The argument is none of these three.
        """
        if isinstance(keys, (str, Path)):
            return cls.load(keys)
        if keys is not None and not isinstance(keys, cls):
            raise TypeError(f"keys are headrace_serve.Keys or the path of a file, got {keys!r}")
        return keys

    def __len__(self) -> int:
        """Return how many keys there are."""
        return len(self._by_hash)

    def check_models(self, served: Collection[str]) -> None:
        """Check that every model that a key names is served.

        Raises:
            ConfigError: A key names another model.
        """
        named = {model for _, key in self._by_hash.values() for model in key.models or ()}
        problems = [
            Problem(
                "serve",
                f"a key names the model {name!r}, which is not served",
                file=self._file,
                suggestion=nearest(name, served),
                hint=f"Served are: {', '.join(sorted(served))}.",
            )
            for name in sorted(named.difference(served))
        ]
        if problems:
            raise ConfigError(problems)

    def find(self, headers: Mapping[str, str]) -> tuple[str, _Key]:
        """Find the key of a request, and its name, sent as ``Authorization: Bearer KEY`` or ``X-API-Key: KEY``.

        Args:
            headers: Headers of HTTP, or metadata of gRPC, by names in lower case.

        Raises:
            UnauthenticatedError: The request has no key, or an unknown one.
        """
        # HTTP strips blanks around a value, gRPC keeps them: perf_analyzer sends the one behind ``X-API-Key:``.
        given = headers.get("x-api-key", "").strip()
        authorization = headers.get("authorization", "").strip()
        if not given and authorization.lower().startswith(_PREFIX):
            given = authorization[len(_PREFIX) :].strip()
        if not given:
            raise UnauthenticatedError(
                "a key is needed: Authorization: Bearer KEY, or X-API-Key: KEY"
            )
        entry = self._by_hash.get(hashlib.sha256(given.encode("utf-8", "replace")).hexdigest())
        if entry is None:
            raise UnauthenticatedError("the key is not known")
        return entry

    def check(
        self, headers: Mapping[str, str], right: Right, model: str | None, *, later: bool = False
    ) -> str:
        """Check that the key of a request has a right, and holds for the model. Give the key's name.

        Args:
            headers: Headers of HTTP, or metadata of gRPC, by names in lower case.
            right: The right that the request needs.
            model: The name of the model. None: the request is not for a single model.
            later: Whether each model is checked later, since only the body names it.

        Raises:
            UnauthenticatedError: The request has no key, or an unknown one.
            NotAllowedError: The key lacks the right, or does not hold for the model.
        """
        name, key = self.find(headers)
        if right not in key.rights:
            raise NotAllowedError(f"the key has no right to {right}")
        if key.models is not None and model not in key.models and not later:
            raise NotAllowedError("the key does not allow this")
        return name
