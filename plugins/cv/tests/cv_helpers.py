"""What several files of tests of pictures say."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.errors import InputError
from headrace_cv.decode import DecodeMat


def noise(*shape, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, 256, shape).astype(dtype)


def error_of(kit, data, **options):
    with pytest.raises(InputError) as caught:
        kit.run(kit.ready(DecodeMat, **options), data=data)
    assert caught.value.key == "data"
    return caught.value
