"""Expressions and samples of the tests about words."""

import numpy as np
import pytest

GATHERED = (
    "IoC[LoadTensorrtEngine,TensorrtInferTensor;CatSplit[TensorrtCat,S[Reflect[pre_processor,"
    "Identity],TensorrtInferTensor,Reflect[post_processor,Identity]],TensorrtSplit]]"
)

ALONE = "IoC[LoadTensorrtEngine,TensorrtInferTensor;TensorrtInferTensor]"
PLAIN = (
    "IoC[LoadTensorrtEngine,TensorrtInferTensor;"
    "CatSplit[TensorrtCat,TensorrtInferTensor,TensorrtSplit]]"
)
SHORT = "TensorrtInferTensor[LoadTensorrtEngine]"
BOTH = pytest.mark.parametrize("backend", [SHORT, GATHERED], ids=["alone", "gathered"])


def samples(count, width=3):
    return list(np.random.default_rng(1).standard_normal((count, width)).astype(np.float32))
