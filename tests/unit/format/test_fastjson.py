"""fastjson's dialect of JSON: what Java brokers, clients and tools put in bodies and files."""

from __future__ import annotations

import contextlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.format.fastjson import MAX_DEPTH, ObjectKey, dumps, loads

QUEUE = {"brokerName": "broker-a", "queueId": 3, "topic": "TopicA"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:20911"},"brokerName":"broker-a",'
            b'"cluster":"C1"}},"clusterAddrTable":{"C1":["broker-a"]}}',
            {
                "brokerAddrTable": {
                    "broker-a": {"brokerAddrs": {"0": "127.0.0.1:20911"}, "brokerName": "broker-a", "cluster": "C1"}
                },
                "clusterAddrTable": {"C1": ["broker-a"]},
            },
        ),
        (
            b'{"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"TopicA"}:3,'
            b'{"brokerName":"broker-a","queueId":1,"topic":"TopicA"}:2}}',
            {"offsetTable": {ObjectKey(QUEUE): 3, ObjectKey(QUEUE | {"queueId": 1}): 2}},
        ),
        (
            b'{"offsetTable":{"TopicA@G2":{0:4,1:1,2:1,3:3},"%RETRY%G2@G2":{0:0}}}',
            {"offsetTable": {"TopicA@G2": {"0": 4, "1": 1, "2": 1, "3": 3}, "%RETRY%G2@G2": {"0": 0}}},
        ),
        (b'{"offsetTable":{2:1,3:11}}', {"offsetTable": {"2": 1, "3": 11}}),
    ],
)
def test_samples_that_readers_must_accept(text, value):
    """remoting.md 10.11."""
    assert loads(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{0:"a"}', {"0": "a"}),
        (b'{"0":"a"}', {"0": "a"}),
        (b"{-1:1}", {"-1": 1}),
        (b'\r\n{\t"offsetTable" : {\n\t1 : 5 ,\n\t2:7}\n} \n', {"offsetTable": {"1": 5, "2": 7}}),
        (b'{1:[true,false,null,-0.5,1.5E-4,{},[]],2:"x"}', {"1": [True, False, None, -0.5, 1.5e-4, {}, []], "2": "x"}),
        (b'{1:"a\\u0001b\\u0002\\"\\\\\\/\\n\\ud83d\\ude00"}', {"1": 'a\x01b\x02"\\/\n\U0001f600'}),
        (b'{1:"\\v\\x41\\\'\\0"}', {"1": "\vA'\0"}),
        (b'{1:"\\ud83d"}', {"1": "\ufffd"}),
        (b'{1:"raw\ttab"}', {"1": "raw\ttab"}),
        ("{1:'x'}".replace("'", '"').encode(), {"1": "x"}),
        (b"{{}:{}}", {ObjectKey({}): {}}),
        (b'{{"a":[1,{"b":2}]}:1}', {ObjectKey({"a": [1, {"b": 2}]}): 1}),
        (b"12", 12),
        (b'"text"', "text"),
        ("{1:'温度'}".replace("'", '"').encode(), {"1": "温度"}),
    ],
)
def test_dialect_is_read(text, value):
    """remoting.md 1.8, the table of quirks."""
    assert loads(text) == value


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"a"}',
        b'{"a":}',
        b'{0:"a"',
        b'{0:"a",}',
        b"{0:a}",
        b'{a:"x"}',
        b"{[1]:2}",
        b'{0:"a"} x',
        b'{0:"\\u00g0"}',
        b'{0:"\\xz0"}',
        b'{0:"unfinished}',
        b'{0:"\xff"}',
        b"[1 2]",
        b"[1",
        b"{0 1}",
        b"-",
        b"{99999999999999999999999:1}",
        b"[" * 100_000,
        b"{0:" * 100_000,
        b"{" * 100_000,
        b"{0:" + b"9" * 5000 + b"}",
        b"9" * 5000,
        b"1e999",
        b"[-1e999]",
        b'{"$ref":"$"}',
        b'{"a":{"$ref":"$.b"}}',
        b'{"a":{"$ref":"b"}}',
        b'{"a":{"$ref":"$a["}}',
        b'{"a":[1],"b":{"$ref":"$.a[1]"}}',
        b'{"a":[1],"b":{"$ref":"$.a.x"}}',
        b'{"a":1,"b":{"$ref":"$.a.x"}}',
        b'{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}',
        b'{{"a":1,{"b":2}:3}:4}',
        b'{{"a":[{"x":1,{"y":1}:2}]}:1}',
    ],
)
def test_anything_else_is_a_value_error(text):
    """Issue 4, bad input: malformed JSON is an error with a text, never another exception."""
    with pytest.raises(ValueError, match="JSON"):
        loads(text)


def test_references_stand_for_the_object_of_their_path():
    """remoting.md 1.8: fastjson writes an object that appears twice as a path to the first place."""
    found = loads(b'{"a":{"b":[{"x":1}]},"c":{"$ref":"$.a.b[0]"},"d":[{"$ref":"$.a"}]}')
    assert found["c"] == {"x": 1}
    assert found["c"] is found["a"]["b"][0]
    assert found["d"][0] is found["a"]


def test_references_find_escaped_and_integer_names():
    """fastjson escapes what is no letter or digit in a path, and names integer keys like list items."""
    found = loads(b'{"t":{"T1@G1":{0:{"x":1}}},"u":{"$ref":"$.t.T1\\\\@G1"},"v":{"$ref":"$.t.T1\\\\@G1[0]"}}')
    assert found["u"] == {"0": {"x": 1}}
    assert found["v"] == {"x": 1}
    assert loads(b'{"a b":[1],"c":{"$ref":"$[\\"a b\\"]"}}')["c"] == [1]


def test_references_to_what_is_around_them():
    """remoting.md 1.8: ``$`` is the whole, ``@`` the object itself, ``..`` the one around it."""
    found = loads(b'{"a":{"root":{"$ref":"$"},"self":{"$ref":"@"},"up":{"$ref":".."}},"b":[{"$ref":"@"}]}')
    assert found["a"]["root"] is found
    assert found["a"]["self"] is found["a"]
    assert found["a"]["up"] is found
    assert found["b"][0] is found["b"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": "x"}, b'{"a":"x","b":1}'),
        ({"a": None, "b": [None]}, b'{"b":[null]}'),
        ({0: "x", 10: "y", 9: "z"}, None),
        ({"a": "null"}, b'{"a":"null"}'),
        ({"p": "K\x01v\x02"}, b'{"p":"K\\u0001v\\u0002"}'),
        ({"tps": 0.5, "ok": True, "no": False}, b'{"no":false,"ok":true,"tps":0.5}'),
        ({"t": {ObjectKey(QUEUE): 3}}, b'{"t":{{"brokerName":"broker-a","queueId":3,"topic":"TopicA"}:3}}'),
        ({ObjectKey({"q": [1, 2], "a": None}): ()}, b'{{"q":[1,2]}:[]}'),
        ({"n": "温度"}, '{"n":"温度"}'.encode()),
        ([], b"[]"),
    ],
)
def test_writing_is_compact_sorted_and_without_nulls(value, text):
    """remoting.md 1.8: writer rules."""
    written = dumps(value)
    assert text is None or written == text
    assert b" " not in written
    assert b"\n" not in written


def test_integer_keys_are_written_quoted():
    """remoting.md 1.8: ``{"0":"a"}`` is read by every client we know."""
    assert json.loads(dumps({0: "a", 1: None, 10: "b"})) == {"0": "a", "10": "b"}
    assert dumps({0: "a"}) == b'{"0":"a"}'


@pytest.mark.parametrize("value", [math.nan, math.inf, {"a": math.nan}])
def test_numbers_without_a_spelling_are_refused(value):
    """JSON has none for them; a reader would see a missing member."""
    with pytest.raises(ValueError, match="no form"):
        dumps(value)


@pytest.mark.parametrize("value", [{"a": None, "b": object()}, {("a", "b"): None, "b": None, 1.5: 1}])
def test_what_json_cannot_say_is_refused(value):
    with pytest.raises(TypeError, match="JSON"):
        dumps(value)


def test_a_cycle_is_refused():
    value: dict = {"a": None}
    value["self"] = value
    with pytest.raises(ValueError, match=f"{MAX_DEPTH} deep"):
        dumps(value)


def test_object_keys_compare_by_members():
    key = ObjectKey({"topic": "t", "queueId": 1})
    assert key == ObjectKey({"queueId": 1, "topic": "t"})
    assert key != ObjectKey({"queueId": 2, "topic": "t"})
    assert key != {"queueId": 1, "topic": "t"}
    assert {key: 5}[ObjectKey({"queueId": 1, "topic": "t"})] == 5
    assert dict(key) == {"queueId": 1, "topic": "t"}
    assert "ObjectKey" in repr(key)
    with pytest.raises(KeyError):
        key["brokerName"]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
plain = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts.filter(lambda key: key != "$ref"), inner),
    max_leaves=12,
)


@given(plain)
def test_what_is_written_is_read_back_and_is_plain_json(value):
    assert loads(dumps(value)) == value
    assert json.loads(dumps(value)) == value


@given(st.dictionaries(st.builds(ObjectKey, st.dictionaries(texts, st.integers(-5, 5), max_size=3)), plain))
def test_object_keys_are_read_back(value):
    assert loads(dumps(value)) == value


@given(st.binary(max_size=60) | st.text('{}[]:,"\\u0123456789$ref.@abnt ', max_size=60).map(str.encode))
def test_noise_is_read_or_refused(noise):
    with contextlib.suppress(ValueError):
        loads(noise)


def test_rows_of_a_table_are_written_as_one_by_one() -> None:
    """Flat rows take a short cut: what it writes, members to leave out and odd text included, is the same."""
    rows: list[dict[str, object]] = [
        {"topic": "T", "queueId": 3, "brokerName": "b"},
        {"z": 1.5, "a": True, "null": "null"},
        {"left": None, "kept": "\x01\u00e9\U0001f600\ud800"},
        {"deep": {"b": [1], "a": None}},
        {},
    ]
    for row in rows:
        table = dumps({ObjectKey(row): row, "k": row})
        alone = dumps(row)
        assert table == b'{"k":' + alone + b"," + dumps(ObjectKey(row)) + b":" + alone + b"}"
