"""For ``headrace conformance headrace-text``: expressions and requests."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace_testing import BackendConformance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.keys import Request

__all__ = ["NormalizeConformance", "PoolConformance", "ScoresConformance", "TokenizeConformance"]

_WORDS = ("[UNK]", "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class TokenizeConformance(BackendConformance):
    """Numbers, digit by digit in words."""

    expression = "Tokenize"

    def make_options(self) -> Mapping[str, Any]:
        """Write a tokenizer of eleven words."""
        from tokenizers import Tokenizer, models, pre_tokenizers

        words = {word: number for number, word in enumerate(_WORDS)}
        tokenizer: Any = Tokenizer(models.WordLevel(words, unk_token=_WORDS[0]))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        path = Path(tempfile.mkdtemp()) / "tokenizer.json"
        tokenizer.save(str(path))
        return {"tokenizer": str(path)}

    def make_item(self, k: int) -> Request:
        """Return a text of as many words as a number has digits."""
        return {"data": " ".join(_WORDS[1 + int(digit)] for digit in str(7 + 31 * k))}

    def expected(self, k: int) -> Any:
        """Return the digits, of which each token is one more."""
        return np.array([1 + int(digit) for digit in str(7 + 31 * k)], np.int64)


class PoolConformance(BackendConformance):
    """The means of columns."""

    expression = "Pool(mean)"

    def make_item(self, k: int) -> Request:
        """Return rows that differ."""
        return {"data": np.arange(8 + 4 * k, dtype=np.float32).reshape(-1, 4)}

    def expected(self, k: int) -> Any:
        """Return the mean of first and last row."""
        return np.arange(4, dtype=np.float32) + np.float32(2 * (1 + k))


class NormalizeConformance(BackendConformance):
    """Multiples of 3 and 4."""

    expression = "Normalize"

    def make_item(self, k: int) -> Request:
        """Return a vector of length 5, 10, 15 and so on."""
        return {"data": np.array([3, 4], np.float32) * np.float32(1 + k)}

    def expected(self, k: int) -> Any:
        """Return the vector of length 1."""
        del k
        return np.array([0.6, 0.8], np.float32)


class ScoresConformance(BackendConformance):
    """Logits of two classes."""

    expression = "Scores(sigmoid)"

    def make_item(self, k: int) -> Request:
        """Return logarithms of odds."""
        return {"data": np.log(np.array([1 + k, 3], np.float32))}

    def expected(self, k: int) -> Any:
        """Return the chances of these odds."""
        return np.array([(1 + k) / (2 + k), 0.75], np.float32)
