"""The functions, against numbers worked out by hand."""

import numpy as np
import pytest
from headrace.errors import InputError

from {{ cookiecutter.package }}.compute import scale


def test_each_value_is_multiplied_and_stays_in_range():
    image = np.array([[[0, 10, 200]]], np.uint8)
    assert scale(image, 1.25).tolist() == [[[0, 12, 250]]]
    assert scale(image, 2).tolist() == [[[0, 20, 255]]]


@pytest.mark.parametrize("wrong", [None, "text", [[1], [2, 3]], np.zeros((4, 4, 3))])
def test_what_is_no_image_is_an_error_that_names_the_key(wrong):
    with pytest.raises(InputError, match="uint8"):
        scale(wrong, 1.0)
