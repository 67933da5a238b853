"""Any damage to a store's files: the checker names it, and never fails itself; a start serves what is whole."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.broker.broker import Broker
from headrace.broker.channels.stored_channels import StoredChannel, check_channels
from headrace.clock import ManualClock
from headrace.errors import FormatVersionError, SideFileError, StoreError
from headrace.format.durable_mark import decode_mark
from headrace.format.side_file import read_side_file, write_side_file
from headrace.settings import BrokerSettings
from headrace.store.check import check_store
from headrace.store.store import Store
from tests.support import layouts
from tests.support.stores import SEGMENT_BYTES, Published, StoreBench, small_settings

CHANGES = st.lists(
    st.tuples(st.integers(0, 10**9), st.binary(min_size=1, max_size=30)), min_size=1, max_size=4
)  # fmt: skip


@cache
def template() -> tuple[Path, list[Published]]:
    """A closed store of a broker: three topics, several segments, an epoch."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-test-"))
    bench = StoreBench(folder / "store")
    broker = Broker.open(bench.store, BrokerSettings(node_id=1), bench.clock)
    for name in ("a", "b"):
        broker.ensure_channel(broker.ensure_topic(name), "c")
    placed = []
    for n in range(60):
        placed += bench.append("ab"[n % 2], b"%d " % n + b"x" * 900)
    broker.close()
    bench.crash()
    bench.overwrite(bench.store.mark.noted_offset, b"torn")
    bench.open()
    broker = Broker.open(bench.store, BrokerSettings(node_id=1), bench.clock)
    placed += bench.append("a", *(b"%d " % n + b"y" * 3000 for n in range(30)))
    broker.close()
    bench.close()
    return bench.root, placed


@contextmanager
def damaged_copy() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="headrace-test-") as folder:
        yield Path(shutil.copytree(template()[0], Path(folder) / "store"))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), changes=CHANGES)
def test_damage_to_the_log_is_always_found(data: st.DataObject, changes: list[tuple[int, bytes]]) -> None:
    """Exit 1, and the record that was hit is named. A start serves everything else."""
    placed = template()[1]
    with damaged_copy() as root:
        hit = set()
        for number, noise in changes:
            topic, queue_offset, physical_offset, body = placed[number % len(placed)]
            at = physical_offset + data.draw(st.integers(0, len(body)), label="byte")
            path = root / "commitlog" / f"{at // SEGMENT_BYTES * SEGMENT_BYTES:020d}"
            raw = bytearray(path.read_bytes())
            position = at % SEGMENT_BYTES
            before = bytes(raw)
            raw[position : position + len(noise)] = noise
            path.write_bytes(raw[:SEGMENT_BYTES])
            if bytes(raw[:SEGMENT_BYTES]) != before:
                hit.add((topic, queue_offset))
        report = check_store(root, extra=check_channels)
        named = {(f.topic, f.queue_offset) for f in report.damage if f.kind in {"damaged_record", "misplaced_record"}}
        assert report.exit_code == bool(hit), report.to_json()
        assert hit <= named | {key for key in hit if key == placed[-1][:2]}
        store = Store.open(small_settings(root), ManualClock())
        try:
            for topic, queue_offset, physical_offset, body in placed:
                if (topic, queue_offset) not in named and (topic, queue_offset) not in hit:
                    raw_record = store.log.read(physical_offset)
                    assert raw_record is not None
                    assert layouts.decode_record(raw_record).body == body
        finally:
            store.abandon()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), changes=CHANGES, cut=st.booleans())
def test_no_damage_to_any_file_breaks_the_checker(
    data: st.DataObject, changes: list[tuple[int, bytes]], cut: bool
) -> None:
    """Every decoder: cut, changed, or both; an answer each time, never an exception."""
    with damaged_copy() as root:
        files = sorted(path for path in root.rglob("*") if path.is_file() and "commitlog" not in str(path))
        for position, noise in changes:
            path = data.draw(st.sampled_from(files), label="file")
            raw = bytearray(path.read_bytes())
            at = position % (min(len(raw), 4000) + 1)
            raw[at : at + len(noise)] = noise
            path.write_bytes(raw[:at] if cut else raw)
        report = check_store(root, extra=check_channels)
        assert report.exit_code in {0, 1, 2}
        assert (report.error is not None) == (report.exit_code == 2)
        report.to_json()


@given(kind=st.sampled_from(["one", "another"]), payload=st.dictionaries(st.text(max_size=5), st.integers(0, 2**40)))
def test_side_files_are_the_references(kind: str, payload: dict[str, int]) -> None:
    """docs/formats/side-files.md, "Side file": both ways; cut anywhere or with trailing bytes it is damaged."""
    with tempfile.TemporaryDirectory(prefix="headrace-test-") as folder:
        path = Path(folder) / "file.json"
        write_side_file(path, kind, payload)
        raw = path.read_bytes()
        assert layouts.decode_side_file(raw) == (kind, 1, payload)
        path.write_bytes(layouts.encode_side_file(kind, 1, raw.partition(b"\n")[2]))
        assert read_side_file(path, kind, "remedy") == payload
        for size in range(len(raw)):
            path.write_bytes(raw[:size])
            with pytest.raises(SideFileError, match=r"file\.json.*remedy"):
                read_side_file(path, kind, "remedy")
        path.write_bytes(raw + b" ")
        with pytest.raises(SideFileError):
            read_side_file(path, kind, "remedy")
        path.write_bytes(layouts.encode_side_file(kind, 2, b"{}"))
        with pytest.raises(FormatVersionError):
            read_side_file(path, kind, "remedy")
        path.write_bytes(layouts.encode_side_file(kind, 1, b"no JSON"))
        with pytest.raises(SideFileError):
            read_side_file(path, kind, "remedy")


@given(st.binary(max_size=200))
def test_any_bytes_as_a_side_file_are_refused(noise: bytes) -> None:
    """Never a crash, always a name and a remedy."""
    with tempfile.TemporaryDirectory(prefix="headrace-test-") as folder:
        path = Path(folder) / "file.json"
        for raw in (noise, b"headrace store " + noise, b"headrace store 1 " + noise):
            path.write_bytes(raw)
            with pytest.raises(StoreError):
                read_side_file(path, "store", "remedy")


@given(st.binary(max_size=60))
def test_any_bytes_as_a_durable_mark_have_an_answer(noise: bytes) -> None:
    """docs/formats/side-files.md, "Durable mark"."""
    sequence, offset, is_damaged = decode_mark(noise)
    assert (sequence, offset) == (0, 0) or not is_damaged


@given(st.integers(1, 2**40), st.integers(0, 2**47))
def test_the_durable_mark_is_the_references(sequence: int, offset: int) -> None:
    """docs/formats/side-files.md, "Durable mark"."""
    slots = [bytes(24), bytes(24)]
    slots[sequence & 1] = layouts.encode_mark_slot(sequence, offset)
    assert decode_mark(b"".join(slots)) == (sequence, offset, False)


@given(st.binary(max_size=120))
def test_any_bytes_as_a_channel_state_are_refused_or_read(noise: bytes) -> None:
    """docs/formats/channel-journal.md, "State": the tools' reader never fails in another way."""
    for head in (b"", b"\x01\x01", b"\x02\x01"):
        with suppress(ValueError):
            StoredChannel().apply(head + noise)
