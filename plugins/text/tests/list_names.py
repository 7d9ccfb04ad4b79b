"""Write the names that sentence-transformers and transformers know: `python list_names.py > names.json`.

`test_text_table` holds the table of the reader to them. Run it where both are installed, with a new release.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import sys

import sentence_transformers
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Module
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from sentence_transformers.sentence_transformer.modules import pooling as of_pooling
from transformers import PreTrainedTokenizerBase, TokenizersBackend

CLASSES = [
    "BertTokenizer",
    "MPNetTokenizer",
    "RobertaTokenizer",
    "XLMRobertaTokenizer",
    "CamembertTokenizer",
    "T5Tokenizer",
    "AlbertTokenizer",
    "LlamaTokenizer",
    "GemmaTokenizer",
    "Qwen2Tokenizer",
    "GPT2Tokenizer",
    "GPTNeoXTokenizer",
    "DebertaV2Tokenizer",
    "TokenizersBackend",
]


def parameters(function):
    found = inspect.signature(inspect.unwrap(function)).parameters
    return [
        name for name, one in found.items() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]


def modules():
    """Return the names of all classes of modules."""
    found = set()
    for place in pkgutil.walk_packages(sentence_transformers.__path__, "sentence_transformers."):
        if ".modules" in place.name:
            members = vars(importlib.import_module(place.name)).items()
            found |= {
                name for name, one in members if inspect.isclass(one) and issubclass(one, Module)
            }
    return found


def popped(cls):
    """Return the keys that a class takes out of the arguments of a tokenizer, which are those of its file."""
    source = inspect.getsource(cls.__init__)
    return set(re.findall(r'kwargs\.(?:pop|get|setdefault)\(\s*"(\w+)"', source))


def config_of(cls):
    source = inspect.getsource(cls._get_model_config)
    return set(re.findall(r'"(\w+)"', source)) - {
        "sentence_transformers",
        "transformers",
        "pytorch",
    }


own = {"self", "model_name_or_path", "backend"}
tokenizer = popped(PreTrainedTokenizerBase) | popped(TokenizersBackend)
tokenizer |= set(PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES)
for name in CLASSES:
    tokenizer |= {*parameters(getattr(transformers, name).__init__)} - own
source = inspect.getsource(Transformer)
names = {
    "modules": modules(),
    "sentence_files": re.findall(r"sentence_[\w-]+_config\.json", inspect.getsource(Transformer.load_config)),
    "modules.json": {"idx", "name", "path", "type", "kwargs"},
    "config_sentence_transformers.json": config_of(SentenceTransformer) | config_of(CrossEncoder) | config_of(SentenceTransformer.__mro__[1]),
    "sentence_bert_config.json": {*parameters(Transformer.__init__), *Transformer.config_keys, *re.findall(r'"((?:model|tokenizer|config)_args)"', source)} - own,
    "Pooling": {*parameters(Pooling.__init__), *Pooling.config_key_renames, *of_pooling._LEGACY_POOLING_MODE_KWARGS} - own,
    "pooling": Pooling.POOLING_MODES,
    "flags": of_pooling._LEGACY_POOLING_MODE_KWARGS,
    "tokenizer_config.json": tokenizer,
}  # fmt: skip
sys.stdout.write(json.dumps({
    "command": "python list_names.py > names.json",
    "versions": {one.__name__: one.__version__ for one in (sentence_transformers, transformers, torch)},
    "names": {key: value if isinstance(value, dict) else [*value] if isinstance(value, (list, tuple)) else sorted(value) for key, value in names.items()},
}, indent=1))  # fmt: skip
