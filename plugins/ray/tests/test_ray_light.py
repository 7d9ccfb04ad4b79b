"""What needs no cluster, and no Ray: names, options, checks."""

import sys

import pytest
from processes import run_process

import headrace
from headrace.errors import ConfigError

pytestmark = pytest.mark.first(
    "use other processes and machines: an actor of Ray is checked where there is no Ray"
)

BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "ray":
            raise ImportError("no ray here")
sys.meta_path.insert(0, Block())
"""


def run(code, folder):
    command = [sys.executable, "-W", "error", "-c", BLOCKED + code]
    return run_process(command, cwd=folder)


@pytest.mark.parametrize(
    "command",
    [
        ["check", "config.toml"],
        ["explain", "config.toml"],
        ["plugins", "list"],
        ["plugins", "info", "RayActor"],
    ],
)
def test_commands_that_only_look_import_no_ray(command, tmp_path):
    (tmp_path / "config.toml").write_text(
        'backend = "RayActor[Identity]"\nnum_gpus = 1\ninstance_num = 3\nplacement = "spread"\n'
    )
    code = f"from headrace.__main__ import main; sys.argv[1:] = {command!r}; sys.exit(main())"
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_pipeline_without_ray_says_what_is_missing(tmp_path):
    code = "import headrace; headrace.pipe({'backend': 'RayActor[Identity]'})"
    done = run(code, tmp_path)
    assert done.returncode == 1
    assert "MissingDependencyError: RayActor needs a library that cannot be imported" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_cpus": 0}, "asks for nothing"),
        ({"num_cpus": -1}, "num_cpus"),
        ({"resources": {"disk": 0}}, "disk must be more than 0"),
        ({"resources": {"GPU": 1}}, "GPU is the option num_gpus"),
        ({"placement": "strict_pack"}, "placement"),
        ({"retries": -1}, "retries"),
        ({"placement_timeout_s": 0}, "placement_timeout_s"),
        ({"files": "elsewhere"}, "files"),
        ({"num_gpu": 1}, "num_gpus"),
    ],
)
def test_options_that_mean_nothing_are_refused_without_a_cluster(options, said):
    with pytest.raises(ConfigError) as refused:
        headrace.PipelineConfig.load({"backend": "RayActor[Identity]", **options})
    assert said in str(refused.value)
