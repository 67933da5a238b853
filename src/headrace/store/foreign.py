"""The store of a RocketMQ broker: what it looks like, and a copy of it that becomes a store of ours.

The files are RocketMQ's, as ours are: commit log and consume queues are copied byte for byte, and the first opening of
the copy checks every record. Of a queue no more is taken than reads like entries: what the log has, the opening makes
anew. Only what RocketMQ keeps elsewhere is taken over by others (``broker/adoption.py``, ``broker/foreign_config.py``).

What a topic shows is for RocketMQ to say, and it goes by the files of the queues: deleting a topic removes them and
leaves the records in the log, from which a start makes entries only of what lies behind the last entry of all queues.
So ``QueueFacts`` notes what files there were, before the opening makes those that are missing.

The copy is made in ``importing`` within the new folder. When it is whole its parts move up by renaming, the folder with
the identity last: an import that was killed leaves a folder that no broker takes for a store.
Ref: docs/running.md, "From RocketMQ and back".
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.errors import (
    ForeignStoreError,
    HeadraceError,
    SideFileError,
    StoreError,
    StoreFullError,
    StoreLockedError,
)
from headrace.format.epochs import Epoch, Epochs
from headrace.format.layout import SIDE, StoreLayout, log_files, no_log_files, queue_folders
from headrace.format.names import LOG_END, SYSTEM_TOPICS, is_offset_name, segment_name, topic_of_directory
from headrace.format.queue_entry import DEFAULT_FILE_BYTES, ENTRY, FILLER_BYTES, StoredQueue
from headrace.format.side_file import make_folder, naming, sync_folder, write_side_file
from headrace.format.sparse import has_bytes, written_ranges
from headrace.lock_file import LockHeldError, lock_folder
from headrace.store.consume_queue import count_sound
from headrace.store.directory import StoreDirectory

STAGING: Final = "importing"


CONFIG_FILES: Final = ("subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")
"""Taken over as files; ``topics.json`` becomes control records."""
LIGHT_OFFSETS_FILE: Final = "lmqConsumerOffset.json"
"""Where a broker with ``enableLmq`` keeps the offsets of all groups; it does not look at ``consumerOffset.json``."""
LIGHT_PREFIX: Final = "%LMQ%"
"""Of RocketMQ's light queues (``enableLmq``), whose entries point at messages of ordinary topics."""
ROCKSDB_FOLDERS: Final = {
    "topics": "topics.json",
    "subscriptionGroups": "subscriptionGroup.json",
    "consumerOffsets": "consumerOffset.json",
}
"""Where RocketMQ 5 keeps them with ``storeType=defaultRocksDB``, and the file that has the same otherwise."""
CONFIG_FILES_WITHOUT_LOG: Final = ("subscriptionGroup.json",)
"""The others hold positions: in a new log they would skip what comes first."""
BATCH_QUEUES: Final = "batchconsumequeue"
"""Where RocketMQ 5 keeps the queues of topics with ``queue.type=BatchCQ``."""

MIN_SEGMENT_BYTES: Final = 1 << 20
MAX_SEGMENT_BYTES: Final = 1 << 30
_CHUNK_BYTES: Final = 8 << 20
_ENTRIES_AT_ONCE: Final = 50_000
_LAST_ENTRIES: Final = 256  # of a queue, among which one is looked for that is no filler
_CHECKPOINT: Final = struct.Struct(">qq")  # store times up to which log and queues are on the disk
_CHECKPOINT_LAG_MS: Final = 63_000
"""How far it may be ahead: queues are synced every 60 s (flushConsumeQueueThoroughInterval), and RocketMQ's recovery
goes back by 3 s more."""
_FLOCK: Final = struct.Struct("hhqqi4x")  # of struct flock: type, whence, start, length, process

Progress = Callable[[int, int], object]
"""Told (bytes done, bytes in all)."""


@dataclass(frozen=True)
class ForeignStore:
    """A store of RocketMQ, looked at and not changed.

    Attributes:
        segments: Files of the commit log that have something in them, oldest first; none where only topics and groups
            are left of a store.
        queue_files: Files of the consume queues, without those of light queues.
        batch_topics: Topics whose queues count the messages of a batch that is stored as one record (RocketMQ 5).
        was_clean: Its broker noted a clean end.
        light_queues: Names of its light queues.
    """

    root: Path
    segments: list[Path]
    segment_bytes: int
    queue_files: list[Path]
    queue_file_bytes: int
    batch_topics: list[str]
    was_clean: bool
    light_queues: tuple[str, ...] = ()

    @property
    def first_offset(self) -> int:
        """Physical offset at which its log begins."""
        return int(self.segments[0].name) if self.segments else 0

    @property
    def end_offset(self) -> int:
        """Physical offset behind the files of its log."""
        return self.first_offset + len(self.segments) * self.segment_bytes

    @property
    def config_files(self) -> tuple[str, ...]:
        """Names of the files in its folder ``config`` that are taken as they are."""
        return CONFIG_FILES if self.segments else CONFIG_FILES_WITHOUT_LOG

    @property
    def left_out(self) -> list[str]:
        """Names of the files in its folder ``config`` that are there but not taken: their log is gone."""
        config = StoreLayout(self.root).config
        names = [name for name in (*CONFIG_FILES, LIGHT_OFFSETS_FILE) if name not in self.config_files]
        return [] if self.segments else [name for name in names if (config / name).exists()]

    @property
    def allocated_bytes(self) -> int:
        """Bytes that a copy takes, its holes left out."""
        return sum(path.stat().st_blocks * 512 for path in (*self.segments, *self.queue_files))


def look_at_foreign(
    root: Path, commit_log: Path | None = None, *, new_segment_bytes: int | None = None
) -> ForeignStore:
    """Return what a RocketMQ broker's ``storePathRootDir`` holds.

    Args:
        commit_log: Its ``storePathCommitLog`` where that is not the folder ``commitlog`` in it.
        new_segment_bytes: What the segments of the new store have where this one has neither a log nor queues, because
            it is wanted for its topics and groups; None refuses such a store.

    Raises:
        ForeignStoreError: it is no such store, or one that cannot be taken over.
        StoreLockedError: a broker has it open.
        OSError: it cannot be read.
    """
    layout = StoreLayout(root)
    commit_log = commit_log or layout.commit_log
    if layout.identity.exists():
        raise ForeignStoreError(
            f"{root} is a Headrace store already: serve it with --data-dir; where a RocketMQ broker has written to it "
            "since, remove its folder headrace and import it again"
        )
    queues = layout.consume_queues
    queue_files = sorted(path for path in _files_of_queues(queues) if is_offset_name(path.name))
    light_queues = {path.parts[-3]: None for path in queue_files if path.parts[-3].startswith(LIGHT_PREFIX)}
    queue_files = [path for path in queue_files if path.parts[-3] not in light_queues]
    files = log_files(commit_log) if commit_log.is_dir() else []
    others = no_log_files(commit_log) if commit_log.is_dir() else []
    if others:
        raise ForeignStoreError(
            f"{others[0]} is no file, or a link that leads to none: put back what belongs there, or mount its disk"
        )
    if not files and not queue_files and new_segment_bytes is not None:
        _require_closed(layout)
        return ForeignStore(root, [], new_segment_bytes, [], DEFAULT_FILE_BYTES, [], was_clean=True)
    if not commit_log.is_dir():
        if commit_log != layout.commit_log:
            raise ForeignStoreError(f"--commit-log {commit_log} is no directory: name the broker's storePathCommitLog")
        raise ForeignStoreError(
            f"{root} is not a RocketMQ store: it has no folder commitlog; "
            "name the broker's storePathRootDir, and its storePathCommitLog with --commit-log where that is elsewhere"
        )
    _require_closed(layout)
    _require_json(layout)
    segments, segment_bytes = _segments(commit_log, files)
    sizes = {path.stat().st_size for path in queue_files}
    if len(sizes) > 1:
        raise ForeignStoreError(f"{queues} has files of {len(sizes)} sizes: a store has one; restore it from a backup")
    return ForeignStore(
        root=root,
        segments=segments,
        segment_bytes=segment_bytes,
        queue_files=queue_files,
        queue_file_bytes=sizes.pop() if sizes else DEFAULT_FILE_BYTES,
        batch_topics=sorted({path.parts[-3] for path in _files_of_queues(root / BATCH_QUEUES)}),
        was_clean=not layout.abort.exists(),
        light_queues=tuple(light_queues),
    )


def _require_closed(store: StoreLayout) -> None:
    """Refuse a store whose broker lives: Java locks the file ``lock`` with a POSIX record lock."""
    try:
        descriptor = os.open(store.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, owner = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    finally:
        os.close(descriptor)
    if kind != fcntl.F_UNLCK:
        raise StoreLockedError(f"{store.root} is in use by process {owner}: stop that broker first")


def _require_json(store: StoreLayout) -> None:
    """Refuse a store whose topics, groups and offsets are in RocksDB alone: it would come over without them."""
    for folder, file in ROCKSDB_FOLDERS.items():
        if (store.config / folder).is_dir() and not (store.config / file).exists():
            raise ForeignStoreError(
                f"{store.config / folder} has in RocksDB what is read from {file}: have RocketMQ write it as JSON "
                "(storeType and configuration as files, or mqadmin rocksDBConfigToJson), and import that"
            )


def _files_of_queues(folder: Path) -> list[Path]:
    """Return TOPIC/QUEUE/FILE of a folder; ``glob`` would take a folder that cannot be listed for an empty one."""
    paths = [folder]
    for _ in range(3):
        paths = [child for path in paths if path.is_dir() for child in path.iterdir()]
    return paths


def _segments(commit_log: Path, files: list[Path]) -> tuple[list[Path], int]:
    """Return which ``files`` have something in them, and the size that all have."""
    if not files:
        raise ForeignStoreError(f"{commit_log} has no file of a commit log: there is nothing to import")
    size = files[0].stat().st_size
    if not MIN_SEGMENT_BYTES <= size <= MAX_SEGMENT_BYTES:
        raise ForeignStoreError(
            f"{files[0]} has {size} bytes (mappedFileSizeCommitLog): Headrace takes stores with files of "
            f"{MIN_SEGMENT_BYTES} to {MAX_SEGMENT_BYTES} bytes"
        )
    for path, wanted in zip(files, range(int(files[0].name), 1 << 62, size), strict=False):
        if int(path.name) % size:
            raise ForeignStoreError(
                f"{path} does not begin at a multiple of the {size} bytes it has: restore the store from a backup"
            )
        if path.stat().st_size != size:
            raise ForeignStoreError(
                f"{path} has {path.stat().st_size} bytes, the first file has {size}: restore the store from a backup"
            )
        if int(path.name) != wanted:
            raise ForeignStoreError(f"{commit_log / segment_name(wanted)} is missing: restore the store from a backup")
    while len(files) > 1 and _is_unwritten(files[-1]):
        files.pop()  # made ahead
    if int(files[-1].name) + 2 * size > LOG_END:
        raise ForeignStoreError(
            f"{files[-1]}: a log of Headrace ends at physical offset {LOG_END} (128 TiB), the most that the ids of "
            "NSQ's messages can name. Let consumers read what is left, and import a folder with the broker's config "
            "alone: that takes over its topics and groups"
        )
    return files, size


def _is_unwritten(path: Path) -> bool:
    with path.open("rb") as file, naming(path):
        return not has_bytes(file.fileno(), 0, os.fstat(file.fileno()).st_size)


@dataclass(frozen=True)
class StagedCopy:
    """A copy that is not yet in its place.

    Attributes:
        folder: Where it is until ``move_up``.
        damaged_queues: ``TOPIC/QUEUE`` whose files held something else than entries: what stands behind was left out.
        queues: What the files of its queues say.
    """

    folder: Path
    damaged_queues: list[str]
    queues: QueueFacts


@dataclass(frozen=True)
class QueueFacts:
    """What the files of a RocketMQ broker's consume queues say, before ours are made of them.

    Attributes:
        last_entries: Topic and id of each queue that has a file -> queue offset and physical offset of its last entry
            that stands for a record; -1 and -1 where it has none.
        synced_ms: Store time up to which every entry was on the disk, ms since 1970; None after a clean end: all were.
    """

    last_entries: dict[tuple[str, int], tuple[int, int]]
    synced_ms: int | None


@contextmanager
def copy_foreign(
    source: ForeignStore,
    target: Path,
    now_ms: int,
    progress: Progress,
    config: Mapping[str, Path],
    topics: Iterable[str] = (),
) -> Iterator[StagedCopy]:
    """Copy a store into a folder in ``target``, which now holds a store of ours, without topics.

    Args:
        config: Name of each file that the folder ``config`` gets, and what is copied for it.
        topics: Those that the store is to have beside the ones with queue files.

    When the block ends with an error, ``target`` and the folders above it are as they were, and the error names no file
    in the copy.

    Raises:
        ForeignStoreError: ``target`` has something in it, another process works in it, or its disk takes two topics
            for one.
        StoreFullError, StoreError, OSError: it cannot be written.
    """
    _require_apart(target, source.root)
    made = [folder for folder in (target, *target.parents) if not folder.exists()]
    staging = target / STAGING
    lock, is_ours = -1, False
    try:
        _make_target(target)
        lock = _lock(target)
        _require_empty(target)
        is_ours = True
        total = source.allocated_bytes
        needed = total + 2 * source.segment_bytes  # the segment in use is allocated whole, and the next one made ahead
        free = shutil.disk_usage(target).free
        if free < needed:
            raise StoreFullError(
                f"the copy needs {needed} bytes and the disk of {target} has {free}: free space, or choose another disk"
            )
        staging.mkdir()
        copy = StoreDirectory(staging)
        copy.create_identity(source.segment_bytes, source.queue_file_bytes, now_ms)
        if copy.is_caseless:
            _require_folders({*topics, *(topic_of_directory(path.parts[-3]) for path in source.queue_files)}, target)
        damaged = _copy_all(source, copy, lambda done: progress(done, total))
        _copy_config(source, copy, config)
        yield StagedCopy(staging, damaged, _queue_facts(source, copy))
    except BaseException as error:
        if is_ours:
            shutil.rmtree(staging, ignore_errors=True)
        for folder in made:
            with suppress(OSError):  # it could not be made, or somebody else has put something into it
                folder.rmdir()
        _name_what_stays(error, source, target)
        raise
    finally:
        if lock >= 0:
            os.close(lock)


def _lock(target: Path) -> int:
    """Lock a folder while a store is made in it; return the descriptor, -1 where its file system has no such locks."""
    try:
        return lock_folder(target)
    except LockHeldError:
        raise ForeignStoreError(
            f"another process works in {target}, an import or a broker: wait for its end; nothing was changed"
        ) from None


def _make_target(target: Path) -> None:
    try:
        make_folder(target)
    except OSError as error:
        raise StoreError(f"cannot make {target}: {error.strerror}; choose another directory with --data-dir") from error


def _name_what_stays(error: BaseException, source: ForeignStore, target: Path) -> None:
    """Have an error name, for a file of the copy, the one to see to: the source's where that is what it found."""
    staging = target / STAGING
    if isinstance(error, SideFileError) and source.segments:
        log = str(source.segments[0].parent)
        error.args = tuple(str(text).replace(str(StoreLayout(staging).commit_log), log) for text in error.args)
    if isinstance(error, HeadraceError):
        error.args = tuple(str(text).replace(str(staging), str(target)) for text in error.args)
    elif isinstance(error, OSError) and error.filename is not None:
        error.filename = str(error.filename).replace(str(staging), str(target))


def _require_apart(target: Path, source: Path) -> None:
    new, old = target.resolve(), source.resolve()
    if new == old or new in old.parents or old in new.parents:
        how = "lies in" if old in new.parents else "holds"
        raise ForeignStoreError(f"--data-dir {target} {how} the store that is imported: choose a new directory")


def _require_empty(target: Path) -> None:
    names = sorted(path.name for path in target.iterdir() if path.name != "lost+found")
    if STAGING in names:
        raise ForeignStoreError(
            f"{target} holds {STAGING!r}: an import into it was killed; remove all that it holds, then import again"
        )
    if names:
        raise ForeignStoreError(
            f"{target} holds {names[0]!r}: a store is imported into an empty directory; nothing was changed"
        )


def _require_folders(topics: Iterable[str], target: Path) -> None:
    """Refuse topics whose queues would lie in one folder, as upper and lower case are the same on the disk."""
    owners: dict[str, str] = {}
    for topic in sorted({*topics, *SYSTEM_TOPICS}):
        owner = owners.setdefault(topic.lower(), topic)
        if owner != topic:
            raise ForeignStoreError(
                f"topics {owner!r} and {topic!r} would lie in one folder, as upper and lower case are the same on the "
                f"disk of {target}: choose another disk, or delete one of them in the broker that has them"
            )


def _copy_all(source: ForeignStore, target: StoreDirectory, progress: Callable[[int], object]) -> list[str]:
    """Copy; return the queues of which not all was taken."""
    done = 0
    copies = [(path, target.commit_log / path.name) for path in source.segments]
    foreign = StoreLayout(source.root)
    copies += [(path, target.consume_queues / path.relative_to(foreign.consume_queues)) for path in source.queue_files]
    damaged: dict[Path, None] = {}
    for path, copy in copies:
        if copy.parent in damaged:
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        for copied in _copy_file(path, copy):
            done += copied
            progress(done)
        if target.consume_queues in copy.parents and not _cut_to_entries(copy, source):
            damaged[copy.parent] = None
    if source.segments:
        # The segment that is written to next must not run out of disk under its mapping.
        newest = target.commit_log / source.segments[-1].name
        with newest.open("r+b") as file, naming(newest):
            os.posix_fallocate(file.fileno(), 0, source.segment_bytes)
            os.fsync(file.fileno())
    beginning = source.first_offset
    if beginning:  # retention took what was before: nothing is missing
        epochs = Epochs([Epoch(1, beginning)])
        write_side_file(target.epochs, "epochs", epochs.to_payload())
    return ["/".join(folder.parts[-2:]) for folder in damaged]


def _copy_config(source: ForeignStore, target: StoreDirectory, config: Mapping[str, Path]) -> None:
    """Copy the files that are taken over as they are."""
    registry = StoreLayout(source.root).registry
    target.config.mkdir()
    copies = [(path, target.config / name) for name, path in config.items()]
    # Ours before it was RocketMQ's: what the registry in the process knows, such as which topics are ordered.
    for path in (registry / "kvConfig.json", registry / "kvConfig.json.bak"):
        if path.is_file():
            target.registry.mkdir(exist_ok=True)
            copies.append((path, target.registry / path.name))
    for path, copy in copies:
        for _ in _copy_file(path, copy):
            pass


def _queue_facts(source: ForeignStore, copy: StoreDirectory) -> QueueFacts:
    """Return what the copied files of the queues say."""
    last_entries = {}
    for topic, queue_id, _ in queue_folders(copy.consume_queues):
        queue = StoredQueue(copy.consume_queues, topic, queue_id, source.queue_file_bytes)
        first, end = queue.extent()
        last_entries[topic, queue_id] = (-1, -1)
        for offset, position, size, _ in queue.entries(max(first, end - _LAST_ENTRIES), end):
            if size != FILLER_BYTES:
                last_entries[topic, queue_id] = (offset, position)
    return QueueFacts(last_entries, None if source.was_clean else _synced_ms(StoreLayout(source.root)))


def _synced_ms(store: StoreLayout) -> int:
    """Return the store time up to which a killed broker had its queues on the disk; 0 where nothing says so."""
    try:
        raw = store.rocketmq_checkpoint.read_bytes()[: _CHECKPOINT.size]
    except FileNotFoundError:
        return 0
    if len(raw) < _CHECKPOINT.size:
        return 0
    return max(0, int(_CHECKPOINT.unpack(raw)[1]) - _CHECKPOINT_LAG_MS)


def _cut_to_entries(copy: Path, source: ForeignStore) -> bool:
    """Empty a copied file of a queue from the first place on that holds no entry; return whether there was none."""
    with copy.open("r+b") as file, naming(copy):
        size = os.fstat(file.fileno()).st_size
        for start, end in written_ranges(file.fileno(), 0, size):
            at = start // ENTRY.size * ENTRY.size
            while at < end and (raw := os.pread(file.fileno(), _ENTRIES_AT_ONCE * ENTRY.size, at)):
                sound = count_sound(raw, source.end_offset, source.segment_bytes)
                if sound < len(raw) // ENTRY.size:
                    os.ftruncate(file.fileno(), at + sound * ENTRY.size)
                    os.ftruncate(file.fileno(), size)
                    os.fsync(file.fileno())
                    return False
                at += len(raw) // ENTRY.size * ENTRY.size or len(raw)
    return True


def _copy_file(source: Path, target: Path) -> Iterator[int]:
    """Copy a file without its holes, synced; yield the bytes of each part."""
    with source.open("rb") as reading, target.open("xb") as writing:
        size = os.fstat(reading.fileno()).st_size
        for at, end in written_ranges(reading.fileno(), 0, size):
            while at < end:
                with naming(source):
                    part = os.pread(reading.fileno(), min(_CHUNK_BYTES, end - at), at)
                if not part:
                    raise StoreError(f"{source} became shorter while it was copied: stop its broker first")
                # A disk that fills up takes a piece first, and says so only of the next.
                with naming(target):
                    wrote = os.pwrite(writing.fileno(), part, at)
                at += wrote
                yield wrote
        with naming(target):
            os.ftruncate(writing.fileno(), size)
            os.fsync(writing.fileno())


def move_up(staging: Path) -> None:
    """Make the store that was built in ``staging`` the store of the folder around it, which holds nothing else.

    Whoever is told that it is there may remove the source: by then every file is found again behind a power cut.

    Raises:
        OSError: a part could not be moved; all are in ``staging`` again, as after an interruption.
    """
    target = staging.parent
    side = StoreDirectory(staging).side
    try:
        for folder in (path for path in staging.rglob("*") if path.is_dir()):
            sync_folder(folder)  # each file was synced by whoever made it, its name was not
        for path in [path for path in staging.iterdir() if path != side]:
            path.rename(target / path.name)
        for folder in (staging, target):
            sync_folder(folder)
        side.rename(target / side.name)
        sync_folder(target)
    except BaseException:
        _move_down(target, staging)
        raise
    staging.rmdir()
    sync_folder(target)


def _move_down(target: Path, staging: Path) -> None:
    """Take back what moved up, the identity first; ``_require_empty`` says that nothing else is there."""
    names = sorted((path.name for path in target.iterdir()), key=lambda name: name != SIDE)
    for name in names:
        if name not in (STAGING, "lost+found"):
            (target / name).rename(staging / name)
