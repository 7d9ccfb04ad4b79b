"""What a caller learns of a request that a close has ended, and what `stats()` counts of those that were withdrawn."""

from __future__ import annotations

import pickle

import pytest

import headrace
from headrace.errors import ClosedError

pytestmark = pytest.mark.usefixtures("shortcut")


def ended(future):
    with pytest.raises(ClosedError) as caught:
        future.result(timeout=60)
    return caught.value


def test_an_error_of_a_close_says_whether_a_backend_had_begun(gate):
    pipe = headrace.pipe({"backend": "Gate"})
    running = gate.entered(pipe.submit({"data": 1}))
    queued = pipe.submit({"data": 2})
    pipe.close(drain=False, timeout=0)
    assert (ended(running).begun, ended(running).abandoned) == (True, True)
    assert (ended(queued).begun, ended(queued).abandoned) == (False, False)
    with pytest.raises(ClosedError) as refused:
        pipe({"data": 3})
    assert refused.value.begun is False
    with pytest.raises(ClosedError) as refused:
        pipe.submit({"data": 3})
    assert refused.value.begun is False
    assert pickle.loads(pickle.dumps(refused.value)).begun is False
    gate.let_go()


def test_a_request_that_waits_at_its_second_node_had_begun(gate, waiting):
    config = {"first": {"backend": "Identity", "next": "second"}, "second": {"backend": "Gate"}}
    pipe = headrace.pipe(config)
    running = gate.entered(pipe.submit({"data": 1}))
    behind = pipe.submit({"data": 2})
    waiting(pipe, 1, "second")
    pipe.close(drain=False, timeout=0)
    assert ended(behind).begun is True
    assert ended(running).begun is True
    gate.let_go()


def test_withdrawn_requests_are_counted_beside_the_failed_ones(gate):
    with headrace.pipe({"backend": "Gate"}) as pipe:
        running = gate.entered(pipe.submit({"data": 1}))
        for one in [pipe.submit({"data": k}) for k in range(3)]:
            assert one.cancel()
        found = pipe.stats()["nodes"]["main"]
        assert found["cancelled"] == 3
        assert found["failed"] == {"cancelled": 3}  # as before, for one more release
        gate.let_go()
        running.result(timeout=60)
    assert pipe.stats()["nodes"]["main"]["cancelled"] == 3
    with headrace.pipe({"backend": "Identity"}) as pipe:
        assert pipe.stats()["nodes"]["main"]["cancelled"] == 0
