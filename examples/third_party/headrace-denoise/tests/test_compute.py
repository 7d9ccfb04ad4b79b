"""The functions: on noise whose picture is known, and on what is no image."""

import numpy as np
import pytest
from headrace.errors import InputError

from headrace_denoise.compute import denoise


def step(noise):
    """A dark and a bright half, and the same with noise."""
    picture = np.full((32, 32, 3), 60, np.uint8)
    picture[:, 16:] = 200
    grain = np.random.default_rng(0).normal(0, noise, picture.shape)
    return picture, np.clip(picture + grain, 0, 255).astype(np.uint8)


def test_noise_goes_and_the_edge_stays():
    picture, noisy = step(20)
    clean = denoise(noisy, 0.2, 200)
    far = np.abs(noisy.astype(float) - picture).mean()
    near = np.abs(clean.astype(float) - picture).mean()
    assert near < far / 3
    assert clean[:, 17].mean() - clean[:, 14].mean() > 100


def test_a_picture_without_noise_stays_nearly_what_it_is():
    picture, _ = step(0)
    assert np.abs(denoise(picture, 0.01, 200).astype(float) - picture).max() <= 2


@pytest.mark.parametrize("wrong", [None, "text", [[1], [2, 3]], np.zeros((4, 4, 3)), np.uint8(1)])
def test_what_is_no_image_is_an_error_that_names_the_key(wrong):
    with pytest.raises(InputError, match="uint8") as caught:
        denoise(wrong, 0.1, 200)
    assert caught.value.key == "data"
