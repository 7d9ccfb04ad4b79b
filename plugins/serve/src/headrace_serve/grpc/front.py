"""Answers one inference over gRPC: finds its model, admits and reads it, and writes its response."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from headrace_serve.errors import BodyTooLargeError, UnavailableError
from headrace_serve.grpc.tensors import read_request, write_response
from headrace_serve.inference.tensors import complete, elements_in
from headrace_serve.monitoring.observe_probes import server_timing, times_for
from headrace_serve.threads import call_by_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_serve.grpc.context import Context
    from headrace_serve.grpc.tensors import Received
    from headrace_serve.inference.messages import Asked
    from headrace_serve.models.model import Model
    from headrace_serve.monitoring.access_log import AccessLine
    from headrace_serve.service import Service

__all__ = ["Front"]


class Front:
    """Answers the calls of inference."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def infer(self, received: Received, context: Context, line: AccessLine) -> bytes:
        """Answer ModelInfer."""
        model = self.find(received, context)
        if model is None:
            model = await self.wait(received, context, line)
        return await self.infer_with(model, received, context, line)

    async def wait(self, received: Received, context: Context, line: AccessLine) -> Model:
        """Wait in the queue of a model within the time of the request. The errors are those of `ModelUpdates.wait`."""
        service, message = self._service, received.message
        most_ms, given = service.limits.max_timeout_ms, message.parameters
        timeout_us = given["timeout"].int64_param if "timeout" in given else 0
        times_s = [timeout_us / 1e6] if timeout_us > 0 else []
        times_s += [] if most_ms is None else [most_ms / 1e3]
        if times_s:
            line.until_s = time.monotonic() + min(times_s)
        left_s = context.left_s()
        ends_s = [] if left_s is None else [time.monotonic() + left_s]
        ends_s += [] if line.until_s is None else [line.until_s]
        return await service.updates.wait(
            received.model_name,
            message.model_version,
            lambda: context.headers.get("x-share-key", ""),
            min(ends_s, default=None),
        )

    def find(self, received: Received, context: Context) -> Model | None:
        """Return the model that a request names. None: `wait` brings it.

        Raises:
            UnknownModelError: There is no such model or version.
            UnavailableError: The server is about to shut down, or the model takes no requests.
        """
        if self._service.draining:
            raise UnavailableError("the server is shutting down")
        name, version = received.model_name, received.message.model_version
        return self._service.find(name, version, lambda: context.headers.get("x-share-key", ""))

    async def infer_with(
        self, model: Model, received: Received, context: Context, line: AccessLine
    ) -> bytes:
        """Answer one request with a model."""
        with self.admitted(model, received, context, line) as asked:
            limits = self._service.limits.narrowed(model.limits)
            answer = await self._service.infer(model, asked, line, limits)
            if line.timing is not None:
                answer.parameters["server_timing"] = server_timing(line.timing)
            return await call_by_size(elements_in(answer.outputs), write_response, answer)

    @contextlib.contextmanager
    def admitted(
        self, model: Model, received: Received, context: Context, line: AccessLine
    ) -> Iterator[Asked]:
        """Read a request, which has its place in the model's queue until the block ends."""
        timeout_s = context.left_s()
        service = self._service
        limits = service.limits.narrowed(model.limits)
        most = limits.max_body_bytes
        if received.size > most:
            raise BodyTooLargeError(f"the message has {received.size} bytes, the limit is {most}")
        admitted = False
        try:
            line.timing = times_for(model, service.keys, context.headers)
            service.admit(model)
            admitted = True
            asked = read_request(received, timeout_s, model, limits.max_items)
            complete(asked, line.request_id, context.headers, line)
            yield asked
        finally:
            model.inside -= admitted
