"""The test vectors of remoting.md, section 10, and the worked examples of docs/formats."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from headrace.format import record
from headrace.format.checksum import checksum
from tests.support import layouts
from tests.support.layouts import Record

DOCS = Path(__file__).parents[3] / "docs/formats"

IPV4 = bytes.fromhex(
    "000000a9daa320a73610a686000000020000000000000000000000000000000000000000000000000000018bcfe568000a0000050000c738"
    "0000018bcfe5687b0a00000100002a9f0000000000000000000000000000000568656c6c6f02543100474b455953014b31025441475301"
    "5461674102554e49515f4b45590130413030303030353142353930303030303030303030303030303031303030"
    "3002434c555354455201433102"
)
IPV6_BORN = bytes.fromhex(
    "00000076daa320a758932aac000000000000000000000000000000070000000100000040000000100000018bcfe5680020010db800000000"
    "00000000000000050000c7380000018bcfe5687b0a00000100002a9f000000000000000000000000000000026869025431000b434c5553"
    "54455201433102"
)


def test_record_with_ipv4_hosts() -> None:
    """remoting.md 10.4, first vector; A-STORE-11, A-STORE-18, A-STORE-19."""
    assert len(IPV4) == record.check(IPV4, 0, 0) == 169
    decoded = record.decode(IPV4)
    assert (decoded["topic"], decoded["queue_id"], decoded["queue_offset"]) == ("T1", 2, 0)
    assert (decoded["born_timestamp_ms"], decoded["store_timestamp_ms"]) == (1700000000000, 1700000000123)
    assert decoded["body"] == b"hello"
    assert (decoded["born_host"], decoded["store_host"]) == ("10.0.0.5:51000", "10.0.0.1:10911")
    assert (decoded["reconsume_times"], decoded["prepared_offset"], decoded["body_crc"]) == (0, 0, 0x3610A686)
    assert layouts.decode_properties(decoded["properties"]) == {
        "KEYS": "K1", "TAGS": "TagA", "UNIQ_KEY": "0A0000051B5900000000000000010000", "CLUSTER": "C1",
    }  # fmt: skip
    reference = layouts.decode_record(IPV4)
    assert reference.born_host == bytes([10, 0, 0, 5]) + struct.pack(">i", 51000)
    assert reference.store_host == bytes([10, 0, 0, 1]) + struct.pack(">i", 10911)
    assert (reference.reconsume_times, reference.prepared_offset) == (0, 0)
    assert reference.encode() == IPV4


def test_a_record_of_rocketmq_is_checked_by_its_body_and_its_place() -> None:
    """A-STORE-15, A-STORE-17: where it has no checksum of the whole record."""
    body = IPV4.index(b"hello")
    damaged = IPV4[:body] + b"j" + IPV4[body + 1 :]
    assert record.describe(record.check(damaged, 0, 0)) == "bad checksum"
    assert record.check(damaged, 0, 0, False) == len(IPV4)
    assert record.describe(record.check(IPV4, 0, 1)) == "physical offset of another place"


@pytest.mark.parametrize("magic", [0xDAA320A6, 0xDAA320A8, 0xCBD43195, 1])
def test_another_magic_number_is_no_record(magic: int) -> None:
    """A-STORE-13, X-STORE-06: whatever its checksum says."""
    assert record.describe(record.check(IPV4[:4] + struct.pack(">I", magic) + IPV4[8:], 0, 0)) == "bad magic"


def test_record_with_an_ipv6_host() -> None:
    """remoting.md 10.4, second vector; X-STORE-05."""
    assert len(IPV6_BORN) == record.check(IPV6_BORN, 0, 0x100000040) == 118
    decoded = record.decode(IPV6_BORN)
    assert (decoded["queue_offset"], decoded["physical_offset"], decoded["body"]) == (7, 0x100000040, b"hi")
    assert decoded["sys_flag"] == layouts.BORN_V6
    assert decoded["born_host"] == "[2001:db8::5]:51000"
    assert decoded["store_timestamp_ms"] == 1700000000123
    assert layouts.decode_record(IPV6_BORN).encode() == IPV6_BORN


def test_our_encoder_makes_the_same_bytes_but_for_its_checksum() -> None:
    """remoting.md 10.4: the vectors have no ``__CRC32#``; all else is equal."""
    ours = record.encode(
        b"hello", b"T1", queue_id=2, properties=layouts.decode_record(IPV4).properties,
        born_host=0x0A000005 << 32 | 51000, store_host=0x0A000001 << 32 | 10911,
        born_ms=1700000000000, store_ms=1700000000123,
    )  # fmt: skip
    assert len(ours) == 169 + 20
    assert ours[4:96] == IPV4[4:96]
    assert ours[98:169] == IPV4[98:169]
    assert ours == layouts.decode_record(IPV4).encode_checked()


def test_blank_record() -> None:
    """remoting.md 10.4, third vector; X-STORE-06."""
    assert layouts.encode_blank(64) == bytes.fromhex("00000040cbd43194")
    assert record.describe(record.check(layouts.encode_blank(64).ljust(64, b"\0"))).startswith("blank")


def test_a_record_takes_91_bytes_and_its_variable_parts() -> None:
    """A-STORE-12: an empty body, a 1-character topic and no properties give 92."""
    assert len(Record(topic=b"T").encode()) == 92
    assert record.check(Record(topic=b"T").encode(), 0, 0) == 92


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("TagA", 2598919), ("TagB", 2598920), ("*", 42), ("order-created", -392709271), ("温度", 898461),
        ("\U0001f600", 1772899), ("polygenelubricants", -2147483648), ("", 0), ("T1#K1", 79071532),
        ("T1#0A0000051B5900000000000000010000", -517010862), ("TopicA#K1", -1903241641),
    ],
)  # fmt: skip
def test_hash_codes(tag: str, expected: int) -> None:
    """remoting.md 10.7."""
    assert record.tag_hash(tag) == expected == layouts.java_hash(tag)


def test_crc_of_hello() -> None:
    """remoting.md 10.7."""
    assert checksum(b"hello") == 0x3610A686


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ((0, 169, record.tag_hash("TagA")), "0000000000000000000000a9000000000027a807"),
        ((204, 218, record.tag_hash("order-created")), "00000000000000cc000000daffffffffe897bb69"),
        ((1000, 300, 1700000000123 + 10_000), "00000000000003e80000012c0000018bcfe58f8b"),
    ],
)
def test_consume_queue_entries(entry: tuple[int, int, int], expected: str) -> None:
    """remoting.md 10.8; A-STORE-23."""
    assert layouts.encode_entry(*entry).hex() == expected


def worked_example(page: str) -> bytes:
    """The bytes of the page's hex listing: lines of ``offset  bytes  meaning``."""
    text = (DOCS / page).read_text(encoding="utf-8")
    block = re.search(r"<!-- example -->\n```\n(.*?)```", text, re.DOTALL)
    assert block is not None, f"{page} has no worked example"
    parts = [re.match(r"[0-9a-f]{4}  ((?:[0-9a-f]{2} ?)+)", line) for line in block[1].splitlines()]
    return bytes.fromhex("".join(part[1] for part in parts if part is not None))


def test_the_worked_example_of_a_record() -> None:
    """E-STORE-05; docs/formats/commit-log.md, "Worked example"."""
    raw = worked_example("commit-log.md")
    decoded = record.decode(raw)
    assert record.check(raw, 0, 0x40) == len(raw) == decoded["record_bytes"]
    assert (decoded["topic"], decoded["queue_id"], decoded["queue_offset"]) == ("orders", 0, 7)
    assert (decoded["body"], decoded["store_timestamp_ms"]) == (b"hello", 1700000000123)
    assert raw == record.encode(
        b"hello", b"orders", properties=b"TAGS\x01new\x02", queue_offset=7, physical_offset=0x40,
        born_host=0x0A000005 << 32 | 51000, store_host=0x0A000001 << 32 | 4150,
        born_ms=1700000000123, store_ms=1700000000123,
    )  # fmt: skip


def test_the_worked_example_of_queue_entries() -> None:
    """docs/formats/consume-queue.md, "Worked example"."""
    assert layouts.decode_entries(worked_example("consume-queue.md")) == [
        (64, 131, record.tag_hash("new")),
        layouts.FILLER,
    ]
