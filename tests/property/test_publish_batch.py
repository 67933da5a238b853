"""What a PublishBatch says of its entries, against the records that the log has of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch import PublishBatch
from headrace.clock import ManualClock
from headrace.settings import StoreSettings
from headrace.store.store import Store
from tests.support import layouts
from tests.support.layouts import Record
from tests.support.stores import StoreBench, store_bench

INT64 = st.integers(-(2**63), 2**63 - 1)
UINT64 = st.integers(1, 2**64 - 1)
V6 = st.binary(min_size=20, max_size=20)
STORE_HOST = 0x0A000001 << 32 | 10911

OWN = st.fixed_dictionaries(
    {},
    optional={
        "born_ms": INT64,
        "flag": st.integers(0, 2**32 - 1),
        "sys_flag": st.integers(0, 2**32 - 1),
        "reconsume_times": st.integers(-(2**31), 2**31 - 1),
        "prepared_offset": INT64,
        "born_host": UINT64,
        "born_v6": V6,
        "properties": st.just(b"k\x01v\x02"),
    },
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreBench]:
    root: Path = tmp_path_factory.mktemp("publish") / "store"
    with store_bench(root) as made:
        made.store.log.store_host = STORE_HOST
        yield made


def expected_record(
    own: dict[str, Any], batch_host: int, batch_v6: bytes | None, store_v6: bytes | None, **fields: Any
) -> Record:
    if "born_v6" in own:
        host = own["born_v6"]
    elif "born_host" in own:
        host = struct.pack(">Q", own["born_host"])
    else:
        host = batch_v6 or struct.pack(">Q", batch_host)
    flag = own.get("sys_flag", 0) & ~(layouts.BORN_V6 | layouts.STORE_V6)
    flag |= (layouts.BORN_V6 if len(host) == 20 else 0) | (layouts.STORE_V6 if store_v6 else 0)
    return Record(
        born_host=host, sys_flag=_signed(flag),
        flag=_signed(own.get("flag", 0)), reconsume_times=own.get("reconsume_times", 0),
        prepared_offset=own.get("prepared_offset", 0), properties=own.get("properties", b""),
        store_host=store_v6 or struct.pack(">Q", STORE_HOST), **fields,
    )  # fmt: skip


def _signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value


def test_totals_follow_the_batch() -> None:
    """They are kept from one question to the next; whatever was added in between is in them."""
    batch = PublishBatch()
    batch.destinations = ["a", "b"]
    batch.append(b"12", 1)
    assert batch.totals() == batch.totals() == [(0, 0), (1, 2)]
    batch.append(b"345", 0)
    assert batch.totals() == [(1, 3), (1, 2)]
    batch.destinations.append("c")
    assert batch.totals() == [(1, 3), (1, 2), (0, 0)]
    batch.clear()
    batch.destinations = ["a", "b", "c"]
    batch.append(b"6", 2)
    batch.append(b"7", 2)
    assert batch.totals() == [(0, 0), (0, 0), (2, 2)]


@given(st.lists(OWN, min_size=1, max_size=5), st.integers(0, 2**64 - 1), st.none() | V6, st.none() | V6)
def test_an_entry_says_what_its_record_holds(
    bench: StoreBench,
    entries: list[dict[str, Any]],
    batch_host: int,
    batch_v6: bytes | None,
    store_v6: bytes | None,
) -> None:
    """remoting.md 2.1, 2.3: bits 4 and 5 of sysFlag are ours, everything else is as given."""
    store = bench.store
    store.log.store_host_v6 = store_v6
    queue = store.queue("t", 0)
    batch = PublishBatch()
    batch.destinations, batch.queues = ["t"], [queue]
    batch.born_host, batch.born_host_v6 = batch_host, batch_v6
    for number, own in enumerate(entries):
        batch.append(b"body %d" % number, **own)
    next_offset = queue.next_offset
    store.append(batch)
    for number, own in enumerate(entries):
        physical_offset, queue_offset, record_bytes = batch.placed(number)
        listed = own.get("sys_flag", 0) & 0x4 == 0
        assert queue_offset == (next_offset if listed else 0)
        next_offset += listed
        raw = store.log.read(physical_offset)
        assert raw is not None
        assert raw == expected_record(
            own, batch_host, batch_v6, store_v6, body=b"body %d" % number, topic=b"t", queue_offset=queue_offset,
            physical_offset=physical_offset, store_ms=bench.clock.now_ms(),
            born_ms=own.get("born_ms") or bench.clock.now_ms(),
        ).encode_checked()  # fmt: skip
        assert len(raw) == record_bytes
    assert queue.next_offset == next_offset
    store.flush()


def test_a_host_of_another_size_is_refused(tmp_path: Path) -> None:
    """Twenty bytes are copied into the record."""
    with pytest.raises(ValueError, match="19 bytes"):
        PublishBatch().append(b"x", born_v6=bytes(19))
    with pytest.raises(ValueError, match="21 bytes"):
        Store.open(StoreSettings(data_dir=tmp_path), ManualClock(), store_host_v6=bytes(21))
