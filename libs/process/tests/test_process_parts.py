"""What another process needs to build the child of a container: here it is built in this process."""

from __future__ import annotations

import pickle
import sys
import threading

import pytest

import headrace
from headrace.errors import InstanceLostError, PluginError, SetupError
from headrace_process.parts import Part, elements_of, versions_of

CALLED = """
import headrace

class Added(headrace.Backend):
    class Options(headrace.Options):
        number: int = 1
        unused: object = None

    rerun = True
    max = 4

    def init(self, options, context):
        self.number, self.reads = options.number, ("data", "more")
        self.seen = context.instance_index, context.device

    def forward(self, batch):
        for request in batch:
            if request["data"] is None:
                raise headrace.errors.InstanceLostError("the device has gone")
            request["result"] = request["data"] + self.number
            request["seen"] = self.seen

class Described(Added):
    def describe(self):
        return {"inputs": {"x": {"key": "data"}, "y": {"key": "other"}}}

def total(numbers):
    return [sum(numbers)] * len(numbers)
"""


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """Return a function that gives the part of a backend, as a container outermost in its node sends it."""
    (tmp_path / "called_there.py").write_text(CALLED, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import called_there

    class Sends(headrace.Backend):
        takes = 1
        builds_elsewhere = True

        def init(self, options, context):
            (self.child,) = context.children
            self.node = context.node_name
            made.append((self.child, Part(self.child, self.node)))

        def forward(self, batch):
            pass

    made = []
    headrace.register("Sends", Sends)
    headrace.register("Added", called_there.Added)
    headrace.register("Described", called_there.Described)
    headrace.register("Total", called_there.total, batched=True)

    def part(backend, **keys):
        headrace.pipe({"backend": f"Sends[{backend}]", **keys}).close()
        child, found = made.pop()
        return child, pickle.loads(pickle.dumps(found))

    yield part
    del sys.modules["called_there"]


def test_what_code_has_registered_is_built_by_its_import_path(parts):
    child, part = parts("S[Added,Total]", number=2, device=["a", "b"], instance_num=2, max=4)
    built = part.build(child.seen(1))
    assert (built.name, built.min, built.max) == ("S", 1, 4)
    batch = [{"data": 1, "more": 0}, {"data": 2, "more": 0}]
    assert built(batch) is None
    assert [one["result"] for one in batch] == [7, 7]
    assert batch[0]["seen"] == (1, "b")
    assert built.describe()["name"] == "S"
    built.close()
    assert all(built(batch))


def test_what_is_built_says_which_keys_it_has_to_be_sent(parts):
    child, part = parts("Added")
    built = part.build(child.seen(0))
    assert (built.reads, built.needs) == (("data", "more"), ("data",))
    assert {"data", "more", "request_id", "context"} <= {*built.keys}
    assert "result" not in built.keys
    built.close()


@pytest.mark.parametrize("backend", ["Described", "S[Added,Described]"])
def test_a_key_that_is_described_as_read_and_would_not_be_sent_is_refused(parts, backend):
    child, part = parts(backend)
    with pytest.raises(SetupError, match=r"Described reads the key 'other'.* `reads`") as refused:
        part.build(child.seen(0))
    assert refused.value.hint.endswith("add 'other' to `reads` of Described.")


def test_a_child_is_pickled_as_its_configuration(parts):
    child, _ = parts("Added", number=3)
    there = pickle.loads(pickle.dumps(child))
    assert (there.name, there.min, there.max) == (child.name, child.min, child.max)
    assert there.config.to_dict() == child.config.to_dict()


@pytest.mark.parametrize(
    ("backend", "rerun"),
    [("Added", True), ("S[Added,Added]", True), ("S[Added,Total]", False), ("Total", False)],
)
def test_it_runs_items_once_more_where_all_backends_say_so(parts, backend, rerun):
    child, part = parts(backend)
    built = part.build(child.seen(0))
    assert built.rerun is rerun
    built.close()


def test_a_device_that_has_gone_takes_all_that_is_built_with_it(parts):
    child, part = parts("Added")
    built = part.build(child.seen(0))
    assert not built.lost
    (error,) = built([{"data": None, "more": 0}])
    assert isinstance(error, InstanceLostError)
    assert built.lost
    built.close()


def test_what_is_not_where_it_is_built_is_named(parts):
    child, part = parts("Added")
    part._registered = {"Added": ("called_there:Gone", False)}
    with pytest.raises(PluginError, match="called_there:Gone cannot be imported"):
        part.build(child.seen(0))


def test_an_option_that_no_pickle_takes_is_told_at_the_start(parts):
    with pytest.raises(SetupError, match="Added cannot be sent to another process") as refused:
        parts("Added", unused=threading.Lock())
    assert refused.value.node == "main"


def test_a_function_that_has_another_one_in_its_place_is_told_at_the_start(parts, monkeypatch):
    monkeypatch.setattr(sys.modules["called_there"], "total", sum)
    with pytest.raises(SetupError, match="called_there:total is another one now"):
        parts("Total")


def test_versions_are_those_of_all_that_is_inside(parts):
    child, _ = parts("S[Added,Fallback[Process[Identity],Identity]]")
    found = versions_of(elements_of(child))
    installed = {one.distribution: one.version for one in headrace.plugins.installed()}
    assert found["python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert found["headrace"] == headrace.__version__
    assert {*found} - {"python", "headrace"} == {"headrace-process", "headrace-flow"} & {*installed}
    assert all(found[name] == installed[name] for name in {"headrace-process"} & {*installed})
