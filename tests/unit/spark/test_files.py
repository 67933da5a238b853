"""A store's folder read without its broker: extents, durable end, missing files."""

import errno
import os
import struct
import zlib

import pytest

from headrace.errors import StoreError
from headrace.format import record
from headrace.format.epochs import Epoch, Epochs
from headrace.format.names import segment_name
from headrace.format.side_file import write_side_file
from headrace.spark import files
from headrace.spark.errors import DataLossError
from headrace.spark.files import StoreFiles
from tests.support.record_rows import lay_log

SEGMENT = 1 << 16


def make_store(root, count=500, *, mark=None, identity=True, segment_bytes=SEGMENT):
    """Write a folder as a broker leaves it; return (log, number of records)."""
    raw, whole = lay_log(
        [{"body": b"x" * (i % 300), "topic": b"t", "queue_offset": i, "store_ms": i} for i in range(count)],
        segment_bytes,
    )
    (root / "commitlog").mkdir(parents=True)
    (root / "headrace").mkdir()
    for first in range(0, len(raw), segment_bytes):
        piece = raw[first : first + segment_bytes].ljust(segment_bytes, b"\0")
        (root / "commitlog" / segment_name(first)).write_bytes(piece)
    (root / "commitlog" / segment_name(-(-len(raw) // segment_bytes) * segment_bytes)).write_bytes(
        b"\0" * segment_bytes
    )
    if identity:
        payload = {
            "store_id": "ab" * 16,
            "format_version": 1,
            "segment_bytes": segment_bytes,
            "queue_file_bytes": 20,
            "created_ms": 0,
        }
        write_side_file(root / "headrace" / "store.json", "store", payload)
        write_mark(root, len(raw) if mark is None else mark)
    return raw, whole


def write_mark(root, offset):
    checked = struct.pack(">qq", 1, offset)
    slot = checked + struct.pack(">II", zlib.crc32(checked), 0)
    (root / "headrace" / "durable").write_bytes(bytes(24) + slot)


def test_extent_ends_at_the_durable_mark(tmp_path):
    raw, whole = make_store(tmp_path)
    files = StoreFiles(tmp_path, "b")
    assert files.extent().runs == ((0, len(raw)),)
    assert (files.store_id, files.segment_bytes, files.broker) == ("ab" * 16, SEGMENT, "b")
    write_mark(tmp_path, len(whole[0]))
    assert files.extent().end == len(whole[0])


def test_nothing_of_a_new_store_is_read_before_its_first_flush(tmp_path):
    """The broker has noted that nothing is durable yet: read all the same, it would be more than there is later."""
    make_store(tmp_path)
    write_mark(tmp_path, 0)
    extent = StoreFiles(tmp_path, "b").extent()
    assert (extent.runs, extent.end) == ((), 0)


def test_a_mark_that_was_never_written_says_nothing(tmp_path):
    raw, _ = make_store(tmp_path)
    (tmp_path / "headrace" / "durable").write_bytes(bytes(48))
    assert StoreFiles(tmp_path, "b").extent().end == len(raw)


def test_folder_without_marks_is_walked(tmp_path):
    """RocketMQ's folder, or copied files."""
    raw, _ = make_store(tmp_path, identity=False)
    files = StoreFiles(tmp_path)
    assert files.segment_bytes == SEGMENT
    assert files.extent().runs == ((0, len(raw)),)
    assert files.broker == tmp_path.name


def harm(root, at):
    """Change one byte of the log."""
    path = root / "commitlog" / segment_name(at // SEGMENT * SEGMENT)
    data = bytearray(path.read_bytes())
    data[at % SEGMENT] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("count", [50, 300, 1000])
@pytest.mark.parametrize("is_mark_damaged", [False, True])
def test_damaged_record_does_not_end_a_folder_without_a_mark(tmp_path, count, is_mark_damaged):
    """The magic of one record of the last file is flipped: what follows is still the log."""
    raw, whole = make_store(tmp_path, count, identity=is_mark_damaged)
    if is_mark_damaged:
        (tmp_path / "headrace" / "durable").write_bytes(b"\xff" * 48)
    harm(tmp_path, len(raw) - sum(map(len, whole[-20:])) + 4)
    assert StoreFiles(tmp_path).extent().end == len(raw)


def test_damaged_last_records_end_a_folder_without_a_mark(tmp_path):
    """Nothing right follows them, so they cannot be told from a torn tail."""
    raw, whole = make_store(tmp_path, 50, identity=False)
    end = len(raw) - len(whole[-1]) - len(whole[-2])
    harm(tmp_path, end + 4)
    harm(tmp_path, len(raw) - len(whole[-1]) + 4)
    assert StoreFiles(tmp_path).extent().end == end


@pytest.mark.parametrize("harmed", ["first", "last"])
def test_walk_goes_over_damage_up_to_the_blank(tmp_path, harmed):
    """The last file with records is full: its blank record ends it."""
    raw, _ = make_store(tmp_path, 2000, identity=False)
    full = len(raw) // SEGMENT * SEGMENT
    (tmp_path / "commitlog" / segment_name(full)).write_bytes(bytes(SEGMENT))
    blank = raw.rindex(bytes.fromhex("cbd43194"), 0, full)
    harm(tmp_path, full - SEGMENT + 4 if harmed == "first" else raw.rindex(b"\xda\xa3\x20", 0, blank))
    assert StoreFiles(tmp_path).extent().end == full


def test_missing_files_part_runs(tmp_path):
    raw, _ = make_store(tmp_path, 2000)
    (tmp_path / "commitlog" / segment_name(SEGMENT)).unlink()
    assert StoreFiles(tmp_path).extent().runs == ((0, SEGMENT), (2 * SEGMENT, len(raw)))


@pytest.mark.parametrize("has_identity", [True, False])
def test_missing_first_file_is_missing_where_it_is_known_where_the_log_began(tmp_path, has_identity):
    """A store of ours removes nothing; RocketMQ removes its oldest files."""
    raw, _ = make_store(tmp_path, 2000, identity=has_identity)
    (tmp_path / "commitlog" / segment_name(0)).unlink()
    extent = StoreFiles(tmp_path).extent()
    assert extent.runs == ((SEGMENT, len(raw)),)
    assert extent.missing == (((0, SEGMENT),) if has_identity else ())
    assert extent.origin == (0 if has_identity else SEGMENT)


@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize(
    "make", [lambda path: path.symlink_to("away"), lambda path: path.symlink_to(path.name), os.mkfifo]
)
def test_what_cannot_be_read_of_a_foreign_store_is_named(tmp_path, at, make):
    """Where its log begins and ends only its files say: their messages were left out, and nothing told so."""
    make_store(tmp_path, 2000, identity=False)
    path = sorted((tmp_path / "commitlog").iterdir())[at]
    path.unlink()
    make(path)
    with pytest.raises(StoreError, match=f"{path.name} is no file, or a link that leads to none"):
        StoreFiles(tmp_path).extent()


def test_a_log_that_begins_later_lacks_nothing(tmp_path):
    """It was imported."""
    raw, _ = make_store(tmp_path, 2000)
    epochs = Epochs([Epoch(1, SEGMENT)])
    write_side_file(tmp_path / "headrace" / "epochs.json", "epochs", epochs.to_payload())
    (tmp_path / "commitlog" / segment_name(0)).unlink()
    extent = StoreFiles(tmp_path).extent()
    assert (extent.missing, extent.origin, extent.end) == ((), SEGMENT, len(raw))


def test_epoch(tmp_path):
    make_store(tmp_path)
    assert StoreFiles(tmp_path).extent().epoch == 0
    epochs = Epochs().begin(2 * SEGMENT, end=SEGMENT, now_ms=0, queue_ends={})
    write_side_file(tmp_path / "headrace" / "epochs.json", "epochs", epochs.to_payload())
    assert StoreFiles(tmp_path).extent().epoch == 2


@pytest.mark.parametrize("chunk", [1000, 4096, SEGMENT, 1 << 20])
def test_chunks_are_the_log(tmp_path, chunk):
    raw, _ = make_store(tmp_path, 1000)
    found = list(StoreFiles(tmp_path).chunks(0, len(raw), chunk))
    assert b"".join(data for _, data in found) == raw
    assert all(len(data) <= chunk for _, data in found)
    assert all(raw[at : at + len(data)] == data for at, data in found)


def test_file_that_is_gone_is_data_loss(tmp_path):
    raw, _ = make_store(tmp_path, 2000)
    (tmp_path / "commitlog" / segment_name(0)).unlink()
    with pytest.raises(DataLossError, match="physical offsets 0 to 65536") as caught:
        list(StoreFiles(tmp_path, "b").chunks(100, len(raw), 1000))
    assert (caught.value.broker, caught.value.first_offset, caught.value.end_offset) == ("b", 0, SEGMENT)


@pytest.mark.parametrize("size", [0, 30_000])
def test_file_that_was_cut_off_is_data_loss(tmp_path, size):
    """A copy that was not finished: what there is, and then an error; it went round for ever."""
    raw, _ = make_store(tmp_path, 2000)
    os.truncate(tmp_path / "commitlog" / segment_name(SEGMENT), size)
    found: list[tuple[int, memoryview]] = []
    with pytest.raises(DataLossError, match=f"65536 is {size} bytes long instead of 65536") as caught:
        found.extend(StoreFiles(tmp_path, "b").chunks(0, len(raw), 4000))
    assert b"".join(data for _, data in found) == raw[: SEGMENT + size]
    assert (caught.value.first_offset, caught.value.end_offset) == (SEGMENT + size, 2 * SEGMENT)


def test_file_that_is_not_of_the_log_is_named(tmp_path):
    """Its records were rows for the second time."""
    make_store(tmp_path)
    (tmp_path / "commitlog" / segment_name(100)).write_bytes(bytes(100))
    with pytest.raises(StoreError, match="00100 is no file of this log: its files begin at multiples of 65536"):
        StoreFiles(tmp_path).extent()


def test_empty_file_behind_a_folder_without_a_mark(tmp_path):
    raw, _ = make_store(tmp_path)
    (tmp_path / "headrace" / "durable").unlink()
    (tmp_path / "commitlog" / segment_name(4 * SEGMENT)).write_bytes(b"")
    assert StoreFiles(tmp_path).extent().end == len(raw)


def test_folder_without_a_mark_is_walked_once(tmp_path, monkeypatch):
    """A stream asks with each micro-batch: it walked the whole last file each time, seconds for a large one."""
    raw, whole = make_store(tmp_path, 300, identity=False)
    last = tmp_path / "commitlog" / segment_name(len(raw) // SEGMENT * SEGMENT)
    walked = []

    def check(data, at, physical_offset, *, checksums):
        walked.append(at)
        return record.check(data, at, physical_offset, checksums=checksums)

    monkeypatch.setattr(files, "check", check)
    last_records, full = whole[-20:], last.read_bytes()
    end = len(raw) - sum(map(len, last_records))
    for number in range(len(last_records) + 1):
        grown = end + sum(map(len, last_records[:number]))
        last.write_bytes(full[: grown % SEGMENT].ljust(SEGMENT, b"\0"))
        walked.clear()
        assert StoreFiles(tmp_path).extent().end == grown
        assert len(walked) <= 6 or number == 0, "from the last record on"
    harm(tmp_path, len(raw) - len(whole[-1]) + 4)
    assert StoreFiles(tmp_path).extent().end == len(raw) - len(whole[-1]), "the record it would go on from is damaged"


def test_what_is_no_store_is_named(tmp_path):
    with pytest.raises(StoreError, match="no folder commitlog"):
        StoreFiles(tmp_path)
    (tmp_path / "commitlog").mkdir()
    assert StoreFiles(tmp_path).extent().runs == ()
    for number, size in enumerate((100, 200)):
        (tmp_path / "commitlog" / segment_name(number * 100)).write_bytes(bytes(size))
    with pytest.raises(StoreError, match=r"files of 100"):
        StoreFiles(tmp_path)


@pytest.mark.parametrize("name", ["headrace/store.json", "headrace/durable"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name):
    make_store(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to((tmp_path / name).name)
    with pytest.raises(StoreError, match=f"{name} cannot be read"):
        StoreFiles(tmp_path).extent()


@pytest.mark.parametrize("name", ["commitlog", "consumequeue"])
def test_a_folder_that_may_not_be_looked_at_is_named(tmp_path, name, monkeypatch):
    """Spark runs as another user than the broker: of a stream Spark told then of a local variable of its own."""
    make_store(tmp_path)
    is_dir = type(tmp_path).is_dir

    def refuse(path):
        if path.name == name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return is_dir(path)

    monkeypatch.setattr(type(tmp_path), "is_dir", refuse)
    with pytest.raises(StoreError, match=f"{tmp_path / name} cannot be read: Permission denied"):
        StoreFiles(tmp_path).topics()


def test_what_is_no_topic_is_not_listed(tmp_path):
    """``lost+found`` was, where the folder of queues is a file system of its own, and a name that is no text."""
    make_store(tmp_path)
    queues = tmp_path / "consumequeue"
    for name in ("lost+found", os.fsdecode(b"\xff"), "orders"):
        (queues / name).mkdir(parents=True)
    (queues / "file").touch()
    assert StoreFiles(tmp_path).topics() == ["orders"]
