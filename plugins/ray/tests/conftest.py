"""A cluster for all tests of this folder: a head and three nodes, which are processes of this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

RAY_IS_HERE = importlib.util.find_spec("ray") is not None
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # from here on the tests find it among the modules that are loaded
try:
    from ray_programs import parent_of, raylet_of, until
finally:
    sys.path.remove(str(HERE))
TRIES = 3
STORE_BYTES = 80 << 20
if RAY_IS_HERE:  # before ray is imported, which looks at the variables then
    FOLDER = tempfile.mkdtemp(prefix="hr-", dir="/tmp")  # sockets in it have short names only
    os.environ |= {
        "RAY_TMPDIR": FOLDER,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # On a busy machine its parts take longer to find each other than Ray waits.
        "RAY_agent_register_timeout_ms": "300000",
        "RAY_worker_register_timeout_seconds": "300",
        "RAY_health_check_timeout_ms": "60000",
    }


if not RAY_IS_HERE:  # most of them import it; `./dev test ray` runs them
    collect_ignore = [one.name for one in HERE.glob("test_*.py") if "light" not in one.stem]


@pytest.hookimpl(tryfirst=True)  # the option -m chooses in the same hook
def pytest_collection_modifyitems(items):
    """Mark what needs a cluster."""
    for item in items:
        if HERE in item.path.parents and "light" not in item.path.stem:
            item.add_marker("ray")


@pytest.fixture(scope="session")
def cluster():
    """Start the cluster, and connect this process to it."""
    import ray
    from ray._private import services

    get_node = services.get_node

    def patient_get_node(*args, **kwargs):
        """Wait for a node that has just been started: Ray itself gives up after 30 seconds."""

        def found():
            with contextlib.suppress(RuntimeError):
                return get_node(*args, **kwargs)

        return until(found)

    services.get_node = patient_get_node
    ray.shutdown()  # the kit has started a cluster when its rules were collected
    made = started()
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()
    shutil.rmtree(FOLDER, ignore_errors=True)


def started():
    """Start head and nodes; a node that waits in vain for its own parts, as on a busy machine, is a new try."""
    from ray.cluster_utils import Cluster

    for left in reversed(range(TRIES)):
        made = Cluster()
        try:
            made.add_node(num_cpus=0, object_store_memory=STORE_BYTES, include_dashboard=False)
            for _ in range(3):
                made.add_node(num_cpus=2, object_store_memory=STORE_BYTES)
        except Exception:
            made.shutdown()
            if not left:
                raise
        else:
            return made
    raise AssertionError


@pytest.fixture(autouse=True)
def connected(request):
    """Let all tests here have the cluster, but those that need none."""
    if "light" not in request.path.stem:
        request.getfixturevalue("cluster")


@pytest.fixture
def extra_node(cluster):
    """Return a function that adds a node with a resource of its own; it is gone after the test."""
    import ray

    made = []

    def add(**resources):
        one = cluster.add_node(
            num_cpus=2, object_store_memory=STORE_BYTES, resources=resources or None
        )
        made.append(one)
        return one

    yield add
    for one in made:
        if one in cluster.worker_nodes:
            with contextlib.suppress(Exception):
                os.kill(raylet_of(one), signal.SIGCONT)
            cluster.remove_node(one, allow_graceful=False)
    # The cluster lists a killed node until it misses its heartbeats.
    gone = {one.node_id for one in made}
    until(lambda: not any(one["Alive"] and one["NodeID"] in gone for one in ray.nodes()))


FILE = '''
import logging, os
import headrace

def note(text):
    with open(NOTES, "a") as file:
        file.write(text + "\\n")

class Fragile(headrace.Backend):
    """Notes each run; waits, or dies, when it is told to."""
    max = None
    def forward(self, batch):
        with open(NOTES + ".processes", "a") as file:  # before what a test waits for
            file.write(f"{os.getpid()}\\n")
        for request in batch:
            note(f"{len(batch)} {request['data']}")
        for request in batch:
            if request["data"] == "poison":
                os.kill(os.getpid(), 9)
            if str(request["data"]).startswith("wait"):
                with open(GATE) as gate:  # a pipe with a name: until somebody opens it to write
                    gate.read()
            request["result"] = request["data"]

@headrace.register("RayFragile")
class RayFragile(Fragile):
    pass

@headrace.register("RayInnocent")
class RayInnocent(Fragile):
    rerun = True

@headrace.register("RaySpeaks")
def speaks(text):
    logging.getLogger("far.away").warning("said %s", text)
    return os.getpid()

@headrace.register("RayLetters")
def letters(word):
    yield from word
    return word.upper()

@headrace.register("RayNegative")
def negative(data):
    if isinstance(data, str):
        raise headrace.errors.InputError(key="data", expected="a number", got=data)
    return -data
'''


@pytest.fixture
def words(tmp_path):
    """Return the path of a file with backends; ``notes`` beside it says what ran."""
    (tmp_path / "notes").touch()
    os.mkfifo(tmp_path / "gate")
    path = tmp_path / "ray_words.py"
    head = f"NOTES = {str(tmp_path / 'notes')!r}\nGATE = {str(tmp_path / 'gate')!r}\n"
    path.write_text(head + FILE, encoding="utf-8")
    return str(path)


@pytest.fixture
def keys(words):
    """Return the keys of a node that all tests have: the file with backends, and little of the cluster."""
    return {"import": [words], "num_cpus": 0.1}


@pytest.fixture
def notes(tmp_path):
    """Return a function that gives the lines that the backends have noted."""
    return lambda: (tmp_path / "notes").read_text().splitlines()


@pytest.fixture
def where_it_ran(tmp_path):
    """Return a function that gives the process of the last batch, its actor, and the raylet of its node."""

    def found():
        process = int((tmp_path / "notes.processes").read_text().split()[-1])
        actor = parent_of(process)
        return process, actor, parent_of(actor)

    return found


@pytest.fixture
def let_go(tmp_path):
    """Return a function that lets a backend that waits go on."""
    return lambda: (tmp_path / "gate").open("w").close()


@pytest.fixture
def free(cluster):
    """Return a function that waits until nothing of the cluster is used any more."""
    import ray

    def all_free():
        left = ray.available_resources()
        return left.get("CPU", 0) == ray.cluster_resources().get("CPU", 0) and not any(
            "group" in name for name in left
        )

    return lambda: until(all_free)
