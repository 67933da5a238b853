"""``headrace store check`` on the config files of consumer groups."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.broker.channels.stored_channels import check_channels
from headrace.broker.consumers.group_services import GroupServices
from headrace.broker.consumers.stored_groups import check_groups
from headrace.cli.store import check
from headrace.store.check import check_store
from tests.support.brokers import BrokerRig


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed store with two messages, a group and its offsets, each file with a copy."""
    rig = BrokerRig(tmp_path / "store")
    services = GroupServices(rig.broker)
    rig.publish("T", [b"a", b"b"])
    for number in (1, 2):
        services.groups.ensure(f"G{number}", 0)
        services.wait_for_files()
        services.offsets.commit("G1", "T", 0, number)
        rig.pass_time(5_000)
        services.wait_for_files()
    rig.close()
    return tmp_path / "store"


def kinds(root: Path) -> list[tuple[str, str | None]]:
    return [(finding.kind, finding.file) for finding in check_store(root, extra=check_groups).damage]


def test_a_whole_store_has_nothing_to_tell(root: Path) -> None:
    report = check_store(root, extra=check_groups)
    assert (report.damage, report.exit_code) == ([], 0)
    assert not [finding for finding in report.info if finding.kind == "unknown_file"]


@pytest.mark.parametrize("name", ["consumerOffset.json", "subscriptionGroup.json", "topics.json"])
def test_a_damaged_file_is_named(root: Path, name: str) -> None:
    """docs/formats/side-files.md: store check names all such damage."""
    path = root / "config" / name
    path.write_bytes(path.read_bytes()[:-2])
    report = check_store(root, extra=check_groups)
    assert [(finding.kind, finding.file) for finding in report.damage] == [("side_file", f"config/{name}")]
    assert path.read_bytes()[-2:] != b"}}"


@pytest.mark.parametrize("name", ["consumerOffset.json", "subscriptionGroup.json", "topics.json", "delayOffset.json"])
def test_a_file_without_its_table_is_named(root: Path, name: str) -> None:
    (root / "config" / name).write_bytes(b"{}")
    assert kinds(root) == [("side_file", f"config/{name}")]


def test_a_damaged_file_without_whole_copy_says_what_to_do(root: Path) -> None:
    (root / "config" / "consumerOffset.json").write_bytes(b"{")
    (root / "config" / "consumerOffset.json.bak").write_bytes(b"{")
    report = check_store(root, extra=check_groups)
    assert "restore it from a backup, or remove it" in report.damage[0].message


def test_a_copy_that_stands_in_must_be_whole(root: Path) -> None:
    (root / "config" / "subscriptionGroup.json").rename(root / "config" / "subscriptionGroup.json.bak")
    assert kinds(root) == []
    (root / "config" / "subscriptionGroup.json.bak").write_bytes(b"{")
    assert kinds(root) == [("side_file", "config/subscriptionGroup.json.bak")]


def test_topics_file_is_written_anew_and_no_start_is_refused(root: Path) -> None:
    """docs/formats/config-files.md: nobody here reads it at a start."""
    (root / "config" / "topics.json.bak").unlink(missing_ok=True)
    (root / "config" / "topics.json").write_bytes(b"{")
    (finding,) = check_store(root, extra=check_groups).damage
    assert "written anew" in finding.message
    assert "refused" not in finding.message


def told(root: Path) -> list[tuple[str, str | None]]:
    result = CliRunner().invoke(check, [str(root), "--json"], standalone_mode=False)
    report = json.loads(result.stdout)
    return [(finding["kind"], finding.get("file")) for finding in report["damage"] or report["info"]]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda path, copy: path.write_bytes(b"x"), ("side_file", "namesrv/kvConfig.json")),
        (lambda path, copy: (path.write_bytes(b"x"), copy.unlink()), ("side_file", "namesrv/kvConfig.json")),
        (lambda path, copy: (path.unlink(), copy.write_bytes(b"x")), ("side_file", "namesrv/kvConfig.json.bak")),
        (lambda path, copy: copy.write_bytes(b"x"), ("no_backup", "namesrv/kvConfig.json.bak")),
        (lambda path, copy: path.unlink(), ("missing_file", "namesrv/kvConfig.json")),
        (lambda path, copy: (path.unlink(), copy.unlink()), None),
    ],
)
def test_the_registrys_file_is_checked_as_a_start_reads_it(
    root: Path, change: Callable[[Path, Path], object], found: tuple[str, str] | None
) -> None:
    path = root / "namesrv" / "kvConfig.json"
    copy = path.with_name("kvConfig.json.bak")
    path.parent.mkdir(exist_ok=True)
    for one in (path, copy):
        one.write_bytes(b'{"configTable":{"NS":{"k":"v"}}}')
    before = told(root)
    change(path, copy)
    assert [one for one in told(root) if one not in before] == ([found] if found else [])


def test_a_damaged_copy_of_a_whole_file_costs_nothing_yet(root: Path) -> None:
    (root / "config" / "consumerOffset.json.bak").write_bytes(b"{")
    assert ("no_backup", "config/consumerOffset.json.bak") in told(root)


@pytest.mark.parametrize("name", ["checkpoint.json", "catalog.json", "durable"])
def test_a_missing_side_file_that_a_start_makes_anew_is_told(root: Path, name: str) -> None:
    (root / "headrace" / name).unlink()
    assert ("missing_file", f"headrace/{name}") in told(root)


@pytest.mark.parametrize("lost", ["snapshot", "channels"])
def test_a_missing_channel_snapshot_is_named(tmp_path: Path, lost: str, caplog: pytest.LogCaptureFixture) -> None:
    """What was finished is delivered again: neither the checker nor the start may be silent about it."""
    rig = BrokerRig(tmp_path / "store")
    rig.subscribe("T", "c")
    rig.restart()
    assert "channel snapshot missing" not in caplog.text
    rig.close()
    folder = tmp_path / "store" / "headrace" / "channels"
    if lost == "snapshot":
        (folder / "snapshot").unlink()
    else:
        shutil.rmtree(folder)
    assert told(tmp_path / "store") == [("channel_journal", "headrace/channels/snapshot")]
    BrokerRig(tmp_path / "store").close()
    assert "channel snapshot missing" in caplog.text


def test_the_zeroed_head_of_an_empty_journal_is_named(root: Path) -> None:
    (journal,) = (root / "headrace" / "channels").glob("journal.*")
    journal.write_bytes(bytes(journal.stat().st_size))
    assert told(root) == [("channel_journal_tail", f"headrace/channels/{journal.name}")]


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_offset_beyond_its_queue_is_told_and_no_damage(root: Path, is_clean: bool) -> None:
    """A client commits what it likes; a crash at level async may leave it as well. The next start clamps it."""
    (root / "config" / "consumerOffset.json").write_bytes(b'{"offsetTable":{"T@G":{"0":3}}}')
    if not is_clean:
        (root / "abort").touch()
    assert kinds(root) == []
    found = [finding for finding in check_store(root, extra=check_groups).info if finding.kind == "offset_beyond_queue"]
    assert [(finding.file, finding.queue_offset) for finding in found] == [("config/consumerOffset.json", 3)]
    result = CliRunner().invoke(check, [str(root)], standalone_mode=False)
    assert result.return_value == 0


@pytest.mark.parametrize(("committed", "told"), [(2, []), (3, [3])])
def test_the_log_has_what_a_crash_took_of_a_queue(tmp_path: Path, committed: int, told: list[int]) -> None:
    """Entries are written behind the log, and made again from it."""
    rig = BrokerRig(tmp_path / "store")
    services = GroupServices(rig.broker)
    rig.publish("T", [b"a", b"b"])
    services.offsets.commit("G", "T", 0, committed)
    rig.pass_time(5_000)
    services.wait_for_files()
    rig.store.abandon()
    report = check_store(tmp_path / "store", extra=check_groups)
    assert report.queues.pending_entries > 0
    assert [one.queue_offset for one in report.info if one.kind == "offset_beyond_queue"] == told


@pytest.mark.parametrize("topic", ["TBW102", "DEFAULT_TOPIC"])
def test_marks_of_log_readers_are_not_told(root: Path, topic: str) -> None:
    """Spark's readers of whole logs keep physical offsets as those of a topic without messages."""
    (root / "config" / "consumerOffset.json").write_bytes(b'{"offsetTable":{"%s@G_start":{"0":4711}}}' % topic.encode())
    info = check_store(root, extra=check_groups).info
    assert not [finding for finding in info if finding.kind == "offset_beyond_queue"]


def test_a_journal_that_never_got_its_head_is_no_damage(tmp_path: Path) -> None:
    """A kill leaves it, and so does a disk that was full for a moment as the broker ended."""
    rig = BrokerRig(tmp_path / "store")
    rig.subscribe("T", "c")
    rig.close()
    (tmp_path / "store" / "headrace" / "channels" / "journal.00000009").touch()
    report = check_store(tmp_path / "store", extra=check_channels)
    assert report.damage == []
    assert [(found.kind, found.file) for found in report.info if found.kind == "empty_journal"] == [
        ("empty_journal", "headrace/channels/journal.00000009")
    ]
