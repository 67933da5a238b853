"""The manifest of an archive: it is the truth, so damage is never passed over. Ref: docs/spark/jobs/archive.md."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from headrace.errors import ConfigError
from headrace.spark.jobs import lake
from headrace.spark.jobs.manifest import (
    FOLDER,
    PLAN,
    ArchiveError,
    ArchiveFile,
    BrokerRange,
    Epoch,
    Selection,
    data_files,
    epoch_name,
    load,
    load_epochs,
    write_epoch,
)
from headrace.spark.times import LAST_MS


def a_file(start=0, end=100, **changes):
    made = ArchiveFile(
        path=f"topic=t/dt=2026-01-01/broker=b/part-{start:020d}-{end:020d}.parquet", rows=5, size_bytes=10, crc32=1,
        broker="b", start=start, end=end, min_offset=start, max_offset=end - 1, min_ts=1000 + start, max_ts=1000 + end,
        topics={"t": 5},
    )  # fmt: skip
    return replace(made, **changes)


def an_epoch(number, start, end, **changes):
    made = Epoch(
        epoch=number, selection=Selection(topics=("t",), columns=("topic",)), files=[a_file(start, end)],
        brokers={"b": BrokerRange(start=start, end=end, store_id="s")}, counters={"rows": 5}, written_ms=7,
    )  # fmt: skip
    return replace(made, **changes)


@pytest.fixture
def root(tmp_path):
    (tmp_path / FOLDER).mkdir()
    for number in range(1, 4):
        write_epoch(tmp_path, an_epoch(number, (number - 1) * 100, number * 100))
    return tmp_path


def test_what_was_written_is_read(root):
    found = load(root)
    assert found.epochs == [an_epoch(n, (n - 1) * 100, n * 100) for n in (1, 2, 3)]
    assert (found.ends, found.rows, found.topics, found.store_ids) == ({"b": 300}, 15, {"t": 15}, {"b": "s"})
    assert found.selection == Selection(topics=("t",), columns=("topic",))


def test_select_by_topic_and_time(root):
    found = load(root)
    assert found.select(topics=["other"]) == []
    assert [file.start for file in found.select(since=1150)] == [100, 200]
    assert [file.start for file in found.select(until=1100)] == [0]
    assert [file.start for file in found.select(topics=["t"], since=1101, until=1200)] == [100]


def test_epoch_is_written_once(root):
    with pytest.raises(ArchiveError, match="another run"):
        write_epoch(root, an_epoch(3, 200, 300))


@pytest.mark.parametrize("harm", [b"", b"{", b"[]", b"null", b'{"version": 1}'])
def test_damaged_epoch_is_refused(root, harm):
    (root / FOLDER / epoch_name(2)).write_bytes(harm)
    with pytest.raises(ArchiveError, match=r"0000000002\.json is damaged"):
        load(root)


def test_changed_epoch_fails_its_checksum(root):
    path = root / FOLDER / epoch_name(2)
    path.write_text(path.read_text().replace('"rows": 5', '"rows": 6'))
    with pytest.raises(ArchiveError, match="fails its checksum"):
        load(root)


def test_missing_epoch_is_named(root):
    (root / FOLDER / epoch_name(2)).unlink()
    with pytest.raises(ArchiveError, match=r"0000000002\.json is missing, yet 0000000003\.json is there"):
        load(root)


def test_epoch_must_go_on_where_the_last_one_ended(tmp_path):
    (tmp_path / FOLDER).mkdir()
    write_epoch(tmp_path, an_epoch(1, 0, 100))
    write_epoch(tmp_path, an_epoch(2, 150, 200))
    with pytest.raises(ArchiveError, match="ended at 100"):
        load(tmp_path)


def test_newer_version_is_refused(root):
    path = root / FOLDER / epoch_name(1)
    payload = json.loads(path.read_text())
    path.write_text(json.dumps({**payload, "version": 2}))
    with pytest.raises(ArchiveError, match="use a newer one"):
        load(root)


def test_what_is_no_archive_is_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match="is not a directory"):
        load(tmp_path / "none")
    with pytest.raises(ConfigError, match="is not an archive"):
        load(tmp_path)
    (tmp_path / FOLDER).mkdir()
    with pytest.raises(ConfigError, match="it has no epoch yet"):
        load(tmp_path)
    (tmp_path / FOLDER / PLAN).write_text("{}")
    with pytest.raises(ConfigError, match="was not finished"):
        load(tmp_path)
    assert load_epochs(tmp_path).epochs == []


def test_locate_compares_lengths(root):
    found = load(root)
    file = found.files[0]
    with pytest.raises(ArchiveError, match="cannot be read"):
        found.locate(file)
    path = root / file.path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"123")
    with pytest.raises(ArchiveError, match="3 bytes long instead of 10"):
        found.locate(file)
    path.write_bytes(bytes(10))
    assert found.locate(file) == str(path)
    assert list(data_files(root)) == [file.path]


def test_delta_statistics_of_a_file_whose_messages_have_no_time():
    """A folder dt=__HIVE_DEFAULT_PARTITION__ has no others: the year 10000 has no name, and null is counted."""

    def stats(min_ts, max_ts):
        return json.loads(lake._delta_stats(a_file(min_ts=min_ts, max_ts=max_ts)))

    nothing = stats(LAST_MS + 1, LAST_MS + 1)
    assert nothing["nullCount"]["store_ts"] == nothing["numRecords"] == 5
    assert "store_ts" not in nothing["minValues"] | nothing["maxValues"]
    last = stats(LAST_MS, LAST_MS)
    assert last["maxValues"]["store_ts"] == last["minValues"]["store_ts"] == "9999-12-31T23:59:59.999Z"
    assert stats(1_000, 2_000)["maxValues"]["store_ts"] == "1970-01-01T00:00:02.001Z"
    assert stats(1_000, 2_000)["nullCount"]["store_ts"] == 0
