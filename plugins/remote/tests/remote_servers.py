"""A scripted server of the Open Inference Protocol, and what `headrace_serve` serves in these tests."""

from __future__ import annotations

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

import headrace
from headrace.errors import InputError

SERVICE = "inference.GRPCInferenceService"


class Picky(headrace.Backend):
    """Refuses what starts with ``bad``, breaks on ``break``, tells what it is asked for."""

    rerun = True
    max = None

    def forward(self, batch):
        outcomes = []
        for request in batch:
            data, error = request["data"], None
            if data.startswith(b"bad"):
                error = InputError("this is bad")
            elif data.startswith(b"break"):
                error = RuntimeError("secret of the backend")
            elif data == b"told":
                request["result"] = {
                    "context": dict(request.get("context", {})),
                    "id": request.get("request_id"),
                }
            else:
                request["result"] = data.upper()
            outcomes.append(error)
        return outcomes


headrace.register("RemotePicky", Picky)

ROWS = {
    "config": {"backend": "S[Identity]", "max": 8},
    "inputs": {"x": {"datatype": "FP32", "shape": [-1, 3], "batched": True}},
    "outputs": {"y": {"datatype": "FP32", "shape": [-1, 3]}},
}


class StandIn:
    """A server over generated messages of tritonclient that doubles ``FP32 [-1, 3]``, unless a script says otherwise.

    Attributes:
        script: What the next calls of ModelInfer do, first to last: a function of message and context, which returns
            the answer or None for the usual one.
        calls: The messages that were received, with the metadata and the seconds to the deadline.
        ready: What ModelReady says.
        looks: Released for each ModelReady.
    """

    def __init__(self, port=0, metadata=None, config=None, credentials=None, usual=None):
        self.script = []
        self.calls = []
        self.ready = True
        self.looks = threading.Semaphore(0)
        self._metadata = metadata or {
            "name": "m",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
        }
        self._config = config
        self._usual = usual or doubled
        self._pool = ThreadPoolExecutor(8)
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)])
        methods = {
            "ModelInfer": (self._infer, service_pb2.ModelInferRequest),
            "ModelReady": (self._ready, service_pb2.ModelReadyRequest),
            "ModelMetadata": (self._described, service_pb2.ModelMetadataRequest),
        }
        if config is not None:
            methods["ModelConfig"] = (self._configured, service_pb2.ModelConfigRequest)
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                function, asked.FromString, lambda made: made.SerializeToString()
            )
            for name, (function, asked) in methods.items()
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers),)
        )
        address = f"127.0.0.1:{port}"
        if credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, credentials)
        self._server.start()

    @property
    def url(self):
        return f"127.0.0.1:{self.port}"

    def _infer(self, request, context):
        self.calls.append((request, dict(context.invocation_metadata()), context.time_remaining()))
        act = self.script.pop(0) if self.script else None
        made = None if act is None else act(request, context)
        return self._usual(request) if made is None else made

    def _ready(self, request, context):
        self.looks.release()
        return service_pb2.ModelReadyResponse(ready=self.ready)

    def _described(self, request, context):
        return service_pb2.ModelMetadataResponse(**self._metadata)

    def _configured(self, request, context):
        return service_pb2.ModelConfigResponse(config=self._config)

    def stop(self):
        """End at once: connections break, and new ones are refused."""
        self._server.stop(None).wait()
        self._pool.shutdown(wait=False)


def drain(semaphore):
    while semaphore.acquire(blocking=False):
        pass


def look_at(server, *, ready):
    """Let a stand-in be ready or not, and wait until a look at it was noted."""
    server.ready = ready
    drain(server.looks)
    for _ in range(2):  # the second look begins after the first was noted
        assert server.looks.acquire(timeout=60)


def doubled(request):
    """Return the usual answer of a `StandIn`."""
    x = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(-1, 3)
    made = service_pb2.ModelInferResponse(model_name=request.model_name)
    made.outputs.add(name="y", datatype="FP32", shape=x.shape)
    made.raw_output_contents.append((2 * x).tobytes())
    return made


def fails(status, text, *, code=None):
    """Make an entry of a script that ends the call with a status."""

    def act(request, context):
        trailing = () if code is None else (("code", code),)
        context.set_trailing_metadata(trailing)
        context.abort(getattr(grpc.StatusCode, status), text)

    return act


class Relay:
    """Hands on what goes to a server and back, until it is told to hand on nothing, as a line that is cut does.

    Args:
        port: The server's port.
        sees: Is called with what a client sends.

    Attributes:
        accepted: How many connections have come.
        ended: How many of them have ended.
        changed: Notified whenever one of these grows.
    """

    def __init__(self, port, sees=lambda _: None):
        self.accepted = self.ended = 0
        self._sees = sees
        self.changed = threading.Condition()
        self._to = port
        self._hands_on = threading.Event()
        self._hands_on.set()
        self._sockets = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def open(self):
        """Hand on nothing from now on; connections are still taken, and stay open."""
        self._hands_on.clear()

    def mend(self):
        """Hand on again, also what has come meanwhile."""
        self._hands_on.set()

    def close(self):
        self.mend()
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", self._to))
                self._sockets += [near, far]
                for ends in ((near, far, self._sees), (far, near, None)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()
                with self.changed:
                    self.accepted += 1
                    self.changed.notify_all()

    def _pump(self, one, other, sees):
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                if sees is not None:
                    sees(data)
                self._hands_on.wait()
                other.sendall(data)
        if sees is not None:
            with self.changed:
                self.ended += 1
                self.changed.notify_all()
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
