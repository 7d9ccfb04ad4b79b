"""Simulated machines that fail: cases worked out by hand, on the virtual clock."""

from __future__ import annotations

import json
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headrace
from headrace.errors import InputError, SetupError
from headrace_cli.app import app
from headrace_observe.service_times import ServiceTimes
from headrace_observe.simulate import simulation_of
from headrace_observe.simulated_cluster import (
    ClusterFile,
    SimulatedCluster,
    cluster_of,
    read_cluster,
)

pytestmark = pytest.mark.skipif(not find_spec("headrace_ray"), reason="needs headrace-ray")

SECONDS = {"main": ServiceTimes("main", {1: [4000.0], 2: [4000.0]}, "here")}
CONFIG = {"backend": "RayActor[Identity]"}  # away after 3 s


def file(*machines, **nodes):
    return ClusterFile.model_validate({"machines": machines, "nodes": nodes})


def simulated(cluster, arrivals, **keys):
    config = headrace.PipelineConfig.load({**CONFIG, **keys})
    run = simulation_of(config, SECONDS, cluster=cluster)
    return run.open_loop(arrivals, {"kind": "open"}, 0), run


def ends_of(run):
    return [ended for ended, _ in run.seen.answers]


@pytest.fixture
def fails_at(monkeypatch):
    """Return a function that sets after how many seconds each machine fails, in their order; later never."""

    def choose(*times):
        left = list(times)
        monkeypatch.setattr(
            SimulatedCluster,
            "until_failure_s",
            staticmethod(lambda machine, draw: left.pop(0) if left else None),
        )

    return choose


TWO = {"count": 2, "num_cpus": 1}


def test_machines_that_do_not_fail_change_nothing():
    found, _ = simulated(file(TWO), [0.0, 1.0, 20.0])
    config = headrace.PipelineConfig.load(CONFIG)
    plain = simulation_of(config, SECONDS).open_loop([0.0, 1.0, 20.0], {"kind": "open"}, 0)
    assert found.latency_ms == plain.latency_ms
    assert found.more["cluster"] == {"machines": 2, "machines_lost": 0, "rerun": 0}


def test_what_runs_on_a_machine_that_fails_fails_and_the_next_waits_for_the_new_instance(fails_at):
    fails_at(5.0, None)
    # Runs from 4 s; the machine fails at 5; that is seen at 8; built on the other at 10; runs until 14.
    _, run = simulated(file(TWO, main={"build_s": 2}), [4.0, 6.0])
    assert run.seen.failed == [(8.0, "instance_lost")]
    assert ends_of(run) == [14.0]
    assert run.seen.answers == [(14.0, 8.0)]


def test_with_rerun_it_runs_once_more_before_the_others(fails_at):
    fails_at(5.0, None)
    found, run = simulated(file(TWO, main={"build_s": 2, "rerun": True}), [4.0, 6.0])
    assert run.seen.failed == []
    assert ends_of(run) == [14.0, 18.0]
    assert found.more["cluster"] == {"machines": 2, "machines_lost": 1, "rerun": 1}


@pytest.mark.parametrize(("retries", "failed"), [(0, 1), (1, 1), (2, 0)])
def test_it_runs_again_at_most_as_often_as_the_option_says(fails_at, retries, failed):
    fails_at(1.0, 5.0, None)  # both machines, one after the other, while the request runs
    cluster = file({**TWO, "count": 3}, main={"rerun": True})
    _, run = simulated(cluster, [0.0], retries=retries)
    assert len(run.seen.failed) == failed
    assert len(run.seen.answers) == 1 - failed


def test_without_room_an_instance_waits_until_a_machine_is_back(fails_at):
    fails_at(5.0)
    cluster = file({"count": 1, "num_cpus": 1, "repair_s": 100}, main={"build_s": 2})
    _, run = simulated(cluster, [4.0, 6.0])
    assert run.seen.failed == [(8.0, "instance_lost")]
    assert ends_of(run) == [111.0]  # 5 + 100 + 2 + 4


def test_the_other_instance_goes_on_meanwhile(fails_at):
    fails_at(0.5, None)
    cluster = file(TWO, main={"build_s": 1000})
    _, run = simulated(cluster, [0.0, 1.0, 2.0], instance_num=2, placement="spread")
    assert [at for at, _ in run.seen.failed] == [3.5]
    assert ends_of(run) == [5.0, 9.0]


def test_every_request_has_one_outcome_however_often_machines_fail():
    kind = {"count": 4, "num_cpus": 1, "failures_per_hour": 60, "repair_s": 30}
    arrivals = [k * 1.5 for k in range(2000)]
    for rerun in (False, True):
        cluster = file(kind, main={"build_s": 5, "rerun": rerun})
        found, run = simulated(cluster, arrivals, instance_num=4, placement="strict_spread")
        assert len(run.seen.answers) + len(run.seen.failed) == len(arrivals)
        assert found.more["cluster"]["machines_lost"] > 20
        assert {code for _, code in run.seen.failed} <= {"instance_lost", "overloaded"}
        assert (found.more["cluster"]["rerun"] > 0) is rerun


# Where instances are.


def held(cluster):
    return sorted(len(one.held) for one in cluster.machines)


@pytest.mark.parametrize(
    ("placement", "where"),
    [("pack", [0, 1, 4]), ("spread", [1, 2, 2])],
)
def test_instances_are_packed_or_spread(placement, where):
    config = headrace.PipelineConfig.load({**CONFIG, "instance_num": 5, "placement": placement})
    cluster = cluster_of(config.plan().nodes, file({"count": 3, "num_cpus": 4}))
    assert held(cluster) == where
    assert Counter(name for one in cluster.machines for name, _ in one.held) == {"main": 5}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"instance_num": 4, "placement": "strict_spread"}, "a machine for each instance"),
        ({"instance_num": 13}, r"13 x \(1 CPU\), pack, of 12 CPU on 3 machines"),
        ({"num_gpus": 1}, r"1 GPU\), pack, of 12 CPU, 0 GPU"),
        ({"backend": "Identity"}, "no node of the configuration lives on a cluster"),
    ],
)
def test_a_cluster_without_room_is_refused(keys, said):
    config = headrace.PipelineConfig.load({**CONFIG, **keys})
    with pytest.raises(SetupError, match=said):
        cluster_of(config.plan().nodes, file({"count": 3, "num_cpus": 4}))


def test_a_node_that_there_is_not_is_refused():
    config = headrace.PipelineConfig.load(CONFIG)
    with pytest.raises(InputError, match=r"nodes\.model: the configuration has the nodes main"):
        cluster_of(config.plan().nodes, file(TWO, model={}))


# The command.

TOML = """
[[machines]]
count = 3
num_cpus = 2
failures_per_hour = 3600
repair_s = 10

[nodes.main]
build_s = 1
rerun = true
"""


def test_the_command_says_that_the_cluster_is_simulated(tmp_path):
    (tmp_path / "ray.toml").write_text('backend = "RayActor[Identity]"\n')
    (tmp_path / "times.json").write_text('{"main": {"1": 2.0}}')
    (tmp_path / "cluster.toml").write_text(TOML)
    command = ["simulate", str(tmp_path / "ray.toml"), "--times", str(tmp_path / "times.json")]
    command += ["--cluster", str(tmp_path / "cluster.toml"), "--rate", "10", "--requests", "500"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert "simulated cluster of 3 machines" in text
    figures = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    (point,) = figures["configurations"][0]["points"]
    assert point["simulated"] is True
    assert point["cluster"]["machines_lost"] > 0


PAGE = Path(__file__).resolve().parents[3] / "docs" / "machines.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the page is in the repository alone")
def test_the_cluster_of_the_page_is_simulated(tmp_path):
    (text,) = re.findall(r"```toml\n(# cluster.toml.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "cluster.toml").write_text(text)
    config = {**CONFIG, "num_gpus": 1, "instance_num": 800}
    loaded = headrace.PipelineConfig.load(config)
    cluster = read_cluster(tmp_path / "cluster.toml")
    run = simulation_of(loaded, SECONDS, cluster=cluster)
    found = run.open_loop([k / 100 for k in range(1000)], {"kind": "open"}, 0)
    assert found.more["cluster"]["machines"] == 100
    assert len(run.seen.answers) == 1000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "machines"),
        ("[[machines]]\ncount = 0", r"machines\.0\.count"),
        ("[[machines]]\ncount = 1\nnum_cpu = 1", r"machines\.0\.num_cpu"),
        ("[[machines", "cannot be read as TOML"),
    ],
)
def test_a_file_that_describes_no_cluster_is_refused(tmp_path, text, said):
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_cluster(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_cluster(tmp_path / "none.toml")
