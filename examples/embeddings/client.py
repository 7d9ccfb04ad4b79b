"""Ask for the vectors of two texts by the unmodified client of OpenAI: python client.py URL."""

from __future__ import annotations

import sys

import openai

client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
made = client.embeddings.create(model="encoder", input=["w1 w2 w3", "w3 w2 w1 w0"])
first, second = (one.embedding for one in made.data)
print(len(first), "numbers each, similarity", round(sum(map(float.__mul__, first, second)), 3))
print(made.usage.prompt_tokens, "tokens")
