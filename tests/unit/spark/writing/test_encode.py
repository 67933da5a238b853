"""Arrow rows become RocketMQ batch bodies: the compiled encoder against plain struct code (spark.md 3.5)."""

from __future__ import annotations

import datetime
import random
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra spark is not installed")

from headrace.errors import InternalError, InvalidRowError  # noqa: E402
from headrace.format.compression import GIVEN_AS_STORED  # noqa: E402
from headrace.format.record import properties_of  # noqa: E402
from headrace.remoting.codec import decode_batch  # noqa: E402
from headrace.spark.writing.encode import MAX_PROPERTIES, Encoder, sharding_hash  # noqa: E402

QUEUES = 6  # two brokers with three queues each, as route.py sorts them: (0, a) (0, b) (1, a) (1, b) (2, a) (2, b)
FIXED = 4
BY_ID = [0, 3, 4]
BROKERS_OWN = {"WAIT", "DELAY", "PGROUP", "CLUSTER", "__BATCH#", "__CRC32#", "TRAN_MSG", "REAL_QID", "REAL_TOPIC"}

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("body", pa.binary()),
        ("tags", pa.string()),
        ("keys", pa.list_(pa.string())),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("sharding_key", pa.string()),
        ("queue_id", pa.int32()),
        ("deliver_at", pa.timestamp("us", tz="UTC")),
        ("delay_level", pa.int32()),
        ("flag", pa.int32()),
        ("unique_key", pa.string()),
        ("born_ts", pa.timestamp("us", tz="UTC")),
        ("sys_flag", pa.int32()),
        ("region", pa.string()),
    ]
)
ROLES = {name: index for index, name in enumerate(SCHEMA.names) if name != "region"}
EXTRAS = [("region", SCHEMA.get_field_index("region"))]
PREFIX = b"0123456789ABCDEF0123"


def resolve(topic: str) -> tuple[int, int, Sequence[int]]:
    return QUEUES, FIXED, BY_ID


def fnv(key: bytes) -> int:
    """The published definition of the hash, bit by bit."""
    value = 0xCBF29CE484222325
    for byte in key:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, 1):
        value ^= value >> 33
        value = value * factor % 2**64
    return value


def milliseconds(time: datetime.datetime) -> int:
    return (time - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(milliseconds=1)


def reference_properties(row: dict[str, Any], number: int, prefix: bytes | None = PREFIX) -> list[tuple[str, str]]:
    """Return the properties of a row in their order."""
    found: list[tuple[str, str | None]] = [("TAGS", row.get("tags"))]
    keys = row.get("keys")
    found.append(("KEYS", " ".join(key for key in keys if key) if isinstance(keys, list) else keys))
    found.append(("__SHARDINGKEY", row.get("sharding_key")))
    if row.get("deliver_at") is not None:
        found.append(("TIMER_DELIVER_MS", str(milliseconds(row["deliver_at"]))))
    elif row.get("delay_level"):
        found.append(("DELAY", str(row["delay_level"])))
    found.append(("region", row.get("region")))
    given = {"TAGS": "tags", "KEYS": "keys", "__SHARDINGKEY": "sharding_key", "region": "region"}
    unique_key = row.get("unique_key")
    for name, value in row.get("properties") or ():
        if name in BROKERS_OWN or name.startswith("TIMER_") or not value:
            continue
        if row.get(given.get(name, "")) is not None or (name == "UNIQ_KEY" and unique_key):
            continue
        found.append((name, value))
    if unique_key:
        found.append(("UNIQ_KEY", unique_key))
    elif prefix is not None and "UNIQ_KEY" not in dict(found):
        found.append(("UNIQ_KEY", prefix.decode() + f"{number:012X}"))
    return [(name, value) for name, value in found if value]


def reference_message(row: dict[str, Any], number: int, prefix: bytes | None = PREFIX) -> bytes:
    properties = "".join(f"{name}\x01{value}\x02" for name, value in reference_properties(row, number, prefix)).encode()
    body = row["body"]
    rest = struct.pack(">iii", 0, 0, row.get("flag") or 0) + struct.pack(">i", len(body)) + body
    rest += struct.pack(">h", len(properties)) + properties
    return struct.pack(">i", len(rest) + 4) + rest


def reference_queue(row: dict[str, Any]) -> int:
    if row.get("queue_id") is not None:
        return BY_ID[row["queue_id"]]
    if row.get("sharding_key"):
        return fnv(row["sharding_key"].encode()) % QUEUES
    return FIXED


def random_rows(seed: int, count: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    day = datetime.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=datetime.UTC)

    def maybe(value: Any) -> Any:
        return value if chance.random() < 0.5 else None

    names = [
        "TAGS",
        "KEYS",
        "UNIQ_KEY",
        "__SHARDINGKEY",
        "__CRC32#",
        "CLUSTER",
        "TIMER_X",
        "region",
        "a",
        "ü",
        "DELAY",
        "WAITS",
    ]
    rows = []
    for _ in range(count):
        delay = chance.choice([None, None, "level", "time"])
        rows.append(
            {
                "topic": chance.choice(["orders", "bills", "x" * 127]),
                "body": chance.randbytes(chance.choice([0, 1, 20, 300])),
                "tags": maybe(chance.choice(["", "new", "größe"])),
                "keys": maybe([chance.choice(["", "k1", "k2", "k3"]) for _ in range(chance.randrange(4))]),
                "properties": maybe(
                    [(name, chance.choice([None, "", "v", "w" * 50])) for name in chance.sample(names, 4)]
                ),
                "sharding_key": maybe(chance.choice(["", "alice", "bob"])),
                "queue_id": chance.choice([None, None, 0, 1, 2]),
                "deliver_at": day + datetime.timedelta(seconds=chance.random()) if delay == "time" else None,
                "delay_level": chance.choice([1, 18]) if delay == "level" else chance.choice([None, 0]),
                "flag": maybe(chance.choice([0, 7, -1, 2**31 - 1])),
                "unique_key": maybe(chance.choice(["", "u1"])),
                "born_ts": maybe(day + datetime.timedelta(hours=chance.randrange(3))),
                "region": maybe(chance.choice(["", "north"])),
            }
        )
    return rows


def to_batches(rows: list[dict[str, Any]], sizes: Iterator[int], schema: Any = SCHEMA) -> Iterator[Any]:
    """Cut rows into Arrow batches, each a slice with an offset, as Spark's may be."""
    whole = pa.RecordBatch.from_pylist(rows, schema=schema)
    at = 0
    while at < len(rows):
        size = next(sizes)
        yield whole.slice(at, size)
        at += size


def encode(
    rows: list[dict[str, Any]], sizes: Iterator[int], roles: dict[str, int] = ROLES, **options: Any
) -> dict[tuple[str, int, bool], list[tuple[int, int, int, int, int, bytes]]]:
    """Return what was sealed for each place: (seq, count, born, sys_flag, first row, body)."""
    schema = options.pop("schema", SCHEMA)
    extras = options.pop("extras", EXTRAS)
    encoder = Encoder(roles, extras, resolve, key_prefix=options.pop("key_prefix", PREFIX), **options)
    sealed = [found for batch in to_batches(rows, sizes, schema) for found in encoder.feed(batch)]
    sealed += encoder.finish()
    assert encoder.rows == len(rows)
    assert encoder.held == 0
    places: dict[tuple[str, int, bool], list[tuple[int, int, int, int, int, bytes]]] = {}
    for destination, *found in sealed:
        places.setdefault(encoder.place(destination), []).append(tuple(found))  # type: ignore[arg-type]
    return places


def forever(size: int) -> Iterator[int]:
    while True:
        yield size


def sizes_of(seed: int) -> Iterator[int]:
    chance = random.Random(seed)
    while True:
        yield chance.choice([1, 2, 3, 10, 100])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("apart", [False, True])
def test_rows_become_the_messages_of_the_reference(seed: int, apart: bool) -> None:
    """Every optional column, in every combination; order within a place is that of the rows."""
    rows = random_rows(seed, 400)
    expected: dict[tuple[str, int, bool], list[bytes]] = {}
    for number, row in enumerate(rows):
        delayed = row["deliver_at"] is not None or bool(row["delay_level"])
        place = (row["topic"], reference_queue(row), apart and delayed)
        expected.setdefault(place, []).append(reference_message(row, number))
    found = encode(rows, sizes_of(seed), delayed_apart=apart, batch_bytes=4096)
    assert {place: b"".join(body for *_, body in bodies) for place, bodies in found.items()} == {
        place: b"".join(messages) for place, messages in expected.items()
    }


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_fill_a_batch_by_themselves_keep_their_place(seed: int) -> None:
    """They go one by one, and went behind all others of the partition; only what is delayed has no place to keep."""
    chance = random.Random(seed)
    schema = pa.schema([("body", pa.binary()), ("delay_level", pa.int32())])
    rows = [
        {"body": b"%04d" % number + b"x" * chance.choice([0, 90]), "delay_level": chance.choice([None, None, 3])}
        for number in range(300)
    ]
    encoder = Encoder(
        {"body": 0, "delay_level": 1}, [], lambda topic: (1, 0, [0]),
        topic="t", delayed_apart=True, max_body_bytes=100, batch_bytes=1024, key_prefix=PREFIX,
    )  # fmt: skip
    sealed = [found for batch in to_batches(rows, sizes_of(seed), schema) for found in encoder.feed(batch)]
    sealed += encoder.finish()
    sent = [
        (is_apart, body)
        for place, *_, raw in sealed
        for is_apart in [encoder.place(place)[2]]
        for _, body, _ in decode_batch(raw)
    ]
    numbers: dict[bool, list[int]] = {False: [], True: []}
    for is_apart, body in sent:
        row = rows[int(body[:4])]
        numbers[bool(row["delay_level"])].append(int(body[:4]))
        assert is_apart == (bool(row["delay_level"]) or len(body) > 50)
    assert all(found == sorted(found) for found in numbers.values())
    assert len(sent) == len(rows)


def test_what_a_message_may_have_is_the_most_of_a_plain_batch() -> None:
    """Brokers count a plain batch as one body: one message with its frame may be above what a body alone is within."""
    rows = [{"body": b"x" * size} for size in (78, 79, 100)]
    encoder = Encoder(
        {"body": 0}, [], lambda topic: (1, 0, [0]), topic="t", delayed_apart=True, max_message_bytes=100
    )  # fmt: skip
    sealed = encoder.feed(pa.RecordBatch.from_pylist(rows, schema=pa.schema([("body", pa.binary())])))
    sealed += encoder.finish()
    assert [
        (encoder.place(place)[2], len(body)) for place, *_, raw in sealed for _, body, _ in decode_batch(raw)
    ] == [(False, 78), (True, 79), (True, 100)]  # fmt: skip


def test_rows_go_where_their_unique_keys_say() -> None:
    """Whichever partition a key is in when it is written again, the same broker sees it."""
    schema = pa.schema([("body", pa.binary()), ("unique_key", pa.string()), ("sharding_key", pa.string())])
    rows = [
        {"body": b"x", "unique_key": f"k{number}", "sharding_key": "alice" if number % 5 == 0 else None}
        for number in range(200)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    encoder = Encoder(
        {"body": 0, "unique_key": 1, "sharding_key": 2},
        [],
        lambda topic: (QUEUES, -1, BY_ID),
        topic="t",
        key_required=True,
    )
    sealed = [*encoder.feed(batch), *encoder.finish()]
    found = {
        part[-1].decode(): encoder.place(destination)[1]
        for destination, *_, body in sealed
        for part in ((properties_of(own)["UNIQ_KEY"].encode(),) for _, _, own in decode_batch(body))
    }
    assert found == {
        row["unique_key"]: fnv((row["sharding_key"] or row["unique_key"]).encode()) % QUEUES for row in rows
    }


@pytest.mark.parametrize("fixed", [0, 5])
def test_rows_that_do_not_say_where_go_to_the_fixed_queue(fixed: int) -> None:
    """Also to the first one, and those with a unique key."""
    rows = [{"body": b"x", "unique_key": f"k{number}"} for number in range(50)]
    encoder = Encoder({"body": 0, "unique_key": 1}, [], lambda topic: (QUEUES, fixed, BY_ID), topic="t")
    sealed = [*encoder.feed(pa.RecordBatch.from_pylist(rows)), *encoder.finish()]
    assert {encoder.place(destination) for destination, *_ in sealed} == {("t", fixed, False)}


def test_bodies_are_those_of_the_protocol() -> None:
    """The broker's own reader reads them."""
    rows = random_rows(1, 50)
    for bodies in encode(rows, forever(7)).values():
        for _, count, _, _, _, body in bodies:
            assert len(decode_batch(body)) == count


def test_numbers_do_not_depend_on_arrow_batches() -> None:
    """spark.md 5.4.6: the same partition written again is cut and numbered in the same way."""
    rows = random_rows(2, 300)
    reference = encode(rows, forever(300), batch_bytes=2048)
    for seed in range(4):
        assert encode(rows, sizes_of(seed), batch_bytes=2048) == reference


def test_bodies_are_numbered_without_gaps() -> None:
    """seq counts the rows of a destination, the first row those of the partition."""
    rows = random_rows(3, 300)
    for bodies in encode(rows, sizes_of(3), batch_bytes=1024).values():
        expected = 0
        for seq, count, *_ in bodies:
            assert seq == expected
            expected += count


@pytest.mark.parametrize(
    ("options", "most"),
    [({"batch_rows": 10}, 10), ({"batch_bytes": 1000}, 10), ({"stored_bytes": 2500}, 9), ({"batch_bytes": 1}, 1)],
)
def test_bodies_keep_their_bounds(options: dict[str, Any], most: int) -> None:
    """100-byte messages: by rows, by bytes, by bytes in the log, and never less than one."""
    rows = [{"topic": "t", "body": b"x" * 78} for _ in range(95)]
    [bodies] = encode(rows, forever(95), key_prefix=None, **options).values()
    counts = [count for _, count, *_ in bodies]
    assert set(counts[:-1]) == {most}
    assert sum(counts) == 95


def test_the_name_of_a_topic_counts_for_the_log() -> None:
    """Of 100-byte messages under a name of 100 bytes 6 are within 2,500 bytes with all that a record has."""
    rows = [{"topic": "t" * 100, "body": b"x" * 78} for _ in range(20)]
    [bodies] = encode(rows, forever(20), key_prefix=None, stored_bytes=2500).values()
    assert [count for _, count, *_ in bodies] == [6, 6, 6, 2]


def test_the_first_row_of_a_body_is_that_of_the_partition() -> None:
    """Not that of the Arrow batch, nor of the destination."""
    rows = [{"topic": "ab"[number % 2], "body": b"x"} for number in range(6)]
    found = encode(rows, forever(4), batch_rows=2)
    assert [[first for *_, first, _ in bodies] for _, bodies in sorted(found.items())] == [[0, 4], [1, 5]]


def test_all_places_are_sealed_when_they_hold_too_much() -> None:
    """Many topics do not add up to many full buffers."""
    rows = [{"topic": f"t{number % 50}", "body": b"x" * 978} for number in range(2000)]
    schema = pa.schema([("topic", pa.string()), ("body", pa.binary())])
    encoder = Encoder({"topic": 0, "body": 1}, [], resolve, held_bytes=100_000)
    most = 0
    sealed = []
    for batch in to_batches(rows, forever(13), schema):
        sealed += encoder.feed(batch)
        most = max(most, encoder.held)
    sealed += encoder.finish()
    assert most <= 101_000
    assert sum(found[2] for found in sealed) == 2000


def test_a_body_ends_where_the_born_time_changes() -> None:
    """The born time belongs to the request."""
    hours = [datetime.datetime(2026, 1, 1, hour, tzinfo=datetime.UTC) for hour in (1, 1, 2, 2, 2, 1)]
    rows = [{"topic": "t", "body": b"x", "born_ts": hour} for hour in [*hours, None]]
    [bodies] = encode(rows, forever(7)).values()
    assert [count for _, count, *_ in bodies] == [2, 3, 1, 1]
    assert [born for _, _, born, *_ in bodies] == [*(milliseconds(hours[at]) for at in (0, 2, 5)), 0]


def test_a_body_ends_where_the_compression_changes() -> None:
    """How bodies are compressed belongs to the request; it counts for a body that is compressed still, and alone."""
    still = GIVEN_AS_STORED
    flags = [None, 0, 0x101, 0x30 | 1, still | 1, still | 0x31, still | 0x201, still | 0xC, None]
    rows = [{"topic": "t", "body": b"x", "sys_flag": flag} for flag in flags]
    [bodies] = encode(rows, forever(4)).values()
    assert [(count, sys_flag) for _, count, _, sys_flag, *_ in bodies] == [(4, 0), (2, 1), (1, 0x201), (2, 0)]


def test_value_and_text_columns() -> None:
    """A body may be text, keys one string, numbers of any width, every column of large strings."""
    schema = pa.schema(
        [
            ("value", pa.large_string()),
            ("keys", pa.string()),
            ("queue_id", pa.int64()),
            ("flag", pa.int8()),
            ("at", pa.timestamp("ms")),
        ]
    )
    roles = {"body": 0, "keys": 1, "queue_id": 2, "flag": 3, "deliver_at": 4}
    at = datetime.datetime(2026, 1, 1)  # noqa: DTZ001  # a time without a zone is UTC
    rows = [{"value": "größe", "keys": "a b", "queue_id": 1, "flag": -5, "at": at}, {"value": ""}]
    encoder = Encoder(roles, [], resolve, topic="t")
    encoder.feed(pa.RecordBatch.from_pylist(rows, schema=schema))
    found = {encoder.place(index): decode_batch(body) for index, *_, body in encoder.finish()}
    assert found == {
        ("t", 3, False): [(-5, "größe".encode(), b"KEYS\x01a b\x02TIMER_DELIVER_MS\x011767225600000\x02")],
        ("t", FIXED, False): [(0, b"", b"")],
    }


def test_columns_of_nulls_are_no_columns() -> None:
    schema = pa.schema([("body", pa.string()), ("tags", pa.null()), ("queue_id", pa.null()), ("properties", pa.null())])
    encoder = Encoder({"body": 0, "tags": 1, "queue_id": 2, "properties": 3}, [], resolve, topic="t")
    encoder.feed(pa.RecordBatch.from_pylist([{"body": "x"}], schema=schema))
    [(index, *_, body)] = encoder.finish()
    assert encoder.place(index) == ("t", FIXED, False)
    assert decode_batch(body) == [(0, b"x", b"")]


def test_properties_of_the_broker_are_counted() -> None:
    rows = [{"topic": "t", "body": b"", "properties": [("__CRC32#", "1"), ("a", "b"), ("DELAY", "3")]}]
    encoder = Encoder(ROLES, EXTRAS, resolve)
    encoder.feed(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    assert encoder.left_out == 2
    assert decode_batch(encoder.finish()[0][-1]) == [(0, b"", b"a\x01b\x02")]


@pytest.mark.parametrize("name", sorted(BROKERS_OWN | {"TIMER_X", "TIMER_DELIVER_MS"}))
def test_what_is_no_property_of_the_broker_is_kept(name: str) -> None:
    """Each name of the broker's is left out; those beside it, of the same length too, are not."""
    others = [name[:-1] + "y", "y" + name[1:], name[1:]]
    properties = [(name, "v"), *((other, "v") for other in others)]
    encoder = Encoder(ROLES, EXTRAS, resolve)
    rows = [{"topic": "t", "body": b"", "properties": properties}]
    encoder.feed(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    kept = [other for other in others if not other.startswith("TIMER_")]
    assert encoder.left_out == len(properties) - len(kept)
    [(_, _, raw)] = decode_batch(encoder.finish()[0][-1])
    assert properties_of(raw) == dict.fromkeys(kept, "v")


def test_a_bare_prefix_of_timers_is_no_property_of_the_broker() -> None:
    encoder = Encoder(ROLES, EXTRAS, resolve)
    rows = [{"topic": "t", "body": b"", "properties": [("TIMER_", "v")]}]
    encoder.feed(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    assert encoder.left_out == 0


def test_a_prefix_of_keys_has_a_bound() -> None:
    rows = pa.RecordBatch.from_pylist([{"body": b"x"}])
    encoder = Encoder({"body": 0}, [], resolve, topic="t", key_prefix=b"p" * 128)
    encoder.feed(rows)
    [(_, _, raw)] = decode_batch(encoder.finish()[0][-1])
    assert properties_of(raw) == {"UNIQ_KEY": "p" * 128 + "0" * 12}
    with pytest.raises(ValueError, match="longer than 128 bytes"):
        Encoder({"body": 0}, [], resolve, topic="t", key_prefix=b"p" * 129)


def test_the_further_column_at_fault_is_named() -> None:
    """And a fault of the tags is told, whatever the keys are."""
    batch = pa.RecordBatch.from_pylist([{"body": b"x", "a": "v", "b": "\x01"}])
    with pytest.raises(InvalidRowError, match="column 'b'"):
        Encoder({"body": 0}, [("a", 1), ("b", 2)], resolve, topic="t").feed(batch)
    batch = pa.RecordBatch.from_pylist([{"body": b"x", "tags": "\x01", "keys": "k"}])
    with pytest.raises(InvalidRowError, match="column 'tags'"):
        Encoder({"body": 0, "tags": 1, "keys": 2}, [], resolve, topic="t").feed(batch)


def test_properties_of_the_broker_are_counted_once_for_each_row() -> None:
    """A row that does not fit into the request before it is begun anew, and one that is refused is not written."""
    rows = [{"topic": "t", "body": b"x" * 600, "properties": [("__CRC32#", "1")]} for _ in range(10)]
    encoder = Encoder(ROLES, EXTRAS, resolve, batch_bytes=1024)
    encoder.feed(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    assert encoder.left_out == 10
    with pytest.raises(InvalidRowError):
        encoder.feed(pa.RecordBatch.from_pylist([rows[0] | {"body": b"x" * (5 << 20)}], schema=SCHEMA))
    assert encoder.left_out == 10


BAD_ROWS: list[tuple[dict[str, Any], str, str]] = [
    ({"body": None}, "body", "is null"),
    ({"topic": None}, "topic", "no option topic"),
    ({"topic": ""}, "topic", "no option topic"),
    ({"topic": "x" * 128}, "topic", "128 bytes, at most 127"),
    ({"tags": "a\x01b"}, "tags", "0x01"),
    ({"region": "a\x02"}, "region", "0x01"),
    ({"properties": [("a\x01", "b")]}, "properties", "0x01"),
    ({"properties": [("", "b")]}, "properties", "empty name"),
    ({"properties": [("a", "\x02")]}, "properties", "0x01"),
    ({"properties": [("a", "b" * MAX_PROPERTIES)]}, "properties", f"at most {MAX_PROPERTIES}"),
    ({"keys": ["a", "b c"]}, "keys", "a space in it"),
    ({"queue_id": 3}, "queue_id", "queue 3, which topic 't' does not have"),
    ({"queue_id": -1}, "queue_id", "queue -1"),
    ({"delay_level": -1}, "delay_level", "0..999"),
    ({"delay_level": 1000}, "delay_level", "0..999"),
    (
        {"deliver_at": datetime.datetime(1960, 1, 1, tzinfo=datetime.UTC)},
        "deliver_at",
        "-315619200000 ms since 1970; it has",
    ),
    ({"deliver_at": datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)}, "deliver_at", "is 0 ms since 1970"),
    ({"born_ts": datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)}, "born_ts", "is 0 ms since 1970"),
    (
        {"delay_level": 2, "deliver_at": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)},
        "deliver_at",
        "beside delay level 2",
    ),
    ({"born_ts": datetime.datetime(1960, 1, 1, tzinfo=datetime.UTC)}, "born_ts", "-315619200000 ms since 1970; it has"),
    ({"body": b"x" * 1001}, "body", "1001 bytes, above option maxMessageBytes = 1000"),
]


@pytest.mark.parametrize(("change", "column", "text"), BAD_ROWS, ids=lambda value: None)
def test_a_row_that_cannot_be_written_is_named(change: dict[str, Any], column: str, text: str) -> None:
    """Row, partition, column, and what is wrong with it; rows are counted over all Arrow batches."""
    good = {"topic": "t", "body": b"x"}
    encoder = Encoder(ROLES, EXTRAS, resolve, partition=3, max_message_bytes=1000 if "body" in change else 1 << 22)
    encoder.feed(pa.RecordBatch.from_pylist([good] * 10, schema=SCHEMA))
    with pytest.raises(InvalidRowError) as caught:
        encoder.feed(pa.RecordBatch.from_pylist([good, good, good | change], schema=SCHEMA))
    assert (caught.value.row, caught.value.partition, caught.value.column) == (12, 3, column)
    assert f"row 12 of partition 3: column '{column}'" in str(caught.value)
    assert text in str(caught.value)


def test_what_is_just_within_its_bound_is_written() -> None:
    """And properties one byte longer are refused, with what they would be."""
    for level in (0, 1, 999):
        encoder = Encoder({"body": 0, "delay_level": 1}, [], resolve, topic="t")
        encoder.feed(pa.RecordBatch.from_pylist([{"body": b"x", "delay_level": level}]))
        [(_, _, raw)] = decode_batch(encoder.finish()[0][-1])
        assert properties_of(raw) == ({"DELAY": str(level)} if level else {})
    tags = "x" * (MAX_PROPERTIES - len("TAGS\x01\x02"))
    encoder = Encoder({"body": 0, "tags": 1}, [], resolve, topic="t")
    encoder.feed(pa.RecordBatch.from_pylist([{"body": b"x", "tags": tags}]))
    with pytest.raises(InvalidRowError, match=f"'tags' makes the properties {MAX_PROPERTIES + 1} bytes long"):
        encoder.feed(pa.RecordBatch.from_pylist([{"body": b"x", "tags": tags + "y"}]))


def test_a_flag_that_does_not_fit_is_told_what_does() -> None:
    encoder = Encoder({"body": 0, "flag": 1}, [], resolve, topic="t")
    rows = pa.RecordBatch.from_pylist([{"body": b"x", "flag": 1 << 31}])
    with pytest.raises(InvalidRowError, match=r"'flag' is 2147483648; a flag .* 32 bits, -2147483648\.\.2147483647"):
        encoder.feed(rows)


@pytest.mark.parametrize("column", ["tags", "keys", "sharding_key", "region", "zone", "properties"])
def test_the_column_that_makes_properties_too_long_is_named(column: str) -> None:
    """Where the key that a row gets has no room any more, the longest of the others is, not the key."""
    schema = SCHEMA.append(pa.field("zone", pa.string()))
    extras = [*EXTRAS, ("zone", schema.get_field_index("zone"))]
    others: dict[str, Any] = {
        "tags": "t" * 90,
        "keys": ["k" * 45] * 2,
        "sharding_key": "s" * 90,
        "region": "r" * 90,
        "zone": "z" * 90,
    }
    others["properties"] = [("a" * 45, "b" * 30)]
    short = {"topic": "t", "body": b"x", **dict.fromkeys(others), "keys": ["k"] * 5, "properties": [("a", "b")] * 3}
    long = "x" * (MAX_PROPERTIES - 600)
    value = {"keys": [long, "k"], "properties": [("long", long)]}.get(column, long)
    whole = pa.RecordBatch.from_pylist([short, short, short | others | {column: value}], schema=schema)
    encoder = Encoder(ROLES, extras, resolve, key_prefix=b"p" * 128)
    with pytest.raises(InvalidRowError, match="makes the properties") as caught:
        encoder.feed(whole.slice(1))
    assert (caught.value.row, caught.value.column) == (1, column)


def test_a_topic_that_is_no_text_is_named() -> None:
    """Spark's strings may hold any bytes."""
    offsets = pa.py_buffer(struct.pack("<3i", 0, 1, 3))
    column = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"t\xffA"))
    batch = pa.RecordBatch.from_arrays([pa.array(["x", "y"]), column], ["body", "topic"])
    with pytest.raises(InvalidRowError, match="row 1 of partition 0: column 'topic' is a topic that is no UTF-8"):
        Encoder({"body": 0, "topic": 1}, [], resolve).feed(batch)


@pytest.mark.parametrize("key", [None, ""])
def test_a_needed_key_is_needed_in_every_row(key: str | None) -> None:
    schema = pa.schema([("body", pa.string()), ("id", pa.string())])
    encoder = Encoder({"body": 0, "unique_key": 1}, [], resolve, topic="t", key_required=True)
    with pytest.raises(InvalidRowError, match="row 1 of partition 0: column 'id' is null or empty"):
        encoder.feed(pa.RecordBatch.from_pylist([{"body": "", "id": "a"}, {"body": "", "id": key}], schema=schema))


@pytest.mark.parametrize(
    ("kind", "role"),
    [
        (pa.int32(), "body"),
        (pa.string(), "queue_id"),
        (pa.int32(), "deliver_at"),
        (pa.list_(pa.string()), "tags"),
        (pa.list_(pa.int32()), "keys"),
        (pa.map_(pa.string(), pa.int32()), "properties"),
        (pa.dictionary(pa.int32(), pa.string()), "tags"),
        (pa.float64(), "flag"),
    ],
    ids=str,
)
def test_wrong_types_are_refused(kind: Any, role: str) -> None:
    schema = pa.schema([("body", pa.string()), ("column", kind)])
    encoder = Encoder({"body": 0} | {role: 1}, [], resolve, topic="t")
    with pytest.raises(TypeError, match=r"column|properties"):
        encoder.feed(pa.RecordBatch.from_pylist([{"body": "x"}], schema=schema))


def test_a_further_column_that_is_no_text_is_refused() -> None:
    """What is no text would be read as offsets into bytes that are not there."""
    batch = pa.RecordBatch.from_pylist([{"body": "x", "region": 7}])
    with pytest.raises(TypeError, match="'region' is no text"):
        Encoder({"body": 0}, [("region", 1)], resolve, topic="t").feed(batch)


@pytest.mark.parametrize("position", [1, 5])
def test_a_column_that_is_not_there_is_refused(position: int) -> None:
    """Neither the one right behind the last nor a later one."""
    batch = pa.RecordBatch.from_pylist([{"body": "x"}])
    with pytest.raises(TypeError, match=f"no column {position}"):
        Encoder({"body": position}, [], resolve, topic="t").feed(batch)
    with pytest.raises(TypeError, match=f"no column {position}"):
        Encoder({"body": 0}, [("region", position)], resolve, topic="t").feed(batch)


def test_an_encoder_is_made_once() -> None:
    """Made again, it would forget the buffers that it has."""
    encoder = Encoder({"body": 0}, [], resolve, topic="t")
    with pytest.raises(RuntimeError, match="made once"):
        encoder.__init__({"body": 0}, [], resolve, topic="t")  # type: ignore[misc]


def test_entries_of_a_map_may_begin_later() -> None:
    """Arrow may share the entries of a larger map: those in front are not this one's."""
    kind = pa.map_(pa.string(), pa.string())
    entries = pa.StructArray.from_arrays(
        [pa.array(["other", "a", "b"]), pa.array(["0", "1", "2"])],
        fields=[pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())],
    ).slice(1)
    offsets = pa.array([0, 1, 2], pa.int32()).buffers()[1]
    properties = pa.Array.from_buffers(kind, 2, [None, offsets], children=[entries])
    encoder = Encoder({"body": 0, "properties": 1}, [], resolve, topic="t")
    batch = pa.RecordBatch.from_arrays([pa.array(["x", "y"]), properties], names=["body", "properties"])
    [(*_, body)] = encoder.feed(batch) + encoder.finish()
    assert [properties_of(found) for _, _, found in decode_batch(body)] == [{"a": "1"}, {"b": "2"}]


@pytest.mark.parametrize(("queues", "fixed"), [(0, 0), (2, 2)])
def test_a_route_without_the_queue_of_its_rows_is_refused(queues: int, fixed: int) -> None:
    """They would be written behind the destinations."""
    encoder = Encoder({"body": 0, "topic": 0}, [], lambda topic: (queues, fixed, range(queues)))
    with pytest.raises(InternalError, match=f"'x' has {queues} queues"):
        encoder.feed(pa.RecordBatch.from_pylist([{"body": "x"}]))


def test_errors_of_the_route_reach_the_caller() -> None:
    def fail(topic: str) -> tuple[int, int, Sequence[int]]:
        raise LookupError(topic)

    encoder = Encoder({"body": 0, "topic": 0}, [], fail)
    with pytest.raises(LookupError, match="x"):
        encoder.feed(pa.RecordBatch.from_pylist([{"body": "x"}]))


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"", 0xEFD01F60BA992926), (b"alice", 0x3507D047A67C08F4), (bytes(range(256)), 0x2067DB6DBD4EFA06)],
)
def test_the_hash_of_a_sharding_key_never_changes(key: bytes, value: int) -> None:
    """The order of messages hangs on it: these numbers are a promise."""
    assert sharding_hash(key) == fnv(key) == value


def test_many_topics_are_told_apart() -> None:
    """The table of topics grows."""
    rows = [{"topic": f"topic-{number * 7 % 2000}", "body": str(number).encode()} for number in range(4000)]
    schema = pa.schema([("topic", pa.string()), ("body", pa.binary())])
    encoder = Encoder({"topic": 0, "body": 1}, [], lambda topic: (1, 0, [0]))
    sealed = encoder.feed(pa.RecordBatch.from_pylist(rows, schema=schema)) + encoder.finish()
    found: dict[str, list[bytes]] = {}
    for index, *_, body in sealed:
        found.setdefault(encoder.place(index)[0], []).extend(one for _, one, _ in decode_batch(body))
    expected: dict[str, list[bytes]] = {}
    for row in rows:
        expected.setdefault(str(row["topic"]), []).append(row["body"])  # type: ignore[arg-type]
    assert found == expected
