"""RayActor on a cluster of a head and three nodes: outcomes, placement, and what is refused."""

from __future__ import annotations

import logging
import os
import re
import socket

import numpy as np
import pytest
import ray
from ray.util import placement_group_table
from ray_programs import built, parent_of, run_program, until, wait_until_gone

import headrace
from headrace.errors import InputError, InstanceLostError, RequestsFailed, SetupError

# What a batch meets.


def test_what_is_inside_runs_in_an_actor_and_ends_with_its_pipeline(keys, caplog, free):
    caplog.set_level(logging.WARNING, logger="far.away")
    with headrace.pipe({**keys, "backend": "RayActor[RaySpeaks]"}) as pipe:
        far, actor = built(pipe)["process"], parent_of(built(pipe)["process"])
        assert pipe({"data": "ghosts"})["result"] == far != os.getpid() != actor
    assert [one.getMessage() for one in caplog.records if one.name == "far.away"] == ["said ghosts"]
    wait_until_gone(far)
    wait_until_gone(actor)
    free()


def test_each_request_has_its_own_outcome(keys):
    with headrace.pipe({**keys, "backend": "RayActor[RayNegative]", "max": 4}) as pipe:
        requests = [{"data": one} for one in (1, "bad", np.arange(100_000))]
        with pytest.raises(RequestsFailed) as failed:
            pipe(requests)
    first, bad, third = failed.value.errors
    assert first is third is None
    assert (type(bad), bad.key, bad.backend) == (InputError, "data", "RayNegative")
    assert requests[0]["result"] == -1
    np.testing.assert_array_equal(requests[2]["result"], -np.arange(100_000))


def test_parts_of_an_answer_come_before_its_end(keys):
    with headrace.pipe({**keys, "backend": "RayActor[RayLetters]"}) as pipe:
        *parts, last = pipe.stream({"data": "abc"})
    assert (parts, last["result"]) == ([*"abc"], "ABC")


def test_pictures_are_those_of_the_same_expression_in_process(keys):
    cv2 = pytest.importorskip("cv2")
    drawn = np.random.default_rng(1).integers(0, 256, (60, 80, 3), np.uint8)
    jpeg = cv2.imencode(".jpg", drawn)[1].tobytes()
    expression = "S[DecodeMat,ResizeMat(24,32),Mat2Tensor]"
    with (
        headrace.pipe({"backend": expression}) as here,
        headrace.pipe({**keys, "backend": f"RayActor[{expression}]"}) as there,
    ):
        expected, found = here({"data": jpeg})["result"], there({"data": jpeg})["result"]
    np.testing.assert_array_equal(found, expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)


# Where actors are.


def groups():
    """Return the placement groups that exist, as Ray tells."""
    return [one for one in placement_group_table().values() if one["state"] != "REMOVED"]


def test_strict_spread_puts_each_instance_on_a_node_of_its_own(keys, free):
    free()
    config = {**keys, "backend": "RayActor[RayNegative]", "placement": "strict_spread"}
    with headrace.pipe({**config, "instance_num": 3}) as pipe:
        (group,) = groups()
        assert (group["state"], group["strategy"]) == ("CREATED", "STRICT_SPREAD")
        nodes = {*group["bundles_to_node_id"].values()}
        assert len(nodes) == 3
        assert built(pipe)["node"] in nodes
        assert [*group["bundles"].values()] == [{"CPU": 0.1}] * 3
        assert pipe({"data": 1})["result"] == -1
    free()
    assert groups() == []


def test_pack_puts_instances_on_one_node_where_they_fit(keys, free):
    free()
    with headrace.pipe({**keys, "backend": "RayActor[RayNegative]", "instance_num": 3}):
        (group,) = groups()
        assert group["strategy"] == "PACK"
        assert len({*group["bundles_to_node_id"].values()}) == 1


def test_resources_choose_the_node(keys, extra_node):
    node = extra_node(tape=2)
    config = {**keys, "backend": "RayActor[RayNegative]", "resources": {"tape": 1}}
    with headrace.pipe(config) as pipe:
        assert built(pipe)["node"] == node.node_id
        until(lambda: ray.available_resources().get("tape") == 1)


def test_an_accelerator_type_chooses_the_node(keys, extra_node):
    node = extra_node(**{"accelerator_type:A100": 1})
    config = {**keys, "backend": "RayActor[RayNegative]", "accelerator_type": "A100"}
    with headrace.pipe(config) as pipe:
        assert built(pipe)["node"] == node.node_id


def test_no_room_is_told_with_what_was_asked_is_there_and_is_free(keys, free):
    free()
    config = {**keys, "backend": "RayActor[RayNegative]", "num_cpus": 2, "instance_num": 4}
    with pytest.raises(SetupError) as refused:
        headrace.pipe({**config, "placement_timeout_s": 1})
    text = str(refused.value)
    assert "Asked: 4 x (2 CPU), pack" in text
    assert re.search(r"There: 6 CPU \(by node: [0-9 +]+ CPU\)\. Free: 6 CPU", text)
    free()  # nothing of it is kept: all or nothing


def test_strict_spread_over_more_instances_than_nodes_is_refused(keys, free):
    config = {**keys, "backend": "RayActor[RayNegative]", "placement": "strict_spread"}
    with pytest.raises(SetupError, match="a node for each instance"):
        headrace.pipe({**config, "instance_num": 5, "placement_timeout_s": 1})
    free()


# What is refused at the start.


def test_a_part_that_cannot_be_built_there_says_why(keys, free):
    with pytest.raises(SetupError, match="a float, not callable"):
        headrace.pipe({**keys, "backend": "RayActor[Call(math:pi)]"})
    free()


@pytest.mark.parametrize("module", ["headrace", "headrace_process", "headrace_ray"])
def test_other_versions_are_told_before_anything_is_built(keys, module, monkeypatch, free):
    name = module.replace("_", "-")
    monkeypatch.setattr(__import__(module), "__version__", "0.0.7")
    with pytest.raises(SetupError, match=rf"{name} is 0\.0\.7 at the caller's, 0\.1"):
        headrace.pipe({**keys, "backend": "RayActor[RayNegative]"})
    free()


def test_another_address_than_that_of_the_connection_is_refused(keys, cluster):
    with pytest.raises(SetupError, match="this program is connected to the cluster at"):
        headrace.pipe({**keys, "backend": "RayActor[Identity]", "address": "127.0.0.1:1"})
    with headrace.pipe(
        {**keys, "backend": "RayActor[RayNegative]", "address": cluster.address}
    ) as pipe:
        assert pipe({"data": 1})["result"] == -1


PROGRAM = """
import sys, headrace
config = {"backend": "RayActor(num_cpus=0.1)[Call(html:unescape)]"}
if sys.argv[1:]:
    config["address"] = sys.argv[1]
try:
    with headrace.pipe(config) as pipe:
        print(pipe({"data": "fish &amp; chips"})["result"])
except headrace.errors.SetupError as error:
    print("refused:", error)
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_a_program_connects_by_option_or_environment(program, cluster):
    by_option = run_program(program, cluster.address)
    by_environment = run_program(program, RAY_ADDRESS=cluster.address)
    assert by_option.stdout == by_environment.stdout == "fish & chips\n", by_option.stderr


def test_a_program_without_a_cluster_is_told_how_to_name_one_and_none_is_started(program):
    done = run_program(program)
    assert "no cluster is started" in done.stdout
    for way in ("RAY_ADDRESS", "ray.init()", "ray start --head"):
        assert way in done.stdout


def test_a_refused_connection_names_token_version_and_network(program, cluster):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
    for address, environment in ((nobody, {}), (cluster.address, {"RAY_AUTH_TOKEN": "0" * 64})):
        done = run_program(program, address, **environment)
        assert f"refuses the connection to {address}" in done.stdout, done.stderr
        for word in ("token", f"Ray {ray.__version__}", "network"):
            assert word in done.stdout


def test_sigterm_stays_with_the_program(tmp_path, cluster):
    path = tmp_path / "program.py"
    path.write_text(
        "import headrace, signal, sys\n"
        "def mine(signum, frame): pass\n"
        "signal.signal(signal.SIGTERM, mine)\n"
        "with headrace.pipe({'backend': 'RayActor(num_cpus=0.1)[Identity]', 'address': sys.argv[1]}):\n"
        "    print(signal.getsignal(signal.SIGTERM) is mine)\n"
    )
    assert run_program(path, cluster.address).stdout == "True\n"


# What dies.


@pytest.mark.parametrize("inside", ["RayInnocent", "RayFragile"])
def test_a_process_that_dies_fails_its_batch_or_runs_its_items_once_more(keys, inside, notes):
    data = ["a", "poison", "b"]
    with headrace.pipe({**keys, "backend": f"RayActor[{inside}]", "max": 4}) as pipe:
        before = built(pipe)["process"]
        with pytest.raises(RequestsFailed) as failed:
            pipe([{"data": one} for one in data])
        assert pipe({"data": "later"})["result"] == "later"
        assert built(pipe)["process"] != before
    errors = failed.value.errors
    lost = [isinstance(one, InstanceLostError) for one in errors]
    assert lost == ([True] * 3 if inside == "RayFragile" else [False, True, False])
    assert "died of signal SIGKILL" in str(errors[1])
    alone = [] if inside == "RayFragile" else ["1 a", "1 poison", "1 b"]
    assert notes() == [*(f"3 {one}" for one in data), *alone, "1 later"]


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_an_item_runs_again_at_most_so_many_times(keys, retries, notes):
    config = {**keys, "backend": "RayActor[RayInnocent]", "retries": retries, "instance_num": 2}
    with headrace.pipe(config) as pipe, pytest.raises(InstanceLostError):
        pipe({"data": "poison"})
    assert notes() == ["1 poison"] * (1 + retries)


def test_the_limit_of_starts_is_told_and_ends_nothing(keys):
    config = {**keys, "backend": "RayActor[RayFragile]", "restart_limit": 0}
    with headrace.pipe(config) as pipe:
        with pytest.raises(InstanceLostError):
            pipe({"data": "poison"})
        assert pipe({"data": "later"})["result"] == "later"
        (node,) = pipe.stats()["processes"].values()
        assert node == {"ended": 1, "failing": True}


def test_nothing_outlives_a_program_that_is_killed(tmp_path, cluster, words, free):
    path = tmp_path / "program.py"
    config = {"import": [words], "num_cpus": 0.1, "address": cluster.address}
    config |= {"backend": "RayActor[RayFragile]", "instance_num": 2}
    path.write_text(
        f"import headrace, os\npipe = headrace.pipe({config!r})\n"
        "print(pipe.describe()['nodes']['main']['tree']['built']['process'], flush=True)\n"
        "input()\n"
    )
    import subprocess
    import sys

    with subprocess.Popen(
        [sys.executable, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        far = int(program.stdout.readline())
        actor = parent_of(far)
        program.kill()
    wait_until_gone(far)
    wait_until_gone(actor)
    free()
