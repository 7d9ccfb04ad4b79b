"""Which errors may pass, and what `Retry` makes of them."""

from typing import ClassVar

import headrace
import pytest
from headrace.errors import BackendError, InputError, RequestsFailed

from headrace_retry.backend import Retry
from headrace_retry.compute import may_pass


def behind(cause):
    error = BackendError("it failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (None, False),
        (behind(ConnectionResetError()), True),  # below OSError
        (behind(OSError()), True),
        (behind(ValueError()), False),
        (BackendError("without a cause"), False),
        (InputError(key="data", expected="a text", got="3"), False),
    ],
)
def test_an_error_of_the_named_classes_may_pass(error, says):
    assert may_pass(error, ("OSError",)) is says


class Flaky(headrace.Backend):
    """Fails with an OSError as often as the request says, and changes ``data`` before."""

    calls: ClassVar[list[list[int]]] = []

    def forward(self, batch):
        self.calls.append([request["id"] for request in batch])
        outcomes = []
        for request in batch:
            tries = sum(request["id"] in call for call in self.calls)
            data, request["data"] = request["data"], None
            if tries <= request["fails"]:
                outcomes.append(TimeoutError("the other side is away"))
            else:
                request["result"] = data
                outcomes.append(None)
        return outcomes


@pytest.fixture(autouse=True)
def flaky():
    Flaky.calls = []
    headrace.register("Flaky", Flaky, replace=True)


def test_only_the_items_that_failed_run_again_on_the_request_as_it_came():
    with headrace.pipe({"backend": "Retry(3)[Flaky]", "max": 4}) as pipe:
        requests = [{"id": k, "data": k, "fails": fails} for k, fails in enumerate((0, 2, 3))]
        with pytest.raises(RequestsFailed) as caught:
            pipe(requests)
    assert [request.get("result") for request in requests] == [0, 1, None]
    assert isinstance(caught.value.errors[2].__cause__, TimeoutError)
    assert Flaky.calls == [[0, 1, 2], [1, 2], [1, 2]]


def test_another_error_is_not_tried_again():
    backend = {"backend": "Retry(3)[Call(json:loads)]"}
    with headrace.pipe(backend) as pipe, pytest.raises(BackendError, match="JSONDecodeError"):
        pipe({"data": "{"})
    backend = {"backend": "Retry(3,errors=[KeyError])[Flaky]"}
    with headrace.pipe(backend) as pipe, pytest.raises(BackendError, match="TimeoutError"):
        pipe({"id": 0, "data": 1, "fails": 1})
    assert Flaky.calls == [[0]]


@pytest.mark.parametrize(
    ("limits", "runs"),
    [
        ({"deadline": lambda _: 0.0}, 1),
        ({"deadline": lambda _: float("inf")}, 2),
        ({"unwanted": lambda _: True}, 1),
    ],
)
def test_an_item_whose_time_is_over_is_not_tried_again(limits, runs):
    child, retry = Flaky(), Retry()
    child.init(Flaky.Options(), headrace.InitContext())
    asked = headrace.InitContext.Requests(**limits)
    retry.init(Retry.Options(), headrace.InitContext(children=(child,), request=asked))
    retry([{"id": 0, "data": 1, "fails": 1}])
    assert len(Flaky.calls) == runs


def test_the_range_is_that_of_the_child():
    class Pairs(Flaky):
        min, max = 2, 8

    headrace.register("PairsFlaky", Pairs, replace=True)
    config = {"backend": "Retry(2)[PairsFlaky]", "pad": True}
    with headrace.pipe(config) as pipe:
        assert pipe({"id": 0, "data": 5, "fails": 0})["result"] == 5
    assert Flaky.calls == [[0, 0]]
