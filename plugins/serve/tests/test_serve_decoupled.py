"""Decoupled models over ModelStreamInfer: many responses for a request, which of them is the final one, errors, clients that leave."""

from __future__ import annotations

import queue
import threading

import numpy as np
import pytest
import tritonclient.grpc as over_grpc
from serve_helpers import until

import headrace
from headrace.errors import InputError

OUTPUTS = {"outputs": {"result": {"datatype": "BYTES", "shape": [1]}}}


class Steps(headrace.Backend):
    """Gives what the test puts into `steps`: texts are parts, an exception, a tuple of the result is the end."""

    steps = queue.Queue()
    left = threading.Event()

    def init(self, options, context):
        self.context = context

    def forward(self, batch):
        (request,) = batch
        while not self.context.request.unwanted(self.context.request.keep(request)):
            try:
                step = self.steps.get(timeout=0.01)
            except queue.Empty:
                continue
            if isinstance(step, tuple):
                request["result"] = step[0]
                return
            if isinstance(step, Exception):
                raise step
            self.context.request.emit(self.context.request.keep(request), step)
        self.left.set()
        request["result"] = None


@headrace.register("ServeLetters")
def letters(text):
    yield from text.decode()


@pytest.fixture
def steps():
    Steps.steps, Steps.left = queue.Queue(), threading.Event()
    headrace.register("ServeGivenSteps", Steps, replace=True)
    yield Steps.steps
    Steps.steps.put((None,))


@pytest.fixture
def server(serving, steps):
    models = {
        "steps": {"config": {"backend": "ServeGivenSteps"}, "decoupled": True, **OUTPUTS},
        "letters": {"config": {"backend": "ServeLetters"}, "decoupled": True, **OUTPUTS},
        "same": {"config": {"backend": "Identity"}},
    }
    return serving(models, grpc_port=0)


class Stream:
    """A stream of Triton's client, whose responses are read one by one."""

    def __init__(self, server):
        self.client = over_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
        self.responses = queue.Queue()
        self.client.start_stream(lambda result, error: self.responses.put(error or result))

    def ask(self, model, text, **more):
        one = over_grpc.InferInput("data", [1], "BYTES")
        one.set_data_from_numpy(np.array([text.encode()], object))
        self.client.async_stream_infer(model, [one], **more)

    def next(self):
        """Return id, text (None: no output) and whether it is the final one; or the error."""
        found = self.responses.get(timeout=60)
        if isinstance(found, Exception):
            return found
        response = found.get_response()
        text = found.as_numpy("result")
        final = response.parameters["triton_final_response"].bool_param
        return response.id, None if text is None else text.item().decode(), final


@pytest.fixture
def stream(server):
    made = Stream(server)
    yield made
    made.client.stop_stream(cancel_requests=True)
    made.client.close()


EARLY = {"enable_empty_final_response": True}


def test_the_last_part_is_the_final_response(stream):
    stream.ask("letters", "abc", request_id="i")
    assert [stream.next() for _ in "abc"] == [
        ("i", "a", False),
        ("i", "b", False),
        ("i", "c", True),
    ]


def test_a_client_that_asks_for_it_gets_an_empty_final_response(stream):
    stream.ask("letters", "ab", request_id="i", **EARLY)
    assert [stream.next() for _ in range(3)] == [
        ("i", "a", False),
        ("i", "b", False),
        ("i", None, True),
    ]


def test_an_answer_of_nothing_has_an_empty_final_response_for_a_client_that_asks_for_it(stream):
    stream.ask("letters", "", request_id="i", **EARLY)
    assert stream.next() == ("i", None, True)


def test_an_answer_of_nothing_has_no_response_for_a_client_that_does_not_ask(stream):
    stream.ask("letters", "", request_id="i")
    stream.ask("letters", "a", request_id="j")
    stream.ask("letters", "", request_id="k", **EARLY)
    assert {stream.next(), stream.next()} == {("j", "a", True), ("k", None, True)}


@pytest.mark.parametrize("more", [{}, EARLY])
def test_a_result_is_one_more_response_and_the_final_one(stream, steps, more):
    for one in ("a", ("whole",)):
        steps.put(one)
    stream.ask("steps", "x", **more)
    assert [stream.next() for _ in range(2)] == [("", "a", False), ("", "whole", True)]


def test_each_part_is_sent_before_the_next_exists(stream, steps):
    stream.ask("steps", "x", **EARLY)
    for one in "abc":
        steps.put(one)
        assert stream.next() == ("", one, False)
    steps.put((None,))
    assert stream.next() == ("", None, True)


def test_without_the_parameter_a_part_waits_for_the_next(stream, steps):
    stream.ask("steps", "x")
    for one, before in (("a", None), ("b", "a"), ("c", "b")):
        steps.put(one)
        assert before is None or stream.next() == ("", before, False)
    steps.put((None,))
    assert stream.next() == ("", "c", True)


def test_requests_beside_a_long_answer_are_answered(stream, steps):
    stream.ask("steps", "x", request_id="long", **EARLY)
    steps.put("a")
    assert stream.next() == ("long", "a", False)
    stream.ask("letters", "l", request_id="short", **EARLY)
    assert [stream.next() for _ in range(2)] == [("short", "l", False), ("short", None, True)]
    stream.ask("same", "all", request_id="one")
    assert stream.next()[:2] == ("one", "all")
    steps.put((None,))
    assert stream.next() == ("long", None, True)


def test_more_requests_than_run_at_a_time_are_all_answered(stream):
    for number in range(300):
        stream.ask("letters", "ab", request_id=str(number), **EARLY)
    found = {}
    for _ in range(900):
        identifier, text, final = stream.next()
        found.setdefault(identifier, []).append((text, final))
    assert len(found) == 300
    assert all(one == [("a", False), ("b", False), (None, True)] for one in found.values())


@pytest.mark.parametrize("more", [{}, EARLY])
def test_an_error_comes_after_the_parts_and_the_stream_goes_on(stream, steps, more):
    for one in ("a", InputError("this is bad")):
        steps.put(one)
    stream.ask("steps", "x", **more)
    assert stream.next() == ("", "a", False)
    assert "this is bad" in str(stream.next())
    stream.ask("letters", "z", **more)
    assert stream.next()[1] == "z"


def test_a_deadline_is_an_error_after_the_parts(stream, steps):
    steps.put("a")
    stream.ask("steps", "x", timeout=2_000_000)
    assert stream.next() == ("", "a", False)
    assert "the time of the request was over" in str(stream.next())
    assert Steps.left.wait(60)


def test_a_client_that_hangs_up_cancels_its_requests(server, steps):
    stream = Stream(server)
    steps.put("a")
    stream.ask("steps", "x", **EARLY)
    assert stream.next() == ("", "a", False)
    stream.client.stop_stream(cancel_requests=True)
    assert Steps.left.wait(60)
    until(lambda: not server._service.counters.in_flight["grpc"])
    assert server._service.models.find("steps").inside == 0
    assert server._service.unsent_bytes == 0
    stream.client.close()


def test_a_client_that_sends_no_more_gets_the_rest(server, steps):
    stream = Stream(server)
    stream.ask("steps", "x", **EARLY)
    stopping = threading.Thread(target=stream.client.stop_stream)
    stopping.start()
    for one in ("a", (None,)):
        steps.put(one)
    stopping.join()
    assert [stream.next() for _ in range(2)] == [("", "a", False), ("", None, True)]
    stream.client.close()


def test_the_end_of_the_server_waits_for_the_answers_that_have_begun(server, stream, steps):
    steps.put("a")
    stream.ask("steps", "x", **EARLY)
    assert stream.next() == ("", "a", False)
    thread = threading.Thread(target=server.close, kwargs={"timeout": 600})
    thread.start()
    until(lambda: server._service.draining)
    for one in ("b", (None,)):
        steps.put(one)
    assert [stream.next() for _ in range(2)] == [("", "b", False), ("", None, True)]
    thread.join()


def test_a_request_with_one_response_gets_the_result(server, steps):
    for one in ("a", ("whole",)):
        steps.put(one)
    with over_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        one = over_grpc.InferInput("data", [1], "BYTES")
        one.set_data_from_numpy(np.array([b"x"], object))
        assert client.infer("steps", [one]).as_numpy("result").item() == b"whole"


def test_the_configuration_says_that_a_model_is_decoupled(server):
    with over_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        found = client.get_model_config("letters").config
        assert found.model_transaction_policy.decoupled
        assert not client.get_model_config("same").config.model_transaction_policy.decoupled


def test_responses_are_counted_as_one_request(server, stream):
    stream.ask("letters", "abc")
    for _ in "abc":
        stream.next()
    counters = server._service.counters
    until(lambda: ("ModelStreamInfer", "letters", "OK") in counters.requests)
    assert counters.requests["ModelStreamInfer", "letters", "OK"] == 1
    assert server._service.models.find("letters").counts.ok == 1
    until(lambda: not server._service.unsent_bytes)
