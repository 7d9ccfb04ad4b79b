"""A detector in a program of torch: `./dev test torch` runs this, where torch is installed."""

from __future__ import annotations

import numpy as np
import pytest

from headrace_vision import detect

torch = pytest.importorskip("torch", reason="./dev test torch runs this")


class Spot(torch.nn.Module):
    """A YOLOv8 whose only box lies where the mean of the picture says: in pixels from the left."""

    def forward(self, image):
        mean = image.mean((1, 2, 3), keepdim=True)[..., 0]
        fixed = torch.zeros(1, 6, 84)
        fixed[0, :, 5] = torch.tensor([10.0, 32, 8, 8, 0, 0.75])
        moved = torch.zeros(1, 6, 84)
        moved[0, 0, 5] = 100
        return fixed + moved * mean


@pytest.mark.parametrize("rows", ["one", "any"])
def test_a_program_of_torch_finds_the_boxes_that_it_computes(tmp_path, rows):
    shapes = {"one": None, "any": ({0: torch.export.Dim("rows")},)}[rows]
    example = torch.zeros(1 if rows == "one" else 2, 3, 64, 64)
    program = torch.export.export(Spot().eval(), (example,), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "spot.pt2")
    pictures = [np.full((128, 128, 3), value, np.uint8) for value in (0, 51)]
    found = list(
        detect(
            tmp_path / "spot.pt2",
            {"a": pictures},
            layout="v8",
            size=64,
            device="cpu",
            labels=["cat", "dog"],
            classes=["dog"],
        )
    )
    assert [one.error for one in found] == [None, None]
    # 51 of 255 is a fifth: 20 pixels of the input more, which is half as large as the picture.
    np.testing.assert_allclose(found[0].result.xyxy, [[12, 56, 28, 72]], atol=1e-3)
    np.testing.assert_allclose(found[1].result.xyxy, [[52, 56, 68, 72]], atol=1e-3)
    assert found[0].result.data["class_name"].tolist() == ["dog"]
