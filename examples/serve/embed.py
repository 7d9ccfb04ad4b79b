"""Sentences as vectors, of which those of like words lie near each other; embed.toml makes them a service."""

from typing import Any, TypedDict

from sklearn.feature_extraction.text import HashingVectorizer

import headrace


class Sentence(TypedDict):
    """What a request holds."""

    text: str


@headrace.register
class Embed(headrace.Backend):
    """The vector of a sentence, float64 [256] of length 1.

    Reads: ``text``. Writes: ``result``.
    """

    reads, max = Sentence, None

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Make the vectorizer, which needs no training."""
        self.vectorizer = HashingVectorizer(n_features=256, ngram_range=(3, 5), analyzer="char_wb")

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Make the vectors of a batch at once."""
        vectors = self.vectorizer.transform([request["text"] for request in batch]).toarray()
        for request, vector in zip(batch, vectors, strict=True):
            request["result"] = vector
