"""The rules that all engines keep, on a device of host memory."""

import pytest
from engine_rules import NEG, RAGGED, EngineRules
from trt_expressions import GATHERED, SHORT

from headrace.errors import SetupError

pytest.importorskip("onnxruntime")
ROWS, LENGTHS = (1, 4, 8), (4, 20, 50)


class TestRules(EngineRules):
    expression = SHORT

    @pytest.fixture(autouse=True)
    def on_device(self, device, plan):
        self.plan = plan

    def config(self, path, inputs):
        ranges = {}
        for name, _, shape in inputs:
            axes = [
                ROWS if n == "n" else LENGTHS if isinstance(n, str) else (n,) * 3 for n in shape
            ]
            ranges[name] = tuple(zip(*axes, strict=True))
        made = self.plan(path, ranges, name=f"{path.stem}.plan")
        return {"backend": self.expression, "model": str(made)}

    def test_outputs_that_stay_on_the_device_are_not_cut(self, start):
        with pytest.raises(SetupError, match="on the device"):
            start(NEG, *RAGGED, ragged="pad", output_device="device")


class TestGatheredRules(TestRules):
    """The same between TensorrtCat and TensorrtSplit, which cut nothing."""

    expression = GATHERED
    test_each_input_is_padded_with_its_value_and_outputs_are_cut_again = None
    test_a_padded_sample_gets_as_many_frames_as_alone = None
    test_crop_names_the_input_that_an_output_is_cut_like = None

    def test_outputs_are_not_cut(self, start):
        with pytest.raises(SetupError, match="`crop`"):
            start(NEG, *RAGGED, ragged="pad")
