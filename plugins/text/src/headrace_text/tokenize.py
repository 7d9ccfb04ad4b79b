"""`Tokenize`: the numbers of the tokens of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pydantic

import headrace
from headrace.errors import InputError, LimitError, SetupError

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["Tokenize", "TooLongError"]

_CHARACTERS = 32
"""For each token of ``max_length`` as many characters are read, of two texts half of them each.

A tokenizer takes hundreds of bytes for a token that it cuts off, and of two texts a time that grows with the square of their lengths.
"""


class TooLongError(LimitError, InputError):
    """A text is too long. It is an InputError, too, since who sends it must shorten it."""


class Tokenize(headrace.Backend):
    """Turn texts into the numbers of their tokens, by a file ``tokenizer.json``.

    Padding and truncation of that file are switched off: the node after it batches arrays of different lengths.

    Reads:
        data: A text, its UTF-8 bytes, or two texts in a list or tuple. Or a list of the numbers of tokens, which is taken as
            it is, without a prompt.

    Writes:
        result: The numbers, ``int64 [tokens]``.
        attention_mask: Ones, ``int64 [tokens]``.
        token_type_ids: The text of each token, 0 or 1, ``int64 [tokens]``.
        tokens: How many there are, an int: for batch policies, and for the usage that `headrace serve --api openai` reports.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is none of these, has no token, or a number that the tokenizer does not have.
        TooLongError: It has more than ``max_length`` tokens, or 32 times as many characters, with ``too_long = "refuse"``.

    Source:
        The library tokenizers of Hugging Face.
    """

    class Options(headrace.Options):
        """The tokenizer, and what becomes of long texts."""

        positional = ("tokenizer",)

        tokenizer: headrace.FilePath = pydantic.Field(description="The file tokenizer.json.")
        max_length: int = pydantic.Field(
            512, ge=1, description="The most tokens of a request, special ones among them."
        )
        too_long: Literal["cut", "refuse"] = pydantic.Field(
            "cut", description="What becomes of a longer text (a name)."
        )
        prompt: str = pydantic.Field("", description="A text that is put before each text.")

    rerun = True
    max = None
    writes = ("result", "attention_mask", "token_type_ids", "tokens")

    @classmethod
    def auto_instances(cls, options: Any, device: str | None, threads: int) -> int | None:
        """Return one for each thread: the library computes without the interpreter lock."""
        return threads

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Load the tokenizer.

        Raises:
            SetupError: The file is none, or ``max_length`` leaves no room beside special tokens.
        """
        del context
        import numpy as np
        from tokenizers import Tokenizer

        self._np, self._options = np, options
        self._cuts = options.too_long == "cut"
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(options.tokenizer))
            self._tokenizer.no_padding()
            self._tokenizer.no_truncation()
            if self._cuts:
                self._tokenizer.enable_truncation(options.max_length)
        except Exception as error:
            raise SetupError(f"{options.tokenizer} is no tokenizer: {error}") from error
        self._known = self._tokenizer.get_vocab_size(with_added_tokens=True)

    def describe(self) -> dict[str, Any]:
        """Return the size of the vocabulary, and the output."""
        output = {"dtype": "int64", "shape": [None, None]}
        return {"vocabulary": self._known, "outputs": {"result": output}}

    def forward(self, batch: list[Request]) -> list[Exception | None]:
        """Tokenize each request."""
        outcomes: list[Exception | None] = []
        for request in batch:
            try:
                self._write(request)
                outcomes.append(None)
            except InputError as error:
                outcomes.append(error)
        return outcomes

    def _write(self, request: Request) -> None:
        np = self._np
        found = self._read(request.get("data"))
        if isinstance(found, list):
            ids, types = found[: self._options.max_length] if self._cuts else found, None
        else:  # one text at a time: a batch of them starts as many threads as the machine has cores
            (encoded,) = self._tokenizer.encode_batch_fast([found])
            ids, types = encoded.ids, encoded.type_ids
        count, most = len(ids), self._options.max_length
        if not count:
            raise InputError(key="data", expected="a text with at least one token")
        if count > most:
            what = f"data has {count} tokens, and max_length is {most}"
            raise TooLongError(what, limit=most, hint="Shorten the text, or say too_long=cut.")
        request["result"] = np.array(ids, np.int64)
        request["attention_mask"] = np.ones(count, np.int64)
        request["token_type_ids"] = np.array(types or [0] * count, np.int64)
        request["tokens"] = count

    def _read(self, data: Any) -> Any:
        """Return a text, a pair of texts, or a list of the numbers of tokens."""
        prompt = self._options.prompt
        if isinstance(data, (str, bytes)):
            return prompt + self._beginning(data)
        if isinstance(data, (list, tuple)) and len(data) == 2 and isinstance(data[0], str):
            return prompt + self._beginning(data[0], 2), self._beginning(data[1], 2)
        if isinstance(data, (list, tuple)) and all(type(one) is int for one in data):
            if data and not (min(data) >= 0 and max(data) < self._known):
                wanted = f"tokens from 0 to {self._known - 1}"
                raise InputError(key="data", expected=wanted, got=f"{min(data)} to {max(data)}")
            return list(data)
        wanted = "a text, two texts, or a list of the numbers of tokens"
        raise InputError(key="data", expected=wanted, got=type(data).__name__)

    def _beginning(self, data: Any, texts: int = 1) -> str:
        """Return a text, and of a very long one its beginning, which has all tokens that are wanted."""
        text, most = _text(data), _CHARACTERS * self._options.max_length // texts
        if len(text) > most and not self._cuts:
            what = f"data has {len(text)} characters, and max_length allows {most}"
            raise TooLongError(what, limit=most, hint="Shorten the text, or say too_long=cut.")
        return text[:most]


def _text(data: Any) -> str:
    """Return a text that can be encoded.

    Raises:
        InputError: It is no text, no UTF-8, or holds half of a surrogate pair.
    """
    try:
        if isinstance(data, bytes):
            return data.decode("utf-8")
        if isinstance(data, str):
            data.encode("utf-8")
            return data
    except UnicodeError as error:
        raise InputError(key="data", expected="a text in UTF-8", got=str(error)[-60:]) from None
    raise InputError(key="data", expected="a text", got=type(data).__name__)
