"""A server that listens before its models are built: it lives from the first moment, and answers for each model once it is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_serve.models import Catalogue, build_loaded, load_models
from headrace_serve.server import Server

if TYPE_CHECKING:
    from headrace_serve.entries import ModelEntry
    from headrace_serve.keys import Keys
    from headrace_serve.models import Model

__all__ = ["EarlyServer"]


class EarlyServer(Server):
    """A server whose constructor checks all models and builds none: `load` builds them once it listens.

    Until then it is alive and not ready, and requests for a model that is not built are refused with 503. The arguments are
    those of `Server`.
    """

    _entries: dict[tuple[str, str], ModelEntry]

    def _build(self, models: Any, keys: Keys | None, *, allow_import: bool) -> Catalogue:
        self._entries = load_models(models, keys=keys, allow_import=allow_import)
        return Catalogue([], self._entries)

    def load(self) -> None:
        """Build the models one after the other; each takes requests at once. If one cannot be built, close the server.

        Raises:
            ConfigError, SetupError, PluginError: As `headrace.pipe` raises them.
            ClosedError: The server is not started, or is closed.
        """
        try:
            with self._changing:
                build_loaded(self._entries, each=self._add)
        except BaseException:
            self.close(timeout=2.0)
            raise

    def _add(self, model: Model) -> None:
        async def add() -> None:
            service = self._service
            service.models = service.models.extended(model)
            service.changes.notify()

        self._in_loop(add()).result()
