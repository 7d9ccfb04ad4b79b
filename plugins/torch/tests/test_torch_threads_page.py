"""What docs/threads_and_streams.md says of devices, run: both shapes on the CPU, CuPy on a GPU."""

import importlib.util
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from pages import Page, shell

import headrace
from headrace.errors import InputError

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = Page("docs/threads_and_streams.md")
FILES = PAGE.files  # whole, with the line that names them: messages count it
STEPS = "DecodeMat,ResizeMat,CvtColorMat,Mat2Tensor"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The files of the page, and the weights that they name."""
    models = pytest.importorskip("torchvision.models")
    pytest.importorskip("cv2")
    folder = tmp_path_factory.mktemp("page")
    PAGE.write(folder)
    torch.manual_seed(0)
    torch.save(models.resnet18().state_dict(), folder / "resnet18.pth")
    return folder


def pictures(count):
    import cv2

    random = np.random.default_rng(0)
    found = []
    for _ in range(count):
        small = random.integers(0, 256, (6, 8, 3), np.uint8)
        file = cv2.imencode(".jpg", cv2.resize(small, (320, 240), interpolation=cv2.INTER_CUBIC))[1]
        found.append(file.tobytes())
    return found


def plain(file, folder):
    """The same by OpenCV and torchvision alone."""
    import cv2
    from torchvision.models import resnet18

    network = resnet18().eval()
    network.load_state_dict(torch.load(folder / "resnet18.pth", weights_only=True))
    image = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)
    rgb = cv2.resize(image, (224, 224))[:, :, ::-1].astype(np.float32)
    scaled = (rgb - np.float32([123.675, 116.28, 103.53])) / np.float32([58.395, 57.12, 57.375])
    with torch.inference_mode():
        return network(torch.from_numpy(scaled.transpose(2, 0, 1).copy())[None]).softmax(1)[0]


def test_both_shapes_of_the_page_give_what_the_libraries_give(folder):
    files = pictures(4)
    assert sorted(FILES) == ["one.toml", "two.toml"]
    wanted = torch.stack([plain(file, folder) for file in files])
    for name in FILES:
        with headrace.pipe(str(folder / name)) as pipe:
            answers = pipe([{"data": file} for file in files])
        found = torch.stack([answer["result"] for answer in answers])
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


class Counted:
    """How many requests are being decoded at a time; `wait_for` holds each until so many are."""

    def __init__(self):
        self.lock = threading.Lock()
        self.now = self.most = 0
        self.barrier = None

    def __call__(self):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            if self.barrier is not None:
                self.barrier.wait(60)
        finally:
            with self.lock:
                self.now -= 1


@pytest.fixture
def counted():
    """A backend that stands for the one after DecodeMat and counts."""
    count = Counted()

    class CountDecoding(headrace.Backend):
        max = 1

        def forward(self, batch):
            count()
            for request in batch:
                request["result"] = request["data"]

    headrace.register("CountDecoding", CountDecoding, replace=True)
    return count


def shaped(folder, name):
    """A file of the page, with a small network, and with the counting backend after DecodeMat."""
    text = (folder / name).read_text("utf-8")
    assert text.count("DecodeMat,") == 1
    text = text.replace("DecodeMat,", "DecodeMat,CountDecoding,")
    text = re.sub(r"^(module|weights) = .*\n", "", text, flags=re.MULTILINE)
    text = text.replace("TorchModule,", "TorchModule(module=torch.nn:Flatten),")
    changed = folder / f"counted-{name}"
    changed.write_text(text, encoding="utf-8")
    return str(changed)


def call_together(pipe, files):
    with ThreadPoolExecutor(len(files)) as threads:
        return list(threads.map(lambda file: pipe({"data": file}), files))


def test_a_node_of_its_own_decodes_in_as_many_threads_as_it_has_instances(folder, counted):
    count = int(re.search(r"instance_num = (\d+)", FILES["two.toml"])[1])
    counted.barrier = threading.Barrier(count)  # passed only if so many are in it at a time
    with headrace.pipe(shaped(folder, "two.toml")) as pipe:
        call_together(pipe, pictures(count))
    assert counted.most == count


def test_in_one_expression_as_many_are_decoded_as_there_are_instances(folder, counted):
    count = int(re.search(r"instance_num = (\d+)", FILES["one.toml"])[1])
    with headrace.pipe(shaped(folder, "one.toml")) as pipe:
        call_together(pipe, pictures(6 * count))
    assert 1 <= counted.most <= count


def test_check_says_so_as_the_page_shows(folder):
    done = shell("headrace check one.toml", folder)
    assert done.returncode == 0, done.stderr
    assert PAGE.block("text", "warning: one.toml").strip() in done.stderr + done.stdout
    assert STEPS in (folder / "two.toml").read_text("utf-8")


@pytest.fixture
def scale_cupy():
    """The file that the page shows, imported; and a backend that notes the streams it sees."""
    cupy = pytest.importorskip("cupy")
    spec = importlib.util.spec_from_file_location("scale_cupy", DOCS / "scale_cupy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    headrace.register("ScaleCupy", module.ScaleCupy, replace=True)
    return cupy


@pytest.mark.gpu
def test_cupy_and_torch_share_the_stream_of_each_instance(scale_cupy):
    cupy, seen = scale_cupy, []

    class NoteStreams(headrace.Backend):
        owns_thread = True

        def init(self, options, context):
            self.shared = context.store.instance.get(("cuda.stream", 0))

        def forward(self, batch):
            for request in batch:
                assert isinstance(request["data"], cupy.ndarray)
                current = torch.cuda.current_stream(0).cuda_stream
                seen.append((self.shared.handle, current, cupy.cuda.get_current_stream().ptr))
                request["result"] = request["data"]

    headrace.register("NoteStreams", NoteStreams, replace=True)
    config = {
        "backend": "S[GpuTensor,ScaleCupy(factor=0.5),NoteStreams,SoftmaxTensor,CpuTensor]",
        "device": "cuda:0",
        "max": 4,
        "instance_num": 3,
    }
    random = np.random.default_rng(0)
    given = [random.standard_normal((200, 301)).astype(np.float32) for _ in range(120)]
    with headrace.pipe(config) as pipe, ThreadPoolExecutor(12) as threads:
        found = list(threads.map(lambda one: pipe({"data": one})["result"], given))
    for one, result in zip(given, found, strict=True):
        wanted = np.exp(one * 0.5) / np.exp(one * 0.5).sum(1, keepdims=True)
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-4, atol=1e-7)
    assert all(shared == current == of_cupy != 0 for shared, current, of_cupy in seen)
    assert 1 <= len(set(seen)) <= 3


@pytest.mark.gpu
def test_cupy_alone_brings_a_stream_and_its_results_are_finished(scale_cupy):
    cupy = scale_cupy
    with headrace.pipe({"backend": "ScaleCupy", "factor": 3, "device": "cuda:0", "max": 4}) as pipe:
        given = [cupy.full((1 << 20,), k, cupy.float32) for k in range(16)]
        cupy.cuda.get_current_stream().synchronize()
        answers = pipe([{"data": one} for one in given])
        for k, answer in enumerate(answers):
            with cupy.cuda.Stream(non_blocking=True):  # ordered behind nothing
                assert float(answer["result"].max()) == float(answer["result"].min()) == 3 * k


@pytest.mark.gpu
def test_cupy_waits_for_what_the_stream_of_the_caller_has_queued(scale_cupy):
    """A kernel that takes 0.2 s at 2 GHz is queued before the array is written."""
    cupy = scale_cupy
    with headrace.pipe({"backend": "ScaleCupy(factor=3.0)", "device": "cuda:0"}) as pipe:
        pipe({"data": cupy.ones(8, cupy.float32)})
        stream, given = cupy.cuda.Stream(non_blocking=True), cupy.zeros(8, cupy.float32)
        given.fill(0)  # the first launch of a kernel may wait for the device
        cupy.cuda.Device(0).synchronize()
        with stream, torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
            torch.cuda._sleep(400_000_000)
            given.fill(1)
            answer = pipe({"data": given})
        assert answer["result"].get().tolist() == [3] * 8


@pytest.mark.gpu
def test_cupy_refuses_what_is_not_on_its_device(scale_cupy):
    with headrace.pipe({"backend": "ScaleCupy(factor=2.0)", "max": 4}) as pipe:
        wrong = [np.zeros(3, np.float32), torch.zeros(3), "text"]
        right = torch.ones(3, device="cuda:0")
        requests = [{"data": one} for one in (*wrong, right)]
        with pytest.raises(headrace.errors.RequestsFailed) as failed:
            pipe(requests)
    *errors, last = failed.value.errors
    assert all(isinstance(one, InputError) and "cuda:0" in str(one) for one in errors)
    assert last is None
    assert requests[-1]["result"].get().tolist() == [2, 2, 2]
