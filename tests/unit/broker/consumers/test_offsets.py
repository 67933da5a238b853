"""Committed offsets: kept by group, topic and queue, on disk every interval, never beyond the log."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.broker.config_file import FileWriter
from headrace.broker.consumers import offsets
from headrace.broker.consumers.offsets import FILE_NAME, OffsetTable
from headrace.errors import InvalidNameError, OffsetOutOfRangeError, QuotaExceededError, SideFileError
from headrace.settings import BrokerSettings
from tests.support.config_files import BrokenConfigFile, Jobs

SETTINGS = BrokerSettings()
FAR = 1 << 40


def make(
    folder: Path, jobs: Jobs | None = None, *, ends: dict | None = None, settings: BrokerSettings = SETTINGS
) -> OffsetTable:
    table = OffsetTable((jobs or Jobs()).writer(folder, FILE_NAME), settings)
    table.load(lambda topic, queue_id: FAR if ends is None else ends.get((topic, queue_id), 0))
    return table


def on_disk(folder: Path) -> dict:
    return json.loads((folder / FILE_NAME).read_bytes())


def test_offsets_are_kept_by_group_topic_and_queue(tmp_path: Path) -> None:
    """E-TERM-09, E-TERM-10, X-EQ-02, A-BROKER-11."""
    table = make(tmp_path)
    assert table.committed("G1", "T", 0) is None
    assert table.commit("G1", "T", 0, 5)
    assert table.commit("G1", "T", 1, 4)
    assert table.commit("G2", "T", 0, 9)
    assert table.commit("G1", "U", 0, 1)
    assert table.queues("G1", "T") == {0: 5, 1: 4}
    assert table.committed("G2", "T", 0) == 9
    assert table.groups_of("T") == ["G1", "G2"]
    assert table.topics_of("G1") == ["T", "U"]
    assert table.groups_of("none") == table.topics_of("none") == []
    assert len(table) == 4


def test_a_smaller_offset_counts_too(tmp_path: Path) -> None:
    """remoting.md 4.4, code 15: the value may be smaller than the stored one."""
    table = make(tmp_path)
    table.commit("G", "T", 0, 5)
    table.commit("G", "T", 0, 3)
    assert table.committed("G", "T", 0) == 3


def test_the_file_is_written_each_interval_if_something_changed(tmp_path: Path) -> None:
    """A-BROKER-24; remoting.md 4.11."""
    jobs = Jobs()
    table = make(tmp_path, jobs)
    table.tick(1000)
    assert jobs.count == 0
    table.commit("G", "T", 0, 4)
    table.tick(2000)  # nothing was written for an interval: at once
    assert jobs.count == 1
    table.commit("G", "T", 0, 5)
    table.commit("G", "T", 1, 4)
    table.tick(6999)
    assert jobs.count == 1
    table.tick(7000)
    assert on_disk(tmp_path) == {"offsetTable": {"T@G": {"0": 5, "1": 4}}}
    table.tick(12_000)
    table.commit("G", "T", 0, 5)  # no change
    table.tick(17_000)
    assert jobs.count == 2
    table.commit("G", "T", 0, 6)
    table.commit("H", "T", 0, 1)
    table.tick(22_000)
    assert on_disk(tmp_path) == {"offsetTable": {"T@G": {"0": 6, "1": 4}, "T@H": {"0": 1}}}


def test_a_process_that_never_lives_for_an_interval_gets_on(tmp_path: Path) -> None:
    """A-BROKER-24: a start writes nothing by itself, but the first commit behind it at once."""
    for offset in range(1, 4):
        jobs = Jobs()
        table = make(tmp_path, jobs)
        table.tick(1000)
        assert jobs.count == 0
        assert table.committed("G", "T", 0) == (offset - 1 or None)
        table.commit("G", "T", 0, offset)
        table.tick(1500)  # and killed


def test_a_restart_keeps_what_was_written_and_close_writes_the_rest(tmp_path: Path) -> None:
    """A-BROKER-23; X-BROKER-16: a clean end loses nothing."""
    table = make(tmp_path)
    table.commit("G", "%RETRY%G", 0, 5)
    table.close()
    again = make(tmp_path)
    assert again.committed("G", "%RETRY%G", 0) == 5
    assert again.topics_of("G") == ["%RETRY%G"]


def test_a_change_of_a_tool_is_answered_when_it_is_on_disk(tmp_path: Path) -> None:
    """A reset that a crash forgets would have been reported as done; also while an older write is under way."""
    jobs = Jobs(at_once=False)
    table = make(tmp_path, jobs)
    answers: list[OSError | None] = []
    table.commit("G", "T", 1, 7)
    table.tick(0)
    table.assign_resets("G", "T", {0: 3})
    table.when_saved(answers.append)
    table.commit("G", "T", 1, 8)
    table.when_saved(answers.append)
    jobs.run()
    assert answers == []
    jobs.run()
    assert answers == [None, None]
    assert on_disk(tmp_path) == {"offsetTable": {"T@G": {"0": 3, "1": 8}}, "resetTable": {"T@G": {"0": 3}}}
    table.when_saved(answers.append)
    assert answers == [None] * 3


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5])
def test_the_text_of_many_rows_is_put_together_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """A million rows in one call would hold up the event loop for a tenth of a second."""
    monkeypatch.setattr(offsets, "_JOINED_AT_ONCE", 2)
    table = make(tmp_path)
    for number in range(5):
        table.commit(f"G{number}", "T", 0, number)
    for number in range(rows, 5):
        table.remove_group(f"G{number}")
    table.close()
    assert on_disk(tmp_path) == {"offsetTable": {f"T@G{number}": {"0": number} for number in range(rows)}}


def test_what_changes_while_a_write_runs_comes_with_the_next(tmp_path: Path) -> None:
    jobs = Jobs(at_once=False)
    table = make(tmp_path, jobs)
    table.commit("G", "T", 0, 1)
    table.tick(0)
    table.commit("G", "T", 0, 2)
    table.tick(5000)
    jobs.run()
    assert on_disk(tmp_path) == {"offsetTable": {"T@G": {"0": 1}}}
    table.tick(10_000)
    jobs.run()
    assert on_disk(tmp_path) == {"offsetTable": {"T@G": {"0": 2}}}


def test_a_write_that_fails_is_made_up_for(tmp_path: Path) -> None:
    file = BrokenConfigFile(tmp_path, FILE_NAME)
    writer = FileWriter(file, Jobs().submit, lambda call: call())
    table = OffsetTable(writer, SETTINGS)
    table.commit("G", "T", 0, 1)
    table.tick(0)
    assert writer.errors == 1
    file.fails = False
    table.tick(5000)
    assert on_disk(tmp_path) == {"offsetTable": {"T@G": {"0": 1}}}


def test_a_failure_at_the_end_is_logged_and_nothing_is_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = BrokenConfigFile(tmp_path, FILE_NAME)
    table = OffsetTable(FileWriter(file, Jobs().submit, lambda call: call()), SETTINGS)
    table.commit("G", "T", 0, 1)
    table.close()
    assert "committed offsets not written" in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        b'{"offsetTable":{"TopicA@G2":{0:4,1:1,2:1,3:3},"%RETRY%G2@G2":{0:0}}}',
        b'{\n\t"offsetTable":{\n\t\t"TopicA@G2":{0:4,1:1,2:1,3:3\n\t\t},\n\t\t"%RETRY%G2@G2":{0:0\n\t\t}\n\t}\n}',
        b'{"dataVersion":{"counter":1},"offsetTable":{"TopicA@G2":{"0":4,"1":"1","2":1,"3":3},"%RETRY%G2@G2":{"0":0}}}',
        b'{"offsets":{"G2@TopicA":{"0":4,"1":1,"2":1,"3":3},"G2@%RETRY%G2":{"0":0}}}',
    ],
    ids=["compact", "pretty", "quoted", "smartgo"],
)
def test_files_of_rocketmq_and_smartgo_are_read(tmp_path: Path, content: bytes) -> None:
    """A-BROKER-25, X-BROKER-04; remoting.md 10.11."""
    (tmp_path / FILE_NAME).write_bytes(content)
    table = make(tmp_path)
    assert table.queues("G2", "TopicA") == {0: 4, 1: 1, 2: 1, 3: 3}
    assert table.queues("G2", "%RETRY%G2") == {0: 0}


def test_offsets_beyond_the_log_are_clamped_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every view that points beyond the end is clamped, else what is published next would be skipped."""
    (tmp_path / FILE_NAME).write_bytes(b'{"offsetTable":{"T@G":{0:4,1:9},"gone@G":{0:3}}}')
    table = make(tmp_path, ends={("T", 0): 4, ("T", 1): 7})
    assert table.queues("G", "T") == {0: 4, 1: 7}
    assert table.queues("G", "gone") == {0: 0}
    assert table.counters.clamped == 2
    assert "group=G topic=T queue_id=1 queue_offset=9 to=7" in caplog.text
    table.close()
    assert on_disk(tmp_path)["offsetTable"]["T@G"] == {"0": 4, "1": 7}


def test_no_group_is_beyond_the_end_that_a_queue_is_left_with(tmp_path: Path) -> None:
    table = make(tmp_path)
    for group, offset in (("G", 9), ("H", 7), ("I", 3)):
        table.commit(group, "T", 0, offset)
        table.commit(group, "T", 1, 9)
    table.assign_resets("G", "T", {0: 8})
    table.bring_back("T", 0, 7)
    table.bring_back("other", 0, 0)
    table.close()
    offsets = {"T@G": {"0": 7, "1": 9}, "T@H": {"0": 7, "1": 9}, "T@I": {"0": 3, "1": 9}}
    assert on_disk(tmp_path) == {"offsetTable": offsets, "resetTable": {"T@G": {"0": 7}}}
    assert make(tmp_path).queues("G", "T") == {0: 7, 1: 9}


def test_clamped_offsets_are_on_disk_before_anything_is_published(tmp_path: Path) -> None:
    """A kill behind the start would bring the old ones back, above what was published meanwhile."""
    (tmp_path / FILE_NAME).write_bytes(b'{"offsetTable":{"T@G":{"0":4,"1":9}},"resetTable":{"T@G":{"0":4}}}')
    jobs = Jobs()
    make(tmp_path, jobs, ends={("T", 0): 4, ("T", 1): 7})
    assert jobs.count == 0
    assert on_disk(tmp_path) == {"offsetTable": {"T@G": {"0": 4, "1": 7}}, "resetTable": {"T@G": {"0": 4}}}
    assert (tmp_path / f"{FILE_NAME}.bak").read_bytes() == (tmp_path / FILE_NAME).read_bytes()


def test_what_no_broker_wrote_is_passed_over_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE_NAME).write_bytes(
        b'{"offsetTable":{"T":{"0":1},"T@":{"0":1},"A@G":{"x":1},"B@G":5,"C@G":{"0":null},"D@G":{"0":2},"E@G":{}}}'
    )
    table = make(tmp_path)
    assert table.keys() == [("G", "D")]
    assert table.queues("G", "D") == {0: 2}
    assert caplog.text.count("passed over") == 5


def test_an_offset_below_0_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """RocketMQ keeps what a client commits, -1 too, and takes it for none when it is asked: the others count."""
    (tmp_path / FILE_NAME).write_bytes(b'{"offsetTable":{"T@G":{0:4,1:-1,-1:5,3:6},"T@H":{0:-1}}}')
    table = make(tmp_path)
    assert table.queues("G", "T") == {0: 4, 3: 6}
    assert table.keys() == [("G", "T")]
    assert "passed over" not in caplog.text


@pytest.mark.parametrize(
    "damage", [b'{"offseuTable":{"T@G":{"0":4}}}', b"{}", b'{"offsetTable":[1,2]}', b'{"offsetTable":null}']
)
def test_a_file_without_its_table_is_read_from_its_copy(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """remoting.md 3.5: else a flipped bit in the table's name would have every group begin anew."""
    (tmp_path / FILE_NAME).write_bytes(damage)
    (tmp_path / f"{FILE_NAME}.bak").write_bytes(b'{"offsetTable":{"T@G":{"0":3}}}')
    assert make(tmp_path).queues("G", "T") == {0: 3}
    assert "config file taken from its copy" in caplog.text
    assert (tmp_path / f"{FILE_NAME}.damaged").read_bytes() == damage
    (tmp_path / FILE_NAME).write_bytes(damage)
    (tmp_path / f"{FILE_NAME}.bak").unlink()
    with pytest.raises(SideFileError, match="offsetTable"):
        make(tmp_path)


@pytest.mark.parametrize("content", [b'{"offsetTable":{}}', b'{\n\t"offsetTable":{}\n}', b'{"offsets":{}}'])
def test_a_file_with_an_empty_table_is_taken(tmp_path: Path, content: bytes) -> None:
    """RocketMQ and SmartGo write it before the first commit."""
    (tmp_path / FILE_NAME).write_bytes(content)
    (tmp_path / f"{FILE_NAME}.bak").write_bytes(b'{"offsetTable":{"T@G":{"0":3}}}')
    assert make(tmp_path).keys() == []


def test_a_damaged_file_refuses_the_start(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b'{"offsetTable":{"T@G":{0:4')
    with pytest.raises(SideFileError):
        make(tmp_path)


def test_names_numbers_and_bounds_are_refused_and_counted(tmp_path: Path) -> None:
    """X-BROKER-04; issue, "Bad input": negative offsets."""
    table = make(tmp_path, settings=replace(SETTINGS, max_group_offsets=2))
    for group, topic in (("a@b", "T"), ("G", "a@b"), ("", "T"), ("G", "")):
        with pytest.raises(InvalidNameError):
            table.commit(group, topic, 0, 1)
    table.commit("G", "T", 0, 1)
    for queue_id, offset in ((0, -1), (-1, 0), (0, 1 << 63), (1, -5)):
        with pytest.raises(OffsetOutOfRangeError):
            table.commit("G", "T", queue_id, offset)
    table.commit("G", "T", 1, 1)
    with pytest.raises(QuotaExceededError, match=r"broker\.max_group_offsets"):
        table.commit("G", "T", 2, 1)
    table.commit("G", "T", 1, 2)
    assert table.counters.refused == 9
    assert table.queues("G", "T") == {0: 1, 1: 2}


def test_removing_a_group_or_a_topic_forgets_it_everywhere(tmp_path: Path) -> None:
    """remoting.md 4.7: codes 207 and 215."""
    table = make(tmp_path)
    for group in ("G", "H"):
        for topic in ("T", "U"):
            table.commit(group, topic, 0, 1)
    table.remove_group("G")
    assert table.keys() == [("H", "T"), ("H", "U")]
    table.remove_topic("T")
    assert table.keys() == [("H", "U")]
    assert len(table) == 1
    assert table.groups_of("T") == table.topics_of("G") == []
    assert table.topics_of("H") == ["U"]
    assert len(table) == 1
    table.close()
    assert on_disk(tmp_path) == {"offsetTable": {"U@H": {"0": 1}}}


def test_cloning_copies_one_topic_or_all(tmp_path: Path) -> None:
    """remoting.md 4.7.2: CLONE_GROUP_OFFSET."""
    table = make(tmp_path)
    table.commit("G", "T", 0, 1)
    table.commit("G", "T", 1, 2)
    table.commit("G", "U", 0, 3)
    table.commit("H", "T", 5, 9)
    assert table.clone("G", "H", "T") == 1
    assert table.queues("H", "T") == {0: 1, 1: 2}
    assert table.queues("H", "U") == {}
    assert table.clone("G", "H") == 2
    assert table.queues("H", "U") == {0: 3}
    assert table.clone("none", "H") == 0
    table.commit("G", "T", 0, 8)
    assert table.queues("H", "T") == {0: 1, 1: 2}
    assert len(table) == 6


def test_a_clone_that_has_no_room_changes_nothing(tmp_path: Path) -> None:
    """Each queue of the source takes a place, those that the target had of the topic give theirs back."""
    table = make(tmp_path, settings=replace(SETTINGS, max_group_offsets=5))
    for queue_id in range(3):
        table.commit("G", "T", queue_id, 5)
    table.commit("H", "U", 0, 1)
    with pytest.raises(QuotaExceededError, match=r"broker\.max_group_offsets"):
        table.clone("G", "H")
    assert (len(table), table.queues("H", "T"), table.counters.refused) == (4, {}, 1)
    table.remove_group("H")
    table.commit("H", "T", 8, 1)
    table.commit("H", "T", 9, 1)
    with pytest.raises(QuotaExceededError):
        table.clone("G", "H")
    table.forget("G", "T", 2)
    assert table.clone("G", "H") == 1
    assert (len(table), table.queues("H", "T")) == (4, {0: 5, 1: 5})


def test_a_reset_wins_over_commits_until_the_group_pulls(tmp_path: Path) -> None:
    """remoting.md 4.7.5: the value is kept from being overwritten by clients that have not yet reset."""
    table = make(tmp_path)
    table.commit("G", "T", 0, 100)
    table.assign_resets("G", "T", {0: 10, 1: 20})
    assert table.committed("G", "T", 0) == 10
    assert not table.commit("G", "T", 0, 101)
    assert table.counters.ignored == 1
    assert table.committed("G", "T", 0) == 10
    assert table.take_reset("H", "T", 0) is None
    assert table.take_reset("G", "T", 0) == 10
    assert table.take_reset("G", "T", 0) is None
    assert table.commit("G", "T", 0, 11)
    assert not table.commit("G", "T", 1, 5)
    assert table.waiting_resets == 1


def test_resets_are_set_all_or_none(tmp_path: Path) -> None:
    """One that is refused says that nothing was reset."""
    table = make(tmp_path, settings=replace(SETTINGS, max_group_offsets=3))
    table.commit("G", "T", 0, 5)
    table.commit("H", "T", 0, 5)
    with pytest.raises(QuotaExceededError):
        table.assign_resets("G", "T", {0: 1, 1: 1, 2: 1})
    with pytest.raises(OffsetOutOfRangeError):
        table.assign_resets("G", "T", {0: 1, 1: -1})
    assert (table.committed("G", "T", 0), table.waiting_resets, len(table)) == (5, 0, 2)
    table.assign_resets("G", "T", {0: 1, 1: 1})
    assert (table.committed("G", "T", 1), table.waiting_resets, len(table)) == (1, 2, 3)


def test_resets_that_wait_survive_a_restart(tmp_path: Path) -> None:
    """Else consumers that stayed would commit the old offsets over it."""
    table = make(tmp_path)
    table.assign_resets("G", "T", {0: 10, 1: 10})
    table.close()
    assert on_disk(tmp_path) == {
        "offsetTable": {"T@G": {"0": 10, "1": 10}},
        "resetTable": {"T@G": {"0": 10, "1": 10}},
    }
    again = make(tmp_path, ends={("T", 0): 7, ("T", 1): 50})
    assert not again.commit("G", "T", 0, 6)
    assert again.take_reset("G", "T", 0) == 7  # clamped like the offset
    assert again.take_reset("G", "T", 1) == 10
    again.close()
    assert "resetTable" not in on_disk(tmp_path)


def test_a_reset_that_was_taken_leaves_the_file(tmp_path: Path) -> None:
    """Else a start after a kill sends the group back once more, though nothing else changed."""
    table = make(tmp_path)
    table.assign_resets("G", "T", {0: 10})
    table.tick(0)
    assert "resetTable" in on_disk(tmp_path)
    assert table.take_reset("G", "T", 0) == 10
    table.tick(60_000)
    assert on_disk(tmp_path) == {"offsetTable": {"T@G": {"0": 10}}}


def test_a_removed_group_has_no_reset_left(tmp_path: Path) -> None:
    table = make(tmp_path)
    table.assign_resets("G", "T", {0: 10})
    table.remove_group("G")
    assert table.take_reset("G", "T", 0) is None
    assert table.commit("G", "T", 0, 5)


def test_a_forgotten_queue_has_no_reset_left(tmp_path: Path) -> None:
    """Nor an empty entry, which would stay in the file and be looked up with every pull."""
    table = make(tmp_path)
    table.commit("G", "T", 1, 4)
    table.assign_resets("G", "T", {0: 3})
    table.forget("G", "T", 0)
    assert table.waiting_resets == 0
    table.close()
    assert on_disk(tmp_path) == {"offsetTable": {"T@G": {"1": 4}}}


def test_what_is_forgotten_of_one_queue_does_not_come_back(tmp_path: Path) -> None:
    """A-BROKER-24: the file says what the table does, also where nothing else of the group changed."""
    table = make(tmp_path)
    for queue_id in (0, 1):
        table.commit("G", "T", queue_id, 4)
    table.close()
    table = make(tmp_path)
    table.forget("G", "T", 0)
    table.close()
    assert make(tmp_path).queues("G", "T") == {1: 4}


def test_a_reset_of_a_queue_without_an_offset_is_passed_over(tmp_path: Path) -> None:
    """No broker writes one; it leaves nothing behind."""
    (tmp_path / FILE_NAME).write_text('{"offsetTable":{"T@G":{"1":4}},"resetTable":{"T@G":{"0":3},"U@G":{"0":3}}}')
    table = make(tmp_path)
    table.commit("G", "T", 1, 5)
    table.close()
    assert on_disk(tmp_path) == {"offsetTable": {"T@G": {"1": 5}}}
