"""Calls of the unmodified client of OpenAI, and of LangChain on it, with what is expected of each.

python openai_calls.py URL JSON, which has "texts" and their "vectors", whole and "short".
"""

from __future__ import annotations

import asyncio
import json
import sys

import openai

SAID = [{"role": "system", "content": "no"}, {"role": "user", "content": "one two three"}]


def near(found, wanted):
    """Check that two lists of vectors are nearly the same."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):  # noqa: B905 - Python 3.9 of an old client
        assert len(one) == len(other)
        assert max(abs(a - b) for a, b in zip(one, other)) < 1e-5  # noqa: B905


def refused(error, call, *words):
    """Check that a call raises this class, with these words."""
    try:
        call()
    except openai.OpenAIError as raised:
        found = raised
    else:
        raise AssertionError(f"nothing was raised for {words}")
    assert error in (type(found), openai.APIStatusError), found
    for word in words:
        assert word in str(found), found
    return found


def main(url, expected):
    """Make all calls."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0)
    create, texts = client.embeddings.create, expected["texts"]

    assert {"vectors", "words"} <= {one.id for one in client.models.list()}
    assert client.models.retrieve("words").id == "words"
    refused(openai.NotFoundError, lambda: client.models.retrieve("word"), "did you mean 'words'")

    made = create(model="vectors", input=texts)  # base64
    near([one.embedding for one in made.data], expected["vectors"])
    assert [one.index for one in made.data] == [0, 1, 2, 3]
    count = sum(len(one.encode()) for one in texts)
    assert (made.usage.prompt_tokens, made.usage.total_tokens) == (count, count)
    plain = create(model="vectors", input=texts[0], encoding_format="float")
    near([plain.data[0].embedding], expected["vectors"][:1])
    tokens = [list(one.encode()) for one in texts]
    near([o.embedding for o in create(model="vectors", input=tokens).data], expected["vectors"])
    near([create(model="vectors", input=tokens[0]).data[0].embedding], expected["vectors"][:1])
    short = create(model="vectors", input=texts, dimensions=2)
    near([one.embedding for one in short.data], expected["short"])
    assert len(create(model="vectors", input=["x"] * 2048).data) == 2048

    bad, large = openai.BadRequestError, ["x"] * 2049
    refused(openai.NotFoundError, lambda: create(model="vector", input="a"), "'vectors'")
    for given in (
        "",
        [],
        large,
        [""],
        [[]],
        [{"text": "a"}],
        [1.5],
        ["a", 1],
        [[True]],
        {"a": 1},
        None,
    ):
        refused(bad, lambda given=given: create(model="vectors", input=given), "input")
    for given in (0, -1, 5, True):
        refused(bad, lambda n=given: create(model="vectors", input="a", dimensions=n), "dimensions")
    refused(bad, lambda: create(model="vectors", input=[[300]]), "vocabulary")
    near(
        [create(model="vectors", input=texts[0], user="me").data[0].embedding],
        expected["vectors"][:1],
    )
    refused(bad, lambda: create(model="words", input="a"), "no embeddings")
    error = refused(
        openai.APIStatusError, lambda: create(model="vectors", input="a" * 80_000_000), "limit"
    )
    assert error.status_code == 413

    chat, completion = client.chat.completions.create, client.completions.create
    answer = chat(model="words", messages=SAID)
    assert answer.choices[0].message.content == "one two three "
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 3
    answer = chat(model="words", messages=SAID, temperature=0.5)
    assert answer.choices[0].message.content == "one two three 0.5"
    chunks = list(chat(model="words", messages=SAID, stream=True))
    assert [one.choices[0].delta.content for one in chunks] == ["one ", "two ", "three ", None]
    assert chunks[-1].choices[0].finish_reason == "stop"
    options = {"include_usage": True}
    *_, last = chat(model="words", messages=SAID, stream=True, stream_options=options)
    assert (last.choices, last.usage.completion_tokens) == ([], 3)
    assert completion(model="shout", prompt="hey").choices[0].text == "HEY"
    parts = completion(model="words", prompt="a b", stream=True)
    assert "".join(one.choices[0].text for one in parts) == "a b "

    refused(bad, lambda: chat(model="words", messages=SAID, n=2), "n:")
    refused(bad, lambda: chat(model="words", messages=[]), "messages")
    refused(bad, lambda: chat(model="words", messages=SAID, top_p=0.5), "'top_p'", "temperature")
    refused(
        openai.UnprocessableEntityError,
        lambda: chat(model="words", messages=SAID, temperature="warm"),
        "temperature",
    )
    refused(bad, lambda: completion(model="vectors", prompt="a"), "no texts")
    refused(bad, lambda: completion(model="vectors", prompt="a", stream=True), "no texts")
    several = completion(model="words", prompt=["a", "b c"])
    assert [(one.index, one.text) for one in several.choices] == [(0, "a "), (1, "b c ")]
    refused(bad, lambda: completion(model="words", prompt=["a", "b"], stream=True), "prompt")
    refused(bad, lambda: completion(model="words", prompt=["a", ""]), "prompt")
    said = {
        "metadata": {"a": "b"},
        "store": True,
        "parallel_tool_calls": False,
        "frequency_penalty": 0,
    }
    answer = chat(
        model="words", messages=SAID, user="me", safety_identifier="x", logprobs=False, **said
    )
    assert answer.choices[0].message.content == "one two three "
    refused(bad, lambda: chat(model="words", messages=SAID, logprobs=True), "'logprobs'")

    with chat(model="endless", messages=SAID, stream=True) as stream:
        assert next(iter(stream)).choices[0].delta.content == "first "
    late = client.with_options(default_headers={"X-Request-Timeout-Ms": "50"})
    refused(
        openai.InternalServerError,
        lambda: late.chat.completions.create(model="endless", messages=SAID),
        "504",
    )

    asyncio.run(in_a_loop(url, expected))
    langchain(url, expected)


async def in_a_loop(url, expected):
    """Make calls of the client for asyncio, 32 at a time."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0) as client:
        texts = expected["texts"]
        calls = [client.embeddings.create(model="vectors", input=texts[i % 4]) for i in range(32)]
        found = await asyncio.gather(*calls)
        near([one.data[0].embedding for one in found], expected["vectors"] * 8)
        stream = await client.chat.completions.create(model="words", messages=SAID, stream=True)
        texts = [one.choices[0].delta.content or "" async for one in stream]
        assert "".join(texts) == "one two three "


def langchain(url, expected):
    """Embed by LangChain's class, as texts: it would fetch OpenAI's vocabulary for tokens."""
    from langchain_openai import OpenAIEmbeddings

    texts = expected["texts"]
    made = OpenAIEmbeddings(
        model="vectors", base_url=f"{url}/v1", api_key="key", check_embedding_ctx_length=False
    )
    near(made.embed_documents(texts), expected["vectors"])
    near([made.embed_query(texts[0])], expected["vectors"][:1])


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
