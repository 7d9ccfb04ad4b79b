"""Arrays of other libraries on a device that is memory of this process, as engines see them."""

import math
import threading
from types import SimpleNamespace

STREAM = 5
"""The stream that is current in `torch`."""


class Tensor:
    """A tensor of torch, as far as it is asked about itself. Another address than that of ``values`` may be named."""

    is_cuda, requires_grad, dtype, layout = True, False, "torch.float32", "strided"
    ordinal, dense = 0, True

    def __init__(self, values, **about):
        self.values, self.shape, self.pointer = values, values.shape, values.ctypes.data
        self.__dict__.update(about)

    def get_device(self):
        return self.ordinal

    def data_ptr(self):
        return self.pointer

    def is_contiguous(self):
        return self.dense

    def numel(self):
        return math.prod(self.shape)

    def __dlpack_device__(self):
        return 2, self.ordinal

    def __dlpack__(self, *, stream=None):
        raise BufferError("not as it is")


torch = SimpleNamespace(
    Tensor=Tensor,
    strided="strided",
    _C=SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: STREAM),
)


class Queued:
    """An array of a library whose stream is the thread's, as CuPy's is: another thread is not told of it."""

    def __init__(self, memory, stream):
        self.memory, self.stream, self.thread = memory, stream, threading.get_ident()

    def __dlpack_device__(self):
        return 2, 0

    @property
    def __cuda_array_interface__(self):
        own = self.stream if threading.get_ident() == self.thread else None
        return {**self.memory, "version": 3, "stream": own}
