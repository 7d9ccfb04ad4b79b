"""Several models are swapped at once: all are checked and built aside, then all take the requests, or none does."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import headrace
from headrace.errors import ClosedError, ConfigError, SetupError
from headrace_models import Models, UnknownModelError, folder_models


def saying(text, **keys):
    return {"backend": f"Says({text})", **keys}


def answer(models, name):
    return models(name, {"data": 0}, timeout=60)["result"]


def test_all_take_the_requests_at_once_and_what_is_not_named_leaves(says):
    with Models({"a": saying("a1"), "b:3": saying("b1"), "c": saying("c1")}) as models:
        told = []
        models.subscribe(lambda one: told.append((f"{one.name}:{one.version}", one.state)))
        prepared = models.prepare({"a": saying("a2"), "b:3": saying("b2"), "d": saying("d2")})
        assert [answer(models, name) for name in "abc"] == ["a1", "b1", "c1"]
        assert sorted(prepared.pipelines) == [("a", "1"), ("b", "3"), ("d", "1")]
        assert told == []
        prepared.switch()
        assert [answer(models, name) for name in "abd"] == ["a2", "b2", "d2"]
        with pytest.raises(UnknownModelError):
            answer(models, "c")
        prepared.wait(60)
        assert says.living == 3
        # Each listener hears of all new ones before the first old one is drained.
        assert told[:3] == [("a:1", "ready"), ("b:3", "ready"), ("d:1", "ready")]
        assert {one for one in told[3:] if one[1] == "draining"} == {
            (name, "draining") for name in ("a:1", "b:3", "c:1")
        }
        with pytest.raises(RuntimeError, match="once"):
            prepared.switch()
    assert says.living == 0


@pytest.mark.parametrize(
    ("wrong", "error", "built"),
    [({"backend": "Sayz"}, ConfigError, 0), (saying("broken"), SetupError, 1)],
)
def test_if_one_is_wrong_nothing_changes(says, wrong, error, built):
    says.broken = {"broken"}
    with Models({"a": saying("a1"), "b": saying("b1")}) as models:
        says.built.clear()
        with pytest.raises(error):
            models.replace({"a": saying("a2"), "b": wrong})
        assert len(says.built) == built
        assert says.living == 2
        assert [answer(models, name) for name in "ab"] == ["a1", "b1"]
        assert ("not updated" in models.status()["b"]["reason"]) is (error is SetupError)
        models.replace({"a": saying("a3"), "b": saying("b3")})
        assert [answer(models, name) for name in "ab"] == ["a3", "b3"]


def test_the_others_stay_where_that_is_asked_for(says):
    with Models({"a": saying("a1"), "b": saying("b1"), "live": {"b": 1.0}}) as models:
        pipe = models.pipeline("b", "1")
        models.replace({"a:5": saying("a5")}, keep_others=True)
        assert list(models) == ["a", "b", "live"]
        assert models.versions() == {"a": ["5"], "b": ["1"]}
        assert models.pipeline("b", "1") is pipe
        models.replace({"a": saying("a6"), "new": {"a": 1.0}})
        assert list(models) == ["a", "new"]
        assert answer(models, "new") == "a6"
        assert models.resolve("new") == models.resolve("a") == "a:1"


def test_resolve_names_the_version_that_would_serve():
    drawn = iter([0.05, 0.95])
    versions = {"a:3": saying("three"), "a:4": saying("four"), "live": {"a:3": 0.1, "a:4": 0.9}}
    with Models(versions, draw=lambda: next(drawn)) as models:
        assert models.resolve("a") == "a:4"
        assert models.resolve("a:3") == "a:3"
        assert [models.resolve("live") for _ in range(2)] == ["a:3", "a:4"]
        assert len({models.resolve("live", key="user") for _ in range(10)}) == 1
        with pytest.raises(UnknownModelError, match="Did you mean 'live'"):
            models.resolve("life")


def test_a_folder_and_its_aliases_are_read_again(tmp_path):
    (tmp_path / "a.toml").write_text('backend = "Says(one)"')
    with Models(tmp_path) as models:
        (tmp_path / "a.toml").write_text('backend = "Says(two)"')
        (tmp_path / "aliases.toml").write_bytes(b'\xef\xbb\xbflive = "a"\r\n')
        models.replace(tmp_path)
        assert answer(models, "live") == "two"
        (tmp_path / "aliases.toml").write_text('live = "b"')
        with pytest.raises(UnknownModelError, match="'b'"):
            models.replace(tmp_path)
        assert answer(models, "live") == "two"


def test_what_is_lazy_is_built_by_its_first_request(says):
    with Models({"a": saying("a1"), "b": saying("b1")}, preload=False) as models:
        assert answer(models, "a") == "a1"
        models.replace({"a": saying("a2"), "b": saying("b2")})
        assert says.built == ["a1", "a2"]  # what was ready stays so
        assert answer(models, "b") == "b2"
    with Models({}) as models:
        says.built.clear()
        models.replace({"a:1": saying("x1"), "a:2": saying("x2")}, lazy=["a:2"])
        assert says.built == ["x1"]
        assert answer(models, "a:2") == "x2"


def test_who_waits_for_a_lazy_model_that_is_replaced_gets_the_new_one(says):
    says.gate = threading.Event()
    with Models({"a": saying("old")}, preload=False) as models, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(answer, models, "a") for _ in range(2)]
        assert says.building.acquire(timeout=60)
        with models.prepare({"a": saying("new")}) as prepared:
            prepared.switch()
        says.gate.set()
        assert [one.result(60) for one in waiting] == ["new", "new"]
        assert says.living == 1


def test_an_update_that_is_overtaken_ends_with_an_error(says):
    with Models({"a": saying("one")}) as models, ThreadPoolExecutor(1) as pool:
        says.gate = gate = threading.Event()
        assert says.building.acquire(timeout=60)
        updating = pool.submit(models.update, "a", saying("slow"))
        assert says.building.acquire(timeout=60)
        says.gate = None
        models.replace({"a": saying("new")})
        gate.set()
        with pytest.raises(ClosedError, match="replaced"):
            updating.result(60)
        assert answer(models, "a") == "new"
        assert says.living == 1
        assert models.update("a") == "2"


def test_what_is_not_switched_to_is_closed(says):
    with Models({"a": saying("one")}) as models:
        with models.prepare({"a": saying("two"), "b": saying("two")}):
            assert says.living == 3
        assert says.living == 1
        prepared = models.prepare({"a": saying("two")})
    with pytest.raises(ClosedError):
        prepared.switch()
    prepared.close()
    assert says.living == 0


def test_no_request_fails_while_all_are_replaced_again_and_again(says):
    names = ["a", "b", "a:1"]
    over = threading.Event()

    def ask(models, name):
        count = 0
        while not over.is_set():
            assert answer(models, name).startswith("text")
            count += 1
        return count

    with Models({"a": saying("text"), "b": saying("text")}) as models:
        with ThreadPoolExecutor(len(names)) as pool:
            asking = [pool.submit(ask, models, name) for name in names]
            try:
                for number in range(40):
                    models.replace({name: saying(f"text{number}") for name in "ab"})
            finally:
                over.set()
            assert all(one.result(60) > 0 for one in asking)
        assert says.living == 2


def test_what_is_checked_is_not_built(says):
    with Models({}) as models:
        models.check({"a": saying("a1"), "live": {"a": 1.0}})
        with pytest.raises(ConfigError):
            models.check({"a": {"backend": "Sayz"}})
        with pytest.raises(UnknownModelError):
            models.check({"a": saying("a1"), "live": {"b": 1.0}})
        assert says.built == list(models) == []


def test_a_folder_is_read_as_a_dict(tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("a", "b/3", "_common"):
        (tmp_path / f"{name}.toml").write_text('backend = "Says(one)"')
    (tmp_path / "aliases.toml").write_text('live = "b:3"\nsome = {a = 1, "b:3" = 3}')
    found = folder_models(tmp_path)
    assert found == {
        "a": str(tmp_path / "a.toml"), "b:3": str(tmp_path / "b" / "3.toml"),
        "live": {"b:3": 1.0}, "some": {"a": 1, "b:3": 3},
    }  # fmt: skip
    with Models(found) as models:
        assert answer(models, "live") == "one"


def test_adapt_gives_the_configuration_that_is_built(says):
    def louder(given, config):
        assert given == saying(config.to_dict()["backend"][5:-1])
        return headrace.PipelineConfig.load(saying(given["backend"][5:-1].upper()))

    with Models({"a": saying("one")}, adapt=louder) as models:
        assert answer(models, "a") == "ONE"
        models.update("a", saying("two"))
        assert answer(models, "a") == "TWO"
