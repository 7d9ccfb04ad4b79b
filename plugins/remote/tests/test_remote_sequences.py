"""Sequences: their keys travel, each to the server that has its state, and nothing of them runs twice."""

from __future__ import annotations

import numpy as np
import pytest
from remote_servers import fails

import headrace
from headrace.errors import InputError, SetupError
from headrace_remote import ConnectionLostError, ServersAwayError

SUMS = {
    "config": {"backend": "StateFul(session)[RemoteSum]", "keep": {"result": "before"}},
    "inputs": {"x": {"datatype": "INT32", "shape": [-1, 1], "batched": True}},
    "outputs": {"total": {"datatype": "INT32", "shape": [-1, 1]}},
}
WORDS = {"backend": "StateFul(session)[RemoteWords]", "keep": {"result": "before"}}


@headrace.register("RemoteSum")
class Sum(headrace.Backend):
    """Adds what the sequence had before."""

    max = 8

    def forward(self, batch):
        for request in batch:
            request["result"] = request.get("before", 0) + request["data"]


@headrace.register("RemoteWords")
class Words(headrace.Backend):
    """Appends an item to those that the sequence had before."""

    def forward(self, batch):
        for request in batch:
            request["result"] = request.get("before", b"") + request["data"]


def step(value, name, **flags):
    return {"data": np.int32([value]), "sequence_id": name, **flags}


def test_a_server_keeps_the_state_of_each_sequence(serving, remote):
    pytest.importorskip("headrace_flow")
    pipe = remote([serving({"m": SUMS}) for _ in range(3)])

    def total(*given, **flags):
        return int(pipe(step(*given, **flags))["result"][0])

    assert total(1, 7, sequence_start=True) == 1
    assert total(10, "seven", sequence_start=True) == 10
    assert total(2, np.int64(7)) == 3
    assert total(20, "seven", sequence_end=True) == 30
    assert total(3, 7, sequence_end=np.True_) == 6
    with pytest.raises(InputError, match="must specify the START flag on the first request"):
        total(5, "seven", sequence_start=False)
    with pytest.raises(InputError, match="sequence_id"):
        pipe({"data": np.int32([1])})


def test_the_steps_of_a_batch_run_in_order(serving, remote):
    pytest.importorskip("headrace_flow")
    pipe = remote([serving({"m": WORDS})], text=True)
    requests = [{"data": text, "sequence_id": 1} for text in "abc"]
    pipe([dict(requests[0], sequence_start=True)])
    pipe(requests)
    assert [one["result"] for one in requests] == ["aa", "aab", "aabc"]


def test_the_keys_are_parameters_of_a_call_of_their_own(stand_in, remote):
    server = stand_in()
    batch = [
        {"data": [1, 0, 0]},
        {"data": [2, 0, 0], "sequence_id": 2**63 - 1, "sequence_start": True},
        {"data": [3, 0, 0]},
        {"data": [4, 0, 0], "sequence_id": "ä", "sequence_end": True},
    ]
    remote([server.url])(batch)
    assert [one["result"][0] for one in batch] == [2, 4, 6, 8]
    found = [
        (
            call.inputs[0].shape[0],
            {
                key: (one.WhichOneof("parameter_choice"), one)
                for key, one in call.parameters.items()
            },
        )
        for call, _, _ in server.calls
    ]
    assert [(rows, sorted(parameters)) for rows, parameters in found] == [
        (2, []),
        (1, ["sequence_id", "sequence_start"]),
        (1, ["sequence_end", "sequence_id"]),
    ]
    (number, first), (kind, second) = (found[place][1]["sequence_id"] for place in (1, 2))
    assert (number, first.int64_param) == ("int64_param", 2**63 - 1)
    assert (kind, second.string_param) == ("string_param", "ä")
    assert found[1][1]["sequence_start"][1].bool_param


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"sequence_id": 0}, "sequence_id"),
        ({"sequence_id": ""}, "sequence_id"),
        ({"sequence_id": "\ud800"}, "sequence_id"),
        ({"sequence_id": True}, "sequence_id"),
        ({"sequence_id": 2**63}, "sequence_id"),
        ({"sequence_id": 1.5}, "sequence_id"),
        ({"sequence_id": np.zeros(2)}, "sequence_id"),
        ({"sequence_start": True}, "sequence_id"),
        ({"sequence_id": 1, "sequence_start": 1}, "sequence_start"),
        ({"sequence_id": 1, "sequence_end": "yes"}, "sequence_end"),
    ],
)
def test_what_the_protocol_does_not_take_is_refused(stand_in, remote, keys, key):
    server = stand_in()
    with pytest.raises(InputError) as caught:
        remote([server.url])({"data": [1, 2, 3], **keys})
    assert caught.value.key == key
    assert server.calls == []


def steps(pipe, name, number):
    for _ in range(number):
        pipe({"data": [1, 2, 3], "sequence_id": name})


def test_a_sequence_goes_to_the_same_server_and_others_elsewhere(stand_in, remote):
    servers = [stand_in() for _ in range(3)]
    pipes = [remote([one.url for one in servers]) for _ in range(2)]
    used = set()
    for name in range(1, 30):
        before = [len(one.calls) for one in servers]
        for pipe in pipes:
            steps(pipe, name, 2)
        grown = [len(one.calls) - count for one, count in zip(servers, before, strict=True)]
        assert sorted(grown) == [0, 0, 4]
        used.add(grown.index(4))
    assert used == {0, 1, 2}


def home_of(pipe, servers):
    """Return which server has the sequence 5, and another one."""
    steps(pipe, 5, 1)
    home, other = sorted(servers, key=lambda one: -len(one.calls))
    assert (len(home.calls), len(other.calls)) == (1, 0)
    return home, other


def test_what_the_server_of_a_sequence_refuses_goes_to_no_other(stand_in, remote):
    servers = [stand_in(), stand_in()]
    pipe = remote([one.url for one in servers], when_away="refuse", health_ms=60_000)
    home, other = home_of(pipe, servers)
    home.script.append(fails("UNAVAILABLE", "the server is shutting down", code="closed"))
    for _ in range(2):
        with pytest.raises(ServersAwayError, match=home.url):
            steps(pipe, 5, 1)
    assert pipe({"data": [1, 2, 3]})["result"].tolist() == [2, 4, 6]
    assert (len(home.calls), len(other.calls)) == (2, 1)


def test_a_sequence_waits_for_its_server(stand_in, remote):
    servers = [stand_in(), stand_in()]
    pipe = remote([one.url for one in servers], health_ms=20)
    home, other = home_of(pipe, servers)
    home.script.append(fails("UNAVAILABLE", "the server is shutting down", code="closed"))
    steps(pipe, 5, 1)
    assert (len(home.calls), len(other.calls)) == (3, 0)


def test_a_step_that_breaks_after_sending_is_not_sent_again(stand_in, remote):
    servers = [stand_in(), stand_in()]
    pipe = remote([one.url for one in servers], rerun=True, retries=3, health_ms=20)
    home, other = home_of(pipe, servers)
    home.script.append(fails("UNAVAILABLE", "Socket closed"))
    with pytest.raises(ConnectionLostError, match="not sent again"):
        steps(pipe, 5, 1)
    assert (len(home.calls), len(other.calls)) == (2, 0)


def test_an_input_may_have_the_name_of_such_a_key(stand_in, remote):
    server = stand_in()
    pipe = remote([server.url], inputs={"x": "sequence_id"})
    assert pipe({"sequence_id": [1, 2, 3]})["result"].tolist() == [2, 4, 6]
    assert not server.calls[-1][0].parameters


def test_a_decoupled_model_is_refused(stand_in, remote):
    server = stand_in(config={"name": "m", "model_transaction_policy": {"decoupled": True}})
    with pytest.raises(SetupError, match="decoupled"):
        remote([server.url])
