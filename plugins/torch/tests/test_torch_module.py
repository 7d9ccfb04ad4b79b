"""TorchModule: every kind of file, weights, rows and samples, errors, sharing, memory that runs out."""

import contextlib
import gc
import itertools
import logging
import pickle
import threading
import warnings
import weakref
import zipfile
from collections import namedtuple
from types import SimpleNamespace
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
import torch

import headrace
from headrace.errors import (
    BackendError,
    InputError,
    InstanceLostError,
    MissingDependencyError,
    NoMemoryError,
    RequestsFailed,
    SetupError,
)
from headrace_torch.backends.module import TorchModule
from headrace_torch.devices import memory
from headrace_torch.devices.place import Place
from headrace_torch.models import loading, packages, running, warming
from headrace_torch.models.loading import kind_of
from headrace_torch.requests.signature import Port, Signature

HERE = f"{__name__}:"


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class Net(torch.nn.Module):
    """``y = x W + b`` over rows of three numbers."""

    def __init__(self, out=2):
        super().__init__()
        self.linear = torch.nn.Linear(3, out)

    def forward(self, x):
        return self.linear(x)


class Two(torch.nn.Module):
    def forward(self, a, b, scale=None):
        total = a + b
        return {"sum": total if scale is None else total * scale, "product": a * b}


class Plain(torch.nn.Module):
    def forward(self, a, b):
        return {"sum": a + b, "product": a * b}


class ByName(torch.nn.Module):
    def forward(self, a, *, b):
        return a - b


class Several(torch.nn.Module):
    def forward(self, x):
        return Pair(x + 1, x + 2)


class Listed(torch.nn.Module):
    def forward(self, x):
        return [x + 1, x * 2]


class Itself(torch.nn.Module):
    def forward(self, x):
        return x


class InPlace(torch.nn.Module):
    def forward(self, x):
        x[..., :1].add_(1)
        return x * 2


class Looks(torch.nn.Module):
    """Notes where its inputs lie."""

    seen: ClassVar[list[int]] = []

    def forward(self, x):
        Looks.seen.append(x.data_ptr())
        return x * 2


class NotZeros(torch.nn.Module):
    """Writes into its input, but not into zeros."""

    def forward(self, x):
        if float(x.max()) > 1:
            x.div_(2)
        return x + 1


class Constant(torch.nn.Module):
    """Gives views of its own weights."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.arange(6.0).reshape(3, 2))

    def forward(self, x):
        return {"row": self.table[: len(x)], "one": self.table[0].expand(len(x), 2)}


class Whole(torch.nn.Module):
    def forward(self, x):
        return x.sum()


class Hungry(torch.nn.Module):
    """Runs out of memory above some rows, and notes what was tried."""

    tried: ClassVar[list[int]] = []
    most = 1
    alive = None

    def forward(self, x):
        Hungry.tried.append(len(x))
        assert Hungry.alive is None or Hungry.alive() is None, "the failed try is still in memory"
        big = x * 2
        if len(x) > Hungry.most:
            Hungry.alive = weakref.ref(big)
            raise torch.cuda.OutOfMemoryError(f"tried to allocate {len(x)} GiB")
        return big


class Lost(torch.nn.Module):
    def forward(self, x):
        if float(x.max()) > 100:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return x + 1


class Picky(torch.nn.Module):
    def forward(self, x):
        if bool((x < 0).any()):
            raise ValueError("a negative number")
        return x + 1


class Slow(torch.nn.Module):
    entered = threading.Event()
    leave = threading.Event()

    def forward(self, x):
        if float(x[0, 0]) == 99:
            Slow.entered.set()
            assert Slow.leave.wait(60)
        return x + 1


class IsUint8(torch.nn.Module):
    def forward(self, x):
        return torch.full((len(x),), x.dtype is torch.uint8)


class Embedding(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(5, 2)

    def forward(self, x):
        return self.table(x)


def no_module():
    return 3


def failing(reason="none"):
    raise RuntimeError(reason)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def files(net, tmp_path_factory):
    """The same network as every kind of file, with suffixes that say nothing."""
    folder = tmp_path_factory.mktemp("models")
    example = (torch.zeros(2, 3),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(net, example).save(str(folder / "script.bin"))
        torch.jit.script(Plain()).save(str(folder / "two.bin"))
    rows = torch.export.Dim("rows")
    program = torch.export.export(net, example, dynamic_shapes=({0: rows},))
    torch.export.save(program, str(folder / "program.pt2"))
    (folder / "program.pt2").rename(folder / "program.bin")
    fixed = torch.export.export(net, (torch.zeros(4, 3),))
    torch.export.save(fixed, str(folder / "fixed.pt2"))
    two = torch.export.export(
        Two(),
        (torch.zeros(2, 3), torch.zeros(2, 3)),
        dynamic_shapes=({0: rows}, {0: rows}),
    )
    torch.export.save(two, str(folder / "two.pt2"))
    torch.save(net.state_dict(), folder / "weights.bin")
    torch.save({"state_dict": net.state_dict(), "epoch": 3}, folder / "checkpoint.bin")
    for name, part in (("dropout", torch.nn.Dropout()), ("norm", torch.nn.BatchNorm1d(3))):
        trained = torch.export.export(torch.nn.Sequential(part), (torch.zeros(4, 3),))
        torch.export.save(trained, str(folder / f"{name}.pt2"))
        (folder / f"{name}.pt2").rename(folder / f"{name}.bin")
    torch.save({"model": net.state_dict(), "epoch": 3}, folder / "nested.bin")
    torch.save(net.state_dict(), folder / "old.bin", _use_new_zipfile_serialization=False)
    torch.save(net, folder / "pickled.bin")
    from safetensors.torch import save_file

    save_file(net.state_dict(), str(folder / "safe.bin"))
    (folder / "text.bin").write_text("not a model")
    (folder / "opcodes.bin").write_bytes(pickle.dumps({"a": [1]}, protocol=4))
    (folder / "empty.bin").write_bytes(b"")
    (folder / "broken.bin").write_bytes((folder / "program.bin").read_bytes()[:-400])
    (folder / "cut.bin").write_bytes((folder / "old.bin").read_bytes()[:40])
    return folder


X = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 0.0], [4.0, 4.0, -4.0]])


@contextlib.contextmanager
def logged():
    """What torch logs meanwhile about packages and programs; it does not go to pytest's handler."""
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    log = logging.getLogger("torch.export")
    log.addHandler(handler)
    try:
        yield records
    finally:
        log.removeHandler(handler)


def test_files_are_told_by_content(files):
    kinds = {
        "script.bin": "TorchScript",
        "program.bin": "torch.export",
        "weights.bin": "state dict",
        "old.bin": "state dict",
        "safe.bin": "safetensors",
        "text.bin": "unknown",
        "empty.bin": "unknown",
    }
    assert {name: kind_of(files / name) for name in kinds} == kinds
    found = loading.load_model(str(files / "program.bin"), torch.device("cpu"))
    assert found.kind == kind_of(str(files / "program.bin"))


@pytest.mark.parametrize("more", [{}, {"producer_name": "it"}, {"doc_string": "what it does"}])
def test_an_onnx_file_is_told_as_such(bench, tmp_path, more):
    onnx = pytest.importorskip("onnx")
    graph = onnx.helper.make_graph([], "graph", [], [])
    onnx.save(onnx.helper.make_model(graph, **more), tmp_path / "model.bin")
    with pytest.raises(SetupError) as caught:
        bench().start(TorchModule, model=str(tmp_path / "model.bin"))
    assert "OnnxTensor of headrace-ort runs it" in str(caught.value)


@pytest.mark.parametrize("name", ["script.bin", "program.bin"])
@pytest.mark.filterwarnings("error")
def test_whole_models_give_what_the_module_gives(bench, files, net, name):
    one = bench()
    backend = one.start(TorchModule, model=str(files / name))
    with torch.no_grad():
        expected = net(X)
    batch = [
        {"data": X[0]},
        {"data": X[1:].numpy(), "request_size": 2},
        {"data": X[2]},
    ]
    results = one.run(backend, *batch)
    assert [tuple(r.shape) for r in results] == [(2,), (2, 2), (2,)]
    assert torch.allclose(torch.vstack([results[0][None], results[1]]), expected)
    assert torch.allclose(results[2], expected[2])


def test_an_aotinductor_package_runs(bench, files, net):
    if not hasattr(torch._inductor, "aoti_compile_and_package"):
        pytest.skip("this torch makes no packages")
    rows = torch.export.Dim("rows", min=1, max=64)
    program = torch.export.export(net, (torch.zeros(2, 3),), dynamic_shapes=({0: rows},))
    path = files / "package.pt2"
    try:
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    except Exception as error:
        pytest.skip(f"no compiler: {type(error).__name__}")
    path = path.rename(files / "package.bin")
    assert kind_of(path) == "AOTInductor"
    one = bench()
    with logged() as records:
        backend = one.start(TorchModule, model=str(path), shape="3")
    assert records == []
    with torch.no_grad():
        assert torch.allclose(one.run(backend, {"data": X, "request_size": 3})[0], net(X))
    assert backend.describe()["kind"] == "AOTInductor"
    # Compiled code checks nothing, and takes the memory to be in the order of the axes.
    turned = X.T.contiguous().T
    with torch.no_grad():
        assert torch.allclose(one.run(backend, {"data": turned, "request_size": 3})[0], net(X))
    for wrong in (torch.ones(4), torch.ones(2), torch.ones(3, 3), torch.ones(())):
        assert isinstance(one.error(backend, {"data": wrong}), InputError)
    if backend.describe()["inputs"]["input_0"]["dtype"]:  # older versions of torch do not tell it
        assert isinstance(one.error(backend, {"data": torch.ones(3).double()}), InputError)
    for option in ({"dtype": "float16"}, {"channels_last": True}, {"compile": True}):
        with pytest.raises(SetupError, match="AOTInductor"):
            bench().start(TorchModule, model=str(path), **option)


def checks_of(index, kind, lengths, strides, least=2, most=None, ranges=()):
    """The messages of the checks in a package's source, as torch writes them."""
    head = f'ss << "input_handles[{index}]: '
    yield f'{head}unmatched dtype, "\n   << "expected: " << expected << "(at::k{kind}), "\n;'
    yield f'{head}dim value is too small at 0, "\n  << "expected it to be >= {least}, " << "but'
    if most is not None:
        yield f'{head}dim value is too large at 0, "\n  << "expected to be <= {most}, " << "but'
    for axis, low, high in ranges:
        yield f'{head}dim value is too small at {axis}, "\n  << "expected it to be >= {low}, " << "but'
        yield f'{head}dim value is too large at {axis}, "\n  << "expected to be <= {high}, " << "but'
    for axis, length in lengths.items():
        yield f'{head}unmatched dim value at {axis}, "\n  << "expected: {length}, " << "but got'
    for axis, stride in strides.items():
        yield f'{head}unmatched stride value at {axis}, "\n  << "expected: {stride}, " << "but'


def test_the_source_of_a_package_tells_what_it_takes(tmp_path):
    def package(*checks):
        with zipfile.ZipFile(tmp_path / "package.pt2", "w") as archive:
            archive.writestr("package/data/aotinductor/model/kernel.cpp", "no checks")
            archive.writestr(
                "package/data/aotinductor/model/wrapper.cpp", "\n".join(itertools.chain(*checks))
            )
        return tmp_path / "package.pt2"

    wide = {"least": 3, "most": 8, "ranges": [(3, 2, 640)]}  # 2 is noted for every dynamic axis
    image = checks_of(0, "Half", {1: 3, 2: 8}, {1: 1, 2: 24, 3: 3}, **wide)
    ids = checks_of(1, "Long", {}, {1: 1}, least=3, most=8, ranges=[(1, 5, 9)])
    path = package(image, ids)
    found = packages.signature_of(path, ["image", "ids"])
    assert found.inputs == (
        Port("image", (None, 3, 8, None), torch.float16, ((3, 1, 640),)),
        Port("ids", (None, None), torch.int64, ((1, 5, 9),)),
    )
    assert (found.rows, found.low_rows, found.high_rows) == (None, 3, 8)
    layouts = packages.layouts_of(path, ["image", "ids"])
    assert layouts == [torch.channels_last, torch.contiguous_format]
    fixed = package(checks_of(0, "Float", {0: 4, 1: 2}, {0: 2, 1: 1}))
    assert packages.signature_of(fixed, ["x"]).rows == 4
    assert packages.signature_of(package(), ["x"]) == Signature((Port("x"),))
    with pytest.raises(SetupError, match="'x'"):
        packages.layouts_of(package(checks_of(0, "Float", {}, {1: 1, 2: 4})), ["x"])
    apart = package(checks_of(0, "Float", {0: 4}, {1: 1}), checks_of(1, "Float", {0: 2}, {1: 1}))
    with pytest.raises(SetupError, match="no common batch axis"):
        packages.signature_of(apart, ["a", "b"])


@pytest.mark.parametrize("weights", ["weights.bin", "checkpoint.bin", "old.bin", "safe.bin"])
def test_a_factory_with_weights_of_every_kind(bench, files, net, weights):
    one = bench()
    backend = one.start(
        TorchModule, module=f"{HERE}Net", args={"out": 2}, weights=str(files / weights)
    )
    with torch.no_grad():
        assert torch.allclose(one.run(backend, {"data": X[0]})[0], net(X)[0])
    assert backend.describe()["weight_bytes"] == 8 * 4
    assert backend.describe()["kind"] == "module"


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"model": "weights.bin"}, SetupError, "module"),
        ({"model": "safe.bin"}, SetupError, "module"),
        ({"model": "text.bin"}, SetupError, "torch.export.save"),
        ({"model": "broken.bin"}, SetupError, "broken.bin"),
        ({"model": "dropout.bin"}, SetupError, "dropout is on"),
        ({"model": "norm.bin"}, SetupError, "batch_norm is on"),
        ({"module": "nowhere_at_all:make"}, MissingDependencyError, "nowhere_at_all"),
        ({"module": "torch.nn:Nothing"}, SetupError, "Nothing"),
        ({"module": f"{HERE}Nett"}, SetupError, "Did you mean 'Net'?"),
        (
            {"module": f"{HERE}Itself", "shape": "uint8:-1", "ragged": "pad", "pad_value": -1},
            SetupError,
            "cannot be padded with -1",
        ),
        ({"module": "torch:pi"}, SetupError, "cannot be called"),
        ({"module": "torch.nn:Module"}, SetupError, "without default per input."),
        ({"module": f"{HERE}no_module"}, SetupError, "int"),
        ({"module": f"{HERE}failing", "args": {"reason": "told so"}}, SetupError, "told so"),
        ({"module": f"{HERE}Net", "args": {"out": 3}, "weights": "weights.bin"}, SetupError, "fit"),
        ({"module": f"{HERE}Net", "weights": "pickled.bin"}, SetupError, "it holds a "),
        ({"module": f"{HERE}Net", "weights": "text.bin"}, SetupError, "write others"),
        ({"module": f"{HERE}Net", "weights": "opcodes.bin"}, SetupError, "loaded safely"),
        ({"module": f"{HERE}Net", "weights": "nested.bin"}, SetupError, "a table of model, epoch"),
        ({"module": f"{HERE}Net", "weights": "cut.bin"}, SetupError, "is cut off"),
        (
            {"module": f"{HERE}Net", "weights": "script.bin"},
            SetupError,
            "(TorchScript), no state dict",
        ),
        ({"module": f"{HERE}Net", "weights": "program.bin"}, SetupError, "Give it as `model`"),
        ({"module": f"{HERE}Net", "inputs": {"y": "data"}}, SetupError, "There are: x."),
        ({"module": f"{HERE}Net", "shape": {"y": "3"}}, SetupError, "There are: x."),
        ({"module": f"{HERE}Two", "shape": "3"}, SetupError, "table"),
        ({"model": "program.bin", "shape": "4"}, SetupError, "does not fit"),
        ({"model": "script.bin", "compile": True}, SetupError, "TorchScript"),
        (
            {"model": "program.bin", "outputs": ["nothing"]},
            SetupError,
            "which the model does not give",
        ),
    ],
)
def test_what_cannot_be_built_says_what_to_do(bench, files, options, error, words):
    for key in ("model", "weights"):
        if key in options:
            options = {**options, key: str(files / options[key])}
    with pytest.raises(error) as caught:
        bench().start(TorchModule, **options)
    assert words in str(caught.value)
    assert "likely succeed" not in str(caught.value)  # torch's advice to run code of the file


def test_code_is_refused_where_imports_are(files):
    config = {"backend": "TorchModule", "module": "torch.nn:Identity"}
    with pytest.raises(headrace.errors.ConfigError, match="imports are refused") as caught:
        headrace.PipelineConfig.load(config, allow_import=False)
    (problem,) = caught.value.problems
    assert problem.path == "main.module"
    headrace.PipelineConfig.load(config)
    with pytest.raises(SetupError, match="imports are refused"):
        TorchModule()._start(
            TorchModule.Options(module="torch.nn:Identity"),
            headrace.InitContext(device="cpu", allow_import=False),
        )
    whole = {"backend": "TorchModule", "model": str(files / "program.bin")}
    with headrace.pipe(headrace.PipelineConfig.load(whole, allow_import=False)) as pipe:
        assert pipe({"data": X[0]})["result"].shape == (2,)


def test_torch_without_torchscript_names_its_successor(bench, files, monkeypatch):
    monkeypatch.delattr(loading.torch.jit, "load")
    with pytest.raises(SetupError, match=r"torch\.export"):
        bench().start(TorchModule, model=str(files / "script.bin"))


@pytest.mark.parametrize("model", ["two.bin", "two.pt2", None])
def test_several_inputs_and_outputs_go_by_name(bench, files, model):
    one = bench()
    how = {"module": f"{HERE}Two"} if model is None else {"model": str(files / model)}
    backend = one.start(TorchModule, inputs={"b": "shift"}, **how)
    assert backend.reads == ("a", "shift")
    batch = [{"a": X[i], "shift": X[i] * 10, "data": None} for i in range(3)]
    for i, result in enumerate(one.run(backend, *batch)):
        assert list(result) == ["sum", "product"]
        assert torch.equal(result["sum"], X[i] * 11)
    picked = one.start(TorchModule, outputs=["product"], **how)
    (result,) = one.run(picked, {"a": X, "b": X, "request_size": 3})
    assert torch.equal(result, X * X)
    error = one.error(picked, {"a": X, "b": X[0, :2], "request_size": 3})
    assert (type(error), error.key) == (InputError, "b")
    assert one.error(picked, {"a": X[0]}).key == "b"
    with pytest.raises(SetupError, match="input 'b' would be read from the key 'result'"):
        one.start(TorchModule, inputs={"b": "result"}, **how)


def test_an_optional_input_is_one_when_it_is_named(bench):
    one = bench()
    how = {"module": f"{HERE}Two", "inputs": {"scale": "by"}, "outputs": ["sum"]}
    backend = one.start(TorchModule, **how)
    batch = {"a": X[0], "b": X[1], "by": torch.full((3,), 10.0)}
    assert torch.equal(one.run(backend, batch)[0], (X[0] + X[1]) * 10)
    backend = one.start(TorchModule, module=f"{HERE}ByName")  # one that takes no other place
    assert torch.equal(one.run(backend, batch)[0], X[0] - X[1])


def test_outputs_without_names_are_numbered_or_named_by_their_fields(bench):
    one = bench()
    named = one.run(one.start(TorchModule, module=f"{HERE}Several"), {"data": X[0]})[0]
    assert {name: one.tolist() for name, one in named.items()} == {
        "first": (X[0] + 1).tolist(),
        "second": (X[0] + 2).tolist(),
    }
    listed = one.start(TorchModule, module=f"{HERE}Listed", outputs=["output_1"])
    assert torch.equal(one.run(listed, {"data": X[0]})[0], X[0] * 2)


def test_rows_and_samples_where_the_model_does_not_tell(bench):
    one = bench()
    backend = one.start(TorchModule, module=f"{HERE}Net")
    assert one.run(backend, {"data": X, "request_size": 3})[0].shape == (3, 2)
    assert one.run(backend, {"data": X[0]})[0].shape == (2,)
    assert isinstance(one.error(backend, {"data": X, "request_size": 2}), InputError)
    found = one.start(TorchModule, module=f"{HERE}Net", shape="3")
    assert one.run(found, {"data": X[:1]})[0].shape == (1, 2)  # one row: it keeps its axis
    for wrong in (X, X[0, :2], X[None], X[0].to(torch.complex64), "x", None):
        error = one.error(found, {"data": wrong})
        assert (type(error), error.key) == (InputError, "data")


def test_dtypes_are_the_models_unless_a_cast_was_asked_for(bench, files):
    one = bench()
    strict = one.start(TorchModule, model=str(files / "program.bin"))
    assert isinstance(one.error(strict, {"data": X[0].double()}), InputError)
    assert isinstance(one.error(strict, {"data": X[0].int()}), InputError)
    for name in ("program.bin", "script.bin"):
        half = one.start(TorchModule, model=str(files / name), dtype="bfloat16")
        (result,) = one.run(half, {"data": X[0].double()})
        assert result.dtype == torch.bfloat16
        assert half.describe()["weight_bytes"] == 8 * 2
        assert torch.allclose(result.float(), one.run(strict, {"data": X[0]})[0], atol=0.1)


def test_numbers_of_python_get_the_dtype_that_is_told_unless_a_value_would_change(bench, files):
    one = bench()
    whole = one.start(TorchModule, model=str(files / "program.bin"))
    (wanted,) = one.run(whole, {"data": torch.tensor([1.0, 2.0, 3.0])})
    point = namedtuple("Point", "x y z")(1, 2, 3)  # noqa: PYI024
    for numbers in ([1, 2, 3], (1.0, 2, 3), list(np.float32([1, 2, 3])), point):
        assert torch.equal(one.run(whole, {"data": numbers})[0], wanted)
    (large,) = one.run(whole, {"data": [1 << 70, 0, 0.5]})
    assert torch.equal(large, one.run(whole, {"data": torch.tensor([2.0**70, 0, 0.5])})[0])
    rows = one.run(whole, {"data": [[1, 2, 3], [1, 2, 3]], "request_size": 2})[0]
    assert torch.allclose(rows, wanted.expand(2, 2))
    wrong_numbers = ([True, False, True], [1e39, 0, 0], [1 << 1024, 0, 0], [1 << 130, 0, 0])
    for wrong in (*wrong_numbers, ["a", "b", "c"], [None, 1, 2], [[1], [2, 3]]):
        error = one.error(whole, {"data": wrong})
        assert (type(error), error.key) == (InputError, "data"), wrong
    small = one.start(TorchModule, module=f"{HERE}Itself", shape="uint8:3")
    assert one.run(small, {"data": [0, 255, 7]})[0].tolist() == [0, 255, 7]
    for wrong in ([0, 256, 7], [-1, 0, 0], [0.5, 0, 0]):
        assert isinstance(one.error(small, {"data": wrong}), InputError)
    error = one.error(one.start(TorchModule, module=f"{HERE}Net"), {"data": [1, 2, 3]})
    assert "this model declares none" in str(error)
    assert "shape" in error.hint


def test_programs_are_read_by_older_versions_of_torch_too(monkeypatch, bench, files):
    class Older:
        """A tree of arguments as torch 2.6 has it: the parts are an attribute."""

        def __init__(self, spec):
            self.num_leaves, self.is_leaf = spec.num_leaves, spec.is_leaf
            self.children_specs = [Older(child) for child in children(spec)]

    children = loading._children
    monkeypatch.setattr(
        loading,
        "_children",
        lambda spec: children(spec if isinstance(spec, Older) else Older(spec)),
    )
    one = bench()
    request = {"data": torch.tensor([1.0, 2.0, 3.0])}
    program = one.start(TorchModule, model=str(files / "program.bin"))
    assert one.run(program, request)[0].shape == (2,)


def test_integers_are_not_cast(bench):
    one = bench()
    backend = one.start(TorchModule, module=f"{HERE}Embedding", dtype="float16", shape="4")
    (result,) = one.run(backend, {"data": torch.tensor([0, 1, 4, 2])})
    assert (result.shape, result.dtype) == ((4, 2), torch.float16)


def test_integers_are_not_cast_where_the_batch_comes_as_one_tensor():
    config = {
        "backend": "S[ResizeTensor(2,2),TorchModule]",
        "module": f"{HERE}IsUint8",
        "dtype": "float16",
        "shape": "uint8:3x2x2",
        "device": "cpu",
        "min": 2,
        "max": 2,
    }
    image = torch.zeros(3, 4, 4, dtype=torch.uint8)
    with headrace.pipe(config) as pipe:
        for request in pipe([{"data": image}, {"data": image}]):
            assert request["result"].item() is True


def test_a_fixed_batch_is_its_range_and_is_filled_up(files, net):
    config = {"backend": "TorchModule", "model": str(files / "fixed.pt2"), "max": 4, "pad": True}
    with headrace.pipe(config) as pipe:
        assert pipe.describe()["nodes"]["main"]["range"] == [4, 4]
        with torch.no_grad():
            assert torch.allclose(pipe({"data": X[0]})["result"], net(X)[0])


def test_the_range_of_a_program_is_the_word_s_and_is_filled_up(tmp_path, net):
    bounds = ({0: torch.export.Dim("rows", min=3, max=5)},)
    program = torch.export.export(net, (torch.zeros(4, 3),), dynamic_shapes=bounds)
    torch.export.save(program, str(tmp_path / "m.pt2"))
    config = {"backend": "TorchModule", "model": str(tmp_path / "m.pt2"), "pad": True}
    for most, found in ((None, [3, 5]), (4, [3, 4]), (16, [3, 5])):
        with headrace.pipe({**config, "max": most} if most else config) as pipe:
            assert pipe.describe()["nodes"]["main"]["range"] == found
            batch = [
                {"data": X[0]},
                {"data": X[0, :2]},
                {"data": X[1]},
            ]  # two rows are left of three
            with pytest.raises(RequestsFailed) as caught:
                pipe(batch)
            assert [type(error) for error in caught.value.errors] == [
                type(None),
                InputError,
                type(None),
            ]
            assert torch.allclose(batch[2]["result"], net(X)[1].detach())


class Mean(torch.nn.Module):
    def forward(self, values):
        return values.mean((1, 2))


def test_a_length_beyond_the_range_of_a_program_is_the_senders_error(bench, tmp_path):
    size = torch.export.Dim
    bounds = ({0: size("rows"), 1: size("height", min=4, max=9), 2: size("width", max=6)},)
    program = torch.export.export(Mean(), (torch.zeros(2, 5, 5),), dynamic_shapes=bounds)
    torch.export.save(program, str(tmp_path / "m.pt2"))
    one = bench()
    backend = one.start(TorchModule, model=str(tmp_path / "m.pt2"))
    for height, width in ((4, 1), (9, 6)):
        sample = torch.ones(height, width)
        for batch in ([{"data": sample}], [{"data": sample}, {"data": sample}]):
            assert one.run(backend, *batch) == [1] * len(batch)
    padded = one.start(TorchModule, model=str(tmp_path / "m.pt2"), ragged="pad", pad_multiple=7)
    batch = [{"data": torch.full((5, 6), 84.0)}, {"data": torch.full((8, 1), 27.0)}]
    assert one.run(padded, batch[0]) == [60]  # of 7 x 6: no width beyond the greatest
    assert one.run(padded, *batch) == [pytest.approx(84 * 30 / 54), 4]  # of 9 x 6
    for height, width in ((3, 5), (10, 5), (5, 7)):
        sample = torch.ones(height, width)
        for batch in (
            [{"data": sample}],
            [{"data": sample}, {"data": sample}],
            [{"data": sample[None], "request_size": 1}],
        ):
            for error in one.outcomes(backend, *batch):
                assert isinstance(error, InputError)
                assert "float32 [4..9, 1..6] (one sample)" in error.expected


@pytest.mark.parametrize("shape", [None, "3"])
def test_a_model_that_works_in_place_changes_nothing_of_its_callers(bench, shape):
    one = bench()
    start = one.start(TorchModule, module=f"{HERE}InPlace", shape=shape)
    fixed = np.float32([1, 2, 3])
    fixed.setflags(write=False)
    for data in (torch.tensor([1.0, 2, 3]), np.float32([1, 2, 3]), fixed):
        for _ in range(2):
            (result,) = one.run(start, {"data": data})
            assert result.tolist() == [4, 4, 6]
            assert data.tolist() == [1, 2, 3]


@pytest.mark.parametrize("shape", [None, "4"])
def test_a_model_that_writes_nothing_gets_no_copies_after_its_first_request(bench, shape):
    one = bench()
    start = one.start(TorchModule, module=f"{HERE}Looks", shape=shape)
    given = [torch.full((4,), float(k)) for k in range(3)]
    Looks.seen.clear()
    for data in given:
        one.run(start, {"data": data})
    assert [at == data.data_ptr() for at, data in zip(Looks.seen, given, strict=True)] == [
        False,
        True,
        True,
    ]


def test_the_zeros_of_the_warm_up_do_not_show_that_a_model_writes_nothing(bench):
    one = bench()
    start = one.start(TorchModule, module=f"{HERE}NotZeros", shape="2")
    for _ in range(2):
        data = torch.full((2,), 6.0)
        assert one.run(start, {"data": data})[0].tolist() == [4, 4]
        assert data.tolist() == [6, 6]


@pytest.mark.parametrize("last", [True, False])
def test_graphs_are_captured_on_buffers_of_the_layout_that_was_asked_for(last):
    captured = []
    model = loading.Model("module", torch.nn.ReLU(), Signature((Port("x", (None, 3, 4, 5)),)))
    runner = running.Runner(model, torch.device("cpu"), channels_last=last)
    runner.graphs = SimpleNamespace(
        takes=lambda *inputs: False,
        capture=lambda call, example, sizes: captured.append((example(max(sizes)), sizes)),
        sizes=(),
    )
    place = Place(torch.device("cpu"), None)
    warming.warm(runner, model.signature, place, sizes=(None, 6), graphs=True)
    ((inputs, sizes),) = captured
    assert sizes == (1, 2, 4, 6)
    assert inputs[0].shape == (6, 3, 4, 5)
    assert inputs[0][:2].is_contiguous(memory_format=torch.channels_last) is last


def test_compiled_code_writes_into_copies_only():
    """torch counts no writes of an AOTInductor package; here numpy stands for its kernels."""

    def call(x):
        seen.append(x.data_ptr())
        x.numpy()[...] = -1
        return x + 1

    seen = []
    model = loading.Model("AOTInductor", call, Signature((Port("x"),)))
    runner = running.Runner(model, torch.device("cpu"))
    for _ in range(2):
        data = torch.ones(2, 3)
        assert runner.run([data], 2)["output"].tolist() == [[0, 0, 0]] * 2
        assert data.tolist() == [[1, 1, 1]] * 2
    runner.run([data], 2, new=True)  # which nobody reads again
    assert seen[2] == data.data_ptr()


def test_padding_that_does_not_fit_the_dtype_is_an_error_and_not_another_value(bench):
    one = bench()
    start = one.start(TorchModule, module=f"{HERE}Itself", ragged="pad", pad_value=0.5)
    ragged = [{"data": torch.ones(n, dtype=torch.int64)} for n in (1, 2)]
    for error in one.outcomes(start, *ragged):
        assert isinstance(error, InputError)
        assert "holds pad_value = 0.5, got int64" in str(error)


def test_views_of_weights_are_no_results(bench):
    one = bench()
    constant = one.start(TorchModule, module=f"{HERE}Constant")
    a, b = one.run(constant, {"data": X[0]}, {"data": X[1]})
    with torch.inference_mode():
        for part in a.values():
            part.fill_(-1)
    assert b["one"].tolist() == [0, 1]
    again = one.run(constant, {"data": X[0]})[0]
    assert again["row"].tolist() == [0, 1]


class Kept(torch.nn.Module):
    """Writes its outputs into memory that it keeps and uses again."""

    def __init__(self, views):
        super().__init__()
        self.buffer, self.views = torch.zeros(4, 3), views

    def forward(self, x):
        self.buffer = self.buffer if self.views else self.buffer[: len(x)]
        rows = torch.mul(x, 2, out=self.buffer[: len(x)])
        return (rows[:, 1:], rows) if self.views else self.buffer


@pytest.mark.parametrize("views", [False, True])
def test_memory_that_a_model_uses_again_is_no_result(bench, views):
    one = bench()
    kept = one.start(TorchModule, module=f"{HERE}Kept", args={"views": views})
    first = one.run(kept, {"data": X[0]}, {"data": X[1]})
    one.run(kept, {"data": X[2]}, {"data": X[2]})
    for result, given in zip(first, X, strict=False):
        expected = {"output_0": 2 * given[1:], "output_1": 2 * given} if views else 2 * given
        assert str(result) == str(expected)


def test_outputs_that_nobody_else_holds_are_not_copied():
    made = []

    def call(x):
        rows = x * 2
        made.append(rows.data_ptr())
        return rows, rows[:, 1:]

    runner = running.Runner(loading.Model("module", call, Signature(())), torch.device("cpu"))
    outputs = runner.run((X,), 3)
    assert {one.untyped_storage().data_ptr() for one in outputs.values()} == {made[-1]}


class Axes(torch.nn.Module):
    """Gives the batch axis first, elsewhere, as a part of an axis, or not at all."""

    def forward(self, x):
        return {
            "rows": x.sum(1),
            "steps": x.transpose(0, 1) * 2,
            "sum": x.sum((0, 1))[:, None] * 2,
            "found": x.sum((1, 2)).nonzero(),
            "scalar": x.sum(),
            "nothing": None,
        }


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("name", ["rows", "steps", "sum", "found", "scalar", None])
def test_an_output_with_another_axis_first_is_refused_though_it_may_be_as_long(
    bench, tmp_path, fixed, name
):
    dims = {1: torch.export.Dim("steps")} | ({} if fixed else {0: torch.export.Dim("rows")})
    program = torch.export.export(Axes(), (torch.ones(4, 5, 3),), dynamic_shapes=(dims,))
    torch.export.save(program, str(tmp_path / "m.pt2"))
    options = {"model": str(tmp_path / "m.pt2"), **({"outputs": [name]} if name else {})}
    one = bench()
    if name == "rows":
        found = one.run(one.start(TorchModule, **options), *[{"data": X + k} for k in range(4)])
        assert [each.tolist() for each in found] == [(X + k).sum(0).tolist() for k in range(4)]
        return
    with pytest.raises(
        SetupError, match=f"the model's output '{name or 'steps'}' is not the batch"
    ):
        one.start(TorchModule, **options)


class Odd(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, x):
        if self.kind == "nested":
            return torch.nested.nested_tensor(list(x))
        return x.to_sparse() if self.kind == "sparse_coo" else (None,)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["nested", "sparse_coo", "no output"])
def test_what_cannot_be_cut_into_rows_is_told_so(bench, kind):
    one = bench()
    with pytest.raises(BackendError, match=kind):
        raise one.error(
            one.start(TorchModule, module=f"{HERE}Odd", args={"kind": kind}), {"data": X[0]}
        )


def test_an_output_without_batch_axis_is_an_error_that_names_it(bench):
    one = bench()
    with pytest.raises(BackendError, match="'output'"):
        raise one.error(one.start(TorchModule, module=f"{HERE}Whole"), {"data": X[0]})


def test_gradients_are_neither_kept_nor_switched_off_elsewhere(bench):
    one = bench()
    backend = one.start(TorchModule, module=f"{HERE}Net")
    (result,) = one.run(backend, {"data": X[0].clone().requires_grad_()})
    assert not result.requires_grad
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_a_batch_that_fails_is_tried_item_by_item(bench):
    one = bench()
    backend = one.start(TorchModule, module=f"{HERE}Picky")
    batch = [{"data": X[0]}, {"data": X[1]}, {"data": X[0]}]
    found = one.outcomes(backend, *batch)
    assert found[0] is found[2] is None
    assert isinstance(found[1], BackendError)
    assert "negative" in str(found[1])


@pytest.mark.parametrize("words", [1, 2])
def test_memory_that_runs_out_halves_the_batch(bench, words):
    one = bench()
    backends = [one.start(TorchModule, module=f"{HERE}Hungry") for _ in range(words)]
    Hungry.tried, Hungry.most, Hungry.alive = [], 2, None
    batch = [{"data": X[i % 3] + i} for i in range(5)]
    expected = [request["data"] * 2**words for request in batch]
    for backend in backends:
        assert backend(batch) is None
        for request in batch:
            request["data"] = request["result"]
    assert all(torch.equal(r["result"], e) for r, e in zip(batch, expected, strict=True))
    assert Hungry.tried[:5] == [5, 2, 3, 1, 2]


def test_memory_that_runs_out_for_one_fails_it_with_what_was_asked_for(bench):
    one = bench()
    backend = one.start(TorchModule, module=f"{HERE}Hungry")
    Hungry.tried, Hungry.most, Hungry.alive = [], 0, None
    found = one.outcomes(backend, *({"data": X[i]} for i in range(3)))
    assert Hungry.tried == [3, 1, 2, 1, 1]
    assert all(type(error) is NoMemoryError for error in found)
    assert all("tried to allocate 1 GiB" in str(error) for error in found)
    Hungry.most = 9
    assert torch.equal(one.run(backend, {"data": X[0]})[0], X[0] * 2)  # it goes on
    whole = one.start(TorchModule, module=f"{HERE}Hungry", halve_on_oom=False)
    Hungry.tried, Hungry.most = [], 1
    found = one.outcomes(whole, {"data": X[0]}, {"data": X[1]})
    assert Hungry.tried == [2]
    assert all("2 GiB" in str(error) for error in found)


def test_memory_that_runs_out_halves_the_rows_of_one_request_too():
    config = {"backend": "CatSplit[CatTensor,S[TorchModule,SoftmaxTensor],SplitTensor]"}
    config |= {"module": f"{HERE}Hungry", "max": 8, "batching_timeout": 1000}
    Hungry.tried, Hungry.most, Hungry.alive = [], 2, None
    batch = [{"data": X[:3] + 1, "request_size": 3}, *({"data": X[i]} for i in range(3))]
    expected = [(request["data"] * 2).softmax(-1) for request in batch]
    with headrace.pipe(config) as pipe:
        pipe([*batch, {"data": X[:2], "request_size": 2}])
        assert all(torch.equal(r["result"], e) for r, e in zip(batch, expected, strict=True))
        assert Hungry.tried == [8, 4, 2, 2, 4, 2, 2]
        Hungry.most = 0
        with pytest.raises(BackendError, match="tried to allocate 1 GiB"):
            pipe({"data": X[:3], "request_size": 3})
    assert Hungry.tried[7:] == [3, 1]


def test_memory_that_runs_out_in_the_warm_up_starts_with_smaller_batches(caplog):
    config = {"backend": "TorchModule", "module": f"{HERE}Hungry", "shape": "4", "max": 16}
    Hungry.tried, Hungry.most, Hungry.alive = [], 5, None
    with headrace.pipe(config) as pipe:
        assert Hungry.tried[:3] == [16, 8, 4]
        told = [one.getMessage() for one in caplog.records if "memory runs out" in one.getMessage()]
        assert [text.split(":")[0] for text in told] == [
            f"memory runs out for a batch of {rows} rows" for rows in (16, 8)
        ]
        built = pipe.describe()["nodes"]["main"]["tree"]["built"]
        assert built["warm_up_rows"] == 4
        x = torch.arange(64.0).reshape(16, 4)
        assert torch.equal(
            torch.stack([r["result"] for r in pipe([{"data": one} for one in x])]), x * 2
        )
    with pytest.raises(SetupError, match="tried to allocate 16 GiB"):
        headrace.pipe({**config, "halve_on_oom": False})
    Hungry.most = 0
    with pytest.raises(SetupError, match="tried to allocate 1 GiB"):
        headrace.pipe(config)


def test_an_error_that_is_kept_keeps_no_memory(bench):
    one = bench()
    backend = one.start(TorchModule, module=f"{HERE}Hungry")
    Hungry.tried, Hungry.most, Hungry.alive = [], 0, None
    error = one.error(backend, {"data": X[0]})
    gc.collect()
    assert Hungry.alive() is None, error


def test_a_lost_device_takes_its_instance_out():
    config = {"backend": "TorchModule", "module": f"{HERE}Lost", "instance_num": 2}
    with headrace.pipe(config) as pipe:
        assert pipe({"data": X[0]})["result"].tolist() == (X[0] + 1).tolist()
        with pytest.raises(InstanceLostError, match="illegal memory access"):
            pipe({"data": X[0] + 1000})
        stats = pipe.stats()
        assert stats["state"] == "degraded"
        assert sum(one["alive"] for one in stats["nodes"]["main"]["instances"]) == 1
        assert pipe({"data": X[0]})["result"].tolist() == (X[0] + 1).tolist()
    assert memory.is_lost(RuntimeError("CUDA error: device-side assert triggered"))
    assert not memory.is_lost(RuntimeError("CUDA error: invalid argument"))


def test_instances_share_their_weights_unless_told_otherwise(monkeypatch):
    loaded = []
    from headrace_torch.models import modules

    real = modules.load_module
    monkeypatch.setattr(modules, "load_module", lambda *a: loaded.append(a[0]) or real(*a))
    config = {"backend": "TorchModule", "module": f"{HERE}Net", "instance_num": 3}
    with headrace.pipe({**config, "share_weights": False}):
        assert len(loaded) == 3
    loaded.clear()
    with headrace.pipe(config) as pipe:
        assert len(loaded) == 1
        assert len({tuple(pipe({"data": X[0]})["result"].shape) for _ in range(6)}) == 1


def test_what_is_closed_is_given_back():
    refs = []

    class Noted(Net):
        def __init__(self):
            super().__init__()
            refs.append(weakref.ref(self))

    globals()["Noted"] = Noted
    import headrace_torch.models.modules as modules

    real = modules._find
    modules._find = lambda name: Noted
    try:
        first, second = (
            headrace.pipe({"backend": "TorchModule", "module": f"{HERE}Net"}) for _ in range(2)
        )
        first.close()
        second.close()
    finally:
        modules._find = real
    gc.collect()
    assert len(refs) == 2
    assert [ref() for ref in refs] == [None, None]


def test_describe_says_what_was_built(bench, files):
    one = bench()
    described = one.start(TorchModule, model=str(files / "program.bin"), cuda_graph=True).describe()
    assert described["torch"] == torch.__version__
    assert (described["device"], described["kind"], described["weight_bytes"]) == (
        "cpu",
        "torch.export",
        32,
    )
    assert described["cuda_graphs"] == []  # the CPU has none
    assert described["inputs"] == {"x": {"key": "data", "dtype": "float32", "shape": [None, 3]}}


def test_compiled_models_give_the_same(bench, net, files, monkeypatch):
    modes = []

    def compile_(call, *, mode):
        modes.append(mode)
        return call

    monkeypatch.setattr(torch, "compile", compile_)
    one = bench()
    for value, mode in ((True, "default"), ("max-autotune-no-cudagraphs",) * 2):
        backend = one.start(
            TorchModule,
            module=f"{HERE}Net",
            weights=str(files / "weights.bin"),
            compile=value,
            channels_last=True,
        )
        with torch.no_grad():
            assert torch.allclose(one.run(backend, {"data": X[0]})[0], net(X)[0])
        assert modes.pop() == mode


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_one_instance_of_a_process_is_compiled_with_graphs(mode):
    """Two threads with torch's CUDA-graph trees gave wrong answers."""
    from torch._inductor import cudagraph_trees as trees

    def make():
        return running.Runner(
            SimpleNamespace(module=None), torch.device("cuda:0"), compile_mode=mode
        )

    first = make()
    with pytest.raises(SetupError, match="another instance does"):
        make()
    first.close()
    later = []
    thread = threading.Thread(target=lambda: later.append((make(), vars(trees.local).copy())))
    thread.start()
    thread.join()
    ((second, given),) = later
    assert given["tree_manager_containers"] == {}
    second.close()


def test_a_compiled_model_is_given_one_kind_of_tensors(bench, monkeypatch):
    """For another kind torch.compile compiles the model again, while requests wait."""
    seen = []

    def compile_(call, *, mode):
        def look(x):
            seen.append((x.is_inference(), x.requires_grad, x.is_contiguous(), type(x)))
            return call(x)

        return look

    monkeypatch.setattr(torch, "compile", compile_)
    one = bench(most=2)
    backend = one.start(TorchModule, module=f"{HERE}Itself", shape="2x3", compile=True)
    x = torch.arange(6.0).reshape(2, 3)
    kinds = [x, x, x.numpy(), x.T.contiguous().T, torch.nn.Parameter(x), x[None].expand(1, 2, 3)]
    for data in kinds:
        assert torch.equal(one.run(backend, {"data": data})[0], x.reshape(data.shape))
    assert torch.equal(one.run(backend, {"data": x}, {"data": x})[1], x)
    assert len(seen) == 2 + len(kinds) + 1
    assert set(seen) == {(False, False, True, torch.Tensor)}


def test_only_like_models_share_what_torch_compiled_for_them(bench, files, monkeypatch):
    """torch keeps eight variants for a code object; whatever comes after them is run uncompiled."""
    codes = []
    monkeypatch.setattr(torch, "compile", lambda call, *, mode: codes.append(call.__code__) or call)
    net = {"module": f"{HERE}Net", "args": {"out": 2}}
    program = {"model": str(files / "program.bin")}
    more = {**net, "args": {"out": 3}}, {**net, "dtype": "float16"}, {"module": f"{HERE}Itself"}
    for options in (net, {**net, "weights": str(files / "weights.bin")}, *more, program, program):
        bench().start(TorchModule, compile=True, **options)
    assert codes[0] is codes[1]
    assert len({*map(id, codes)}) == len(codes) - 1


def test_closing_in_mid_batch_answers_everybody():
    Slow.entered.clear()
    Slow.leave.clear()
    pipe = headrace.pipe({"backend": "TorchModule", "module": f"{HERE}Slow", "max": 4})
    first = pipe.submit({"data": torch.full((3,), 99.0)})
    assert Slow.entered.wait(60)
    second = pipe.submit({"data": X[0]})
    closing = threading.Thread(target=pipe.close)
    closing.start()
    Slow.leave.set()
    closing.join(60)
    assert first.result(60)["result"].tolist() == [100] * 3
    assert second.result(60)["result"].tolist() == (X[0] + 1).tolist()


def test_threads_are_set_once_for_the_process(bench, monkeypatch):
    from headrace_torch.devices import threads

    calls = []
    monkeypatch.setattr(threads, "_limited", None)
    monkeypatch.setattr(threads.torch, "set_num_threads", calls.append)
    for share in (3, 1, 2):
        bench(threads=share).start(TorchModule, module=f"{HERE}Net")
    assert calls == [3]


def test_numpy_in_and_numpy_out_stand_on_no_copies(net):
    config = {
        "backend": "S[GpuTensor,TorchModule,CpuTensor(numpy=true)]",
        "module": f"{HERE}Itself",
        "device": "cpu",
        "max": 4,
    }
    with headrace.pipe(config) as pipe:
        result = pipe({"data": np.ones(3, np.float32)})["result"]
    assert isinstance(result, np.ndarray)
    assert result.tolist() == [1, 1, 1]


@pytest.mark.parametrize("ends", [True, False], ids=["ended", "broken off"])
@pytest.mark.parametrize("fills", [True, False], ids=["filled", "not filled"])
def test_a_capture_that_fails_keeps_nothing_alive_while_its_error_is_held(monkeypatch, ends, fills):
    from headrace_torch.models.graphs import Graphs

    class Graph:
        """Stands for torch's, which holds memory of the device as long as it lives."""

        def capture_begin(self, **_):
            alive.append(weakref.ref(self))

        def capture_end(self):
            if not ends:
                raise RuntimeError("operation failed due to a previous error during capture")

        def pool(self):
            if not ends:
                raise RuntimeError("called without a preceding successful capture")
            return (0, 1)

        def reset(self):
            given_up.append("reset")

    def example(rows):
        given = torch.zeros(rows, 64)
        alive.append(weakref.ref(given))
        return (given,)

    def call(inputs):
        if len(alive) > 1:  # the capture has begun
            try:
                raise ValueError("the call inside")
            except ValueError:
                raise RuntimeError("operation not permitted when stream is capturing")  # noqa: B904
        return {"out": inputs[0] + 1}

    def end_filling(device, pool):
        given_up.append(("end", device, pool))
        if not fills:
            raise RuntimeError("not currently recording")

    alive, given_up = [], []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end_filling, raising=False)
    release = lambda *where: given_up.append(("release", *where))  # noqa: E731
    monkeypatch.setattr(torch._C, "_cuda_releasePool", release, raising=False)
    with pytest.raises(SetupError, match="not permitted") as caught:
        Graphs(torch.device("cuda", 0)).capture(call, example, (2,))
    gc.collect()
    assert [one() for one in alive] == [None, None]
    cause = caught.value.__cause__
    assert isinstance(cause, RuntimeError)
    assert cause.__traceback__ is None
    assert cause.__context__.__traceback__ is None
    # A graph whose capture has ended gives up its share of the pool itself, any other never does.
    both = [("end", 0, (0, 1)), ("release", 0, (0, 1))]
    assert given_up == (["reset"] if ends else both)


def test_a_capture_is_ended_whatever_ends_it(monkeypatch):
    from headrace_torch.models.graphs import Graphs

    class Graph:
        def capture_begin(self, **_):
            done.append("begin")

        def capture_end(self):
            done.append("end")

        def pool(self):
            return (0, 1)

        def reset(self):
            done.append("reset")

    def call(inputs):
        if done:
            raise SystemExit(3)
        return {"out": inputs[0]}

    done = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    with pytest.raises(SystemExit):
        Graphs(torch.device("cuda", 0)).capture(call, lambda rows: (torch.zeros(rows, 2),), (2,))
    assert done == ["begin", "end", "reset"]


@pytest.mark.parametrize("name", ["program.bin", "script.bin", "fixed.pt2"])
def test_a_files_name_says_nothing_and_nothing_is_logged_about_it(bench, files, name):
    with logged() as records:
        built = bench().start(TorchModule, model=str(files / name)).describe()
    assert records == []
    assert built["dtype"] == "float32"  # that of the weights, where none was asked for


def test_the_outputs_are_told_once_the_warm_up_has_seen_them(files):
    def built(**options):
        config = {"backend": "TorchModule", "device": "cpu", **options}
        with headrace.pipe(config) as pipe:
            return pipe.describe()["nodes"]["main"]["tree"]["built"]

    outputs = {"output": {"dtype": "float32", "shape": [None, 2]}}
    assert built(model=str(files / "program.bin"))["outputs"] == outputs
    asked = built(module=f"{HERE}Net", args={"out": 2}, shape="3", dtype="float16")
    assert asked["outputs"] == {"output": {"dtype": "float16", "shape": [None, 2]}}
    assert built(module=f"{HERE}Net", args={"out": 2})["outputs"] is None


def test_an_output_that_is_not_there_is_told_at_the_start_where_the_shape_is_known(bench):
    config = {
        "backend": "TorchModule",
        "module": "torch.nn:ReLU",
        "outputs": ["logits"],
        "device": "cpu",
    }
    with pytest.raises(SetupError, match="'logits', which the model does not give") as caught:
        headrace.pipe({**config, "shape": "float32:3"})
    assert "There are: output." in str(caught.value)
    with headrace.pipe(config) as pipe, pytest.raises(BackendError, match="There are: output"):
        pipe({"data": torch.zeros(3)})


@pytest.mark.parametrize(
    ("key", "value"),
    [("shape", "3xAx4"), ("shape", [3]), ("compile", "fast"), ("inputs", {"x": ""})],
)
def test_a_wrong_option_is_refused_in_one_error(key, value):
    config = {"backend": "TorchModule", "module": "torch.nn:ReLU", key: value}
    with pytest.raises(headrace.errors.ConfigError) as caught:
        headrace.PipelineConfig.load(config)
    assert len(caught.value.problems) == 1


def test_each_factory_in_a_file_has_the_helpers_beside_it(bench, tmp_path):
    one = bench()
    text = "import torch\nfrom helper import FACTOR\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x * FACTOR\n"
    found = []
    for factor in (10, 20):
        folder = tmp_path / str(factor)
        folder.mkdir()
        (folder / "net.py").write_text(text)
        (folder / "helper.py").write_text(f"FACTOR = {factor}\n")
        backend = one.start(TorchModule, module=f"{folder / 'net.py'}:Net")
        found.append((one.run(backend, {"data": X[0]})[0] / X[0]).tolist())
    assert found == [pytest.approx([10.0] * 3), pytest.approx([20.0] * 3)]
    (folder / "net.py").write_text("1 / 0\n")
    with pytest.raises(SetupError, match="ZeroDivisionError"):
        one.start(TorchModule, module=f"{folder / 'net.py'}:Net")
