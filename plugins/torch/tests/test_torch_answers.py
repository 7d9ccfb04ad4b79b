"""Answers of TorchModule in company are those alone: compared with the same modules called by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.errors import SetupError
from headrace_torch.backends.module import TorchModule

HERE = f"{Path(__file__)}:"


class Masked(torch.nn.Module):
    def forward(self, ids, mask):
        return {"sum": (ids * mask).sum(1), "ids": ids * mask}


class Divides(torch.nn.Module):
    def forward(self, x):
        if float(x.max()) <= 1:
            raise ValueError("this is no real input")
        return x * 2


def test_a_program_tells_which_axes_of_its_outputs_are_cut(bench, tmp_path):
    rows, length = torch.export.Dim("rows", min=1, max=64), torch.export.Dim("length", max=512)
    program = torch.export.export(
        torch.nn.Softplus(), (torch.zeros(3, 5),), dynamic_shapes=({0: rows, 1: length},)
    )
    torch.export.save(program, tmp_path / "model.pt2")
    one = bench()
    samples = [torch.arange(n, dtype=torch.float32) for n in (3, 6)]
    for options, cut in (({}, True), ({"crop": {}}, False)):
        backend = one.start(TorchModule, model=tmp_path / "model.pt2", ragged="pad", **options)
        found = one.run(backend, *({"data": sample} for sample in samples))
        assert [len(result) for result in found] == [3 if cut else 6, 6]
        for result, sample in zip(found, samples, strict=True):
            torch.testing.assert_close(result[: len(sample)], torch.nn.functional.softplus(sample))


def test_what_raises_on_random_inputs_is_a_warning_and_real_ones_come_from_a_file(
    bench, tmp_path, caplog
):
    one = bench()
    options = {"module": f"{HERE}Divides", "shape": "float32:2"}
    backend = one.start(TorchModule, **options)
    assert "this is no real input" in caplog.text
    assert "warm_up_input" in caplog.text
    (found,) = one.run(backend, {"data": torch.tensor([4.0, 5])})
    assert found.tolist() == [8, 10]
    caplog.clear()
    np.save(tmp_path / "real.npy", np.float32([2, 3]))
    one.start(TorchModule, warm_up_input=tmp_path / "real.npy", **options)
    assert not caplog.text
    np.save(tmp_path / "real.npy", np.float32([0, 0]))
    with pytest.raises(SetupError, match="no real input"):
        one.start(TorchModule, warm_up_input=tmp_path / "real.npy", **options)


class Scaled(torch.nn.Module):
    """Divides by the greatest value of the whole batch, or of each row."""

    def __init__(self, whole, integers=False):
        super().__init__()
        self.whole = whole
        self.integers = integers

    def forward(self, x):
        y = x / (x.max() if self.whole else x.amax(1, keepdim=True))
        return (y * 10).round().long() if self.integers else y


class Draws(torch.nn.Module):
    """Has other results each time, whatever runs beside."""

    def forward(self, x):
        return x + torch.rand_like(x)


@pytest.mark.parametrize(
    ("module", "args", "options", "says"),
    [
        ("Scaled", {"whole": True}, {}, True),
        ("Scaled", {"whole": True}, {"dtype": "bfloat16"}, True),
        ("Scaled", {"whole": True, "integers": True}, {}, True),
        ("Scaled", {"whole": False}, {}, False),
        ("Scaled", {"whole": False}, {"dtype": "bfloat16"}, False),
        ("Draws", {}, {}, False),
    ],
)
def test_a_model_in_which_rows_change_each_others_results_is_a_warning(
    bench, caplog, module, args, options, says
):
    options = {"module": f"{HERE}{module}", "args": args, "shape": "float32:4", **options}
    bench(most=8).start(TorchModule, **options)
    assert ("node 'main': output" in caplog.text) is says
    assert ("max = 1" in caplog.text) is says
    caplog.clear()
    bench(most=1).start(TorchModule, **options)
    assert not caplog.text


def test_rows_of_a_program_with_a_fixed_batch_are_compared_too(bench, tmp_path, caplog):
    for whole in (True, False):
        program = torch.export.export(Scaled(whole), (torch.rand(3, 4),))
        torch.export.save(program, tmp_path / "model.pt2")
        bench(most=3).start(TorchModule, model=tmp_path / "model.pt2")
        assert ("depends on its batch" in caplog.text) is whole
        caplog.clear()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_arrays_of_the_host_go_to_the_device_unless_that_is_refused(bench):
    one = bench(device="cuda:0")
    options = {"module": f"{HERE}Masked", "shape": {"ids": "int64:3", "mask": "int64:3"}}
    ids, mask = np.array([1, 2, 3]), np.array([1, 0, 1])
    backend = one.start(TorchModule, **options)
    on_device = {"ids": torch.from_numpy(ids).cuda(), "mask": torch.from_numpy(mask).cuda()}
    torch.cuda.synchronize()
    for found in one.run(backend, {"ids": ids, "mask": mask}, on_device):
        assert found["ids"].is_cuda
        assert found["ids"].tolist() == [1, 0, 3]


class AllAgainstAll(torch.nn.Module):
    """Each row times each other."""

    def forward(self, x):
        return x @ x.T


def test_a_program_tells_of_an_output_of_all_rows_against_all(bench, tmp_path):
    dims = ({0: torch.export.Dim("rows", min=1, max=64)},)
    program = torch.export.export(AllAgainstAll(), (torch.zeros(3, 5),), dynamic_shapes=dims)
    torch.export.save(program, tmp_path / "model.pt2")
    with pytest.raises(SetupError, match=r"\['s\d+', 's\d+'\] has two batch axes"):
        bench(most=4).start(TorchModule, model=tmp_path / "model.pt2")
    bench(most=1).start(TorchModule, model=tmp_path / "model.pt2")
