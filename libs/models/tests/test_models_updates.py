"""Requests go on while models are updated, moved, rolled back and unloaded."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import headrace
from headrace.errors import ClosedError, ConfigError, SetupError
from headrace_models import Models, UnknownModelError, UnloadedError
from headrace_testing import Blocking

pytestmark = pytest.mark.first(
    "serve over HTTP and gRPC, with models by name: a model is updated without losing a request"
)


def saying(text, **keys):
    return {"backend": f"Says({text})", **keys}


def answer(models, name="detect"):
    return models(name, {"data": 0})["result"]


def test_a_model_answers_by_name_in_every_way_of_calling(tmp_path):
    (tmp_path / "detect.toml").write_text('backend = "Says(file)"')
    with Models({"detect": tmp_path / "detect.toml", "other": saying("other")}) as models:
        assert answer(models) == "file"
        assert models.submit("other", {"data": 0}).result(60)["result"] == "other"
        assert asyncio.run(models.call_async("detect", {"data": 0}))["result"] == "file"
        assert [one["result"] for one in models("detect", [{"data": 0}, {"data": 1}])] == [
            "file"
        ] * 2
        assert [
            one.result(60)["data"] for one in models.submit("detect", [{"data": 0}, {"data": 1}])
        ] == [0, 1]
        named = models["other"]
        assert named({"data": 0})["result"] == "other"
        assert named.submit({"data": 0}).result(60)["result"] == "other"
        assert asyncio.run(named.call_async({"data": 0}))["result"] == "other"
        assert list(models) == ["detect", "other"]


def test_an_unknown_name_names_the_nearest():
    with Models({"detect": saying("one")}) as models:
        for use in (models, models.submit, lambda name, data: models[name]):
            with pytest.raises(UnknownModelError, match="Did you mean 'detect'"):
                use("detct", {"data": 0})
        with pytest.raises(UnknownModelError, match=r"detect:7.*detect:1"):
            models("detect:7", {"data": 0})
        with pytest.raises(UnknownModelError, match="detect"):
            models.update("detct")


def test_all_wrong_configurations_are_reported_before_any_is_built(says):
    with pytest.raises(ConfigError) as caught:
        Models({"good": saying("good"), "a": {"backend": "Sayz"}, "b": saying("b", maxx=1)})
    assert len(caught.value.problems) == 2
    assert [one.path for one in caught.value.problems] == ["a.main.backend", "b.main.maxx"]
    assert says.built == []


def test_a_model_that_cannot_be_built_closes_those_that_were_built(says):
    says.broken = {"bad"}
    with pytest.raises(SetupError, match="bad is broken"):
        Models({"good": saying("good"), "bad": saying("bad")})
    assert says.built == ["good"]
    assert says.living == 0


@pytest.mark.parametrize("name", ["", "a//b", "/a", "detect:x", "detect:01", ".hidden"])
def test_a_wrong_name_is_refused(name):
    with pytest.raises(ConfigError, match="is no"):
        Models({name: saying("one")})


def test_an_update_takes_over_and_a_rollback_brings_the_old_one_back(says):
    with Models({"detect": saying("one")}) as models:
        assert models.update("detect", saying("two")) == "2"
        assert answer(models) == answer(models, "detect:2") == "two"
        with pytest.raises(UnloadedError, match="replaced by version 2"):
            answer(models, "detect:1")
        assert models.rollback("detect") == "1"
        assert answer(models) == answer(models, "detect:1") == "one"
        with pytest.raises(UnknownModelError):
            answer(models, "detect:2")
        with pytest.raises(ConfigError, match="no replaced version"):
            models.rollback("detect")
        assert models.update("detect", saying("three")) == "3"
        assert says.living == 1


def test_a_rollback_has_the_configuration_that_the_version_had_though_its_file_has_changed(
    tmp_path,
):
    file = tmp_path / "detect.toml"
    file.write_text('backend = "Says(one)"')
    with Models({"detect": file}) as models:
        file.write_text('backend = "Says(two)"')
        models.update("detect")
        assert answer(models) == "two"
        models.rollback("detect")
        assert answer(models) == "one"


def test_a_check_that_raises_keeps_the_old_version(says):
    def check(name, version, pipe):
        assert name == "detect"
        if pipe({"data": 0})["result"] == "wrong":
            raise ValueError("not the known result")

    with Models({"detect": saying("one")}, check=check) as models:
        with pytest.raises(SetupError, match="not the known result"):
            models.update("detect", saying("wrong"))
        assert answer(models) == "one"
        assert says.living == 1


def test_a_program_in_a_configuration_that_exits_does_not_end_the_process(tmp_path):
    def check(name, version, pipe):
        if version == "2":
            raise SystemExit

    with Models({"detect": saying("one")}, check=check) as models:
        with pytest.raises(SetupError, match=r"sys\.exit"):
            models.update("detect")
        assert answer(models) == "one"


def test_an_update_returns_when_the_requests_of_the_old_version_have_ended():
    headrace.register("Blocking", Blocking, replace=True)
    Blocking.reset()
    with Models({"detect": {"backend": "Blocking"}}) as models, ThreadPoolExecutor(2) as pool:
        switched = threading.Event()
        models.subscribe(lambda change: switched.set() if change.state == "draining" else None)
        request = pool.submit(models, "detect", {"data": 7})
        assert Blocking.entered.acquire(timeout=60)
        updating = pool.submit(models.update, "detect", saying("two"))
        assert switched.wait(60)
        assert answer(models) == "two"  # the old request is still inside
        assert not updating.done()
        assert models.status()["detect"]["versions"]["1"]["state"] == "draining"
        Blocking.leave.release()
        assert request.result(60)["result"] == 7
        assert updating.result(60) == "2"
        assert models.status()["detect"]["versions"]["1"]["state"] == "unloaded"


def test_a_request_longer_than_the_drain_ends_well_all_the_same():
    headrace.register("Blocking", Blocking, replace=True)
    Blocking.reset()
    with Models({"detect": {"backend": "S[Identity,Blocking]"}}, drain_s=0.0) as models:
        gone = threading.Event()
        models.subscribe(lambda change: gone.set() if change.state == "unloaded" else None)
        request = models.submit("detect", {"data": 7})
        assert Blocking.entered.acquire(timeout=60)
        models.update("detect", saying("two"))
        assert not gone.is_set()
        Blocking.leave.release()
        assert request.result(60)["result"] == 7
        assert gone.wait(60)


def test_a_subscriber_hears_of_a_swap_while_the_old_pipeline_is_open():
    said = []
    with Models({"detect": saying("one")}) as models:
        with models.lease("detect") as old:
            pass

        def listen(change):
            said.append((change.version, change.state, change.replaces))
            if change.state == "ready":
                assert old.ready
                assert change.pipeline({"data": 0})["result"] == "two"

        end = models.subscribe(listen)
        models.update("detect", saying("two"))
        assert not old.ready
        end()
        models.update("detect", saying("three"))
    assert said == [
        ("2", "loading", ""),
        ("2", "ready", "1"),
        ("1", "draining", ""),
        ("1", "unloaded", ""),
    ]


def test_a_listener_that_fails_is_logged_and_changes_nothing(caplog):
    def broken(change):
        raise ValueError("a listener's")

    with Models({"detect": saying("one")}) as models:
        models.subscribe(broken)
        assert models.update("detect", saying("two")) == "2"
        assert answer(models) == "two"
    assert "a listener's" in caplog.text


def test_an_operation_inside_an_operation_of_its_model_is_refused():
    refused = []

    def nested(change):
        if change.state == "ready":
            with pytest.raises(RuntimeError, match="in the middle"):
                models.update("detect")
            refused.append(change.version)

    with Models({"detect": saying("one")}) as models:
        models.subscribe(nested)
        models.update("detect", saying("two"))
    assert refused == ["2"]


def test_one_operation_runs_per_model_and_models_do_not_wait_for_each_other(says):
    with Models({"a": saying("a"), "b": saying("b")}) as models, ThreadPoolExecutor(3) as pool:
        while says.building.acquire(blocking=False):
            pass
        says.gate = threading.Event()
        first = pool.submit(models.update, "a", saying("a2"))
        assert says.building.acquire(timeout=60)
        second = pool.submit(models.update, "a", saying("a3"))
        beside = pool.submit(models.update, "b", saying("b2"))
        assert says.building.acquire(timeout=60)  # b's, beside a's
        assert not says.building.acquire(blocking=False)  # a's second waits
        says.gate.set()
        assert {first.result(60), second.result(60)} == {"2", "3"}
        assert beside.result(60) == "2"
        assert answer(models, "a") == "a3"


def test_an_unloaded_model_refuses_until_it_is_loaded(says):
    with Models({"detect": saying("one")}) as models:
        models.unload("detect")
        assert says.living == 0
        assert models.status()["detect"]["state"] == "unloaded"
        with pytest.raises(UnloadedError, match=r"load\('detect:1'\)"):
            answer(models)
        models.load("detect")
        assert answer(models) == "one"
        models.load("detect")
        assert says.built == ["one", "one"]


def test_a_new_model_is_loaded_beside_the_others_and_forgotten_if_that_fails(says):
    says.broken = {"bad"}
    with Models({"detect": saying("one")}) as models:
        models.load("other", saying("other"))
        models.load("detect:2", saying("two"))
        assert (answer(models, "other"), answer(models)) == ("other", "two")
        with pytest.raises(SetupError):
            models.load("third", saying("bad"))
        assert list(models) == ["detect", "other"]
        with pytest.raises(ConfigError, match="exists already"):
            models.load("other", saying("other"))


def test_closed_models_refuse_requests_and_operations(says):
    models = Models({"detect": saying("one")})
    models.close()
    models.close()
    assert says.living == 0
    for use in (
        answer,
        lambda all_: all_.update("detect"),
        lambda all_: all_.load("x", saying("x")),
    ):
        with pytest.raises(ClosedError, match="the models are closed"):
            use(models)


@pytest.mark.parametrize("shape", ["single", "table", "own"])
def test_a_move_is_to_the_device_in_every_node(says, tmp_path, shape):
    texts = {
        "single": 'backend = "Says(one)"\n',
        "table": '[a]\nbackend = "Says(one)"\n',
        "own": '[global]\ndevice = "x:0"\n[a]\nbackend = "Says(one)"\ndevice = "y:1"\n',
    }
    file = tmp_path / "detect.toml"
    file.write_text(texts[shape])
    with Models({"detect": file}) as models:
        models.move("detect", "cuda:0")
        status = models.status()["detect"]
        assert (status["device"], status["version"], status["state"]) == ("cuda:0", "1", "ready")
        with models.lease("detect") as pipe:
            nodes = headrace.explain(pipe.config)["nodes"].values()
            assert [node["keys"]["device"]["value"] for node in nodes] == ["cuda:0"]
        assert answer(models) == "one"
        models.update("detect")
        assert models.status()["detect"]["device"] == "cuda:0"
        file.write_text(texts[shape].replace("one", "two"))
        with pytest.raises(ConfigError, match="has changed"):
            models.move("detect", "cpu")
        assert answer(models) == "one"


def test_a_dict_is_moved_and_a_checked_configuration_says_that_it_cannot_be():
    keys = {"global": {"queue_size": 5}, "a": saying("one"), "b": saying("b", device="x:0")}
    keys["a"]["next"] = "b"
    with Models({"detect": keys, "fixed": headrace.PipelineConfig.load(saying("one"))}) as models:
        assert models.status()["detect"]["device"] == "cpu, x:0"
        models.move("detect", "y:0")
        assert models.status()["detect"]["device"] == "y:0"
        with models.lease("detect") as pipe:
            assert pipe.config.to_dict()["global"] == {"queue_size": 5, "device": "y:0"}
        with pytest.raises(ConfigError, match="cannot be moved"):
            models.move("fixed", "y:0")
        assert answer(models, "fixed") == "one"


def test_last_use_is_by_the_clock_and_survives_an_update():
    from headrace_testing import FakeClock

    clock = FakeClock()
    with Models({"detect": saying("one")}, clock=clock) as models:
        assert models.status()["detect"]["last_use_s"] is None
        answer(models)
        clock.advance(5)
        models.update("detect")
        assert models.status()["detect"]["last_use_s"] == 5


def test_an_update_that_is_being_built_when_all_is_closed_leaves_nothing(says):
    models = Models({"detect": saying("one")})
    assert says.building.acquire(timeout=60)
    says.gate = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        updating = pool.submit(models.update, "detect", saying("two"))
        assert says.building.acquire(timeout=60)
        models.close()
        says.gate.set()
        assert isinstance(updating.exception(60), ClosedError)
    assert says.living == 0


def test_a_server_holds_pipelines_by_version_and_hears_of_the_swap(says):
    with Models({"a:2": saying("two"), "a:10": saying("ten"), "b": saying("b")}) as models:
        assert models.versions() == {"a": ["2", "10"], "b": ["1"]}
        held = {"2": models.pipeline("a", "2")}
        assert held["2"]({"data": 0})["result"] == "two"

        def listen(change):
            if change.state == "ready":
                assert held[change.replaces].ready
                held[change.version] = change.pipeline

        models.subscribe(listen)
        models.update("a:2", saying("new"))
        assert held["2"]({"data": 0})["result"] == "new"
        models.unload("b")
        assert models.versions() == {"a": ["2", "10"], "b": []}
        with pytest.raises(UnloadedError):
            models.pipeline("b", "1")
