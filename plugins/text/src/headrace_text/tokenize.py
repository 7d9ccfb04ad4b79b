"""`Tokenize`: the numbers of the tokens of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import pydantic
from typing_extensions import TypedDict

import headrace
from headrace.errors import InputError, LimitError, SetupError, among

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["Tokenize", "TooLongError"]

_BYTES: Final = 1 << 20
_CHARACTERS: Final = 65_536
"""The most of a text, in bytes of UTF-8, and in characters after normalization.

A tokenizer takes hundreds of bytes for each token, also for one that it cuts off. The bounds do not grow with `max_length`.
"""
_GROWS: Final = 18
"""A character becomes at most so many by Unicode's normal forms."""
_PIECE: Final = 4096
_CLIENTS: Final = "LangChain's OpenAIEmbeddings sends texts with check_embedding_ctx_length=False."
_KINDS: Final = {
    "query": ("query", "search_query"),
    "document": ("document", "passage", "corpus", "search_document"),
}
_KINDS_BY_NAME: Final = {name: names for names in _KINDS.values() for name in names}
"""The prompts, in order, that an ``input_type`` may mean: those of sentence-transformers, NIM and Cohere."""


class TooLongError(LimitError, InputError):
    """A text is too long. It is an InputError, too, since who sends it must shorten it."""


class _Data(TypedDict):
    data: str | bytes | list[Any]


class _Text(_Data, total=False):
    prompt_name: str
    input_type: str


class Tokenize(headrace.Backend):
    """Turn texts into the numbers of their tokens, by a file ``tokenizer.json``.

    Padding and truncation of that file are switched off: the node after it batches arrays of different lengths.

    Reads:
        data: A text, its UTF-8 bytes, or two texts in a list or tuple. Or a list of the numbers of tokens, which is taken as
            it is, without a prompt.
        prompt_name: The name of the prompt, of those in ``prompts``. It may be missing.
        input_type: ``query`` or ``document``, or another name of them as Cohere's and NIM's clients send it. It stands for the
            prompt of that kind, and for the default prompt where there is none. It may be missing.

    Writes:
        result: The numbers, ``int64 [tokens]``.
        attention_mask: Ones, ``int64 [tokens]``.
        token_type_ids: The text of each token, 0 or 1, ``int64 [tokens]``.
        position_ids: Numbers that rise by one, from 0 or as ``padding_token`` says, ``int64 [tokens]``.
        tokens: How many there are, an int: for batch policies, and for the usage that `headrace serve --api openai` reports.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is none of these, has no token, or a number that the tokenizer does not have. Or there is no such
            prompt.
        TooLongError: A text has more than 1 MiB, or 65,536 characters after normalization. Or it has more than ``max_length``
            tokens, with ``too_long = "refuse"``.

    Source:
        The library tokenizers of Hugging Face. Of two texts the longer is cut first, as its strategy ``longest_first``.
    """

    class Options(headrace.Options):
        """The tokenizer, and what becomes of long texts.

        Attributes:
            tokenizer: The file tokenizer.json.
            max_length: The most tokens of a request, special ones among them.
            too_long: What becomes of a longer text (a name).
            keep: What is kept of a text that is cut.
            lowercase: Whether texts are put into small letters first (true or false).
            prompt: A text that is put before each text.
            prompts: Prompts that a request may name, by their names.
            tokens: Whether lists of the numbers of tokens are taken (true or false).
            padding_token: RoBERTa's token of padding: positions are counted from behind its number, and padding is left
                out.
        """

        positional = ("tokenizer",)

        tokenizer: headrace.FilePath
        max_length: int = pydantic.Field(512, ge=1)
        too_long: Literal["cut", "refuse"] = "cut"
        keep: Literal["beginning", "end"] = "beginning"
        lowercase: bool = False
        prompt: str = ""
        prompts: dict[str, str] = pydantic.Field({})
        tokens: bool = True
        padding_token: int | None = pydantic.Field(None, ge=0)

    reads = _Text
    rerun = True
    max = None
    writes = ("result", "attention_mask", "token_type_ids", "position_ids", "tokens")

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
        from tokenizers import Tokenizer, normalizers

        self._np, self._options = np, options
        try:
            tokenizer: Any = Tokenizer.from_file(str(options.tokenizer))
            tokenizer.no_padding()
            tokenizer.no_truncation()
            if options.lowercase:
                own = [tokenizer.normalizer] if tokenizer.normalizer else []
                tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
        except Exception as error:
            hint = "Name the tokenizer.json of the model."
            problem = f"{options.tokenizer} is no tokenizer: {error}"
            raise SetupError(problem, hint=hint) from error
        special = tokenizer.num_special_tokens_to_add(is_pair=False)
        if options.max_length < special:
            problem = f"max_length is {options.max_length}, and a text has {special} special tokens"
            raise SetupError(problem)
        self._tokenizer, self._normalizer = tokenizer, tokenizer.normalizer
        self._known = tokenizer.get_vocab_size(with_added_tokens=True)

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
        np, options = self._np, self._options
        text, most = self._read(request), options.max_length
        if isinstance(text, list):
            ids, of = text, [0] * len(text)
            types = of
        else:  # one text at a time: a batch of them starts as many threads as the machine has cores
            (encoding,) = self._tokenizer.encode_batch_fast([text])
            ids, types = encoding.ids, encoding.type_ids
            of = encoding.sequence_ids if len(ids) > most else []
        if not ids:
            raise InputError(key="data", expected="a text with at least one token")
        ids, types = np.array(ids, np.int64), np.array(types, np.int64)
        if len(ids) > most:
            if options.too_long == "refuse":
                problem = f"data has {len(ids)} tokens, and max_length is {most}"
                hint = "Shorten the text, or say too_long=cut."
                raise TooLongError(problem, limit=most, hint=hint)
            mask = self._kept(np.array([-1 if number is None else number for number in of]))
            ids, types = ids[mask], types[mask]
        request["result"], request["token_type_ids"] = ids, types
        request["attention_mask"] = np.ones(len(ids), np.int64)
        padding, places = options.padding_token, np.arange(len(ids))
        if padding is not None:
            real = ids != padding
            places = np.cumsum(real) * real + padding
        request["position_ids"] = places.astype(np.int64, copy=False)
        request["tokens"] = len(ids)

    def _kept(self, of: Any) -> Any:
        """Return which tokens stay: all special ones, of text -1, and of each text as many as there is room for."""
        np, most = self._np, self._options.max_length
        mask = of < 0
        room = most - int(mask.sum())
        if room < 0:
            problem = f"two texts have {most - room} special tokens, and max_length is {most}"
            raise TooLongError(problem, limit=most, hint="Raise max_length.")
        texts = [np.flatnonzero(of == number) for number in range(int(of.max()) + 1)]
        for places, count in zip(texts, _lengths([*map(len, texts)], room), strict=True):
            cut = len(places) - count
            mask[places[:count] if self._options.keep == "beginning" else places[cut:]] = True
        return mask

    def _read(self, request: Request) -> Any:
        """Return a text, a pair of texts, or a list of the numbers of tokens."""
        data = request.get("data")
        if isinstance(data, (list, tuple)) and all(type(number) is int for number in data):
            return self._numbers(data)
        prompt = self._prompt(request)
        if isinstance(data, (str, bytes)):
            return self._text(data, prompt)
        if isinstance(data, (list, tuple)) and len(data) == 2 and isinstance(data[0], str):
            return self._text(data[0], prompt), self._text(data[1])
        needed = "a text, two texts, or a list of the numbers of tokens"
        raise InputError(key="data", expected=needed, got=type(data).__name__)

    def _numbers(self, data: Any) -> list[int]:
        if not self._options.tokens:
            hint = f"{_CLIENTS} Of this vocabulary, tokens = true takes them."
            got = "numbers of tokens, which may be those of another vocabulary"
            raise InputError(key="data", expected="a text or two texts", got=got, hint=hint)
        if data and not (min(data) >= 0 and max(data) < self._known):
            got, needed = f"{min(data)} to {max(data)}", f"tokens from 0 to {self._known - 1}"
            hint = f"Send texts, or the numbers of this model's tokenizer. {_CLIENTS}"
            raise InputError(key="data", expected=needed, got=got, hint=hint)
        return list(data)

    def _prompt(self, request: Request) -> str:
        """Return the text that stands before the text of a request."""
        name, kind, options = request.get("prompt_name"), request.get("input_type"), self._options
        default: str = options.prompt
        if name is None and kind is None:
            return default
        key, choice = ("input_type", kind) if name is None else ("prompt_name", name)
        prompts: dict[str, str] = options.prompts
        if name is not None and kind is not None:
            raise InputError(key=key, expected="prompt_name or input_type, not both", got="both")
        if isinstance(choice, str) and choice in prompts:
            return prompts[choice]
        if name is None and kind in _KINDS_BY_NAME:
            return next(
                (prompts[word] for word in _KINDS_BY_NAME[kind] if word in prompts), default
            )
        known = [*prompts] if name is not None else [*_KINDS_BY_NAME, *prompts]
        expected = f"one of {', '.join(known)}" if known else "none, as the model has no prompts"
        raise InputError(
            key=key, expected=expected, got=repr(choice)[:40], hint=among(str(choice), known)
        )

    def _text(self, data: Any, prompt: str = "") -> str:
        """Return a prompt and a text, which is not too long."""
        text = prompt + _decoded(data)
        if len(text) * 4 > _BYTES and len(text.encode()) > _BYTES:
            problem = f"data has {len(text.encode())} bytes, and a text may have {_BYTES}"
            raise TooLongError(problem, limit=_BYTES, hint="Shorten the text.")
        count = len(text)
        if count * _GROWS > _CHARACTERS and self._normalizer is not None:
            count = self._count(text)
        if count > _CHARACTERS:
            problem = f"data has {count} or more characters after normalization, and a text may have {_CHARACTERS}"
            raise TooLongError(problem, limit=_CHARACTERS, hint="Shorten the text.")
        return text

    def _count(self, text: str) -> int:
        """Return the number of characters after normalization, or of those of the beginning if it has far too many."""
        count = 0
        for at in range(0, len(text), _PIECE):  # normalization takes 60 bytes for each character
            count += len(self._normalizer.normalize_str(text[at : at + _PIECE]))
            if count > 2 * _CHARACTERS:
                return count
        return len(self._normalizer.normalize_str(text))


def _lengths(counts: list[int], room: int) -> list[int]:
    """Return how many tokens of one text or two are kept: all of the shorter while it has at most half of the room."""
    if len(counts) == 1:
        return [room]
    short = min(room // 2, *counts)
    return [short, room - short] if counts[0] <= counts[1] else [room - short, short]


def _decoded(data: Any) -> str:
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
