"""The parser of config.pbtxt, compared with the one of protobuf and the messages of Triton's own client."""

from __future__ import annotations

import json

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from headrace.errors import ConfigError
from headrace_triton.pbtxt import of_json, read
from headrace_triton.schema import ENUMS, MESSAGES

KINDS = {
    "text": {FieldDescriptor.TYPE_STRING},
    "bool": {FieldDescriptor.TYPE_BOOL},
    "number": {FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE},
    "int": {
        FieldDescriptor.TYPE_INT32,
        FieldDescriptor.TYPE_INT64,
    },
    "uint": {FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64},
}


def fields(kind, descriptor, found):
    """Collect all messages that a message has inside, by our names for them."""
    if kind not in found:
        found[kind] = descriptor
        for one in descriptor.fields:
            inner = one.message_type
            if inner is not None and inner.GetOptions().map_entry:
                inner = inner.fields_by_name["value"].message_type
            if inner is not None:
                fields(MESSAGES[kind][one.name].type, inner, found)
    return found


def test_the_messages_are_those_of_triton():
    found = fields("ModelConfig", model_config_pb2.ModelConfig.DESCRIPTOR, {})
    assert {*found} == {*MESSAGES}
    for kind, descriptor in found.items():
        assert {one.name for one in descriptor.fields} == {*MESSAGES[kind]}, kind
        for theirs in descriptor.fields:
            ours, value = MESSAGES[kind][theirs.name], theirs
            mapped = theirs.message_type is not None and theirs.message_type.GetOptions().map_entry
            if mapped:
                value = theirs.message_type.fields_by_name["value"]
            assert ours.mapped == mapped
            if value.enum_type is not None:
                numbers = {one.name: one.number for one in value.enum_type.values}
                assert numbers == {name: number for number, name in enumerate(ENUMS[ours.type])}
            elif value.message_type is None:
                assert value.type in KINDS[ours.type], (kind, theirs.name)


def parsed(tmp_path, text):
    path = tmp_path / "config.pbtxt"
    path.write_text(text, encoding="utf-8")
    return read(path)


def written(message):
    """Return what a message of protobuf holds, without defaults, with numbers as they are."""
    return plain(MessageToDict(message, preserving_proto_field_name=True))


MAPS = {name for one in MESSAGES.values() for name, field in one.items() if field.mapped}


def plain(value):
    """Return JSON of protobuf, or ours, without defaults, and 64 bits as numbers."""
    if isinstance(value, dict):
        found = {key: plain(one) for key, one in value.items() if one or key not in MAPS}
        return {key: one for key, one in found.items() if one not in ("", 0, [], None)}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, str) and value.lstrip("-").isdigit():
        return int(value)
    return None if value in {one[0] for one in ENUMS.values()} else value


TEXTS = {
    "lists and single values": """
        name: "m"  # a comment
        input [ { name: "a" data_type: TYPE_FP32 dims: [ -1, 4 ] }, { name: 'b' data_type: TYPE_STRING dims: 1 dims: 2 } ]
        input { name: "c", data_type: TYPE_BOOL; dims: [] }
    """,
    "brackets, colons and numbers": """
        output < name: "o" data_type: TYPE_INT64 dims: 0x10 >
        instance_group: [{ kind: KIND_GPU, gpus: [ 0, 1 ], count: 2 }]
        sequence_batching: { direct { minimum_slot_utilization: 1.5e-1 max_queue_delay_microseconds: 017 } }
    """,
    "maps": """
        parameters: { key: "A" value: { string_value: "x" } }
        parameters { key: "B" value { string_value: "y" } }
        parameters [ { key: "C" value: { string_value: "z" } }, { key: "D" } ]
        dynamic_batching { priority_queue_policy { key: 3 value { timeout_action: DELAY max_queue_size: 4 } } }
    """,
    "maps of texts": """
        ensemble_scheduling { step { model_name: "n" input_map { key: "I" value: "J" } } }
    """,
    "texts": r"""
        name: "a" 'b'  "\t\"\\\x41\101\'"
        metric_tags { value: "v" key: "k" }
    """,
    "bytes of texts": r'name: "\303" "\244\u00e4\U0001F600" platform: "\xe6\x97\xa5"',
    "numbers of enumerations": "input { data_type: 11 } instance_group [ { kind: 0x2 }, { kind: 0 } ]",
    "lines of other systems": 'name: "a"\r\nbackend: "b"\r\ninput [\r\n{ name: "ä日" }\r\n]',
    "nothing": "  # only a comment\n",
    "empty messages": "version_policy { all {} } dynamic_batching { }",
    "booleans": """
        model_transaction_policy { decoupled: True } optimization { eager_batching: false }
        instance_group [ { passive: t }, { passive: 1 }, { passive: f }, { passive: 0 } ]
    """,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_configuration_is_read_as_protobuf_reads_it(tmp_path, text):
    theirs = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert plain(parsed(tmp_path, text).as_json()) == written(theirs)


WRONG = {
    "name: 3": (1, 7, "`name` is a text in quotes, got '3'"),
    'max_batch_size:\n  "8"': (2, 3, "`max_batch_size` is a whole number"),
    "max_batch_size: 1.5": (1, 17, "a whole number"),
    "max_batch_size: 99999999999999999999": (1, 17, "a whole number"),
    r'name: "\377"': (1, 7, "not UTF-8"),
    "version_policy { latest { num_versions: -1 } }": (1, 41, "a whole number, 0 or more"),
    "model_transaction_policy { decoupled: 2 }": (1, 39, "true or false"),
    "max_batch_sice: 8": (1, 1, "Did you mean .max_batch_size.?"),
    'name: "a': (1, 7, "a text has no end on its line"),
    "version_policy { all {} latest {} }": (1, 25, "one of latest, all, specific at most"),
    'name "a"': (1, 6, "expected ':'"),
    'name: "a"\nname: "b"': (2, 1, "`name` stands here twice"),
    'input [ { name: "X" ': (1, 21, "got the end of the file"),
    "input [ {} {} ]": (1, 12, "expected ',' or ']'"),
    "input: [ {}, ]": (1, 14, "then a value"),
    "input: 3": (1, 8, "`input` is a message"),
    "input { data_type: TYPE_FP33 }": (1, 20, "Did you mean .TYPE_FP32.?"),
    "response_cache { enable: maybe }": (1, 26, "true or false"),
    'parameters { key: "a" key: "b" }': (1, 23, "each once"),
    'name: "a" }': (1, 11, "expected a field"),
    "@": (1, 1, "no such sign"),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_protobuf_refuses_is_refused_at_its_place(tmp_path, text):
    with pytest.raises(text_format.ParseError):
        text_format.Parse(text, model_config_pb2.ModelConfig())
    line, column, said = WRONG[text]
    with pytest.raises(ConfigError, match=said) as caught:
        parsed(tmp_path, text)
    (problem,) = caught.value.problems
    assert (problem.line, problem.column) == (line, column)


CUT = TEXTS["maps"] + TEXTS["lists and single values"]


@given(st.integers(0, len(CUT)))
def test_a_file_that_is_cut_is_refused_where_protobuf_refuses_it(tmp_path_factory, end):
    text = CUT[:end]
    try:
        theirs = text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError:
        with pytest.raises(ConfigError):
            parsed(tmp_path_factory.getbasetemp(), text)
    else:
        assert plain(parsed(tmp_path_factory.getbasetemp(), text).as_json()) == written(theirs)


@given(st.text(st.characters(max_codepoint=0x2FF), max_size=20))
def test_a_text_is_read_as_protobuf_writes_it(tmp_path_factory, text):
    message = model_config_pb2.ModelConfig(name=text)
    line = text_format.MessageToString(message, as_utf8=True)
    assert parsed(tmp_path_factory.getbasetemp(), line).one("name") == text


def test_a_sign_after_a_backslash_that_means_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.pbtxt:1:9: \\q means nothing in a text"):
        parsed(tmp_path, 'name: "a\\q"')


def test_a_file_may_begin_with_the_mark_of_its_encoding(tmp_path):
    assert parsed(tmp_path, '\ufeffname: "a"').one("name") == "a"  # as protobuf of C++ reads it


def test_a_file_that_is_not_there_or_no_text_is_refused_by_its_name(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.pbtxt: cannot read it: No such file"):
        read(tmp_path / "config.pbtxt")
    (tmp_path / "config.pbtxt").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot read it"):
        read(tmp_path / "config.pbtxt")


def test_json_is_read_as_the_text_is():
    given = {
        "max_batch_size": 4,
        "instance_group": [{"kind": "KIND_CPU", "count": 2, "gpus": [0]}, {"name": "a"}],
        "dynamic_batching": {"preserve_ordering": True},
    }
    assert plain(of_json(json.dumps(given), "x").as_json()) == plain(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_batch_size": "4"}, "a whole number"),
        ({"max_batch_size": True}, "a whole number"),
        ({"max_batch_size": [4]}, "a whole number"),
        ({"dynamic_batching": [1]}, "is a message"),
        ({"instance_group": [{"kind": "KIND_TPU"}]}, "one of KIND_AUTO"),
        ({"instance_group": [{"name": 3}]}, "a text in quotes"),
        ({"sises": 1}, "there is no field"),
        ({"a b": 1}, "expected a field"),
    ],
)
def test_json_of_another_form_is_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        of_json(json.dumps(given), "x")
