"""Our own wheels pass our own kit: each distribution with backends, installed as a user has it, not editable."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import distributions
import installed
import pytest
from processes import run_process

from headrace_testing.conformance import rules

pytestmark = pytest.mark.slow

BACKENDS = {
    table["name"]: sorted(table["entry-points"]["headrace.backends"])
    for table in map(distributions.project, distributions.folders())
    if "headrace.conformance" in table.get("entry-points", {})
    and table["name"] != "headrace-testing"
}
"""Per distribution its backends; tests/test_conformance.py judges the words of core."""
NEEDS = {"headrace-torch": "torch", "headrace-ray": "ray"}
"""What `./dev test torch` and `./dev test ray` judge, whose environments have the library."""
ON_A_GPU = {"headrace-torch", "headrace-trt"}
"""Some of their backends are judged only as far as their classes go, where there is no GPU."""
BESIDE_OTHERS = {"TritonEnsemble"}
"""They call the other models of a server, which the kit has not, and are judged as far as their classes go as well."""


@pytest.fixture(scope="session")
def programs(wheels, tmp_path_factory) -> Path:
    """The folder of programs of an environment with all wheels."""
    return installed.make(wheels["headrace"].parent, tmp_path_factory.mktemp("installed") / "env")


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_what_is_installed_from_a_wheel_is_certified(name, programs, tmp_path):
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed here")
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = run_process(
        [programs / "headrace", "conformance", name, "--json"], cwd=tmp_path, env=environ
    )
    certificates = json.loads(done.stdout)["certificates"]
    broken = {
        (one["backend"], rule["id"]): (rule["outcome"], rule["detail"])
        for one in certificates
        for rule in one["rules"]
        if rule["outcome"] in ("failed", "blocked", "unexpected_pass")
    }
    assert broken == {}
    assert [one["problem"] for one in certificates if one["problem"]] == []
    assert [len(one["rules"]) for one in certificates] == [len(rules())] * len(BACKENDS[name])
    not_certified = [one for one in certificates if not one["certified"]]
    assert all(
        one["unavailable"] and (name in ON_A_GPU or one["backend"] in BESIDE_OTHERS)
        for one in not_certified
    )
    assert done.returncode == bool(not_certified), done.stderr


def test_what_is_installed_there_is_not_what_lies_in_the_repository(programs, tmp_path):
    ask = "import headrace, headrace_ort, headrace_tensors as t; print(headrace.__file__, headrace_ort.__file__, t.__file__)"
    said = subprocess.check_output([programs / "python", "-c", ask], cwd=tmp_path, text=True)
    places = [Path(one).parents[1] for one in said.split()]
    assert len({*places}) == 1
    assert programs.parent in places[0].parents
