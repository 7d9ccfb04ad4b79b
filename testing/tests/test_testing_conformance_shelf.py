"""The shelf: perfect backends pass every rule, each broken one is rejected by the rule meant for it."""

from __future__ import annotations

import contextvars
import gc
import importlib
import os
import sys
import threading
import types
from pathlib import Path

import pytest

import headrace
from headrace_testing import certify
from headrace_testing.conformance import ConformanceRun, rules
from headrace_testing.conformance.backend_rules import leftovers as rules_left
from headrace_testing.conformance.backend_rules import life as rules_life
from headrace_testing.conformance.backend_rules import process as rules_process
from headrace_testing.conformance.probe import Probe, probe
from headrace_testing.conformance.requirements import distributions_of, not_required
from headrace_testing.conformance.settings import restore, settings

pytestmark = pytest.mark.slow

sys.path.insert(0, str(Path(__file__).parent))
shelf = {
    name: importlib.import_module(f"conformance_shelf.{name}")
    for name in (
        *("perfect", "labels", "broken_class", "broken_batch", "broken_results", "broken_errors"),
        *("broken_life", "broken_device", "broken_values", "broken_process", "heavy"),
        "broken_requirements",
    )
}
sys.path.pop(0)
PERFECT = shelf["perfect"].CONFORMANCE
BROKEN = shelf["labels"].BROKEN
ABOUT_IMPORTS = {"imports-lazily", "missing-library"}
FINE = ("passed", "blocked", "not_applicable")
IN_A_FRESH_PROCESS = {
    *("PerfectConformance", "OwnThreadConformance", "WithAThreadConformance", "TwiceConformance"),
}
"""The others stand in the same module: a fresh process takes a second, and says the same of them."""


def nothing_loaded(subject, **_):
    """Stand for a fresh process in which a backend that needs no library was built."""
    return Probe(stage="build")


@pytest.fixture(autouse=True, scope="module")
def few_objects():
    """Let the collector, which runs several times per backend, pass by what is there already."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with what an installer notes of a distribution whose package is the shelf."""
    folder = tmp_path_factory.mktemp("installed")
    notes = folder / "headrace_shelf-1.0.dist-info"
    notes.mkdir()
    (notes / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: headrace-shelf\nVersion: 1.0\nRequires-Dist: headrace\n"
        "Requires-Dist: pytest\n"
        "Requires-Dist: jsonschema ; extra == 'some'\nProvides-Extra: some\n"
    )
    (notes / "top_level.txt").write_text("conformance_shelf\n")
    return folder


@pytest.fixture(autouse=True)
def importable(monkeypatch, installed):
    """Let fresh processes find the shelf and its distribution: they get the path of this one."""
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.fixture
def fake_torch(monkeypatch):
    """A torch on whose device one backend leaks, and another one waits for nothing."""
    leaky = shelf["broken_life"].LeavesDeviceMemory
    leaky.allocated = 0
    waiting = shelf["broken_device"].LeavesItsWorkToOthers.devices
    waiting.clear()
    cuda = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 1,
        memory_allocated=lambda index: leaky.allocated,
        synchronize=lambda index: [device.wait() for device in waiting],
        current_device=lambda: 0,
        current_stream=lambda: "default stream",
    )
    torch = types.SimpleNamespace(
        cuda=cuda,
        is_grad_enabled=lambda: True,
        is_inference_mode_enabled=lambda: False,
        Tensor=type("Tensor", (), {}),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)


@pytest.fixture(autouse=True)
def tidy():
    """Give back what the leaky ones have left, and what they have changed; the latter also when called."""
    life = shelf["broken_life"]
    life.LeavesAThread.stop.clear()
    before, name = settings(), threading.current_thread().name

    def as_new():
        restore(before)
        threading.current_thread().name = name
        life.OnlyOnce.made = life.EveryLifeAddsUp.made = 0

    yield as_new
    as_new()
    life.LeavesAThread.stop.set()
    for file in life.LeavesAFile.files:
        file.close()
    for descriptor in life.LeavesADescriptor.descriptors:
        os.close(descriptor)
    for process in shelf["broken_results"].LeavesAProcess.processes:
        process.kill()
        process.wait()
    shelf["broken_results"].LeavesAProcess.processes.clear()
    life.LeavesAFile.files.clear()
    life.LeavesADescriptor.descriptors.clear()


def judged(cls):
    certificate = contextvars.copy_context().run(certify, cls)  # some leave variables changed
    return certificate, {v.id: v for v in certificate.rules}


@pytest.mark.parametrize("cls", PERFECT, ids=lambda cls: cls.__name__)
def test_a_perfect_backend_passes_every_rule(cls, monkeypatch):
    if cls.__name__ not in IN_A_FRESH_PROCESS:
        monkeypatch.setattr(rules_life, "probe", nothing_loaded)
    certificate, verdicts = judged(cls)
    assert {v.id: v.detail for v in verdicts.values() if v.outcome != "passed"} == {}
    assert list(verdicts) == list(rules())
    assert certificate.certified


@pytest.mark.parametrize("cls", BROKEN, ids=lambda cls: f"{cls.breaks}-{cls.__name__}")
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_a_broken_backend_is_rejected_by_exactly_the_rule_meant_for_it(
    cls, request, monkeypatch, tidy
):
    if cls.breaks in ("device-memory-left", "finished-when-answered"):
        request.getfixturevalue("fake_torch")
    if cls.breaks not in ABOUT_IMPORTS:
        monkeypatch.setattr(rules_life, "probe", nothing_loaded)
    if cls.breaks != "same-later":
        monkeypatch.setattr(rules_process, "_MANY", 1000)
    if cls.breaks.endswith("-left"):
        for patience in ("_PATIENCE", "_LAST_PATIENCE"):  # what is left here does not go away
            monkeypatch.setattr(rules_left, patience, 2)
    # With that rule excepted all others are judged, also those that need it: none reports the same fault again.
    excepted = {"expected_failures": {cls.breaks: "the shelf says so"}}
    certificate, verdicts = judged(type(cls.__name__, (cls,), excepted))
    outcomes = {v.id: (v.outcome, v.detail) for v in verdicts.values() if v.id != cls.breaks}
    assert {k: v for k, v in outcomes.items() if v[0] not in FINE} == {}
    assert {v.blocked_by for v in verdicts.values()} <= {None, cls.breaks}
    assert verdicts[cls.breaks].outcome == "expected_failure"
    assert certificate.certified == (not certificate.blocked)
    tidy()
    # Without the exception it is broken by that rule, which needs only rules that hold.
    with ConformanceRun(cls) as run:
        found = contextvars.copy_context().run(run.verdict, cls.breaks)
    assert (found.outcome, bool(found.detail)) == ("failed", True)
    gc.collect()


@pytest.mark.parametrize(("grows", "outcome"), [("neighbour", "passed"), ("own", "failed")])
def test_the_memory_of_a_device_is_that_of_this_process(grows, outcome, monkeypatch):
    taken = dict.fromkeys(("neighbour", "own"), 1 << 30)
    runtime = types.SimpleNamespace(
        cudaGetDeviceCount=lambda: (0, 1),
        cudaDeviceSynchronize=lambda: (0,),
        cudaMemGetInfo=lambda: (0, (1 << 40) - sum(taken.values()), 1 << 40),
    )
    nvml = types.SimpleNamespace(
        NVMLError=OSError,
        nvmlInit=int,
        nvmlShutdown=int,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=int,
        nvmlDeviceGetComputeRunningProcesses=lambda device: [
            types.SimpleNamespace(pid=os.getpid() + (name != "own"), usedGpuMemory=taken[name])
            for name in taken
        ],
    )
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", runtime)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)

    class Grows(shelf["perfect"].Perfect):
        def init(self, options, context):
            super().init(options, context)
            taken[grows] += 2 << 20

    headrace.register("Grows", Grows, replace=True)
    (cls,) = [one for one in BROKEN if one.__name__ == "LeavesDeviceMemory"]
    with ConformanceRun(type("Kit", (cls,), {"expression": "Grows"})) as run:
        assert run.verdict("device-memory-left").outcome == outcome


def test_an_input_that_is_changed_on_purpose_is_excepted_once():
    (cls,) = [one for one in BROKEN if one.__name__ == "SortsInPlace"]
    excepted = {"expected_failures": {"inputs-kept": "the lists are large"}}
    certificate, verdicts = judged(type(cls.__name__, (cls,), excepted))
    assert certificate.certified
    assert verdicts["bad-item-alone"].outcome == "passed"


def test_another_fault_beside_one_that_is_excepted_is_no_part_of_it():
    class SpoilsAll(shelf["broken_batch"].SortsInPlace):
        rerun = False

        def forward(self, batch):
            for request in batch:
                self.one(request)

    headrace.register("SpoilsAll", SpoilsAll, replace=True)
    (cls,) = [one for one in BROKEN if one.__name__ == "SortsInPlace"]
    excepted = {"inputs-kept": "the lists are large"}
    kit = type("Kit", (cls,), {"expression": "SpoilsAll", "expected_failures": excepted})
    certificate, verdicts = judged(kit)
    assert not certificate.certified
    verdict = verdicts["bad-item-alone"]
    assert (verdict.outcome, verdict.blocked_by) == ("blocked", "inputs-kept")
    assert "its neighbour 1 fails too" in verdict.detail


def test_the_shelf_has_a_broken_backend_for_every_rule():
    assert {cls.breaks for cls in BROKEN} == set(rules())
    assert len({cls.__name__ for cls in BROKEN}) == len(BROKEN) >= 25


def test_a_fresh_process_ends_whatever_the_backend_leaves_running(monkeypatch):
    from headrace_testing.conformance import probe as probing
    from headrace_testing.conformance.outcome import Broken
    from headrace_testing.conformance.subject import Subject

    def seen(name):
        return probe(Subject(type(name, (PERFECT[0],), {"expression": name})()))

    monkeypatch.setattr(probing, "_CLOSING_S", 0.1)
    found = seen("NeverEnds")
    assert (found.stage, found.error) == ("build", "")
    with pytest.raises(Broken, match="a fresh process ended with 3"):
        seen("EndsTheProcess")
    monkeypatch.setattr(probing, "_LIMIT_S", 0.2)
    with pytest.raises(Broken, match=r"a fresh process did not end within 0\.2 s"):
        seen("NeverBuilds")
    # Those after them get answers of their own.
    monkeypatch.setattr(probing, "_LIMIT_S", 60)
    assert [seen(name).stage for name in ("WithAThread", "OneAtATime")] == ["build", "build"]


def test_the_shelf_is_judged_in_fresh_processes_as_it_is_said():
    from headrace_testing.conformance.subject import Subject

    found = probe(Subject(PERFECT[0]()))
    assert (found.imported, found.configured, found.built) == ([], [], [])
    assert (found.stage, found.error) == ("build", "")


def test_a_library_that_is_not_required_is_named_with_the_distribution():
    (cls,) = [one for one in BROKEN if one.__name__ == "NeedsWhatItsDistributionDoesNotRequire"]
    certificate, verdicts = judged(cls)
    told = verdicts["imports-lazily"].detail
    assert "init loads filelock, which no Requires-Dist of headrace-shelf brings" in told
    assert "MissingDependencyError" in told
    assert verdicts["missing-library"].blocked_by == "imports-lazily"
    assert certificate.blocked == {"imports-lazily": 1}
    assert certificate.to_dict()["blocked"] == {"imports-lazily": 1}


def test_what_is_required_by_what_is_required_or_by_an_extra_counts_and_so_does_what_may_be_missing():
    assert distributions_of(["", "headrace-shelf", "shelf.py"], ["conformance_shelf"]) == [
        "headrace-shelf"
    ]
    assert distributions_of([""], ["no_such_module"]) == []
    # pydantic is required by headrace, attrs by jsonschema, which an extra brings; filelock by none.
    loaded = ["pydantic", "jsonschema", "attr", "filelock"]
    assert not_required(loaded, ["headrace-shelf"]) == ["filelock"]
    assert not_required(loaded, ["headrace-shelf", "filelock"]) == []
