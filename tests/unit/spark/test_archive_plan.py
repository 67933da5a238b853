"""What a run of the archive job does about the plan of one that was killed. Ref: docs/spark/jobs/archive.md."""

from dataclasses import asdict, replace

import pytest

from headrace.errors import ConfigError
from headrace.format.names import segment_name
from headrace.format.side_file import write_side_file
from headrace.spark.errors import DataLossError
from headrace.spark.jobs import archive, archive_plan
from headrace.spark.jobs.cut_source import CutSource
from headrace.spark.jobs.manifest import (
    FOLDER,
    PLAN,
    VERSION,
    ArchiveError,
    ArchiveFile,
    BrokerRange,
    Epoch,
    load_epochs,
    seal,
    write_epoch,
)
from headrace.spark.jobs.manifest import write_json as write
from headrace.spark.jobs.summary import Summary
from headrace.spark.scan import LogSplit, StoreSource, read_split
from tests.unit.spark.test_files import SEGMENT, make_store, write_mark

ID = "ab" * 16


@pytest.fixture
def store(tmp_path):
    root = tmp_path / "b"
    raw, _ = make_store(root, 2000)
    return root, len(raw)


@pytest.fixture
def config(store, tmp_path):
    return archive.Config(store=store[0], to=tmp_path / "archive", split_bytes=1 << 16)


def leave_plan(config, **changes):
    """Leave what a run that was killed behind leaves; return its plan."""
    (config.to / FOLDER).mkdir(parents=True, exist_ok=True)
    plan, _ = archive_plan.make_plan(StoreSource(str(config.store)), config, load_epochs(config.to))
    plan = replace(plan, **changes)
    write(config.to / FOLDER / PLAN, seal({"version": VERSION, **asdict(plan)}))
    return plan


def resume(config):
    plan, is_resumed = archive_plan.make_plan(StoreSource(str(config.store)), config, load_epochs(config.to))
    assert is_resumed
    return plan


def test_a_plan_that_holds_something_else_is_damaged(config):
    """As one of another build: whole by its checksum."""
    (config.to / FOLDER).mkdir(parents=True)
    write(config.to / FOLDER / PLAN, seal({"version": VERSION, "epoch": 1}))
    with pytest.raises(ArchiveError, match=r"plan\.json does not hold what it should .*; remove it"):
        archive_plan.read_plan(config.to)


def test_plan_is_carried_out_as_it_was(store, config):
    plan = leave_plan(config)
    assert resume(config) == plan
    assert plan.missing_bytes == 0


def test_names_that_a_disk_does_not_tell_apart_are_refused(tmp_path):
    """``A`` and ``a`` on a disk like that of most Macs: one of the two files has replaced the other."""

    def file(path):
        return ArchiveFile(
            path=path, rows=1, size_bytes=1, crc32=0, broker="b", start=0, end=1, min_offset=0, max_offset=0, min_ts=0,
            max_ts=0, topics={},
        )  # fmt: skip

    for folder in ("topic=A", "topic=b", "topic=B"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "part").touch()
    (tmp_path / "topic=a").symlink_to("topic=A")
    archive.refuse_shared(tmp_path, [file("topic=b/part"), file("topic=B/part")])
    with pytest.raises(ArchiveError, match=r"topic=A/part and topic=a/part are one file .* nothing was added"):
        archive.refuse_shared(tmp_path, [file("topic=A/part"), file("topic=b/part"), file("topic=a/part")])


def test_range_that_retention_removed_meanwhile(store, config):
    """The same plan would fail for good: it is the job's own option that goes on."""
    root, end = store
    leave_plan(config)
    (root / "commitlog" / segment_name(0)).unlink()
    with pytest.raises(DataLossError, match=f"offsets 0 to {SEGMENT} of broker 'b' .* --on-data-loss continue"):
        resume(config)
    plan = resume(replace(config, on_data_loss="continue"))
    assert plan.bytes == end - SEGMENT
    assert plan.brokers == {"b": BrokerRange(start=0, end=end, store_id=ID)}
    assert plan.missing_bytes == SEGMENT


def test_all_that_was_planned_is_gone(store, config):
    """The epoch covers the loss, and the next run goes on behind it."""
    root, _ = store
    leave_plan(config, splits=[("b", 0, 1000), ("b", 1000, 5000)])
    (root / "commitlog" / segment_name(0)).unlink()
    plan = resume(replace(config, on_data_loss="continue"))
    assert (plan.bytes, plan.missing_bytes) == (0, 5000)
    assert plan.brokers == {"b": BrokerRange(start=0, end=5000, store_id=ID)}


def test_split_that_is_gone_in_part_is_clipped(store, config):
    root, end = store
    leave_plan(config, splits=[("b", 0, SEGMENT + 500), ("b", SEGMENT + 500, end)])
    (root / "commitlog" / segment_name(0)).unlink()
    plan = resume(replace(config, on_data_loss="continue"))
    assert plan.splits == [("b", SEGMENT, SEGMENT + 500), ("b", SEGMENT + 500, end)]
    assert plan.missing_bytes == SEGMENT


def test_log_that_lost_its_end(store, config):
    root, end = store
    leave_plan(config)
    write_mark(root, end - 1000)
    with pytest.raises(DataLossError, match=f"offsets {end - 1000} to {end} .*the log ends at {end - 1000}"):
        resume(config)
    assert resume(replace(config, on_data_loss="continue")).splits[-1][2] == end - 1000


def test_nothing_is_covered_behind_the_end_of_a_log_that_lost_it(store, config):
    """New messages come to lie there: an epoch that covered their offsets would leave them out for good."""
    root, end = store
    leave_plan(config, splits=[("b", 0, end - 1000), ("b", end - 1000, end)])
    write_mark(root, end - 1000)
    plan = resume(replace(config, on_data_loss="continue"))
    assert plan.brokers == {"b": BrokerRange(start=0, end=end - 1000, store_id=ID)}
    assert (plan.bytes, plan.missing_bytes) == (end - 1000, 0)


def test_an_epoch_does_not_end_before_it_begins(store, config):
    """As where a log whose beginning had been removed has lost everything else."""
    root, end = store
    leave_plan(config, starts={"b": 5000}, splits=[("b", 5000, end)])
    write_mark(root, 0)
    plan = resume(replace(config, on_data_loss="continue"))
    assert plan.brokers == {"b": BrokerRange(start=5000, end=5000, store_id=ID)}


def test_plan_of_another_store_is_refused(store, config):
    leave_plan(config, store_ids={"b": "cd" * 16})
    with pytest.raises(ConfigError, match="another store of broker 'b'"):
        resume(config)
    second = replace(config, to=config.to.with_name("second"))
    leave_plan(second, store_ids={"other": ID})
    with pytest.raises(ConfigError, match="holds this store as broker 'other', not 'b'"):
        resume(second)


def test_another_store_is_refused_also_behind_one_that_did_not_say_what_it_is(store, config):
    (config.to / FOLDER).mkdir(parents=True)
    for epoch, (first, end, store_id) in enumerate(((0, 100, "cd" * 16), (100, 200, "")), 1):
        covered = {"b": BrokerRange(start=first, end=end, store_id=store_id)}
        write_epoch(config.to, Epoch(epoch=epoch, selection=config.selection, brokers=covered, files=[]))
    with pytest.raises(ConfigError, match="another store of broker 'b'"):
        archive_plan.make_plan(StoreSource(str(config.store)), config, load_epochs(config.to))


def test_broker_that_is_away_is_left_for_a_later_run(store, config):
    plan = leave_plan(config)
    leave_plan(
        config,
        splits=[*plan.splits, ("away", 0, 500)],
        starts={**plan.starts, "away": 0},
        store_ids={**plan.store_ids, "away": "ef" * 16},
        segment_bytes={**plan.segment_bytes, "away": SEGMENT},
    )
    assert resume(config).splits == plan.splits


def test_next_range_that_is_gone_says_the_jobs_own_remedy(store, config):
    root, _ = store
    (config.to / FOLDER).mkdir(parents=True)
    covered = {"b": BrokerRange(start=0, end=100, store_id=ID)}
    write_epoch(config.to, Epoch(epoch=1, selection=config.selection, brokers=covered, files=[]))
    (root / "commitlog" / segment_name(0)).unlink()
    with pytest.raises(DataLossError, match=f"offsets 100 to {SEGMENT} .* --on-data-loss continue"):
        archive_plan.make_plan(StoreSource(str(root)), config, load_epochs(config.to))
    more = replace(config, on_data_loss="continue")
    plan, _ = archive_plan.make_plan(StoreSource(str(root)), more, load_epochs(config.to))
    assert plan.missing_bytes == SEGMENT - 100


@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.parametrize("left", [None, 0, 3000])
def test_file_in_the_middle_that_is_missing_or_cut_short(store, config, left, is_resumed):
    """As half a copy of a store is: never passed over in silence, and --on-data-loss continue goes on behind it."""
    root, end = store
    source = CutSource(str(root))
    if is_resumed:
        leave_plan(config)
    path = root / "commitlog" / segment_name(SEGMENT)
    raw = path.read_bytes()
    path.unlink()
    if left is not None:
        path.write_bytes(raw[:left])
    gone = SEGMENT + (left or 0)
    with pytest.raises(DataLossError, match=f"offsets {gone} to {2 * SEGMENT} .*missing or was cut short"):
        archive_plan.make_plan(source, config, load_epochs(config.to))
    more = replace(config, on_data_loss="continue")
    plan, _ = archive_plan.make_plan(source, more, load_epochs(config.to))
    assert plan.missing_bytes == 2 * SEGMENT - gone
    assert plan.brokers["b"] == BrokerRange(start=0, end=end, store_id=ID)
    rows = sum(
        batch.num_rows
        for broker, first, last in plan.splits
        for batch in read_split(LogSplit(source, broker, first, last, SEGMENT), ("log_offset",))
    )
    assert 2000 * 0.4 < rows < 2000


@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.parametrize("left", [None, 3000])
def test_end_of_a_log_that_is_missing_is_said(store, config, left, is_resumed):
    """With --on-data-loss continue too: the archive ends before what was durable."""
    root, end = store
    last = (end - 1) // SEGMENT * SEGMENT
    path = root / "commitlog" / segment_name(last)
    raw = path.read_bytes()
    path.unlink()
    if left is not None:
        path.write_bytes(raw[:left])
    more = replace(config, on_data_loss="continue")
    if is_resumed:
        leave_plan(more)
    manifest = load_epochs(config.to)
    plan, _ = archive_plan.make_plan(CutSource(str(root)), more, manifest)
    lost = f"physical offsets {last + (left or 0)} to {end} of broker 'b' are in no file of its log"
    summary = Summary(job="archive")
    archive.describe_run(summary, more, manifest, plan, None, is_resumed=is_resumed)
    assert lost in "".join(summary.notes)
    nothing = replace(plan, splits=[])
    summary = Summary(job="archive")
    archive.describe_run(summary, more, manifest, nothing, None, is_resumed=False)
    (note,) = summary.notes
    assert lost in note


def test_what_a_recovery_left_out_is_no_loss(store, config):
    root, end = store
    (root / "commitlog" / segment_name(SEGMENT)).unlink()
    epochs = [
        {"epoch": 1, "first_physical_offset": 0},
        {"epoch": 2, "first_physical_offset": 2 * SEGMENT, "previous_end_offset": SEGMENT - 50},
    ]
    write_side_file(root / "headrace" / "epochs.json", "epochs", epochs)
    plan, _ = archive_plan.make_plan(CutSource(str(root)), config, load_epochs(config.to))
    assert (plan.bytes, plan.missing_bytes, plan.voided_bytes) == (end - SEGMENT, 0, SEGMENT)
    leave_plan(config)
    assert resume(config) == plan
    # A loss beside it is one all the same, whether it is found when it is planned or later.
    (root / "commitlog" / segment_name(0)).unlink()
    more = replace(config, on_data_loss="continue")
    assert (resume(more).missing_bytes, resume(more).voided_bytes) == (SEGMENT, SEGMENT)


def test_a_file_that_is_cut_short_before_what_a_recovery_left_out(store, config):
    root, end = store
    (root / "commitlog" / segment_name(SEGMENT)).unlink()
    path = root / "commitlog" / segment_name(0)
    path.write_bytes(path.read_bytes()[:3000])
    epochs = [
        {"epoch": 1, "first_physical_offset": 0},
        {"epoch": 2, "first_physical_offset": 2 * SEGMENT, "previous_end_offset": SEGMENT},
    ]
    write_side_file(root / "headrace" / "epochs.json", "epochs", epochs)
    plan, _ = archive_plan.make_plan(
        CutSource(str(root)), replace(config, on_data_loss="continue"), load_epochs(config.to)
    )
    assert plan.brokers["b"] == BrokerRange(start=0, end=end, store_id=ID)
    assert (plan.missing_bytes, plan.voided_bytes) == (SEGMENT - 3000, SEGMENT)


def test_topics_are_looked_for_only_in_the_first_run(store, config):
    assert not archive.is_begun(config.to)
    leave_plan(config)
    assert archive.is_begun(config.to)
    (config.to / FOLDER / PLAN).unlink()
    assert not archive.is_begun(config.to)
    covered = {"b": BrokerRange(start=0, end=100, store_id=ID)}
    write_epoch(config.to, Epoch(epoch=1, selection=config.selection, brokers=covered, files=[]))
    assert archive.is_begun(config.to)


def test_broker_of_earlier_runs_that_is_not_there_is_named(store, config):
    """A registry drops a broker that is down: without a word the run would look complete."""
    (config.to / FOLDER).mkdir(parents=True)
    covered = BrokerRange(start=0, end=4_096, store_id="cd" * 16)
    write_epoch(config.to, Epoch(epoch=1, selection=config.selection, brokers={"gone": covered}, files=[]))
    manifest = load_epochs(config.to)
    plan, _ = archive_plan.make_plan(StoreSource(str(config.store)), config, manifest)
    dry, wet = Summary(job="archive", dry_run=True), Summary(job="archive")
    archive.describe_plan(dry, config, manifest, plan, is_resumed=False)
    archive.describe_run(wet, config, manifest, plan, None, is_resumed=False)
    assert wet.notes == dry.notes
    (note,) = dry.notes
    assert note == (
        "broker 'gone', whose log is in the archive up to 4096, was not there: a run when it is back takes the rest"
    )


def test_broker_of_a_plan_that_is_gone_when_it_is_carried_out_is_named(store, config):
    """It is left to a later run, and nothing of it is in the archive yet."""
    there = leave_plan(config)
    leave_plan(
        config,
        splits=[*there.splits, ("gone", 512, 4_096)],
        starts={**there.starts, "gone": 512},
        segment_bytes={**there.segment_bytes, "gone": 1 << 20},
        store_ids={**there.store_ids, "gone": "cd" * 16},
    )
    plan = resume(config)
    assert plan.splits == there.splits
    summary = Summary(job="archive", dry_run=True)
    archive.describe_plan(summary, config, load_epochs(config.to), plan, is_resumed=True)
    assert summary.notes[-1] == (
        "broker 'gone', whose log is in the archive up to 512, was not there: a run when it is back takes the rest"
    )
