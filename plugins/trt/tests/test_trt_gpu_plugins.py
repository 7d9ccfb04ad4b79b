"""Layers of one's own on a real device: a shared library, and a plugin in Python."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from gpu_helpers import ALONE, QUICK
from onnx import TensorProto as T

import headrace
from headrace.errors import ConfigError

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu_cache")]

PLUGIN = '''
"""A plugin that doubles its input, written in Python."""

import numpy as np
import tensorrt as trt
import torch


class Double(trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime):
    def __init__(self):
        trt.IPluginV3.__init__(self)
        trt.IPluginV3OneCore.__init__(self)
        trt.IPluginV3OneBuild.__init__(self)
        trt.IPluginV3OneRuntime.__init__(self)
        self.plugin_name, self.plugin_version, self.plugin_namespace = "Double", "1", ""
        self.num_outputs = 1

    def get_capability_interface(self, kind):
        return self

    def get_output_data_types(self, types):
        return [types[0]]

    def get_output_shapes(self, inputs, shape_inputs, builder):
        return [trt.DimsExprs(inputs[0])]

    def get_fields_to_serialize(self):
        return trt.PluginFieldCollection([])

    def configure_plugin(self, inputs, outputs):
        pass

    def on_shape_change(self, inputs, outputs):
        pass

    def set_tactic(self, tactic):
        pass

    def supports_format_combination(self, place, described, inputs):
        found = described[place].desc
        return found.type == trt.float32 and found.format == trt.TensorFormat.LINEAR

    def attach_to_context(self, context):
        return self.clone()

    def clone(self):
        made = Double()
        made.__dict__.update(self.__dict__)
        return made

    def enqueue(self, inputs, outputs, sources, targets, workspace, stream):
        shape = tuple(inputs[0].dims)
        about = {"shape": shape, "typestr": "<f4", "version": 3}
        views = [
            type("View", (), {"__cuda_array_interface__": {**about, "data": (at, False)}})()
            for at in (sources[0], targets[0])
        ]
        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            x, y = (torch.as_tensor(view, device="cuda") for view in views)
            torch.mul(x, 2, out=y)


class DoubleCreator(trt.IPluginCreatorV3One):
    def __init__(self):
        trt.IPluginCreatorV3One.__init__(self)
        self.name, self.plugin_version, self.plugin_namespace = "Double", "1", ""
        self.field_names = trt.PluginFieldCollection([])

    def create_plugin(self, name, fields, phase):
        return Double()
'''


def test_a_plugin_in_python(pipe, save, tmp_path, monkeypatch, rtx_or_full):
    pytest.importorskip("torch")
    if not rtx_or_full.has("IPluginV3"):
        pytest.skip(f"{rtx_or_full.text} has no IPluginV3")
    (tmp_path / "double_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    model = save(
        [("Double", ["x"], ["h"], {}), ("Relu", ["h"], ["y"], {})],
        [("x", T.FLOAT, ["n", 4])],
        [("y", T.FLOAT, ["n", 4])],
    )
    options = {"model": str(model), "max": 4, "plugins": ["double_plugin:DoubleCreator"], **QUICK}
    p = pipe(backend=ALONE, **options)
    x = np.float32([[1, -2, 3, 0], [5, 6, -7, 8]])
    assert p({"data": x, "request_size": 2})["result"].tolist() == np.maximum(2 * x, 0).tolist()
    with pytest.raises(ConfigError, match="imports are refused"):
        headrace.PipelineConfig.load({"backend": ALONE, **options}, allow_import=False)


SHARED = r"""
// A plugin that swaps the halves of each row of float32 [n, m].
#include <NvInferRuntime.h>
#include <cuda_runtime_api.h>

using namespace nvinfer1;

namespace
{
PluginFieldCollection none{0, nullptr};

class SwapHalves : public IPluginV3,
                   public IPluginV3OneCore,
                   public IPluginV3OneBuild,
                   public IPluginV3OneRuntime
{
public:
    IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept override
    {
        switch (type)
        {
        case PluginCapabilityType::kCORE: return static_cast<IPluginV3OneCore*>(this);
        case PluginCapabilityType::kBUILD: return static_cast<IPluginV3OneBuild*>(this);
        default: return static_cast<IPluginV3OneRuntime*>(this);
        }
    }
    IPluginV3* clone() noexcept override { return new SwapHalves; }
    AsciiChar const* getPluginName() const noexcept override { return "SwapHalves"; }
    AsciiChar const* getPluginVersion() const noexcept override { return "1"; }
    AsciiChar const* getPluginNamespace() const noexcept override { return ""; }
    int32_t configurePlugin(DynamicPluginTensorDesc const*, int32_t,
        DynamicPluginTensorDesc const*, int32_t) noexcept override { return 0; }
    int32_t getOutputDataTypes(
        DataType* given, int32_t, DataType const* taken, int32_t) const noexcept override
    {
        given[0] = taken[0];
        return 0;
    }
    int32_t getOutputShapes(DimsExprs const* taken, int32_t, DimsExprs const*, int32_t,
        DimsExprs* given, int32_t, IExprBuilder&) noexcept override
    {
        given[0] = taken[0];
        return 0;
    }
    bool supportsFormatCombination(
        int32_t at, DynamicPluginTensorDesc const* all, int32_t, int32_t) noexcept override
    {
        return all[at].desc.type == DataType::kFLOAT && all[at].desc.format == TensorFormat::kLINEAR;
    }
    int32_t getNbOutputs() const noexcept override { return 1; }
    int32_t onShapeChange(
        PluginTensorDesc const*, int32_t, PluginTensorDesc const*, int32_t) noexcept override
    {
        return 0;
    }
    int32_t enqueue(PluginTensorDesc const* described, PluginTensorDesc const*,
        void const* const* taken, void* const* given, void*, cudaStream_t stream) noexcept override
    {
        size_t const rows = described[0].dims.d[0];
        size_t const half = described[0].dims.d[1] * sizeof(float) / 2;
        auto const* x = static_cast<char const*>(taken[0]);
        auto* y = static_cast<char*>(given[0]);
        auto const kind = cudaMemcpyDeviceToDevice;
        cudaMemcpy2DAsync(y, 2 * half, x + half, 2 * half, half, rows, kind, stream);
        return cudaMemcpy2DAsync(y + half, 2 * half, x, 2 * half, half, rows, kind, stream);
    }
    IPluginV3* attachToContext(IPluginResourceContext*) noexcept override { return clone(); }
    PluginFieldCollection const* getFieldsToSerialize() noexcept override { return &none; }
};

class SwapHalvesCreator : public IPluginCreatorV3One
{
public:
    IPluginV3* createPlugin(
        AsciiChar const*, PluginFieldCollection const*, TensorRTPhase) noexcept override
    {
        return new SwapHalves;
    }
    PluginFieldCollection const* getFieldNames() noexcept override { return &none; }
    AsciiChar const* getPluginName() const noexcept override { return "SwapHalves"; }
    AsciiChar const* getPluginVersion() const noexcept override { return "1"; }
    AsciiChar const* getPluginNamespace() const noexcept override { return ""; }
};

SwapHalvesCreator creator;
IPluginCreatorInterface* const creators[] = {&creator};
} // namespace

extern "C" void setLoggerFinder(ILoggerFinder*) {}
extern "C" IPluginCreatorInterface* const* getCreators(int32_t& count)
{
    count = 1;
    return creators;
}
"""

HEADERS = (
    os.environ.get("TENSORRT_INCLUDE", "/usr/local/tensorrt/include"),
    "/usr/include/x86_64-linux-gnu",
    "/usr/include",
)


@pytest.fixture
def swap_halves(tmp_path):
    """A shared library with one plugin, compiled against the headers of this TensorRT."""
    headers = next((f for f in HEADERS if Path(f, "NvInferRuntime.h").is_file()), None)
    if headers is None or shutil.which("nvcc") is None:
        pytest.skip("no nvcc, or no headers of TensorRT (TENSORRT_INCLUDE names their folder)")
    source, made = tmp_path / "swap_halves.cpp", tmp_path / "libswap_halves.so"
    source.write_text(SHARED)
    command = [
        "nvcc",
        "-shared",
        "-Xcompiler",
        "-fPIC",
        "-I",
        headers,
        str(source),
        "-o",
        str(made),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return made


def test_a_plugin_in_a_shared_library(pipe, save, swap_halves):
    model = save(
        [("SwapHalves", ["x"], ["h"], {}), ("Relu", ["h"], ["y"], {})],
        [("x", T.FLOAT, ["n", 4])],
        [("y", T.FLOAT, ["n", 4])],
    )
    options = {"model": str(model), "max": 4, "plugins": [str(swap_halves)], **QUICK}
    p = pipe(backend=ALONE, **options)
    x = np.float32([[1, -2, 3, 0], [5, 6, -7, 8]])
    swapped = np.maximum(np.concatenate([x[:, 2:], x[:, :2]], 1), 0)
    assert p({"data": x, "request_size": 2})["result"].tolist() == swapped.tolist()
    assert p({"data": x[1]})["result"].tolist() == swapped[1].tolist()
    with pytest.raises(ConfigError, match="imports are refused"):
        headrace.PipelineConfig.load({"backend": ALONE, **options}, allow_import=False)
