"""What Triton's clients do, in the shapes of their public examples: each function is one of them.

They need ``tritonclient`` and numpy alone, so that any version of it can run them against a server of
another process, which serves the models of `SERVED`::

    python triton_calls.py localhost:8000 localhost:8001
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import sys

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException

A = np.arange(16, dtype=np.int32).reshape(1, 16)
B = np.ones((1, 16), np.int32)

EVERY = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16,
    "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip
"""Datatypes that every version of the clients has; the server has a model ``same_fp32`` for each."""


def same(got, wanted):
    if wanted.size:  # of empty tensors old clients lose the dtype
        assert got.dtype == wanted.dtype, (got.dtype, wanted.dtype)
    np.testing.assert_array_equal(got, wanted)


def refused(call, *words):
    """Return the error of a call that must be refused with these words."""
    try:
        call()
    except InferenceServerException as raised:
        error = raised
    else:
        raise AssertionError(f"not refused: {words}")
    for word in words:
        assert word in str(error), (word, str(error))
    return error


async def refused_later(call, word):
    """The same for a call that is awaited."""
    try:
        await call
    except InferenceServerException as raised:
        error = raised
    else:
        raise AssertionError(f"not refused: {word}")
    assert word in str(error), (word, str(error))


def supports(call, *names):
    """Whether this version of the clients has these arguments."""
    return set(names) <= set(inspect.signature(call).parameters)


def pair(kind, first=A, second=B):
    inputs = [kind.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    inputs[0].set_data_from_numpy(first)
    inputs[1].set_data_from_numpy(second)
    return inputs


def check_pair(result, first=A, second=B):
    same(result.as_numpy("OUTPUT0"), first + second)
    same(result.as_numpy("OUTPUT1"), first - second)


def tensor(kind, name, array, datatype):
    made = kind.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def http_health_and_metadata(http, grpc):
    with over_http.InferenceServerClient(http) as client:
        assert client.is_server_live(query_params={"test_1": 1, "test_2": 2})
        assert client.is_server_ready()
        assert client.is_model_ready("simple")
        assert not client.is_model_ready("wrong_model_name")
        assert client.get_server_metadata()["extensions"]
        metadata = client.get_model_metadata("simple", query_params={"test_1": 1, "test_2": 2})
        assert [one["name"] for one in metadata["inputs"]] == ["INPUT0", "INPUT1"]
        config = client.get_model_config("simple")
        assert config["max_batch_size"] == 8
        assert [one["dims"] for one in config["output"]] == [[16], [16]]
        refused(lambda: client.get_model_metadata("wrong_model_name"), "Request for unknown model")
        names = [one["name"] for one in client.get_model_repository_index()]
        assert "simple" in names


def grpc_health_and_metadata(http, grpc):
    with over_grpc.InferenceServerClient(grpc) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("simple")
        assert not client.is_model_ready("wrong_model_name")
        assert client.get_server_metadata().extensions
        assert client.get_server_metadata(as_json=True)["name"]
        metadata = client.get_model_metadata("simple")
        assert [one.name for one in metadata.inputs] == ["INPUT0", "INPUT1"]
        config = client.get_model_config("simple").config
        assert config.max_batch_size == 8
        assert [list(one.dims) for one in config.output] == [[16], [16]]
        refused(lambda: client.get_model_metadata("wrong_model_name"), "Request for unknown model")
        index = client.get_model_repository_index()
        assert "simple" in [one.name for one in index.models]


def http_infer(http, grpc):
    with over_http.InferenceServerClient(http) as client:
        asked = [
            over_http.InferRequestedOutput("OUTPUT0", binary_data=True),
            over_http.InferRequestedOutput("OUTPUT1", binary_data=False),
        ]
        inputs = pair(over_http)
        inputs[0].set_data_from_numpy(A, binary_data=False)
        result = client.infer(
            "simple",
            inputs,
            outputs=asked,
            query_params={"test_1": 1, "test_2": 2},
            headers={"test": "1"},
            request_id="42",
            timeout=60_000_000,
            priority=1,
        )
        check_pair(result)
        assert result.get_response()["id"] == "42"
        assert result.get_response()["model_version"] == "1"
        check_pair(client.infer("simple", pair(over_http), model_version="1"))
        only = client.infer("simple", pair(over_http), outputs=asked[1:])
        assert only.as_numpy("OUTPUT0") is None
        same(only.as_numpy("OUTPUT1"), A - B)
        stats = client.get_inference_statistics("simple")["model_stats"]
        assert [one["name"] for one in stats] == ["simple"]
        assert stats[0]["inference_stats"]["success"]["count"] >= 3
        assert len(client.get_inference_statistics()["model_stats"]) > 1


def http_compression(http, grpc):
    with over_http.InferenceServerClient(http) as client:
        if not supports(client.infer, "request_compression_algorithm"):
            return
        large = np.arange(5000, dtype=np.float32)
        for asked in ("gzip", "deflate", None):
            for answered in ("gzip", "deflate", None):
                result = client.infer(
                    "same_fp32",
                    [tensor(over_http, "x", large, "FP32")],
                    request_compression_algorithm=asked,
                    response_compression_algorithm=answered,
                )
                same(result.as_numpy("y"), large)


def http_async(http, grpc):
    with over_http.InferenceServerClient(http, concurrency=4) as client:
        waiting = [client.async_infer("simple", pair(over_http, A + i)) for i in range(16)]
        for i, one in enumerate(waiting):
            check_pair(one.get_result(), A + i)
        wrong = client.async_infer("wrong_model_name", pair(over_http))
        refused(wrong.get_result, "Request for unknown model")


def grpc_infer(http, grpc):
    with over_grpc.InferenceServerClient(grpc) as client:
        asked = [over_grpc.InferRequestedOutput(name) for name in ("OUTPUT1", "OUTPUT0")]
        result = client.infer(
            "simple",
            pair(over_grpc),
            outputs=asked,
            headers={"test": "1"},
            request_id="42",
            client_timeout=60,
            priority=1,
        )
        check_pair(result)
        assert result.get_response().id == "42"
        assert [one.name for one in result.get_response().outputs] == ["OUTPUT1", "OUTPUT0"]
        same(result.as_numpy("OUTPUT0"), A + B)
        assert result.as_numpy("none") is None
        stats = client.get_inference_statistics("simple").model_stats
        assert [one.name for one in stats] == ["simple"]
        assert stats[0].inference_stats.success.count >= 1
        refused(lambda: client.infer("wrong_model_name", pair(over_grpc)), "unknown model")
        refused(lambda: client.infer("simple", pair(over_grpc)[:1]), "INPUT1")


def grpc_compression(http, grpc):
    with over_grpc.InferenceServerClient(grpc) as client:
        if not supports(client.infer, "compression_algorithm"):
            return
        large = np.arange(5000, dtype=np.float32)
        for algorithm in ("gzip", "deflate", None):
            given = [tensor(over_grpc, "x", large, "FP32")]
            result = client.infer("same_fp32", given, compression_algorithm=algorithm)
            same(result.as_numpy("y"), large)


def grpc_async(http, grpc):
    answers = queue.Queue()
    with over_grpc.InferenceServerClient(grpc) as client:
        for _ in range(16):
            client.async_infer(
                "simple",
                pair(over_grpc),
                callback=lambda result, error: answers.put((result, error)),
                client_timeout=60,
            )
        for _ in range(16):
            result, error = answers.get(timeout=60)
            assert error is None
            check_pair(result)


def grpc_stream(http, grpc):
    answers = queue.Queue()
    with over_grpc.InferenceServerClient(grpc) as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        for i in range(16):
            client.async_stream_infer("simple", pair(over_grpc, A + i), request_id=str(i))
        client.async_stream_infer("wrong_model_name", pair(over_grpc))
        client.async_stream_infer("simple", pair(over_grpc), request_id="last")
        for i in range(16):
            result, error = answers.get(timeout=60)
            assert error is None
            assert result.get_response().id == str(i)
            check_pair(result, A + i)
        result, error = answers.get(timeout=60)
        assert result is None
        assert "unknown model" in str(error)
        result, error = answers.get(timeout=60)
        assert error is None
        assert result.get_response().id == "last"
        client.stop_stream()


def repeated(count, first):
    """Return the inputs of the decoupled model that gives back ``count`` numbers, each in a response of its own."""
    numbers = np.arange(first, first + count, dtype=np.int32)
    delays = np.ones(count, np.uint32)
    return [
        tensor(over_grpc, "IN", numbers, "INT32"),
        tensor(over_grpc, "DELAY", delays, "UINT32"),
        tensor(over_grpc, "WAIT", np.ones(1, np.uint32), "UINT32"),
    ]


def grpc_custom_repeat(http, grpc):
    """The example of decoupled models: one request, ten responses."""
    answers = queue.Queue()
    with over_grpc.InferenceServerClient(grpc) as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        outputs = [over_grpc.InferRequestedOutput("OUT")]
        client.async_stream_infer("repeat_int32", repeated(10, 100), outputs=outputs)
        for number in range(100, 110):
            result, error = answers.get(timeout=60)
            assert error is None, error
            same(result.as_numpy("OUT"), np.array([number], np.int32))
        client.stop_stream()


def grpc_stub(http, grpc):
    """The examples that fill in the messages themselves: raw bytes, and typed contents."""
    import grpc as library

    pb2, stubs = (getattr(over_grpc, n) for n in ("service_pb2", "service_pb2_grpc"))
    with library.insecure_channel(grpc) as channel:
        stub = stubs.GRPCInferenceServiceStub(channel)
        assert stub.ServerLive(pb2.ServerLiveRequest()).live
        assert stub.ModelReady(pb2.ModelReadyRequest(name="simple", version="1")).ready
        for typed in (True, False):
            request = pb2.ModelInferRequest(model_name="simple", id="my request id")
            for name, values in (("INPUT0", A), ("INPUT1", B)):
                one = request.inputs.add()
                one.name, one.datatype = name, "INT32"
                one.shape.extend([1, 16])
                if typed:
                    one.contents.int_contents[:] = values[0].tolist()
                else:
                    request.raw_input_contents.append(values.tobytes())
            output = request.outputs.add()
            output.name = "OUTPUT0"
            answer = stub.ModelInfer(request)
            assert answer.id == "my request id"
            same(np.frombuffer(answer.raw_output_contents[0], np.int32), (A + B)[0])
        request = pb2.ModelInferRequest(model_name="simple_string")
        for name in ("INPUT0", "INPUT1"):
            one = request.inputs.add()
            one.name, one.datatype = name, "BYTES"
            one.shape.extend([1, 16])
            field = "bytes_contents" if hasattr(one.contents, "bytes_contents") else "byte_contents"
            getattr(one.contents, field)[:] = [str(i).encode() for i in range(16)]
        answer = stub.ModelInfer(request)
        from tritonclient.utils import deserialize_bytes_tensor

        got = deserialize_bytes_tensor(answer.raw_output_contents[0])
        assert [int(one) for one in got] == [2 * i for i in range(16)]


def strings(http, grpc):
    first = np.array([[str(i) for i in range(16)]], object)
    second = np.array([["1"] * 16], object)  # the oldest takes no bytes here
    for kind, address in ((over_http, http), (over_grpc, grpc)):
        with kind.InferenceServerClient(address) as client:
            given = [
                tensor(kind, "INPUT0", first, "BYTES"),
                tensor(kind, "INPUT1", second, "BYTES"),
            ]
            result = client.infer("simple_string", given)
            got = result.as_numpy("OUTPUT0")
            assert got.shape == (1, 16)
            assert [int(one) for one in got[0]] == [i + 1 for i in range(16)]
            assert [int(one) for one in result.as_numpy("OUTPUT1")[0]] == [i - 1 for i in range(16)]
            null = np.array([["he\x00llo", "", "ü" * 100]], object)
            same_back = client.infer(
                "simple_identity", [tensor(kind, "INPUT0", null, "BYTES")]
            ).as_numpy("OUTPUT0")
            assert [one.decode() for one in same_back[0]] == null[0].tolist()


def datatypes(http, grpc):
    for kind, address in ((over_http, http), (over_grpc, grpc)):
        with kind.InferenceServerClient(address) as client:
            for datatype, dtype in EVERY.items():
                model = f"same_{datatype.lower()}"
                for array in (np.array([0, 1, 1], dtype), np.zeros(0, dtype)):
                    result = client.infer(model, [tensor(kind, "x", array, datatype)])
                    same(result.as_numpy("y"), array)


def requests_used_again(http, grpc):
    for kind, address in ((over_http, http), (over_grpc, grpc)):
        with kind.InferenceServerClient(address) as client:
            inputs = pair(kind)
            for i in range(3):
                inputs[0].set_data_from_numpy(A * i)
                check_pair(client.infer("simple", inputs), A * i)


def refusals_by_name(http, grpc):
    """What the server does not have is refused, never taken for something else."""
    for kind, address in ((over_http, http), (over_grpc, grpc)):
        with kind.InferenceServerClient(address) as client:
            given = pair(kind)
            refused(lambda c=client, g=given: c.infer("simple", g, sequence_id=7), "sequence")
            refused(
                lambda c=client, g=given, k=kind: c.infer(
                    "simple", g, outputs=[k.InferRequestedOutput("none")]
                ),
                "none",
            )
            wide = [tensor(kind, name, np.zeros((9, 16), np.int32), "INT32") for name in
                    ("INPUT0", "INPUT1")]  # fmt: skip
            error = refused(lambda c=client, w=wide: c.infer("simple", w), "9", "8")
            assert error.status() in ("400", "StatusCode.INVALID_ARGUMENT", None)
            refused(lambda c=client: c.load_model("simple"))
            refused(lambda c=client: c.unload_model("simple"))
            refused(lambda c=client: c.register_cuda_shared_memory("r", b"", 0, 8), "not supported")
            if hasattr(client, "get_trace_settings"):
                refused(client.get_trace_settings)
            if hasattr(client, "get_log_settings"):
                refused(client.get_log_settings)


async def http_aio(http, grpc):
    import tritonclient.http.aio as aio

    async with aio.InferenceServerClient(http) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("simple")
        assert (await client.get_model_metadata("simple"))["name"] == "simple"
        assert (await client.get_model_config("simple"))["name"] == "simple"
        assert await client.get_model_repository_index()
        assert (await client.get_inference_statistics("simple"))["model_stats"]
        found = await asyncio.gather(
            *(client.infer("simple", pair(over_http, A + i)) for i in range(16))
        )
        for i, one in enumerate(found):
            check_pair(one, A + i)
        for algorithm in ("gzip", "deflate"):
            check_pair(
                await client.infer(
                    "simple",
                    pair(over_http),
                    request_compression_algorithm=algorithm,
                    response_compression_algorithm=algorithm,
                )
            )
        await refused_later(client.infer("wrong_model_name", pair(over_http)), "unknown model")


async def grpc_aio(http, grpc):
    import tritonclient.grpc.aio as aio

    async with aio.InferenceServerClient(grpc) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("simple")
        assert (await client.get_model_metadata("simple")).name == "simple"
        assert (await client.get_model_config("simple")).config.name == "simple"
        assert (await client.get_model_repository_index()).models
        assert (await client.get_inference_statistics("simple")).model_stats
        found = await asyncio.gather(
            *(client.infer("simple", pair(over_grpc, A + i)) for i in range(16))
        )
        for i, one in enumerate(found):
            check_pair(one, A + i)
        for algorithm in ("gzip", "deflate"):
            check_pair(
                await client.infer("simple", pair(over_grpc), compression_algorithm=algorithm)
            )

        async def questions():
            for i in range(16):
                yield {
                    "model_name": "simple",
                    "inputs": pair(over_grpc, A + i),
                    "request_id": str(i),
                }

        answers = client.stream_infer(questions())
        if inspect.isawaitable(answers):
            answers = await answers
        count = 0
        async for result, error in answers:
            assert error is None
            assert result.get_response().id == str(count)
            check_pair(result, A + count)
            count += 1
        assert count == 16
        await refused_later(client.infer("wrong_model_name", pair(over_grpc)), "unknown model")


SYNC = (
    http_health_and_metadata, grpc_health_and_metadata, http_infer, http_compression, http_async,
    grpc_infer, grpc_compression, grpc_async, grpc_stream, grpc_custom_repeat, grpc_stub, strings,
    datatypes, requests_used_again, refusals_by_name,
)  # fmt: skip
AIO = (http_aio, grpc_aio)


def control(client, rows):
    """What both examples of model control do, but for the configuration and the files that they send to be served.

    Those are code, which a request cannot bring here: it is refused like their configuration that is wrong.
    """
    assert rows(client.get_model_repository_index()) == 2
    client.load_model("simple")
    assert client.is_model_ready("simple")
    if supports(client.load_model, "config"):
        wrong = '"parameters": {"config": {{"max_batch_size": "16"}}}'
        refused(lambda: client.load_model("simple", config=wrong), "failed to load")
    if supports(client.load_model, "files"):
        files = {"file:" + "A" * 256: b"a"}
        refused(lambda: client.load_model("simple", config="{}", files=files), "failed to load")
        assert client.is_server_live()
    client.unload_model("simple")
    assert not client.is_model_ready("simple")
    refused(lambda: client.load_model("wrong_model_name"), "failed to load")
    client.load_model("simple")
    assert client.is_model_ready("simple")


def http_model_control(http, grpc):
    with over_http.InferenceServerClient(http) as client:
        control(client, len)
        check_pair(client.infer("simple", pair(over_http)))


def grpc_model_control(http, grpc):
    with over_grpc.InferenceServerClient(grpc) as client:
        control(client, lambda index: len(index.models))
        check_pair(client.infer("simple", pair(over_grpc)))


CONTROL = (http_model_control, grpc_model_control)
"""They need a server whose models clients may load."""


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def main(http, grpc):
    """Run all; say which ran, and leave out the asynchronous clients where there are none yet."""
    for call in SYNC:
        call(http, grpc)
        say(call.__name__, "ok")
    for call in AIO:
        try:
            asyncio.run(call(http, grpc))
        except ImportError as error:
            say(call.__name__, "is not in this version:", error)
        else:
            say(call.__name__, "ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
