"""The node keys ``require`` and ``invariant``: a node runs only as ``headrace certify`` found it."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

import headrace
from headrace_cli.app import app

BACKEND = '''
import headrace
from pathlib import Path
from {helper} import OFFSET

class Sized(headrace.Backend):
    """Adds a number, and one more in batches of three."""

    max = None

    class Options(headrace.Options):
        model: headrace.FilePath
        add: int = 0

    def init(self, options, ctx):
        self.add = options.add + OFFSET
        self.sizes = ctx.store.pipeline.get_or_create("sizes", set)

    def forward(self, batch):
        self.sizes.add(len(batch))
        for request in batch:
            request["result"] = int(request["data"]) + self.add + (len(batch) == 3)
        BATCHES.append(len(batch))

BATCHES = []
headrace.register("RequireSized", Sized, replace=True)
'''


def certify(*arguments):
    return CliRunner().invoke(app, ["certify", *arguments, "0.txt", "1.txt", "--repeat", "2"])


def problem(source="m.toml"):
    with pytest.raises(headrace.errors.ConfigError) as caught:
        headrace.pipe(source)
    (found,) = caught.value.problems
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A configuration whose model has its weights in a file of their own, and whose backend is in a file and a module."""
    onnx = pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    numbers = onnx.numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")
    values = [onnx.helper.make_tensor_value_info(name, 1, [4]) for name in "xy"]
    add = onnx.helper.make_node("Add", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([add], "add", values[:1], values[1:], [numbers])
    settings = {"location": "m.onnx.data", "size_threshold": 0}
    onnx.save(onnx.helper.make_model(graph), "m.onnx", save_as_external_data=True, **settings)
    for number in range(2):
        Path(f"{number}.txt").write_text(str(number))
    helper = f"require_helper_{tmp_path.name}".replace("-", "_")
    Path(f"{helper}.py").write_text("OFFSET = 0\n")
    Path("mine.py").write_text(BACKEND.replace("{helper}", helper))
    Path("m.toml").write_text(
        'import = ["mine.py"]\nbackend = "RequireSized"\nmodel = "m.onnx"\nmax = 2\nrequire = "m.cert.json"\n'
    )
    return tmp_path


def test_a_certified_configuration_answers_in_any_folder(folder, tmp_path_factory):
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "deep"
    shutil.copytree(folder, elsewhere)
    for place in (folder, elsewhere):
        with headrace.pipe(place / "m.toml") as pipe:
            assert pipe({"data": "20"})["result"] == 20


@pytest.mark.parametrize(
    ("name", "was", "becomes"),
    [("m.onnx", b"add", b"adz"), ("m.onnx.data", b"\0", b"\1"), ("mine.py", b"Adds", b"Adss")],
)
def test_one_changed_byte_of_a_file_is_refused(folder, name, was, becomes):
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    content = Path(name).read_bytes()
    Path(name).write_bytes(content.replace(was, becomes, 1))
    found = problem()
    assert found.code == "certificate"
    assert found.message == f"m.cert.json does not certify this: {name} has changed"
    assert (found.path, Path(found.file).name) == ("main.require", "m.toml")
    Path(name).write_bytes(content)
    headrace.pipe("m.toml").close()


SWAP = """
    def init(self, options, ctx, swap=init):
        swap(self, options, ctx)
        path = options.model.with_name("{name}")
        {swap}
"""

ONCE = "path.write_bytes(path.read_bytes() + b' ')"
THERE_AND_BACK = (
    "was = path.read_bytes(); new = path.with_name('new'); new.write_bytes(b'other'); new.replace(path);"
    " new.write_bytes(was); new.replace(path)"
)
ASIDE_AND_BACK = (
    "aside = path.rename(path.with_name('aside')); path.write_bytes(b'other'); aside.replace(path)"
)
LINK_AND_BACK = (
    "link = path.resolve().parent.parent / 'current'; link.unlink(); link.symlink_to('other');"
    " link.unlink(); link.symlink_to('first')"
)


@pytest.mark.parametrize("name", ["m.onnx", "m.onnx.data", "labels.txt"])
@pytest.mark.parametrize("swap", [ONCE, THERE_AND_BACK, ASIDE_AND_BACK])
def test_a_file_that_is_replaced_while_it_is_loaded_is_refused(folder, name, swap):
    Path("labels.txt").write_text("cat\n")
    text = Path("m.toml").read_text() + 'labels = "labels.txt"\n'
    Path("m.toml").write_text(text)
    content = (
        Path("mine.py")
        .read_text()
        .replace("add: int = 0", "add: int = 0\n        labels: headrace.FilePath")
    )
    more = SWAP.replace("{name}", name).replace("{swap}", f"if SWAPS: {swap}")
    head, _, tail = content.partition("    def forward")
    Path("mine.py").write_text(
        f"{head}{more}\n    def forward{tail}import os\nSWAPS = 'REQUIRE_SWAPS' in os.environ\n"
    )
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    headrace.pipe("m.toml").close()
    config = headrace.PipelineConfig.load("m.toml")
    sys.modules[headrace.plugins.resolve(config).cls.__module__].SWAPS = True
    assert problem(config).message == (
        f"m.cert.json does not certify this: {name} was replaced while it was loaded"
    )


def test_a_link_that_leads_elsewhere_for_a_moment_is_seen(folder):
    for version in ("first", "other"):
        Path(version).mkdir()
        shutil.copy("m.onnx", version)
        shutil.copy("m.onnx.data", version)
    Path("current").symlink_to("first")
    Path("m.toml").write_text(Path("m.toml").read_text().replace('"m.onnx"', '"current/m.onnx"'))
    content = Path("mine.py").read_text()
    head, _, tail = content.partition("    def forward")
    more = SWAP.replace("{name}", "m.onnx").replace("{swap}", f"if SWAPS: {LINK_AND_BACK}")
    Path("mine.py").write_text(f"{head}{more}\n    def forward{tail}SWAPS = False\n")
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    headrace.pipe("m.toml").close()
    config = headrace.PipelineConfig.load("m.toml")
    sys.modules[headrace.plugins.resolve(config).cls.__module__].SWAPS = True
    assert "m.onnx was replaced while it was loaded" in problem(config).message


def test_no_certificate_is_made_of_a_file_that_is_replaced_meanwhile(folder):
    content = Path("mine.py").read_text()
    head, _, tail = content.partition("    def forward")
    more = SWAP.replace("{name}", "m.onnx").replace("{swap}", THERE_AND_BACK)
    Path("mine.py").write_text(f"{head}{more}\n    def forward{tail}")
    done = certify("m.toml", "--output", "m.cert.json")
    assert done.exit_code not in (0, 1)
    assert "m.onnx was replaced while it ran" in done.stderr
    assert not Path("m.cert.json").exists()


def test_an_imported_file_counts_as_it_has_run(folder):
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    certified = Path("mine.py").read_text()
    config = headrace.PipelineConfig.load("m.toml")
    Path("mine.py").write_text(certified.replace("+ self.add", "+ 5 + self.add"))
    with headrace.pipe(config) as pipe:  # of the certified code
        assert pipe({"data": "20"})["result"] == 20
    config = headrace.PipelineConfig.load("m.toml")  # this runs the other one
    Path("mine.py").write_text(certified)
    assert "mine.py has changed" in problem(config).message


def test_one_changed_byte_beside_an_imported_file_is_refused(folder):
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    (helper,) = folder.glob("require_helper*.py")
    helper.write_text("OFFSET = 1\n")
    assert f"{helper.name} has changed" in problem().message


@pytest.fixture
def package(folder):
    """The folder with the backend in a package, whose ``init`` imports another module of it."""
    package = folder / "require_plugin"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "numbers.py").write_text("OFFSET = 0\n")
    (package / "unused.py").write_text("OFFSET = 0\n")
    words = BACKEND.replace("from {helper} import OFFSET\n", "").replace(
        "        self.add =",
        "        from require_plugin.numbers import OFFSET\n        self.add =",
    )
    (package / "words.py").write_text(words)
    text = Path("m.toml").read_text().replace("mine.py", "require_plugin.words")
    Path("m.toml").write_text(text)
    yield package
    unload()


def unload():
    for name in [one for one in sys.modules if one.startswith("require_plugin")]:
        del sys.modules[name]


def test_one_changed_byte_of_a_plugin_is_refused(package):
    """The backend's own module stays: another one of its package changes."""
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    headrace.pipe("m.toml").close()
    (package / "numbers.py").write_text("OFFSET = 1\n")
    assert "this: require_plugin.numbers is in no file, or has changed" in problem().message
    # A new certificate is for what is in the file: this process still has what it has loaded before.
    document = json.loads(Path("m.cert.json").read_text())
    digest = hashlib.sha256(b"OFFSET = 1\n").hexdigest()
    document["modules"]["require_plugin.numbers"] = digest
    Path("m.cert.json").write_text(json.dumps(document))
    assert "numbers is in no file, or has changed since it was loaded" in problem().message


def test_a_module_that_is_not_loaded_yet_is_refused_before_the_build(package):
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    unload()
    headrace.pipe("m.toml").close()
    unload()
    (package / "numbers.py").write_text("OFFSET = 1\n")
    assert "this: require_plugin.numbers has changed" in problem().message
    assert "require_plugin.numbers" not in sys.modules


def test_a_module_that_nothing_has_loaded_does_not_count(package):
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    (package / "unused.py").write_text("OFFSET = 1\n")
    headrace.pipe("m.toml").close()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("max = 2", "max = 3"), "the configuration is another one"),
        (('"m.onnx"', '"other.onnx"'), "it reads mine.py, require_helper"),
        (('"m.onnx"', '"m.onnx"\nadd = 1'), "the configuration is another one"),
    ],
)
def test_another_configuration_is_refused(folder, change, says):
    shutil.copy("m.onnx", "other.onnx")
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    Path("m.toml").write_text(Path("m.toml").read_text().replace(*change))
    assert says in problem().message


def test_neither_probes_nor_the_form_of_a_configuration_count(folder):
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    Path("other.toml").write_text(
        'extends = "m.toml"\n[global]\nprobes = ["Trace", "ElementTimes"]\n'
    )
    headrace.pipe("other.toml").close()
    done = CliRunner().invoke(app, ["trace", "m.toml", "0.txt"])
    assert done.exit_code == 0, done.stderr
    Path("other.toml").write_text('extends = "m.toml"\nbatch_sizes = [1, 2]\n')
    assert "the configuration is another one" in problem("other.toml").message


def test_a_module_that_a_text_names_counts(folder, monkeypatch):
    module = f"{next(folder.glob('require_helper*.py')).stem}_function"
    Path(f"{module}.py").write_text("def twice(data):\n    return 2 * int(data)\n")
    config = {"backend": f"Call({module}:twice)", "require": "m.cert.json"}
    Path("m.toml").write_text("".join(f'{key} = "{one}"\n' for key, one in config.items()))
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    headrace.pipe("m.toml").close()
    Path(f"{module}.py").write_text("def twice(data):\n    return 3 * int(data)\n")
    assert f"this: {module}.py has changed" in problem().message


def test_a_backend_in_no_file_cannot_be_certified(folder):
    found = {}
    exec("import headrace\nclass Nowhere(headrace.Backend):\n    def forward(self, batch):\n"
         "        for one in batch:\n            one['result'] = 1\n", {"__name__": "of_no_file"}, found)  # fmt: skip
    headrace.register("RequireNowhere", found["Nowhere"], replace=True)
    Path("m.toml").write_text('backend = "RequireNowhere"\nrequire = "m.cert.json"\n')
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    assert "this: of_no_file is in no file" in problem().message


def test_the_value_of_a_placeholder_counts(folder, monkeypatch):
    Path("m.toml").write_text(Path("m.toml").read_text() + 'add = "${REQUIRE_ADD}"\n')
    monkeypatch.setenv("REQUIRE_ADD", "1")
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    headrace.pipe("m.toml").close()
    monkeypatch.setenv("REQUIRE_ADD", "2")
    assert "the configuration is another one" in problem().message


@pytest.mark.parametrize(
    ("keys", "value", "says"),
    [
        (("versions", "headrace"), "0.0.9", "headrace was 0.0.9, here it is "),
        (("versions", "numpy-of-old"), "1.0", "numpy-of-old was 1.0, here it is missing"),
        (("python",), "2.7", "python was 2.7, here it is 3."),
        (("machine",), "Linux vax", "machine was Linux vax, here it is"),
        (("agrees",), False, "its results differ, as headrace certify says"),
        (("external_data",), False, "cannot be compared without onnx"),
    ],
)
def test_what_a_certificate_says_of_a_machine_is_compared(folder, keys, value, says):
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    document = json.loads(Path("m.cert.json").read_text())
    *tables, key = keys
    table = document[tables[0]] if tables else document
    table[key] = value
    Path("m.cert.json").write_text(json.dumps(document))
    assert says in problem().message


def test_an_error_names_three_differences_and_counts_the_others(folder):
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    document = json.loads(Path("m.cert.json").read_text())
    document["versions"] = dict.fromkeys(document["versions"], "0")
    Path("m.cert.json").write_text(json.dumps(document))
    assert problem().message.endswith(f"; and {len(document['versions']) - 3} more")


PARTS = ("agrees", "compared", "sizes", "outputs", "config_sha256", "files", "external_data",
         "modules", "versions", "python", "machine", "gpu")  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "value", "says"),
    [
        *(((part,), None, f"{part}: Field required") for part in PARTS),
        (("modules",), [], "modules: Input should be a valid dictionary"),
        (("outputs",), "null", "outputs: Input should be a valid dictionary"),
        (("sizes",), "x", "sizes: Input should be a valid list"),
        (("sizes",), [0], "sizes.0: Input should be greater than or equal to 1"),
        (("agrees",), 1, "agrees: Input should be a valid boolean"),
        (("files", "m.onnx"), 7, "files.m.onnx: Input should be a valid string"),
        (("outputs", "result", "verdict"), "good", "outputs.result.verdict: Input should be"),
        (("gpu",), {}, "gpu.driver: Field required; gpu.cuda: Field required; gpu.devices: Field required; and 2 more"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("invariant", ["", "invariant = true\n"])
def test_each_part_of_a_certificate_is_checked_and_its_place_told(
    folder, invariant, keys, value, says
):
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    Path("m.toml").write_text(Path("m.toml").read_text() + invariant)
    document = json.loads(Path("m.cert.json").read_text())
    *tables, key = keys
    table = document
    for name in tables:
        table = table[name]
    if value is None:
        del table[key]
    else:
        table[key] = None if value == "null" else value
    Path("m.cert.json").write_text(json.dumps(document))
    assert f"is no certificate of headrace certify: {says}" in problem().message


@pytest.mark.parametrize("content", ["[]", "null", "7", '"certify"'])
def test_json_that_is_no_table_is_no_certificate(folder, content):
    Path("m.cert.json").write_text(content)
    assert "is no certificate of headrace certify: the whole file" in problem().message


def test_a_file_that_is_no_certificate_is_found_by_check(folder):
    runner = CliRunner()
    done = runner.invoke(app, ["check", "m.toml"])
    assert done.exit_code == 2
    assert "no such file" in done.stderr
    Path("m.cert.json").write_text("{}")
    done = runner.invoke(app, ["check", "m.toml"])
    assert done.exit_code == 2
    assert "is no certificate of headrace certify" in done.stderr
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    assert runner.invoke(app, ["check", "m.toml"]).exit_code == 0


@pytest.fixture
def dependent(folder):
    """The same with batches of up to four, of which three have another result; certified."""
    text = Path("m.toml").read_text().replace("max = 2", "max = 4")
    Path("m.toml").write_text(text)
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 1
    return text


def test_an_invariant_node_forms_batches_of_the_sizes_that_agree(dependent):
    assert "its results differ" in problem().message
    Path("m.toml").write_text(dependent + "invariant = true\n")
    explained = headrace.explain("m.toml")["nodes"]["main"]
    assert explained["keys"]["batch_sizes"] == {"value": [1, 2, 4], "origin": "node"}
    with headrace.pipe("m.toml") as pipe:
        answers = pipe([{"data": str(number)} for number in range(7)])
        assert [one["result"] for one in answers] == [*range(7)]
        assert pipe.stats()["nodes"]["main"]["batch_size"]["histogram"].keys() <= {
            1,
            2,
            4,
            "1",
            "2",
            "4",
        }
    # It can be certified again, in every size.
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 1
    assert json.loads(Path("m.cert.json").read_text())["sizes"] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"compared": "lists"}, "the certificate compares lists, not batches"),
        ({"sizes": [3]}, "no size has results that agree"),
        ({"outputs": {"result": {"verdict": "random", "reference": None}}}, "no size makes result"),
        (
            {"outputs": {"result": {"verdict": "equal", "reference": {"agrees": False}}}},
            "no size makes result agree",
        ),
    ],
)
def test_sizes_are_taken_only_from_results_that_can_agree(dependent, change, says):
    document = json.loads(Path("m.cert.json").read_text())
    outputs = {
        "result": {**document["outputs"]["result"], **change.pop("outputs", {}).get("result", {})}
    }
    Path("m.cert.json").write_text(json.dumps({**document, "outputs": outputs, **change}))
    Path("m.toml").write_text(dependent + "invariant = true\n")
    assert says in problem().message


def test_invariant_alone_is_an_error():
    found = problem({"backend": "Identity", "invariant": True})
    assert (found.code, found.message) == ("missing_option", "invariant needs the option 'require'")


# GPUs, told by fakes of the libraries: the first device has the context of this process.


def fake_driver(name="Fake 100", active=(1, 0)):
    kinds = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major",
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor",
    )
    attributes = {"major": 9, "minor": 0}
    return SimpleNamespace(
        CUresult=SimpleNamespace(CUDA_SUCCESS=0),
        CUdevice_attribute=kinds,
        cuInit=lambda flags: (0,),
        cuDeviceGetCount=lambda: (0, len(active)),
        cuDeviceGet=lambda index: (0, index),
        cuDevicePrimaryCtxGetState=lambda device: (0, 0, active[device]),
        cuDeviceGetName=lambda size, device: (0, f"{name} #{device}".encode() + b"\0"),
        cuDeviceGetAttribute=lambda kind, device: (0, attributes[kind]),
        cuDriverGetVersion=lambda: (0, 12080),
    )


def fake_nvml(version):
    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: version,
    )


def test_the_gpu_that_was_used_is_in_the_certificate_and_compared(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", fake_driver())
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml("570.1"))
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    gpu = json.loads(Path("m.cert.json").read_text())["gpu"]
    assert gpu["devices"] == [{"name": "Fake 100 #0", "compute_capability": "9.0"}]
    assert (gpu["driver"], gpu["cuda"]) == ("570.1", "12.8")
    assert gpu["precision"]["NVIDIA_TF32_OVERRIDE"] == "0"
    # Before a build no device is in use yet.
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", fake_driver(active=(0, 0)))
    headrace.pipe("m.toml").close()
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE")
    assert "NVIDIA_TF32_OVERRIDE was 0, here it is missing" in problem().message
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml("580.2"))
    assert "driver was 570.1, here it is 580.2" in problem().message
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml("570.1"))
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", fake_driver("Other", active=(0,)))
    assert "there is no Fake 100 #0 (9.0) here" in problem().message
    monkeypatch.delitem(sys.modules, "cuda.bindings.driver")
    assert "there is no Fake 100 #0 here" in problem().message


def test_a_gpu_that_was_not_used_is_in_no_certificate(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", fake_driver(active=(0,)))
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    assert json.loads(Path("m.cert.json").read_text())["gpu"] is None


def test_torch_tells_of_a_gpu_and_how_exactly_it_multiplies(folder, monkeypatch):
    flags = SimpleNamespace(allow_tf32=True)
    properties = SimpleNamespace(name="Fake 100", major=9, minor=0)
    cuda = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 1,
        get_device_properties=lambda index: properties,
    )
    torch = SimpleNamespace(
        cuda=cuda,
        version=SimpleNamespace(cuda="13.0"),
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=flags), cudnn=flags),
        are_deterministic_algorithms_enabled=lambda: False,
    )
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert certify("m.toml", "--output", "m.cert.json").exit_code == 0
    gpu = json.loads(Path("m.cert.json").read_text())["gpu"]
    assert gpu["devices"] == [{"name": "Fake 100", "compute_capability": "9.0"}]
    assert (gpu["driver"], gpu["cuda"]) == (None, "13.0")
    headrace.pipe("m.toml").close()
    flags.allow_tf32 = False
    what = "torch.backends.cuda.matmul.allow_tf32 was True, here it is False"
    assert what in problem().message
