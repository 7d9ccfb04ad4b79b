"""What the files of a folder of sentence-transformers may say: each file, key and value, and what is made of it here.

A key that has no row is refused by its name, so that nothing is guessed. The rows follow sentence-transformers 5.7 and
transformers 5.24. A test compares them with the names that these two know.
"""

from __future__ import annotations

from typing import Final

from headrace_formats.reader_table import Row, rows

__all__ = [
    "ACTIVATIONS", "CLASSES", "FILES", "FLAGS", "LEARNED", "MODULES", "POOLING", "SENTENCE_FILES",
    "TABLE", "TOKENIZERS",
]  # fmt: skip

_OBEYED: Final = Row("obeyed")

SENTENCE_FILES: Final = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""The names of one file, of which the first that is there counts."""

MODULES: Final = {
    **rows("obeyed", "", "Transformer Pooling Normalize"),
    **rows("refused", "its weights are in no ONNX file", "Dense LayerNorm WeightedLayerPooling CNN LSTM"),
    **rows("refused", "it is no transformer with a tokenizer.json", "StaticEmbedding WordEmbeddings BoW CLIPModel"),
    **rows("refused", "it needs weights of words", "WordWeights SpladePooling SparseAutoEncoder SparseStaticEmbedding"),
    **rows("refused", "it belongs to a generative model", "LogitScore"),
    **rows("refused", "it chooses modules by the kind of a text", "Router Asym"),
    **rows("refused", "it is for training", "Dropout"),
    **rows("refused", "it is a base class", "InputModule Module MLMTransformer"),
}  # fmt: skip
"""Modules, by the last part of their type."""

POOLING: Final = {
    "mean": "mean",
    "cls": "cls",
    "max": "max",
    "lasttoken": "last",
    "weightedmean": "weighted_mean",
    "mean_sqrt_len_tokens": "mean_sqrt",
}
"""Ways of pooling, and what `Pool` calls them."""

FLAGS: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The same as flags, in the order in which several are joined."""

ACTIVATIONS: Final = {
    "Sigmoid": "sigmoid",
    "Identity": "identity",
    "Softmax": "softmax",
    "Tanh": "tanh",
}
"""Functions of ``torch.nn`` behind a classifier, by the last part of their path, and what `Scores` calls them."""

TOKENIZERS: Final = {
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"), "bert"),
    **dict.fromkeys(("ConvBertTokenizer", "MPNetTokenizer"), "bert"),
    **dict.fromkeys(("RobertaTokenizer", "LongformerTokenizer"), "roberta"),
    **dict.fromkeys(("XLMRobertaTokenizer", "CamembertTokenizer", "T5Tokenizer", "AlbertTokenizer"), ""),
    **dict.fromkeys(("LlamaTokenizer", "GemmaTokenizer", "Qwen2Tokenizer", "GPT2Tokenizer"), ""),
    **dict.fromkeys(("GPTNeoXTokenizer", "DebertaV2Tokenizer"), ""),
    **dict.fromkeys(("PreTrainedTokenizer", "TokenizersBackend"), ""),
}  # fmt: skip
"""Classes of tokenizers whose tokens are those of ``tokenizer.json``, without the ending Fast, and what builds them again."""

CLASSES: Final = {
    **dict.fromkeys(("bert", "distilbert", "electra", "mobilebert", "convbert"), "BertTokenizer"),
    "mpnet": "MPNetTokenizer",
    **dict.fromkeys(("roberta", "longformer", "data2vec-text", "ibert"), "RobertaTokenizer"),
}
"""The class that transformers takes by the type of a model where none is named."""

LEARNED: Final = {
    **dict.fromkeys(("bert", "distilbert", "electra", "albert", "mobilebert", "convbert", "deberta"), 0),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet", "longformer"), 1),
    **dict.fromkeys(("xlm-roberta-xl", "roberta-prelayernorm", "data2vec-text", "ibert", "xmod"), 1),
}  # fmt: skip
"""Types of models with a vector for each position, so that no text is longer: 1 where the first position stands behind
padding."""

_INSIDE = "the tokens of tokenizer.json have it"
_NETWORK = "it describes the network, which the ONNX file holds"
_OTHERS = "it is for files or frameworks that are not read"
_DECODING = "it is for making texts of tokens"
_PADDING = "each text is tokenized alone, and padded by the node behind it"
_TRAINING = "it is of training"

FILES: Final = {
    **rows("obeyed", "", "modules.json tokenizer.json tokenizer_config.json config.json config_sentence_transformers.json"),
    **rows("obeyed", "", " ".join(SENTENCE_FILES)),
    **rows("harmless", _INSIDE, "special_tokens_map.json added_tokens.json vocab.json"),
    **rows("harmless", _OTHERS, "model.safetensors.index.json pytorch_model.bin.index.json tf_model.h5.index.json"),
    **rows("harmless", _OTHERS, "ort_config.json quantize_config.json quantization_config.json openvino_config.json"),
    **rows("harmless", _OTHERS, "generation_config.json model_args.json"),
    **rows("harmless", _TRAINING, "data_config.json train_results.json eval_results.json all_results.json"),
    **rows("harmless", _TRAINING, "trainer_state.json train_args.json training_args.json"),
    **rows("refused", "the network has an adapter: merge it, and export that", "adapter_config.json"),
    **rows("refused", "the model takes more than texts", "preprocessor_config.json processor_config.json"),
    **rows("refused", "the model takes more than texts", "video_preprocessor_config.json"),
    **rows("refused", "modules are chosen by the kind of a text", "router_config.json"),
}  # fmt: skip
"""Files with the ending .json, of which others are refused. What has another ending configures nothing."""

_ARGUMENTS = Row(
    "refused",
    "arguments of transformers are not taken",
    ({}, {"trust_remote_code": True}, {"trust_remote_code": False}),
)

TABLE: Final[dict[str, dict[str, Row]]] = {
    "modules.json": {
        "idx": Row("harmless", "modules are run in their order"),
        "name": Row("harmless", "it names a module for people"),
        "path": _OBEYED,
        "type": _OBEYED,
        "kwargs": Row("refused", "arguments of a request are not given to modules", ([],)),
    },
    "config_sentence_transformers.json": {
        "__version__": Row("harmless", "it is for people"),
        "model_type": Row(
            "obeyed", "other kinds of models have no reader", ("SentenceTransformer", "CrossEncoder")
        ),
        "prompts": _OBEYED,
        "default_prompt_name": _OBEYED,
        "similarity_fn_name": Row("harmless", "vectors are given, and not compared"),
        "truncate_dim": Row("refused", "vectors are not cut: clients send dimensions"),
        "activation_fn": _OBEYED,
    },
    "sentence_bert_config.json": {
        "max_seq_length": _OBEYED,
        "do_lower_case": _OBEYED,
        "transformer_task": Row(
            "obeyed", "other tasks have no backend", ("feature-extraction", "sequence-classification")
        ),
        "modality_config": Row(
            "refused",
            "texts alone are taken, as the network gives their last hidden states",
            tuple(
                {"text": {"method": "forward", "method_output_name": name}}
                for name in ("last_hidden_state", "logits")
            ),
        ),
        "module_output_name": Row(
            "refused", "another output has no backend", ("token_embeddings", "scores")
        ),
        "processing_kwargs": Row("refused", "arguments of tokenizers are not taken", ({},)),
        **dict.fromkeys(
            ["model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs"], _ARGUMENTS
        ),
        "tokenizer_name_or_path": Row("refused", "the tokenizer is that of the folder"),
        **rows("harmless", "it is about speed", "unpad_inputs cache_dir"),
    },
    "Pooling": {
        **rows("obeyed", "", "word_embedding_dimension embedding_dimension pooling_mode"),
        **rows("obeyed", "", " ".join(FLAGS)),
        "include_prompt": Row("obeyed", "Pool cannot leave a prompt out"),
    },
    "Normalize": {},
    "tokenizer_config.json": {
        **rows("obeyed", "", "model_max_length max_len tokenizer_class do_lower_case strip_accents"),
        **rows("obeyed", "", "tokenize_chinese_chars add_prefix_space add_bos_token add_eos_token"),
        "truncation_side": Row("obeyed", "a text has two sides", ("left", "right")),
        "model_input_names": Row("harmless", "the network says which inputs it has"),
        "split_special_tokens": Row("refused", "special tokens in texts are not split", (False,)),
        **rows("refused", "it is no value of a file", "post_processor tokenizer_object gguf_file"),
        **rows("refused", "it is no value of a file", "tokenizer_padding tokenizer_truncation"),
        **rows("refused", "it is no value of a file", "_json_padding _json_truncation"),
        "auto_map": Row("refused", "code of the folder is not run"),
        "normalization": Row("refused", "texts of this tokenizer are changed by code", (False,)),
        "use_fast": Row("refused", "tokenizer.json is that of the fast tokenizer", (True,)),
        **rows("harmless", _INSIDE, "added_tokens_decoder additional_special_tokens extra_special_tokens"),
        **rows("harmless", _INSIDE, "bos_token eos_token unk_token sep_token pad_token cls_token mask_token"),
        **rows("harmless", _INSIDE, "vocab merges vocab_file merges_file tokenizer_file sp_model_kwargs unk_id"),
        **rows("harmless", _INSIDE, "extra_ids legacy keep_accents remove_space split_by_punct vocab_type"),
        **rows("harmless", _INSIDE, "_spm_precompiled_charsmap wordpieces_prefix clean_text do_basic_tokenize"),
        **rows("harmless", _INSIDE, "never_split special_tokens_map_file special_tokens add_dummy_prefix_space"),
        **rows("harmless", _INSIDE, "model_specific_special_tokens is_local from_slow fix_mistral_regex"),
        **rows("harmless", _PADDING, "padding_side pad_to_multiple_of pad_token_type_id padding"),
        **rows("harmless", "each call says its own", "max_length stride truncation truncation_strategy"),
        **rows("harmless", _DECODING, "clean_up_tokenization_spaces errors trim_offsets response_schema"),
        **rows("harmless", _DECODING, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"),
        **rows("harmless", _DECODING, "spaces_between_special_tokens"),
        **rows("harmless", "texts are no chats", "chat_template use_default_system_prompt response_template"),
        **rows("harmless", "texts are no chats", "chat_control_tokens"),
        **rows("harmless", _OTHERS, "name_or_path backend files_loaded processor_class transformers_version"),
        **rows("harmless", _OTHERS, "local_files_only device_map _commit_hash is_fast verbose tokenizer"),
    },
    "config.json": {
        **rows("obeyed", "", "max_position_embeddings n_positions pad_token_id model_type architectures"),
        **rows("obeyed", "", "id2label num_labels problem_type tokenizer_class"),
        **rows("obeyed", "", "sentence_transformers sbert_ce_default_activation_function"),
        "*": Row("harmless", _NETWORK),
    },
}  # fmt: skip
"""Keys, by file. ``*`` is any other key. Null asks for nothing in each."""
