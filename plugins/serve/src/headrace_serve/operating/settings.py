"""The arguments of ``headrace serve`` as plain data, which the supervisor sends to worker processes."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, fields, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, Problem
from headrace_models import Memory
from headrace_serve.admission.allowing import check_allowed, check_hosts, check_origins
from headrace_serve.admission.keys import Keys
from headrace_serve.admission.limits import Limits
from headrace_serve.apis.routes import routes_of
from headrace_serve.models.entries import read_memory, read_models
from headrace_serve.models.held import check_models, together
from headrace_serve.models.manager import load_manager
from headrace_serve.operating.listening import check_ports
from headrace_serve.operating.options import Options
from headrace_serve.operating.server import Server, may_come_later
from headrace_serve.operating.tls import Tls

if TYPE_CHECKING:
    from headrace.errors import HeadraceError
    from headrace_serve.operating.worker_changes import WorkerChanges

__all__ = ["Settings"]

_PORTS = ("--port", "--grpc-port", "--admin-port")
_AGE_S = 300.0
"""The greatest age of a gRPC connection, in seconds, if several processes share the port."""


@dataclass(frozen=True)
class Settings(Options):
    """The arguments of the command; files are given by path, and read when a server is made or reloads."""

    def __post_init__(self) -> None:
        wrong = None
        if self.manager is not None and (self.models or self.models_file is not None):
            wrong = Problem("serve", "a --manager provides all models; name no others")
        elif not self.models and self.models_file is None and self.manager is None:
            hint = "Name a configuration, --models, or --manager."
            wrong = Problem("serve", "there is no model to serve", hint=hint)
        elif (self.tls_cert is None) != (self.tls_key is None) or (
            self.tls_client_ca and self.tls_cert is None
        ):
            wrong = Problem("serve", "TLS needs --tls-cert and --tls-key")
        else:
            try:
                ports = (self.port, self.grpc_port, self.admin_port)
                check_ports(**dict(zip(_PORTS, ports, strict=True)))
            except ValueError as error:
                wrong = Problem("serve", str(error))
        if wrong is not None:
            raise ConfigError(wrong)

    def to_json(self) -> str:
        """Give the settings as one line of JSON, for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Return the settings that `to_json` has written."""
        values = json.loads(text)
        for field in fields(cls):
            if field.default == ():
                values[field.name] = tuple(values[field.name])
        return cls(**{**values, "limits": Limits(**values["limits"])})

    def shared(
        self, port: int, grpc_port: int | None, admin_port: int | None = None, processes: int = 1
    ) -> Settings:
        """Return the settings for a worker process that shares these ports, and the memory, with others."""
        limits = self.limits
        if limits.max_connection_age_s is None:
            limits = replace(limits, max_connection_age_s=_AGE_S)
        ports = {"port": port, "grpc_port": grpc_port, "admin_port": admin_port}
        return replace(self, **ports, limits=limits, processes=processes)  # type: ignore[arg-type]  # each keeps its own kind

    def read(self) -> dict[str, Any]:
        """Read the files of models and keys. Give the arguments of `Server.reload`.

        Raises:
            ConfigError: A file is wrong.
        """
        return {"models": self._given(), "keys": self._keys()}

    def _given(self, problems: list[Problem] | None = None) -> Any:
        """Return the models, as `Server` takes them. ``problems`` is that of `read_models`."""
        if self.manager is not None:
            return load_manager(self.manager, allow_import=self.allow_import)
        return read_models(self.models, self.models_file, problems) or self.models

    def _keys(self) -> Keys | None:
        return None if self.keys is None else Keys.load(self.keys)

    def check(self) -> list[str]:
        """Check everything that needs no pipeline to be built, no port and no device.

        Returns:
            The models, by ``name:version``.

        Raises:
            ConfigError: A setting, a file or a configuration is wrong. It has all problems of models and their file.
        """
        check_allowed(self.allow)
        check_origins(self.cors_origins)
        check_hosts(self.allow_hosts)
        routes_of(self.apis)
        tls = self._tls()
        if tls is not None:
            tls.read()
        problems: list[Problem] = []
        failed: dict[str, HeadraceError] = {}
        models = self._given(problems)
        late = may_come_later(models, self._watched(), self.allow) or bool(problems)
        how: Any = {"allow_import": self.allow_import, "workers": self.processes > 1}
        how["memory"] = Memory({})
        with contextlib.suppress(ConfigError):  # it is among the problems
            how["memory"] = self.memory()
        how["keys"] = None if problems else self._keys()
        entries: Any = {}
        try:
            entries, _ = check_models(models, **how, may_be_none=late, failed=failed)
        except ConfigError as error:
            problems += error.problems
        told = failed if self.exit_on_error and not self.watch else {}
        if problems:
            told = {"": ConfigError(problems), **told}
        if told:
            raise together(told)
        return [":".join(place) for place in entries]

    def server(
        self,
        worker: int | None = None,
        worker_changes: WorkerChanges | None = None,
        *,
        listen_first: bool = True,
    ) -> Server:
        """Make the server; it does not listen yet. Arguments and errors are those of `Server`."""
        names = {field.name for field in fields(self)} & {*signature(Server).parameters}
        given: dict[str, Any] = {name: getattr(self, name) for name in names}
        given |= self.read()
        given |= {"tls": self._tls(), "watch": self._watched(), "memory": self.memory()}
        return Server(
            **given, worker=worker, worker_changes=worker_changes, listen_first=listen_first
        )

    def memory(self) -> Memory | None:
        """Read the budget of the models, the part of this process. None: there is none.

        Raises:
            ConfigError: It is wrong.
        """
        return read_memory(self.models_file, self.processes)

    def _watched(self) -> bool | str:
        """Return the argument ``watch`` of the server: the first folder of models, if files are watched."""
        folders = (path for path in self.models if Path(path).is_dir())
        return self.watch and next(folders, True)

    def _tls(self) -> Tls | None:
        if self.tls_cert is None or self.tls_key is None:
            return None
        return Tls(self.tls_cert, self.tls_key, self.tls_client_ca)
