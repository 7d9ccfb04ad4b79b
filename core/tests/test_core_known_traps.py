"""Traps of other frameworks of this kind, each shown to be absent here.

They were read in omniback and torchpipe: crashes, hangs and silent losses that ordinary
configurations and calls could reach there.
"""

from __future__ import annotations

import copy
import gc

import pytest

import headrace
from headrace import errors


def register(name, function, **attributes):
    def forward(self, batch):
        for request in batch:
            request["result"] = function(request["data"])

    body = {"forward": forward, **attributes}
    made = type(name, (headrace.Backend,), body)
    headrace.register(name, made, replace=True)
    return made


def explode(data):
    raise LookupError(f"no {data}")


register("TrapInc", lambda n: n + 1)
register("TrapIncDouble", lambda n: n * 2)
register("TrapExplode", explode)
register("TrapWide", lambda n: n, max=4)


class TrapWrap(headrace.Backend):
    """Runs what it depends on and negates its result."""

    def forward_with_dep(self, batch, dependency):
        outcomes = dependency(batch)
        for request in batch:
            if "result" in request:
                request["result"] = -request["result"]
        return outcomes


headrace.register("TrapWrap", TrapWrap, replace=True)


def once(config, data=1):
    with headrace.pipe(config) as pipe:
        return pipe({"data": data})["result"]


def refused(config):
    with pytest.raises(errors.ConfigError) as caught:
        headrace.PipelineConfig.load(config)
    return caught.value


@pytest.mark.parametrize("value", ["abc", -3, "-3", float("nan"), True, [1]])
def test_a_wrong_timeout_is_refused_before_anything_runs(value):
    assert refused({"backend": "TrapInc", "batching_timeout": value})


@pytest.mark.parametrize(
    "text", ["Batching", "InstanceDispatcher", "TrapWrap", "IoC[Batching;S[Batching]]"]
)
def test_a_word_without_what_it_depends_on_is_refused(text):
    assert refused({"backend": text})


def test_pipelines_with_equal_node_names_live_side_by_side():
    first = headrace.pipe({"same": {"backend": "TrapInc"}})
    second = headrace.pipe({"same": {"backend": "TrapIncDouble"}})
    assert first({"data": 5})["result"] == 6
    first.close()
    assert second({"data": 5})["result"] == 10
    second.close()
    assert once({"same": {"backend": "TrapInc"}}) == 2


def test_a_pipeline_that_nobody_keeps_answers_its_call():
    assert headrace.pipe({"backend": "TrapInc"})({"data": 1})["result"] == 2
    gc.collect()


def test_an_instance_may_be_named_twice_and_be_the_beginning_of_another_name():
    config = {"backend": "IoC[TrapInc,TrapIncDouble;S[TrapInc,TrapIncDouble,TrapInc]]"}
    assert once(config, 1) == 5


def test_a_container_may_stand_inside_itself():
    assert once({"backend": "TrapWrap[S[TrapWrap[TrapInc]]]"}, 1) == 2
    assert once({"backend": "S[S[S[TrapInc]],TrapInc]"}, 1) == 3


def test_a_parameter_that_reflects_itself_is_refused():
    error = refused({"backend": "Reflect[again]", "again": "Reflect[again]"})
    assert {p.code for p in error.problems} == {"circle"}


def test_a_weight_above_every_max_is_answered_at_once():
    with headrace.pipe({"backend": "TrapWide"}) as pipe:
        with pytest.raises(errors.BatchRangeError) as caught:
            pipe({"data": 1, "request_size": 9})
        assert (caught.value.weight, caught.value.max) == (9, 4)
        assert pipe({"data": 2})["result"] == 2


def test_a_weight_below_every_min_is_answered():
    register("TrapPairs", lambda n: n, min=2, max=4)
    with headrace.pipe({"backend": "TrapPairs"}) as pipe, pytest.raises(errors.BatchRangeError):
        pipe({"data": 1})


def test_a_list_longer_than_all_instances_take_is_answered():
    with headrace.pipe({"backend": "TrapInc", "max": 2, "instance_num": 2}) as pipe:
        requests = pipe([{"data": n} for n in range(100)])
    assert [r["result"] for r in requests] == list(range(1, 101))


def test_an_error_in_an_owning_thread_reaches_the_caller_and_the_thread_goes_on():
    config = {"backend": "BackgroundThread[HasKey(bad)[TrapExplode,TrapInc]]"}
    with headrace.pipe(config) as pipe:
        with pytest.raises(errors.BackendError):
            pipe({"data": 1, "bad": True})
        assert pipe({"data": 1})["result"] == 2


def test_requests_in_flight_are_answered_when_the_pipeline_is_dropped():
    pipe = headrace.pipe({"backend": "TrapInc"})
    futures = pipe.submit([{"data": n} for n in range(50)])
    del pipe
    gc.collect()
    assert [f.result(60)["result"] for f in futures] == list(range(1, 51))


def test_one_dict_twice_in_a_list_is_an_error_of_the_second_alone():
    request = {"data": 1}
    with (
        headrace.pipe({"backend": "TrapInc"}) as pipe,
        pytest.raises(errors.RequestsFailed) as caught,
    ):
        pipe([request, request])
    assert caught.value.errors[0] is None
    assert isinstance(caught.value.errors[1], errors.InputError)


def test_a_refused_request_leaves_nothing_behind_and_may_be_sent_again():
    config = {"a": {"backend": "TrapInc"}, "b": {"backend": "TrapInc"}}
    request = {"data": 1, "node_name": "nobody"}
    with headrace.pipe(config) as pipe:
        with pytest.raises(errors.InputError):
            pipe(request)
        assert request == {"data": 1, "node_name": "nobody"}
        request["node_name"] = "a"
        assert pipe(request)["result"] == 2


def test_an_old_result_never_passes_for_a_new_one():
    headrace.register(
        "TrapNothing",
        type("TrapNothing", (headrace.Backend,), {"forward": lambda self, batch: None}),
        replace=True,
    )
    request = {"data": 1, "result": "old"}
    with headrace.pipe({"backend": "TrapNothing"}) as pipe, pytest.raises(errors.NoResultError):
        pipe(request)
    assert request == {"data": 1}


def test_data_is_the_callers_object_again_and_intermediate_values_do_not_stay():
    data = [1]
    register("TrapList", lambda value: [*value, 2])
    request = {"data": data}
    with headrace.pipe({"backend": "S[TrapList,TrapList]"}) as pipe:
        pipe(request)
    assert request["data"] is data
    assert request["result"] == [1, 2, 2]
    assert data == [1]


def test_the_class_of_a_backends_error_is_kept():
    with (
        headrace.pipe({"backend": "TrapExplode"}) as pipe,
        pytest.raises(errors.BackendError) as caught,
    ):
        pipe({"data": 1})
    assert type(caught.value.__cause__) is LookupError


def test_options_reach_backends_and_a_typo_is_an_error_not_a_default():
    class TrapAdd(headrace.Backend):
        """Adds a number."""

        class Options(headrace.Options):
            """The number."""

            amount: int = 1

        def init(self, options, context):
            self.amount = options.amount

        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"] + self.amount

    headrace.register("TrapAdd", TrapAdd, replace=True)
    assert once({"backend": "TrapAdd(amount=5)"}) == 6
    assert once({"backend": "TrapAdd", "amount": "5"}) == 6
    for config in ({"backend": "TrapAdd(amout=5)"}, {"backend": "TrapAdd", "amout": 5}):
        (problem,) = refused(config).problems
        assert problem.suggestion == "amount"


@pytest.mark.parametrize("text", ["TrapInc]", "S[TrapInc]]", "S[TrapInc", "S[TrapInc,]", "S[]", ""])
def test_what_is_no_expression_is_refused(text):
    assert refused({"backend": text})


def test_blanks_and_separators_in_quoted_values_are_kept():
    class TrapText(headrace.Backend):
        """Gives its option."""

        class Options(headrace.Options):
            """The text."""

            text: str

        def init(self, options, context):
            self.text = options.text

        def forward(self, batch):
            for request in batch:
                request["result"] = self.text

    headrace.register("TrapText", TrapText, replace=True)
    value = "a, b;c=[d](e) / \\ f"
    assert once({"backend": f"S[TrapInc,TrapText(text='{value}')]"}) == value


def test_the_callers_configuration_is_not_changed_and_nothing_is_printed(capsys):
    config = {"backend": "S[TrapInc]", "max": 2, "global": {"queue_size": 5}}
    before = copy.deepcopy(config)
    assert once(config) == 2
    assert config == before
    assert capsys.readouterr() == ("", "")


def test_a_value_means_the_same_in_a_dict_and_in_a_file(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('backend = "TrapInc"\npad = true\nmax = 3\n', encoding="utf-8")
    from_file = headrace.explain(path)["nodes"]["main"]
    from_dict = headrace.explain({"backend": "TrapInc", "pad": True, "max": 3})["nodes"]["main"]
    assert from_file == from_dict


def test_the_wait_for_company_is_off_unless_asked_for():
    keys = headrace.explain({"backend": "TrapInc", "max": 8})["nodes"]["main"]["keys"]
    assert keys["batching_timeout"] == {"value": 0, "origin": "default"}
