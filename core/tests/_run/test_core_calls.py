"""``context.request.call``: a backend lets a node run new requests, and waits for none; ``context.request.kept``: what it keeps with one."""

from __future__ import annotations

import queue

import pytest

import headrace
from headrace import PENDING
from headrace.errors import ConfigError, ContractError, InputError

WAIT_S = 60.0
"""A test that hangs fails after this."""


class Callers:
    """What a test sees of the backend ``CallsAsker``."""

    def __init__(self):
        self.told, self.withdraws, self.kept = queue.Queue(), [], []


@pytest.fixture
def asker():
    seen = Callers()

    class CallsAsker(headrace.Backend):
        """Lets ``node`` run each of ``data``, and answers with what has come, in order."""

        keeps = True

        class Options(headrace.Options):
            node: str = "other"

        @classmethod
        def nodes_called(cls, options):
            return () if options.node.startswith("late") else (options.node,)

        def init(self, options, context):
            self.node, self.context = options.node.removeprefix("late "), context

        def forward(self, batch):
            for request in batch:
                made = [{"data": one} for one in request["data"]]
                handle = self.context.request.keep(request)
                self.context.request.on_end(handle, seen.told.put)
                handle.notes["left"] = len(made)
                seen.kept.append(handle.notes)

                def then(one, error, handle=handle, made=made):
                    notes = handle.notes
                    notes["left"] = notes.get("left", 0) - 1
                    if error is not None:
                        self.context.request.finish(handle, error)
                    elif not notes["left"]:
                        self.context.request.finish(handle, [each["result"] for each in made])

                seen.withdraws.append(self.context.request.call(request, self.node, made, then))
            return [PENDING for _ in batch]

    headrace.register("CallsAsker", CallsAsker, replace=True)
    return seen


def pipe_with(other, where="front", **options):
    table = {"backend": other} if isinstance(other, str) else other
    return headrace.pipe({where: {"backend": "CallsAsker", **options}, "other": table})


def test_a_node_runs_what_a_backend_asks_of_it_in_one_batch(asker):
    with pipe_with({"backend": "Call(builtins:str)", "max": 8}) as pipe:
        assert pipe({"data": [3, 1, 2]})["result"] == ["3", "1", "2"]
        assert pipe.stats()["nodes"]["other"]["batch_size"]["histogram"] == {"3": 1}


def test_the_error_of_a_call_is_told(asker):
    with (
        pipe_with("Call(builtins:int)") as pipe,
        pytest.raises(headrace.errors.BackendError) as caught,
    ):
        pipe({"data": ["1", "x"]})
    assert caught.value.node == "other"


def test_what_is_kept_is_of_one_request_and_of_one_run_of_it(asker):
    with pipe_with("Identity") as pipe:
        request = {"data": [1]}
        for _ in range(3):
            assert pipe(request)["result"] == [1]
    first, second, third = asker.kept
    assert first is not second is not third


def test_what_is_withdrawn_is_not_told(asker):
    class CallsHold(headrace.Backend):
        keeps = True

        def init(self, options, context):
            self.context = context

        def forward(self, batch):
            for request in batch:
                self.context.request.keep(request)
            return [PENDING for _ in batch]

    headrace.register("CallsHold", CallsHold, replace=True)
    with pipe_with("CallsHold") as pipe:
        future = pipe.submit({"data": [1, 2]})
        while pipe.stats()["nodes"]["other"]["waiting"] < 2:
            pass
        while not asker.withdraws:
            pass
        asker.withdraws[0]()
        assert pipe.stats()["nodes"]["other"]["waiting"] == 0
        assert not future.done()
        assert future.cancel()
        asker.told.get(timeout=WAIT_S)


def test_an_unknown_node_is_found_before_anything_is_built(asker):
    with pytest.raises(ConfigError, match="CallsAsker calls the node 'othr'") as caught:
        pipe_with("Identity", where="main", node="othr")
    assert "Did you mean 'other'?" in str(caught.value)


def test_a_node_that_is_unknown_at_the_call_is_a_contract_error(asker):
    said = r"context\.request\.call: no node is called 'othr'"
    with (
        pipe_with("Identity", where="main", node="late othr") as pipe,
        pytest.raises(ContractError, match=said),
    ):
        pipe({"data": [1], "node_name": "main"})


def test_a_call_has_the_deadline_of_its_request(asker):
    seen = queue.Queue()

    class CallsLooks(headrace.Backend):
        def init(self, options, context):
            self.context = context

        def forward(self, batch):
            for request in batch:
                seen.put(self.context.request.deadline(request))
                request["result"] = 1

    headrace.register("CallsLooks", CallsLooks, replace=True)
    with pipe_with("CallsLooks") as pipe:
        pipe({"data": [1]})
        pipe({"data": [1]}, timeout=3600)
    assert seen.get() is None
    assert seen.get() > 0


def test_a_node_with_each_gives_the_list_of_results(asker):
    with pipe_with({"backend": "Call(builtins:str)", "each": "data"}) as pipe:
        assert pipe({"data": [[1, 2], []]})["result"] == [["1", "2"], []]
        with pytest.raises(InputError, match="once per element"):
            pipe({"data": [5]})


def test_outside_of_a_pipeline_no_node_is_called():
    context = headrace.InitContext()
    assert context.request.kept({}) is None
    with pytest.raises(ContractError, match="no pipeline here"):
        context.request.call({}, "other", [{"data": 1}], print)
