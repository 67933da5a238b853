"""Damaged side files: rebuilt where the log can give it, else a refusal that names file and remedy.

A refused start overwrites nothing. Ref: docs/formats/side-files.md.
"""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.errors import HeadraceError, SideFileError
from headrace.format.names import CONTROL_TOPIC
from headrace.store import opening
from headrace.store.check import check_store
from tests.crash.damage import StoreRig, copy_store, expected, fast_folder, overwrite, readable
from tests.support import layouts
from tests.support.brokers import BrokerRig

Damage = Callable[[Path], None]


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(path.name).randbytes(max(48, path.stat().st_size)))


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 4
    path.write_bytes(data)


def flip_head(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[3] ^= 4
    path.write_bytes(data)


DAMAGES: list[Damage] = [empty, cut, garbage, zeros, flip, flip_head]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = fast_folder(tmp_path_factory.mktemp("side"))
    yield made
    if made.is_relative_to("/dev/shm"):
        shutil.rmtree(made, ignore_errors=True)


class Truth:
    """What every start on the template must serve."""

    def __init__(self) -> None:
        self.messages: dict[tuple[str, int], bytes] = {}
        self.owed: dict[tuple[str, str], set[bytes]] = {}
        self.finished: dict[tuple[str, str], set[bytes]] = {}


def make_template(at: Path) -> Truth:
    """A store with two topics, four channels (one deleted), messages finished out of order, killed and started."""
    rig = BrokerRig(at)
    truth = Truth()
    for topic in ("alpha", "beta"):
        subscriptions = {name: rig.subscribe(topic, name) for name in ("one", "two")}
        bodies = [b"%s %d" % (topic.encode(), number) for number in range(300)]
        rig.publish(topic, bodies)
        for name, (subscription, channel) in subscriptions.items():
            taken = rig.take(subscription, channel, 100)
            done = taken[: 40 if name == "one" else 80 : 1 if topic == "alpha" else 2]
            rig.finish(subscription, channel, [message_id for _, _, message_id in done])
            truth.finished[topic, name] = {body for body, _, _ in done}
            truth.owed[topic, name] = set(bodies) - truth.finished[topic, name]
    rig.broker.ensure_channel(rig.broker.find_topic("beta"), "gone")
    rig.broker.delete_channel("beta", "gone")
    rig.broker.ensure_topic("deleted")
    rig.publish("deleted", [b"x"])
    rig.broker.delete_topic("deleted")
    rig.store.flush()
    rig.pass_time(2000)
    truth.messages = {key: body for key, body in readable(rig.store).items() if key[0] in ("alpha", "beta")}
    rig.restart()
    copy_store(at, at.with_name("clean-open"))
    rig.pass_time(2000)
    rig.store.checkpoints.start()
    rig.store.flush()
    rig.close()
    return truth


@pytest.fixture(scope="module")
def template(folder: Path) -> tuple[Path, Truth]:
    at = folder / "template"
    truth = make_template(at)
    return at, truth


@pytest.fixture
def at(folder: Path, template: tuple[Path, Truth]) -> Path:
    """A fresh copy of the template: closed in good order."""
    copy_store(template[0], folder / "copy")
    return folder / "copy"


def check_serves_all(at: Path, truth: Truth, *, may_redeliver: bool = False) -> BrokerRig:
    """Open; check every message, topic, channel and what each channel still delivers."""
    rig = BrokerRig(at)
    found = readable(rig.store)
    assert {key: body for key, body in found.items() if key[0] in ("alpha", "beta")} == truth.messages
    names = {name: set(topic.channels) for name, topic in rig.broker.topics.items()}
    assert names == {"alpha": {"one", "two"}, "beta": {"one", "two"}}
    for (topic, name), owed in truth.owed.items():
        subscription, channel = rig.subscribe(topic, name, window=2500)
        got = {body for body, _, _ in rig.take(subscription, channel)}
        assert owed <= got, f"{topic}/{name} lost {len(owed - got)}"
        assert got <= owed | truth.finished[topic, name]
        if not may_redeliver:
            assert got == owed, f"{topic}/{name} redelivers {len(got - owed)}"
    return rig


def tree(at: Path) -> dict[str, bytes]:
    """Return every file's content, but for those that say who has the store open."""
    return {
        str(path.relative_to(at)): path.read_bytes()
        for path in sorted(at.rglob("*"))
        if path.is_file() and path.name not in ("lock", "abort")
    }


def check_refused(at: Path, path: Path, caplog: pytest.LogCaptureFixture) -> str:
    """A start is refused, names the file and a remedy, and leaves every byte as it was."""
    before = tree(at)
    with pytest.raises(HeadraceError) as caught:
        BrokerRig(at)
    assert str(path) in str(caught.value)
    assert ";" in str(caught.value), "a remedy follows the reason"
    assert tree(at) == before
    return str(caught.value)


def test_template_is_whole(at: Path, template: tuple[Path, Truth]) -> None:
    check_serves_all(at, template[1]).close()


@pytest.mark.parametrize("damage", [*DAMAGES, remove])
def test_store_json_is_refused_and_its_remedy_works(
    at: Path, template: tuple[Path, Truth], damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing says how large a segment is but store.json and its copy."""
    path = at / "headrace" / "store.json"
    damage(path)
    assert "store.json.bak" in check_refused(at, path, caplog)
    shutil.copy(path.with_name("store.json.bak"), path)
    check_serves_all(at, template[1]).close()


@pytest.mark.parametrize("damage", [*DAMAGES, remove])
@pytest.mark.parametrize("name", ["checkpoint.json", "durable", "catalog.json"])
def test_what_the_log_can_give_is_rebuilt(
    at: Path, template: tuple[Path, Truth], name: str, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    path = at / "headrace" / name
    damage(path)
    rig = check_serves_all(at, template[1])
    # Half of a durable mark, or zeros, look like one that was never written; the log is scanned either way.
    if damage is garbage or (name != "durable" and damage is not remove):
        word = "durable mark" if name == "durable" else name.partition(".")[0]
        assert f"{word} damaged" in caplog.text, caplog.text
    rig.close()
    caplog.clear()
    check_serves_all(at, template[1], may_redeliver=True).close()
    assert not [line for line in caplog.records if line.levelno >= logging.WARNING], "healed"


@pytest.mark.parametrize("left", ["lock abort", "folders", "copy.new", "copy", "identity.new"])
def test_a_first_start_that_was_killed_is_no_stranger(folder: Path, left: str) -> None:
    """A kill at any step of making a store leaves a folder that the next start makes a store of."""
    at = folder / "first"
    shutil.rmtree(at, ignore_errors=True)
    BrokerRig(at).close()
    side = at / "headrace"
    identity = (side / "store.json").read_bytes()
    shutil.rmtree(at)
    (at / "headrace").mkdir(parents=True)
    (at / "lock").touch()
    if left != "lock abort":
        for made in ("headrace/channels", "commitlog", "consumequeue"):
            (at / made).mkdir()
    names = {"copy.new": ["store.json.bak.new"], "copy": ["store.json.bak"]}
    for name in names.get(left, ["store.json.bak", "store.json.new"] if left == "identity.new" else []):
        (side / name).write_bytes(identity[:20] if name.endswith(".new") else identity)
    rig = BrokerRig(at)
    rig.publish("alpha", [b"x"])
    rig.close()
    rig = BrokerRig(at)
    assert len(readable(rig.store)) == 2
    rig.close()


def test_one_slot_of_the_durable_mark_torn(at: Path, template: tuple[Path, Truth]) -> None:
    """A power cut can tear the slot that is being written; the other still stands."""
    path = at / "headrace" / "durable"
    whole = path.read_bytes()
    for slot in (0, 24):
        for position in range(0, 24, 5):
            data = bytearray(whole)
            data[slot + position] ^= 0xFF
            path.write_bytes(data)
            check_serves_all(at, template[1], may_redeliver=True).close()


@pytest.mark.parametrize("damage", [empty, cut, garbage, flip, flip_head])
def test_epochs_json_is_refused(
    folder: Path, template: tuple[Path, Truth], damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    """No record says which epoch it is of."""
    at = folder / "epochs"
    make_second_epoch(template[0], at)
    path = at / "headrace" / "epochs.json"
    damage(path)
    check_refused(at, path, caplog)


def make_second_epoch(template: Path, at: Path) -> int:
    """Copy the template with a torn tail and start it, so that its second epoch begins; return its first offset."""
    copy_store(template, at)
    end = tear_tail(at)
    rig = BrokerRig(at)
    assert rig.store.epoch == 2
    start = rig.store.log.end_offset
    assert start > end
    rig.publish("alpha", [b"second epoch"])
    rig.close()
    return start


def tear_tail(at: Path) -> int:
    """Put half a record behind the log's end; return where."""
    rig = BrokerRig(at)
    end = rig.store.log.end_offset
    rig.close()
    end = max(end, rig.store.recovery.scan.end_offset)
    with (at / "commitlog" / f"{end // (1 << 20) * (1 << 20):020d}").open("r+b") as file:
        file.seek(end % (1 << 20))
        file.write(b"\x00\x00\x00\xff\xda\xa3")
    return end


def test_missing_epochs_json_loses_no_message(folder: Path, template: tuple[Path, Truth]) -> None:
    """The number of the epoch is gone, messages are not."""
    at = folder / "epochs-missing"
    make_second_epoch(template[0], at)
    (at / "headrace" / "epochs.json").unlink()
    (at / "headrace" / "checkpoint.json").unlink(missing_ok=True)
    rig = BrokerRig(at)
    found = readable(rig.store)
    assert b"second epoch" in found.values()
    assert template[1].messages.items() <= found.items()
    rig.close()


@pytest.mark.parametrize("damage", [*DAMAGES, remove])
def test_holes_json_is_made_anew(
    at: Path, template: tuple[Path, Truth], damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    """A hole is found again where the log is scanned again."""
    rig = BrokerRig(at)
    victim = rig.store.queue("alpha", 0).entries(150, 1)[0]
    rig.close()
    with (at / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(victim[0] + 30)
        file.write(b"damage")
    rig = BrokerRig(at)
    assert [hole.first_offset for hole in rig.store.holes] == [victim[0]]
    rig.close()
    damage(at / "headrace" / "holes.json")
    caplog.clear()
    rig = BrokerRig(at)
    assert [hole.first_offset for hole in rig.store.holes] == [victim[0]]
    assert f"hole in the log first_offset={victim[0]}" in caplog.text
    assert len(readable(rig.store)) >= len(template[1].messages) - 1
    rig.close()


@pytest.mark.parametrize("damage", [*DAMAGES, remove])
@pytest.mark.parametrize("name", ["journal", "snapshot"])
def test_channel_state_leans_to_redelivery(at: Path, template: tuple[Path, Truth], name: str, damage: Damage) -> None:
    """After damage messages may be redelivered, never lost; a start is never refused for it."""
    channels = at / "headrace" / "channels"
    paths = [path for path in channels.iterdir() if path.name.startswith(name) and path.is_file()]
    assert paths
    for path in paths:
        damage(path)
    check_serves_all(at, template[1], may_redeliver=True).close()


def test_all_channel_state_gone(at: Path, template: tuple[Path, Truth]) -> None:
    shutil.rmtree(at / "headrace" / "channels")
    check_serves_all(at, template[1], may_redeliver=True).close()


# -- consume queues --------------------------------------------------------------------------------------------------


def queue_file(at: Path, topic: str) -> Path:
    return next((at / "consumequeue" / topic / "0").iterdir())


def without_all_queues(at: Path) -> None:
    shutil.rmtree(at / "consumequeue")


def with_an_empty_queue_folder(at: Path) -> None:
    shutil.rmtree(at / "consumequeue")
    (at / "consumequeue").mkdir()


def without_one_topic(at: Path) -> None:
    shutil.rmtree(at / "consumequeue" / "alpha")


def without_the_control_queue(at: Path) -> None:
    shutil.rmtree(at / "consumequeue" / CONTROL_TOPIC)


def without_one_file(at: Path) -> None:
    queue_file(at, "beta").unlink()


def with_a_zeroed_page(page: int) -> Damage:
    def damage(at: Path) -> None:
        with queue_file(at, "alpha").open("r+b") as file:
            file.seek(page * 4096)
            file.write(bytes(4096))

    damage.__name__ = f"with_zeroed_page_{page}"
    return damage


def with_zeroed_entries(first: int, count: int) -> Damage:
    def damage(at: Path) -> None:
        with queue_file(at, "alpha").open("r+b") as file:
            file.seek(first * 20)
            file.write(bytes(count * 20))

    damage.__name__ = f"with_zeroed_entries_{first}_{count}"
    return damage


def with_wrong_entries(at: Path) -> None:
    with queue_file(at, "alpha").open("r+b") as file:
        for entry in (10, 11, 200):
            file.seek(entry * 20 + 5)
            file.write(b"\x01")


def with_garbage(at: Path) -> None:
    with queue_file(at, "alpha").open("r+b") as file:
        file.write(random.Random(3).randbytes(4096))


def with_a_cut_file(at: Path) -> None:
    with queue_file(at, "alpha").open("r+b") as file:
        file.truncate(2000)


QUEUE_DAMAGES: list[Damage] = [
    without_all_queues, with_an_empty_queue_folder, without_one_topic, without_the_control_queue, without_one_file,
    with_a_zeroed_page(0), with_a_zeroed_page(1), with_zeroed_entries(3, 1), with_zeroed_entries(20, 30),
    with_zeroed_entries(299, 1), with_wrong_entries, with_garbage, with_a_cut_file,
]  # fmt: skip


@pytest.mark.parametrize("damage", QUEUE_DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("clean", [True, False])
def test_damaged_consume_queues_are_rebuilt(
    at: Path, template: tuple[Path, Truth], damage: Damage, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue is a view: the log gives every entry back."""
    if not clean:
        (at / "abort").touch()
    damage(at)
    rig = check_serves_all(at, template[1], may_redeliver=False)
    for topic in ("alpha", "beta"):
        assert rig.store.queue(topic, 0).next_offset == 300
    rig.close()
    check_serves_all(at, template[1], may_redeliver=True).close()


@pytest.mark.parametrize("lost", [[0], [5], [9], [0, 4, 5, 9]])
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_swapped_queues_show_no_record_of_another_topic(tmp_path: Path, lost: list[int], order: str) -> None:
    """Where a record is damaged the log cannot give its entry back: the other queue's stood there and was shown."""
    at = tmp_path / "swapped"
    rig = StoreRig(at)
    for number in range(10):
        for topic in order:
            rig.append(b"%s%d" % (topic.encode(), number), topic=topic)
    rig.close()
    damaged = [one for one in rig.appended if one.topic == "a" and one.queue_offset in lost]
    for one in damaged:
        overwrite(at, one.physical_offset + 90, b"XX")
    one_file, other_file = (at / "consumequeue" / topic / "0" / f"{0:020d}" for topic in "ab")
    raw = one_file.read_bytes()
    one_file.write_bytes(other_file.read_bytes())
    other_file.write_bytes(raw)
    again = StoreRig(at)
    assert readable(again.store) == expected([one for one in rig.appended if one not in damaged])
    again.close()
    kinds = {finding.kind for finding in check_store(at).damage}
    assert kinds <= {"hole", "damaged_record"}, "the entries are right"


def test_swapped_queues_of_a_log_without_its_beginning(tmp_path: Path) -> None:
    """What retention took is looked for by halving, which a filler half-way (offset 10 of b) must not lead astray."""
    at = tmp_path / "swapped"
    rig = StoreRig(at)
    for _ in range(26):
        rig.append(bytes(40_000), topic="a")
    for _ in range(11):
        rig.append(b"b", topic="b")
    rig.close()
    overwrite(at, rig.appended[-1].physical_offset, b"torn tail")
    rig = StoreRig(at, appended=rig.appended[:-1])
    for topic in "b" * 9 + "a" * 5:
        rig.append(b"x", topic=topic)
    rig.close()
    (at / "commitlog" / f"{0:020d}").unlink()
    one_file, other_file = (at / "consumequeue" / topic / "0" / f"{0:020d}" for topic in "ab")
    raw = one_file.read_bytes()
    assert other_file.read_bytes()[200:220] == layouts.encode_entry(*layouts.FILLER)
    one_file.write_bytes(other_file.read_bytes())
    other_file.write_bytes(raw)
    again = StoreRig(at)
    assert readable(again.store) == expected([one for one in rig.appended if one.physical_offset >= 1 << 20])
    again.close()


def test_rebuilt_queues_do_not_issue_offsets_twice(folder: Path, template: tuple[Path, Truth]) -> None:
    """Offsets are never issued twice, also not by a rebuild behind a torn tail."""
    at = folder / "issued"
    copy_store(template[0], at)
    rig = BrokerRig(at)
    rig.publish("alpha", [b"will be torn %d" % number for number in range(5)])
    issued = rig.store.queue("alpha", 0).next_offset
    first = rig.store.queue("alpha", 0).entries(issued - 5, 1)[0][0]
    rig.store.checkpoints.start()
    rig.close()
    with (at / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(first)
        file.write(bytes(8192))
    rig = BrokerRig(at)
    assert rig.store.queue("alpha", 0).next_offset >= issued
    rig.close()
    for damage in (without_one_topic, without_all_queues):
        damage(at)
        rig = BrokerRig(at)
        assert rig.store.queue("alpha", 0).next_offset >= issued, damage.__name__
        rig.close()


def test_damaged_queue_below_what_a_start_verifies_is_named(
    at: Path, template: tuple[Path, Truth], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the log is not scanned again, a missing entry is at least not silent."""
    monkeypatch.setattr(opening, "_VERIFY_BACK_BYTES", 0)
    with_zeroed_entries(20, 30)(at)
    rig = BrokerRig(at)
    found = readable(rig.store)
    missing = [key for key in template[1].messages if key not in found]
    assert not missing or "damaged" in caplog.text or "rebuilt" in caplog.text, f"{len(missing)} missing, silently"
    rig.close()


def test_a_store_of_a_newer_version_is_refused(at: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = at / "headrace" / "store.json"
    path.write_bytes(path.read_bytes().replace(b"headrace store 1 ", b"headrace store 9 ", 1))
    check_refused(at, path, caplog)


def test_a_segment_of_another_length_is_refused(at: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A cut segment may hold anything: the start names it and its remedy."""
    path = at / "commitlog" / f"{0:020d}"
    with path.open("r+b") as file:
        file.truncate(500_000)
    before = tree(at)
    with pytest.raises(SideFileError) as caught:
        BrokerRig(at)
    assert str(path) in str(caught.value)
    assert tree(at) == before
