"""A module that computes an ONNX graph with torch, for the rules that all engines keep."""

import inspect

import onnx
import torch


def _resized(x, shape):
    return x.reshape([int(n) for n in shape])


OPERATORS = {
    "Add": lambda a, b: a + b,
    "Conv": lambda x, w, strides: torch.nn.functional.conv1d(x, w, stride=strides),
    "CumSum": lambda x, axis: x.cumsum(int(axis)),
    "Identity": lambda x: x,
    "MatMul": lambda a, b: a @ b,
    "Mul": lambda a, b: a * b,
    "Neg": lambda x: -x,
    "ReduceSum": lambda x, axes, keepdims: x.sum(tuple(axes.tolist()), keepdim=bool(keepdims)),
    "Reshape": _resized,
    "Transpose": lambda x, perm: x.permute(perm),
}


class OnnxModule(torch.nn.Module):
    """Runs the graph of a file, with the names of its inputs as parameters."""

    def __init__(self, path):
        super().__init__()
        self.graph = onnx.load(path).graph
        names = [port.name for port in self.graph.input]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD

        def forward(*tensors):
            values = dict(zip(names, tensors, strict=True))
            for weight in self.graph.initializer:
                values[weight.name] = torch.from_numpy(onnx.numpy_helper.to_array(weight).copy())
            for node in self.graph.node:
                attributes = {
                    one.name: onnx.helper.get_attribute_value(one) for one in node.attribute
                }
                inputs = [values[name] for name in node.input]
                values[node.output[0]] = OPERATORS[node.op_type](*inputs, **attributes)
            return {port.name: values[port.name] for port in self.graph.output}

        forward.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])
        self.forward = forward
