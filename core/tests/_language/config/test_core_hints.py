"""What errors and warnings say of who has to act: the sender, the configuration, or a backend's own range."""

from __future__ import annotations

import asyncio
import functools
import logging
import sys

import pytest
from loading import problem

import headrace
from headrace.errors import (
    BatchRangeError,
    InputError,
    RequestsFailed,
    SetupError,
)


class Counts(headrace.Backend):
    def forward(self, batch):
        for request in batch:
            request["result"] = len(batch)


class AtMostFour(Counts):
    max = 4


class FourOnceBuilt(Counts):
    """As a model whose file says how many rows it takes."""

    def init(self, options, context):
        self.max = 4


class WritesBoxes(headrace.Backend):
    writes = ("boxes",)

    def forward(self, batch):
        for request in batch:
            request["boxes"] = [request["data"]]


for cls in (Counts, AtMostFour, FourOnceBuilt, WritesBoxes):
    headrace.register(cls.__name__, cls)


# Whose range it is.


@pytest.mark.parametrize("backend", ["AtMostFour", "FourOnceBuilt"])
@pytest.mark.parametrize("expression", ["{}", "S[Counts,{}]", "S[Counts,BackgroundThread[{}]]"])
def test_a_request_above_a_backends_own_max_is_told_whose_it_is(backend, expression):
    config = {"backend": expression.format(backend), "max": 8}
    with headrace.pipe(config) as pipe, pytest.raises(BatchRangeError) as caught:
        pipe({"data": 1, "request_size": 5})
    assert f"{backend} itself takes at most 4" in caught.value.hint
    assert "raise" not in caught.value.hint
    assert (caught.value.weight, caught.value.max) == (5, 4)


def test_a_request_above_the_nodes_max_is_told_to_raise_that():
    caught_range = pytest.raises(BatchRangeError)
    with headrace.pipe({"backend": "AtMostFour", "max": 2}) as pipe, caught_range as caught:
        pipe({"data": 1, "request_size": 3})
    assert "raise the node's max" in caught.value.hint


def test_a_lone_request_is_not_blamed_for_the_sizes_of_its_node():
    caught_range = pytest.raises(BatchRangeError)
    with (
        headrace.pipe({"backend": "Counts", "batch_sizes": [4, 8]}) as pipe,
        caught_range as caught,
    ):
        pipe({"data": 1})
    assert "The request itself is right" in caught.value.hint
    assert "pad = true" in caught.value.hint


def test_a_max_that_is_cut_by_what_init_finds_is_logged_once_a_node(caplog):
    caplog.set_level(logging.WARNING, logger="headrace.build")
    config = {"backend": "S[Counts,FourOnceBuilt]", "max": 8, "instance_num": 3}
    with headrace.pipe(config) as pipe:
        assert pipe.describe()["nodes"]["main"]["range"] == [1, 4]
    (said,) = (one.getMessage() for one in caplog.records if "at most" in one.getMessage())
    assert (
        said
        == "node 'main': max = 8, and FourOnceBuilt takes at most 4: no batch has more. Write max = 4"
    )


# An element that writes no result, and one after it that needs it.


@pytest.mark.parametrize(
    "expression",
    [
        "S[WritesBoxes,Counts]",
        "S[Counts,WritesBoxes,Counts]",
        "S[WritesBoxes,(key=boxes)Counts,Counts]",
        "BackgroundThread[S[WritesBoxes,Counts]]",
    ],
)
def test_an_element_after_one_that_writes_no_result_is_refused_and_both_are_named(expression):
    found = problem({"backend": expression})
    assert found.code == "no_result"
    assert "Counts gets the result of WritesBoxes" in found.message
    assert "boxes" in found.message
    assert "(or)Counts" in found.hint


def test_an_or_after_it_runs_on_the_data_that_it_had():
    with headrace.pipe({"backend": "S[WritesBoxes,(or)Identity,Counts]"}) as pipe:
        assert pipe({"data": 7}) == {"data": 7, "boxes": [7], "result": 1}
    headrace.PipelineConfig.load({"backend": "S[Counts,WritesBoxes]"})  # an `or` node may follow


# A function of a file under `import`.


@pytest.fixture
def decoder(tmp_path):
    path = tmp_path / "ctc_decoder_of_test.py"
    path.write_text("def decode(data):\n    return data[::-1]\n")
    return path


@pytest.mark.parametrize("around", ["{}", "Process[{}]"])
def test_call_reaches_a_file_under_import(decoder, around):
    expression = around.format("Call(ctc_decoder_of_test:decode)")
    with headrace.pipe({"import": [str(decoder)], "backend": expression}) as pipe:
        assert pipe({"data": "abc"})["result"] == "cba"
    assert "ctc_decoder_of_test" not in sys.modules


def test_a_file_that_another_configuration_imports_is_not_reached(decoder):
    headrace.pipe({"import": [str(decoder)], "backend": "Identity"}).close()
    found = problem({"backend": "Call(ctc_decoder_of_test:decode)"})
    assert found.code == "missing_dependency"
    assert "name ctc_decoder_of_test.py under import" in found.hint


def test_a_function_that_the_file_lacks_is_told_with_the_nearest_name(decoder):
    config = {"import": [str(decoder)], "backend": "Call(ctc_decoder_of_test:decodee)"}
    with pytest.raises(SetupError, match="Did you mean 'decode'"):
        headrace.pipe(config)


# Cases that one may wonder about; docs/batching.md says what they mean.


def test_a_min_without_any_max_cuts_batches_of_exactly_that_weight():
    with headrace.pipe({"backend": "Counts", "min": 3, "batching_timeout": 60000}) as pipe:
        assert pipe.describe()["nodes"]["main"]["range"] == [3, 3]
        answers = pipe([{"data": k} for k in range(9)])
    assert [one["result"] for one in answers] == [3] * 9


class AtMostTwo(Counts):
    max = 2

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]


class AtMostOne(AtMostTwo):
    max = 1


class GivesWeight(headrace.Backend):
    def forward(self, batch):
        for request in batch:
            request["result"] = request["request_size"]


headrace.register("AtMostTwo", AtMostTwo)
headrace.register("AtMostOne", AtMostOne)
headrace.register("GivesWeight", GivesWeight)


@pytest.mark.parametrize(
    ("cat", "split", "most"),
    [("AtMostTwo", "Identity", 2), ("Identity", "AtMostTwo", 2), ("AtMostOne", "AtMostOne", 8)],
)
def test_the_range_of_catsplit_is_that_which_its_parts_can_take(cat, split, most):
    config = {"backend": f"CatSplit[{cat},GivesWeight,{split}]", "max": 8}
    with headrace.pipe(config) as pipe:
        assert pipe.describe()["nodes"]["main"]["range"] == [1, most]
        answers = pipe([{"data": k} for k in range(8)])
    assert [one["result"] for one in answers] == [most] * 8


def test_an_element_of_each_weighs_one_whatever_the_request_weighs():
    config = {"backend": "Counts", "each": "rows", "max": 3}
    with headrace.pipe(config) as pipe:
        request = {"data": 0, "rows": [1, 2, 3], "request_size": 9}
        assert pipe(request)["result"] == [3, 3, 3]
        assert request["request_size"] == 9


def test_a_list_to_a_closed_pipeline_is_refused_as_a_whole():
    pipe = headrace.pipe({"backend": "Counts"})
    pipe.close()
    for requests in ([{"data": 1}, {"data": 2}], []):
        for send in (pipe, pipe.submit):
            with pytest.raises(headrace.errors.ClosedError):
                send(requests)
    assert pipe.stats()["nodes"]["main"]["failed"] == {"closed": 4}


# A call that takes the request apart.


@pytest.mark.parametrize("wrong", [b"picture", 3, None])
@pytest.mark.parametrize(
    "call",
    [
        lambda pipe, wrong: pipe(wrong),
        lambda pipe, wrong: pipe(data=wrong),
        lambda pipe, wrong: pipe.submit(wrong).result(60),
        lambda pipe, wrong: pipe(wrong, timeout=60),
    ],
)
def test_a_value_that_is_no_request_is_told_how_a_call_is_written(call, wrong):
    with headrace.pipe({"backend": "Counts"}) as pipe, pytest.raises(InputError) as caught:
        call(pipe, wrong)
    assert caught.value.hint == 'Write pipe({"data": x}).'
    assert f"got {type(wrong).__name__}" in str(caught.value)


@pytest.mark.parametrize("call", ["__call__", "submit", "call_async"])
def test_several_requests_that_are_no_list_are_told_to_be_one(call):
    async def outcome(found):
        return await found if call == "call_async" else found

    requests = [{"data": 1}, {"data": 2}]
    for wrong in (tuple(requests), iter(requests), (one for one in requests)):
        with headrace.pipe({"backend": "Counts"}) as pipe, pytest.raises(InputError) as caught:
            asyncio.run(outcome(getattr(pipe, call)(wrong)))
        assert "list(requests)" in caught.value.hint
        assert f"got {type(wrong).__name__}" in str(caught.value)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"dta": 1}, "It has 'dta'. Did you mean 'data'?"),
        ({"path": "a", "dta": 1}, "It has 'dta', 'path'. Did you mean 'data'?"),
        ({**{f"k{i}": i for i in range(20)}, "DATA": 1}, "It has 'DATA', 'k0', "),
        ({"path": "a"}, "It has 'path'."),
    ],
)
def test_a_misspelt_data_is_told_the_right_name(request_, said):
    with headrace.pipe({"backend": "Counts"}) as pipe, pytest.raises(InputError) as caught:
        pipe(dict(request_))
    assert caught.value.hint.startswith(said)
    assert caught.value.key == "data"
    near = "path" not in request_ or "dta" in request_
    assert ("Did you mean 'data'?" in str(caught.value)) == near


# A forward that may take its list for one request.


def index(self, data):
    data["result"] = data["data"]


def get(self, requests):
    requests["result"] = requests.get("data")


def decorated(forward):
    @functools.wraps(forward)
    def outer(*args):
        return forward(*args)

    return outer


def of_another_function(self, batch):
    return index(self, batch[0]["data"])


def of_another_error(self, batch):
    return batch["data":1]


class UnreadableError(AttributeError):
    def __str__(self):
        raise RuntimeError("no text")


def that_has_no_text(self, batch):
    raise UnreadableError


def failed(forward, *, base=(), **attributes):
    """Run a list of two with a ``forward``; give the errors of the requests."""
    headrace.register("Mine", type("Mine", base, {"forward": forward, **attributes}), replace=True)
    raises = pytest.raises(RequestsFailed)
    with headrace.pipe({"backend": "Mine", "max": 4}) as pipe, raises as caught:
        pipe([{"data": [{"x": 1}]}, {"data": [{"x": 2}]}])
    return caught.value.errors


@pytest.mark.parametrize("how", [{}, {"base": (headrace.Backend,)}, {"rerun": True}])
@pytest.mark.parametrize(
    ("forward", "name"), [(index, "data"), (get, "requests"), (decorated(index), "data")]
)
def test_a_forward_that_may_take_its_list_for_a_request_is_shown_the_loop(forward, name, how):
    for error in failed(forward, **how):
        begins = f"forward gets a list of requests, {name!r}. If that was taken for one request"
        assert error.hint.startswith(begins)
        assert f"for request in {name}:\n" in error.hint
        assert isinstance(error.__cause__, (TypeError, AttributeError))


def test_the_loop_that_is_shown_is_right():
    """It runs, with the value in place of the dots."""
    shown = failed(index)[0].hint.partition("\n")[2].replace("...", 'request["data"] + 1')
    scope = {}
    exec(f"def forward(self, data):\n{shown}", scope)
    headrace.register("Mine", type("Mine", (), {"forward": scope["forward"]}), replace=True)
    with headrace.pipe({"backend": "Mine", "max": 4}) as pipe:
        assert [request["result"] for request in pipe([{"data": 1}, {"data": 2}])] == [2, 3]


@pytest.mark.parametrize("forward", [of_another_function, of_another_error, that_has_no_text])
def test_the_loop_is_shown_for_no_other_error(forward):
    for error in failed(forward):
        assert "for request in" not in (error.hint or "")
        assert "raised" in str(error)
