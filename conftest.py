"""How hypothesis generates, which tests are quick, what they leave, and what the collector passes by."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import sys
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from headrace._language.registry.registry import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from filelock import FileLock

# How long an example takes, or is made, tells of the machine. What `--hypothesis-profile` names
# comes after this, and takes its place.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")

# Some values are drawn from the constants in the modules of this repository that are loaded: what else
# ran before in the process would decide about the cases that are to be the same each time.
try:
    from hypothesis.internal.conjecture import providers

    constants_of_modules = providers._get_local_constants
except (ImportError, AttributeError):  # older versions draw none
    pass
else:

    def constants() -> providers.Constants:
        """Return the constants that generated cases are made of, besides those that hypothesis knows."""
        return providers.Constants() if settings.default.derandomize else constants_of_modules()

    providers._get_local_constants = constants

NOT_QUICK = frozenset(("browser", "docs", "gpu", "peers", "ray", "slow", "stress", "whole_device"))
"""Marks of tests that ``./dev test`` leaves out: each of them is marked ``slow`` as well, so ``-m "not slow"`` is its tier."""

MARKS_OF_MODULE = re.compile(r"^pytestmark = (?:\[\n.*?^\]|.*?$)", re.MULTILINE | re.DOTALL)


SPREAD = ("testing/tests/test_testing_conformance_shelf.py",)
"""Files whose tests share nothing and take minutes together: a process of xdist has single tests of them, after all others."""


CONFORMANCE = re.compile(r"[^:]*_conformance\.py::[^:]*Conformance(?=::)")
"""A conformance class."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give a process whole files with ``--dist loadfile``, but for those of `SPREAD`."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(SPREAD):
                return nodeid
            # The rules of a class share what they build, and the classes of a file nothing.
            by_class = CONFORMANCE.match(nodeid)
            return by_class[0] if by_class else super()._split_scope(nodeid)

        def schedule(self) -> None:
            super().schedule()
            for scope in [one for one in self.workqueue if one.startswith(SPREAD)]:
                self.workqueue.move_to_end(scope)

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


# A shell lets what it starts in the background ignore Ctrl-C, and so would all that tests start: those that
# interrupt a process would wait for it in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Tests start hundreds of interpreters. Where none writes bytecode, as in many containers, each would compile what it
# imports of this repository; a folder of bytecode elsewhere would hide what pip has compiled.
if sys.dont_write_bytecode:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


# In each of them pydantic would look for plugins of its own among the 150 distributions that are installed here.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


# Each that loads numpy would start threads for products of large matrices, which no test computes: they spin for
# a moment, which is half of the processor time that the import takes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


# Some tests import ONNX Runtime before headrace-ort, which sets this, too: without it each would leave a device id in
# the home of whoever runs the tests, and look up its maker.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


COLLECTS: pytest.StashKey[FileLock] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Let one of several processes collect before the others do, which then find all compiled.

    At once each would compile, and rewrite, all files of tests: three times what they take to import.
    """
    if hasattr(config, "workerinput"):
        from filelock import FileLock

        folder = Path(__file__).parent / ".pytest_cache"
        folder.mkdir(exist_ok=True)
        lock = config.stash[COLLECTS] = FileLock(folder / "collecting.lock")
        if config.workerinput["workerid"] == "gw0":
            lock.acquire()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Wait for the process that collects first."""
    lock = session.config.stash.get(COLLECTS, None)
    if lock is not None and not lock.is_locked:
        with lock:
            pass
    try:
        return (yield)
    finally:
        if lock is not None:
            lock.release()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let tests that have a long form run in it."""
    parser.addoption(
        "--stress", action="store_true", help="run stress tests in full: minutes, and 14 GiB"
    )
    parser.addoption(
        "--dearest", type=int, default=0, help="print the N tests that take most processor time"
    )


BEGAN = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note how many processor seconds a test has taken, with its fixtures and the processes that it has waited for."""
    report = yield
    if report.when == "teardown":
        report.user_properties.append(("processor_s", sum(os.times()[:4]) - item.stash[BEGAN]))
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the tests that take most processor time."""
    taken = [
        (seconds, report.nodeid)
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, seconds in getattr(report, "user_properties", ())
        if name == "processor_s"
    ]
    for seconds, name in sorted(taken, reverse=True)[: config.option.dearest]:
        terminalreporter.write_line(f"{seconds:7.1f} processor seconds {name}")
    if config.option.dearest:
        terminalreporter.write_line(f"{sum(one for one, _ in taken):7.1f} of all tests")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no module that is left out as a whole: each process would import it in vain."""
    if config.option.markexpr != "not slow" or not collection_path.match("test_*.py"):
        return None
    found = MARKS_OF_MODULE.search(collection_path.read_text(encoding="utf-8"))
    marks = re.findall(r"\bmark\.(\w+)", found[0]) if found else ()
    return True if NOT_QUICK.intersection(marks) else None


@pytest.hookimpl(tryfirst=True)  # the option -m chooses in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out of the quick tier what has one of the other marks."""
    for item in items:
        if NOT_QUICK.intersection(mark.name for mark in item.iter_markers()):
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def registry_restored() -> Iterator[None]:
    """Forget after a test what it has registered, so that the order of tests does not matter."""
    local, before = registry.local, dict(registry.local)
    yield
    local.clear()
    local.update(before)


@pytest.fixture
def takes_turns() -> None:
    """Skip a test where the interpreter has no lock: there no call takes the fast path, nor runs a batch in the main thread."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        pytest.skip("threads do not take turns in this interpreter")


class Client(threading.Thread):
    """Calls a function in a thread of its own and keeps what came of it."""

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(daemon=True)
        self._call = (function, args, kwargs)
        self.value: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Call it."""
        function, args, kwargs = self._call
        try:
            self.value = function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - `outcome` raises it
            self.error = error

    def outcome(self) -> Any:
        """Wait for the end. Return the value, or raise the error."""
        self.join(60.0)  # a test that hangs fails
        assert not self.is_alive(), "the caller got no answer"  # noqa: S101
        if self.error is not None:
            raise self.error
        return self.value


@pytest.fixture
def client() -> type[Client]:
    """Return the class `Client`."""
    return Client


# Fake installed distributions.

BACKENDS = """
import headrace
class {name}(headrace.Backend):
    def forward(self, batch):
        for request in batch:
            request["result"] = "{result}"
"""


class Site:
    """A folder of fake installed distributions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self,
        name: str,
        points: str = "",
        modules: dict[str, str] | None = None,
        requires: Iterable[str] = ("headrace>=0.1,<0.2",),
        version: str = "1.0",
    ) -> None:
        """Lay out an installed distribution with entry points and modules."""
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {text}" for text in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        (info / "entry_points.txt").write_text(textwrap.dedent(points))
        for module, code in (modules or {}).items():
            (self.folder / f"{module}.py").write_text(textwrap.dedent(code))

    def names(
        self, name: str, group: str, table: dict[str, str], modules: dict[str, str] | None = None
    ) -> None:
        """Lay out one that offers names in a group: ``readers``, ``fetchers``, ..."""
        lines = [f"{key} = {path}" for key, path in table.items()]
        self.add(name, "\n".join([f"[headrace.{group}]", *lines, ""]), modules)

    def backend(self, name: str, backend: str, module: str, result: str = "x", **more: Any) -> None:
        """Lay out one with a backend that gives the same result always."""
        points = f"[headrace.backends]\n{backend} = {module}:{backend}\n"
        code = BACKENDS.format(name=backend, result=result)
        self.add(name, points, {module: code}, **more)


@contextlib.contextmanager
def fake_site(folder: Path) -> Generator[Site]:
    """Let a folder hold the installed distributions; nothing is registered before or after."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder))
        patched.setattr(registry, "local", {})
        before = set(sys.modules)
        yield Site(folder)
        registry.refresh()
        for name in set(sys.modules) - before:
            if name.startswith("hrt_"):
                del sys.modules[name]


@pytest.fixture
def site(tmp_path: Path) -> Generator[Site]:
    """Return a folder for fake installed distributions."""
    with fake_site(tmp_path / "site") as made:
        yield made


@pytest.fixture(scope="module")
def site_of_module(tmp_path_factory: pytest.TempPathFactory) -> Generator[Site]:
    """The same for all tests of a module."""
    with fake_site(tmp_path_factory.mktemp("module") / "site") as made:
        yield made


LAST_PATH = pytest.StashKey[Path]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave what was made before a module of tests to no garbage collection: most of it stays.

    It is what pytest has collected, and what earlier modules have imported. Tests that collect garbage
    would else walk through all of it each time.
    """
    item.stash[BEGAN] = sum(os.times()[:4])
    if item.config.stash.get(LAST_PATH, None) != item.path:
        item.config.stash[LAST_PATH] = item.path
        gc.collect()
        gc.freeze()
