"""What stands around one step of the decoder: where a request begins, and which character comes next."""

import json
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from headrace.errors import InputError

LETTERS = json.loads((Path(__file__).parent / "made" / "letters.json").read_text(encoding="utf-8"))
WIDTH = 96


class Begin(headrace.Backend):
    """Get a prompt ready for the first step.

    Reads:
        data: A text of at least one character, all of them letters of the model.
    Writes:
        result: The text.
        token: The first character, as int64.
        state: Zeros, float32 [96].
        prompt: The characters that are yet to be read.
        text: What was written: nothing yet.
    Batch:
        1 or more.

    Raises:
        InputError: ``data`` is no text, is empty, or has a character that the model does not know.
    Source:
        own
    """

    writes = ("result", "token", "state", "prompt", "text")
    rerun = True

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Write what the first step reads."""
        for request in batch:
            prompt = request["data"]
            if not isinstance(prompt, str) or not prompt or set(prompt) - set(LETTERS):
                wanted = f"a text of these characters: {LETTERS!r}"
                raise InputError(key="data", expected=wanted, got=repr(prompt))
            request["result"], request["text"] = prompt, ""
            request["token"] = np.int64(LETTERS.index(prompt[0]))
            request["prompt"], request["state"] = prompt[1:], np.zeros(WIDTH, np.float32)


class Letter(headrace.Backend):
    """Choose the next character, and give it to whoever reads the stream.

    Reads:
        data: ``logits``, float32 [L], and ``stateN``, float32 [96], as the model gives them.
        prompt, text: See `Begin`.
        length: How many characters are written at most, an int; 80 where it is missing.
        seed: With it characters are drawn, without it each is the likeliest.
    Writes:
        result: The text so far.
        token, state, prompt, text: What the next step reads.
        end: True after a full stop, and at the greatest length.
    Batch:
        1 or more.

    Raises:
        BackendError: ``length`` or ``seed`` is no int.
    Source:
        own
    """

    reads = ("data", "prompt", "text")
    writes = ("result", "token", "state", "prompt", "text", "end")

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Take over how a character is given to the stream."""
        self.asks = context.request

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Write one character for each request, or read one of its prompt."""
        for request in batch:
            logits, request["state"] = request["data"]["logits"], request["data"]["stateN"]
            prompt, text = request["prompt"], request["text"]
            if prompt:  # it is read a character per step, beside requests that write
                request["token"] = np.int64(LETTERS.index(prompt[0]))
                request["prompt"] = prompt[1:]
            else:
                token = self.choose(logits, request.get("seed"), len(text))
                request["token"], text = np.int64(token), text + LETTERS[token]
                self.asks.emit(self.asks.keep(request), LETTERS[token])
                if LETTERS[token] == "." or len(text) >= request.get("length", 80):
                    request["end"] = True
            request["text"] = request["result"] = text

    def choose(self, logits: Any, seed: int | None, place: int) -> int:
        """Return the index of the next character."""
        if seed is None:
            return int(logits.argmax())
        noise = np.random.default_rng((seed, place)).gumbel(size=logits.shape)
        return int((logits / 0.7 + noise).argmax())


headrace.register("Begin", Begin)
headrace.register("Letter", Letter)
