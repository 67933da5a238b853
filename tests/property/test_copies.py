"""Copies of records, compiled, against the plain reference: what is kept, what belongs to the record alone."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.batch import PublishBatch, RecordBatch
from headrace.broker.copies import add_copies
from headrace.broker.pull import read_queue
from headrace.format import record
from tests.support import layouts
from tests.support.stored_message import StoredMessage
from tests.support.stores import StoreBench

NAMES = st.sampled_from(["TAGS", "KEYS", "REAL_TOPIC", "REAL_QID", "__BATCH", "x", "WAIT"])
VALUES = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=8)
MESSAGES = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=50),
        "pairs": st.dictionaries(NAMES, VALUES, max_size=4),
        "place": st.sampled_from([("T", "0"), ("U", "3"), ("gone", "0"), ("T", "x"), ("T", "99999"), ("", "0"), None]),
        "entry": st.fixed_dictionaries(
            {
                "flag": st.integers(0, 0xFFFFFFFF),
                "sys_flag": st.integers(0, 0xFFFF).map(lambda bits: bits & ~0x4),
                "born_ms": st.integers(0, 1 << 60),
                "born_host": st.integers(0, (1 << 64) - 1),
                "born_v6": st.none() | st.binary(min_size=20, max_size=20),
                "reconsume_times": st.integers(0, (1 << 31) - 1),
                "prepared_offset": st.integers(0, 1 << 60),
                "deliver_at_ms": st.sampled_from([0, 1_700_000_000_001]),
            }
        ),
    }
)
PLACES = {("T", 0): 0, ("U", 3): 1}


@settings(max_examples=30)
@given(st.lists(MESSAGES, min_size=1, max_size=5), st.booleans())
def test_copies_are_their_originals_in_another_place(messages: list[dict], is_command: bool) -> None:
    """remoting.md 3.11: body, flag, sysFlag, born data, reconsumeTimes, properties; no __BATCH#, one __CRC32#."""
    with tempfile.TemporaryDirectory() as folder:
        bench = StoreBench(Path(folder) / "store")
        waiting = bench.store.queue("waits", 0)
        batch = PublishBatch()
        batch.destinations, batch.queues = ["waits"], [waiting]
        for index, message in enumerate(messages):
            place = message["place"]
            pairs = message["pairs"] | ({"REAL_TOPIC": place[0], "REAL_QID": place[1]} if place else {})
            properties = layouts.encode_properties(pairs)
            count = (len(messages) if index == 0 else 0) if is_command else 1
            tag = record.tag_hash(pairs["TAGS"]) if "TAGS" in pairs else 0
            batch.append(
                message["body"], properties=properties, tag_hash=tag, command_entries=count, **message["entry"]
            )
        bench.store.append(batch)
        bench.store.flush()
        records = RecordBatch()
        read_queue(waiting, 0, 100, 1 << 20, None, None, records)
        originals = [records.record(index) for index in range(len(records))]
        copies = PublishBatch()
        refused = add_copies(records, 0, len(records), copies, lambda topic, number: PLACES.get((topic, number), -1))
        copies.destinations = ["T", "U"]
        copies.queues = [bench.store.queue("T", 0), bench.store.queue("U", 3)]
        bench.store.append(copies)
        bench.store.flush()
        records.clear()

        made = [bench.store.log.read(copies.placed(index)[0]) for index in range(len(copies))]
        expected = [raw for raw in originals if belongs(raw)]
        assert refused == len(originals) - len(expected)
        for raw, copy in zip(expected, made, strict=True):
            assert copy is not None
            check_copy(raw, copy)
        bench.close()


def belongs(raw: bytes) -> bool:
    pairs = layouts.decode_properties(layouts.decode_record(raw).properties)
    number = pairs.get("REAL_QID", "")
    return number.isdecimal() and (pairs.get("REAL_TOPIC"), int(number)) in PLACES


def check_copy(raw: bytes, copy: bytes) -> None:
    original, made = layouts.decode_record(raw), layouts.decode_record(copy)
    pairs = layouts.decode_properties(original.properties)
    plain = layouts.encode_properties(
        {name: value for name, value in pairs.items() if name not in {"__CRC32#", "__BATCH#"}}
    )
    expected = replace(
        original,
        topic=pairs["REAL_TOPIC"].encode(),
        queue_id=int(pairs["REAL_QID"]),
        properties=plain,
        queue_offset=made.queue_offset,
        physical_offset=made.physical_offset,
        store_ms=made.store_ms,
    )
    assert copy == expected.encode_checked()
    # The way by single objects gives the same.
    message = StoredMessage.from_record(raw).restored()
    assert message is not None
    assert record.encode_properties(message.properties) == plain
    assert (message.body, message.born_v6 or message.born_host.to_bytes(8, "big")) == (made.body, made.born_host)
    assert (message.flag & 0xFFFFFFFF, message.sys_flag) == (made.flag & 0xFFFFFFFF, made.sys_flag)


@given(
    st.binary(max_size=50),
    st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=100),
    st.integers(0, 65_535),
    st.sampled_from([0, 0x10, 0x20, 0x30]),
    st.booleans(),
)
def test_a_record_in_another_place_is_whole(body: bytes, topic: str, queue_id: int, hosts: int, checked: bool) -> None:
    """remoting.md 4.6: topic and queue replaced, totalSize recomputed; and the checksum."""
    original = layouts.Record(
        body=body,
        topic=b"old",
        properties=b"a\x01b\x02",
        sys_flag=hosts,
        born_host=bytes(range(20 if hosts & layouts.BORN_V6 else 8)),
        store_host=bytes(range(20 if hosts & layouts.STORE_V6 else 8)),
        physical_offset=77,
    )
    placed = replace(original, topic=topic.encode(), queue_id=queue_id)
    raw, expected = (
        (original.encode_checked(), placed.encode_checked()) if checked else (original.encode(), placed.encode())
    )
    assert record.with_place(raw, topic, queue_id) == expected
    assert record.check(expected, 0, 77) == len(expected)
    read = StoredMessage.from_record(expected)
    assert (read.topic, read.queue_id, read.body) == (topic, queue_id, body)
    assert read.message_id == (original.store_host.hex() + f"{77:016x}").upper()
