"""`ScaleCupy`: a backend that computes with CuPy, on the stream of the instance."""

import sys
from types import SimpleNamespace

import headrace


@headrace.register("ScaleCupy")
class ScaleCupy(headrace.Backend):
    """Multiply an array in the memory of the device by ``factor``."""

    class Options(headrace.Options):
        """The option."""

        factor: float

    owns_thread = True  # device and stream stay current in a thread that is the instance's
    rerun = True

    @staticmethod
    def enter(request):
        """Mark what the caller's thread has queued for an array of CuPy; called in that thread."""
        cupy, data = sys.modules.get("cupy"), request.get("data")
        if cupy is None or not isinstance(data, cupy.ndarray):
            return None  # whoever has an array of CuPy has imported it
        with data.device:
            return cupy.cuda.get_current_stream().record()

    def init(self, options, context):
        """Take the stream that an element before has brought, or bring one."""
        import cupy

        def make():
            stream = cupy.cuda.Stream(non_blocking=True)
            return SimpleNamespace(handle=stream.ptr, close=stream.synchronize)

        self.cupy, self.factor, self.kept = cupy, options.factor, []
        self.entered = context.request.entered
        self.ordinal = int((context.device or "cuda").partition(":")[2] or 0)
        cupy.cuda.Device(self.ordinal).use()
        shared = context.store.instance.get_or_create(("cuda.stream", self.ordinal), make)
        self.stream = cupy.cuda.ExternalStream(shared.handle, self.ordinal).use()
        self.event = cupy.cuda.Event(block=True, disable_timing=True)
        context.batch.at_end(self.finish)

    def forward(self, batch):
        """Start the work of a batch, and do not wait for it."""
        return [self.scale(request) for request in batch]

    def scale(self, request):
        """Start the work of one request; what is elsewhere fails alone."""
        data = request["data"]
        place = data.__dlpack_device__() if hasattr(data, "__dlpack_device__") else None
        if place != (2, self.ordinal):  # DLPack's number for CUDA is 2
            wanted, got = f"an array on cuda:{self.ordinal}", type(data).__name__
            return headrace.errors.InputError("wrong device", key="data", expected=wanted, got=got)
        mark = self.entered(request)
        if mark is not None:
            self.stream.wait_event(mark)  # the device waits, the host does not
        self.kept.append(data)  # its memory must stay until the stream has passed
        request["result"] = self.cupy.from_dlpack(data) * self.factor
        return None

    def finish(self):
        """Wait at the end of the batch, once."""
        self.event.record(self.stream)
        self.event.synchronize()
        self.kept.clear()

    def close(self):
        """Give CuPy's memory of this stream back to the device."""
        self.kept.clear()
        self.cupy.get_default_memory_pool().free_all_blocks(self.stream)
