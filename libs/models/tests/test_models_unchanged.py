"""A reload leaves alone what did not change, by its configuration and its files."""

from __future__ import annotations

import os
import threading

import pytest

import headrace
from headrace.errors import ConfigError, SetupError
from headrace_models import Exchange, Memory, Models, OutOfMemoryError


def saying(text, **keys):
    return {"backend": f"Says({text})", **keys}


def reading(path):
    return {"backend": f"Says(model={str(path)!r})"}


def answer(models, name):
    return models(name, {"data": 0}, timeout=60)["result"]


def full(names="ab", **settings):
    """A budget that these models fill."""
    sizes = dict.fromkeys(names, "1 GiB")
    return Memory({"host": f"{len(names)} GiB"}, sizes=sizes, min_stay_s=0, **settings)


def test_with_a_full_budget_what_did_not_change_serves_on(says):
    given = {"a": saying("a"), "b": saying("b"), "live": {"a": 1.0}}
    with Models(given, memory=full()) as models, models.lease("a") as pipe:
        told = []
        models.subscribe(told.append)
        with models.prepare(given) as prepared:
            assert (prepared.pipelines, prepared.unchanged) == ({}, {"a", "b"})
            prepared.switch()
        models.replace({**given, "live": {"b": 1.0}})
        assert [answer(models, name) for name in ("a", "b", "live")] == ["a", "b", "b"]
        with models.lease("a") as now:
            assert now is pipe
        assert (says.built, told) == (["a", "b"], [])


def test_only_what_changed_is_built_and_others_leave_for_it(says):
    given = {"a": saying("a"), "b": saying("b")}
    with Models(given, memory=full()) as models:
        models.replace({**given, "b": saying("bb")})
        assert says.built == ["a", "b", "bb"]
        assert models.status()["a"]["state"] == "unloaded"  # both versions of b needed its room
        assert [answer(models, name) for name in "ab"] == ["a", "bb"]
        assert says.living == 2


def test_a_change_without_room_is_refused_and_what_is_as_before_is_not(says):
    given = {"a": saying("a"), "b": saying("b")}
    with Models(given, memory=full(keep=["a", "b"])) as models:
        with pytest.raises(OutOfMemoryError, match="These stay: a:1, b:1"):
            models.replace({**given, "b": saying("bb")})
        models.replace(given)
        assert says.built == ["a", "b"]


@pytest.mark.parametrize("size", [1000, 2 << 20], ids=["contents", "size and times"])
def test_a_file_counts_by_its_contents_or_if_it_is_large_by_its_times(says, tmp_path, size):
    path = tmp_path / "weights"
    path.write_text("a" * size)
    with Models({"m": reading(path), "other": saying("other")}) as models:
        given = {"m": reading(path), "other": saying("other")}
        models.replace(given)
        assert len(says.built) == 2
        os.utime(path, ns=(1, 1))
        models.replace(given)
        assert len(says.built) == (2 if size == 1000 else 3)
        path.write_text("b" * size)
        models.replace(given)
        assert (answer(models, "m")[0], says.built.count("other")) == ("b", 1)
        assert says.built[-1][0] == "b"


def test_the_files_of_a_configuration_count_with_all_that_they_extend_and_import(tmp_path):
    code = "import headrace\n\n\n@headrace.register(replace=True)\nclass Told(headrace.Backend):\n"
    code += "    def forward(self, batch):\n        for request in batch:\n            request['result'] = {}\n"
    (tmp_path / "told.py").write_text(code.format(1))
    (tmp_path / "base.toml").write_text("queue_size = 10\n")
    file = tmp_path / "m.toml"
    file.write_text('extends = "base.toml"\nimport = ["told.py"]\nbackend = "Told"\n')
    with Models({"m": str(file)}) as models:
        pipes = []
        for change in (None, "base.toml", None, "told.py", None):
            if change is not None:
                text = (tmp_path / change).read_text()
                (tmp_path / change).write_text(text.replace("10", "20") + "# changed\n")
            before = [*pipes]
            models.replace({"m": str(file)})
            with models.lease("m") as pipe:
                pipes = [pipe]
            assert (change is None) is (before in ([], pipes))


def test_the_weights_that_a_model_of_onnx_names_count(says, tmp_path):
    onnx = pytest.importorskip("onnx")
    import numpy as np

    weights = onnx.numpy_helper.from_array(np.full(4, 1, np.float32), "w")
    ends = [onnx.helper.make_tensor_value_info(n, 1, [4]) for n in ("x", "y")]
    node = onnx.helper.make_node("Mul", ["x", "w"], ["y"])
    made = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", ends[:1], ends[1:], [weights])
    )
    beside = {"save_as_external_data": True, "location": "w", "size_threshold": 0}
    onnx.save(made, tmp_path / "m.onnx", **beside)

    class Names(says):
        """Names a file."""

        def init(self, options, context):
            self.text, self.device = "", context.device
            self.built.append("")
            says.living += 1

    headrace.register("Names", Names, replace=True)
    config = {"m": {"backend": f"Names(model={str(tmp_path / 'm.onnx')!r})"}}
    with Models(config) as models:
        for _ in range(2):
            models.replace(config)
            assert len(says.built) == 1
        (tmp_path / "w").write_bytes(np.full(4, 2, np.float32).tobytes())
        models.replace(config)
        assert len(says.built) == 2


def test_what_failed_or_was_unloaded_or_is_another_version_is_built_again(says):
    given = {"a": saying("a"), "b": saying("b"), "c": saying("c")}
    with Models(given) as models:
        says.broken = {"bb"}
        with pytest.raises(SetupError):
            models.update("b:1", saying("bb"))
        models.unload("a")
        models.update("c", saying("cc"))
        says.built.clear()
        models.replace(given)
        assert says.built == ["a", "b", "c"]
        models.replace(given)
        assert [answer(models, name) for name in given] == ["a", "b", "c"]
        assert says.built == ["a", "b", "c"]
        models.prepare(given, anew=True).close()
        assert says.built == ["a", "b", "c"] * 2


def test_sizes_and_what_is_kept_change_without_a_build(says):
    memory = full("abc")
    given = {name: saying(name) for name in "abc"}
    with Models(given, memory=memory) as models:
        memory.set_models({"a": "2 GiB", "b": "1 GiB", "c": "1 GiB"}, {"b"}, {})
        left = threading.Event()
        models.subscribe(lambda change: change.state == "unloaded" and left.set())
        models("c", {"data": 0})
        models.replace(given)
        assert left.wait(60)
        states = {name: about["state"] for name, about in models.status().items()}
        assert states == {"a": "unloaded", "b": "ready", "c": "ready"}
        assert models.status()["a"]["memory"] == {"host": 2 << 30}
        assert answer(models, "a") == "a"
        states = {name: about["state"] for name, about in models.status().items()}
        assert states == {"a": "ready", "b": "ready", "c": "unloaded"}


def test_an_exchange_ends_for_the_version_that_did_not_change(says):
    with Models({"a": saying("a")}) as models:
        models.update("a", saying("aa"), exchange=Exchange(requests=10**6))
        models.replace({"a": saying("a")})
        assert models.status()["a"]["exchange"]["outcome"] == "stopped"
        assert answer(models, "a") == "a"
        assert says.built == ["a", "aa"]


def test_one_that_is_replaced_between_preparing_and_the_switch_is_told(says):
    given = {"a": saying("a"), "b": saying("b")}
    with Models(given) as models:
        with models.prepare({**given, "b": saying("bb")}) as prepared:
            models.replace({"a": saying("aa")}, keep_others=True)
            with pytest.raises(ConfigError, match=r"'a'.* was replaced meanwhile"):
                prepared.switch()
        assert [answer(models, name) for name in "ab"] == ["aa", "b"]
    assert says.living == 0
