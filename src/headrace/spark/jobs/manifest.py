"""The manifest of an archive: which files count, and up to where the log is in them.

An archive is a folder of Parquet files. Only what its manifest lists belongs to it: readers never list folders.

    _manifest/0000000001.json        one for each epoch, that is for each run that added something; never changed
    _manifest/plan.json              what a run is about to write; gone when its epoch is written
    _manifest/lock                   held under flock by the run that writes
    _tmp/                            files being written
    topic=T/dt=DAY/broker=B/part-START-END.parquet      layout ``topic``
    dt=DAY/hour=HH/broker=B/part-START-END.parquet      layout ``hour``

An epoch is one JSON object: ``version`` (1), ``epoch``, ``selection`` (what is archived, the same in
all epochs), ``brokers`` (name -> ``store_id``, ``start``, ``end``: physical offsets that this epoch covers), ``files``
(``ArchiveFile``), ``counters``, ``written_ms`` and ``crc32`` over the rest (sorted keys, no blanks). Each epoch begins
where the one before ended, for every broker; so a missing one shows.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from headrace.errors import ConfigError, HeadraceError
from headrace.format.checksum import checksum
from headrace.format.side_file import replacing

VERSION: Final = 1
FOLDER: Final = "_manifest"
TEMPORARY: Final = "_tmp"
PLAN: Final = "plan.json"
LOCK: Final = "lock"
_READ_BYTES: Final = 4 << 20
_REMEDY: Final = "restore it from a copy, or remove it and the epochs behind it to have their messages archived anew"
Sealed = TypeVar("Sealed")


class ArchiveError(HeadraceError):
    """An archive is not what its manifest says; the text names the file and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFile:
    """One Parquet file.

    Attributes:
        path: Below the archive's folder, with ``/``.
        rows: Messages in it.
        size_bytes: Its length.
        crc32: CRC-32 of all its bytes.
        broker: Whose log it is from.
        start, end: The range of the log that was looked at for it (physical offsets, end exclusive).
        min_offset, max_offset: Physical offsets of its first and last record.
        min_ts, max_ts: Store times of its oldest and newest message, ms since 1970; of a file whose messages all have
            times in no year from 1 to 9999, the first ms of the year 10000.
        topics: Topic -> messages.
    """

    path: str
    rows: int
    size_bytes: int
    crc32: int
    broker: str
    start: int
    end: int
    min_offset: int
    max_offset: int
    min_ts: int
    max_ts: int
    topics: dict[str, int]

    def overlaps(self, since: int | None, until: int | None) -> bool:
        """Whether a message of it may be stored at or after ``since`` and before ``until`` (ms since 1970)."""
        return (since is None or self.max_ts >= since) and (until is None or self.min_ts < until)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRange:
    """What an epoch covers of one broker's log: physical offsets, ``end`` exclusive."""

    start: int
    end: int
    store_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What an archive holds; it is the same in all its epochs."""

    topics: tuple[str, ...] = ()
    since: int | None = None
    system_topics: bool = False
    retry_topics: bool = False
    layout: str = "topic"
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """What one run added."""

    epoch: int
    selection: Selection
    brokers: dict[str, BrokerRange]
    files: list[ArchiveFile]
    counters: dict[str, int] = field(default_factory=dict)
    written_ms: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """All epochs of an archive, oldest first."""

    path: Path
    epochs: list[Epoch]

    @property
    def files(self) -> list[ArchiveFile]:
        """Every file of the archive, in the order in which they were written."""
        return [file for epoch in self.epochs for file in epoch.files]

    @property
    def selection(self) -> Selection | None:
        """What the archive holds; None while it has no epoch."""
        return self.epochs[-1].selection if self.epochs else None

    @property
    def ends(self) -> dict[str, int]:
        """Broker -> physical offset up to which its log is archived."""
        return {broker: covered.end for epoch in self.epochs for broker, covered in epoch.brokers.items()}

    @property
    def store_ids(self) -> dict[str, str]:
        """Broker -> identity of its store, where it is known: a copy of a log alone does not say it."""
        ranges = (of_broker for epoch in self.epochs for of_broker in epoch.brokers.items())
        return {broker: covered.store_id for broker, covered in ranges if covered.store_id}

    @property
    def rows(self) -> int:
        """Messages in the archive."""
        return sum(file.rows for file in self.files)

    @property
    def topics(self) -> dict[str, int]:
        """Topic -> messages."""
        counts: dict[str, int] = {}
        for file in self.files:
            for topic, rows in file.topics.items():
                counts[topic] = counts.get(topic, 0) + rows
        return counts

    @property
    def known_topics(self) -> set[str]:
        """Those with messages, and those that the archive was made for: each is a topic, messages or not."""
        return {*self.topics, *(self.selection.topics if self.selection else ())}

    def select(
        self, *, topics: Iterable[str] = (), since: int | None = None, until: int | None = None
    ) -> list[ArchiveFile]:
        """Return the files that may hold messages of these topics (none named: of all) and times (ms since 1970)."""
        wanted = set(topics)
        return [
            file for file in self.files
            if file.overlaps(since, until) and (not wanted or not wanted.isdisjoint(file.topics))
        ]  # fmt: skip

    def locate(self, file: ArchiveFile) -> str:
        """Return where a file is; ``spark.read`` takes it as ``folder.read_path`` writes it.

        Raises:
            ArchiveError: it is not there or has another length.
        """
        path = self.path / file.path
        try:
            size = path.stat().st_size
        except OSError as error:
            raise ArchiveError(
                f"{path} belongs to the archive and cannot be read: {error.strerror}; restore it from a copy"
            ) from error
        if size != file.size_bytes:
            raise ArchiveError(
                f"{path} is {size} bytes long instead of {file.size_bytes}: it was changed after it was archived; "
                "restore it from a copy"
            )
        return str(path)


def require_archive(root: Path) -> None:
    """Refuse a folder that is no archive, which takes a look at its name alone.

    Raises:
        ConfigError: there is none.
    """
    if not root.is_dir():
        raise ConfigError(f"--archive {root} is not a directory: name the folder of an archive", key="archive")
    if not (root / FOLDER).is_dir():
        raise ConfigError(f"--archive {root} is not an archive: it has no folder {FOLDER}", key="archive")


def load(path: Path | str) -> Manifest:
    """Return the manifest of the archive in a folder.

    Raises:
        ConfigError: there is no archive.
        ArchiveError: an epoch is damaged or missing, or of a newer version.
    """
    root = Path(path)
    require_archive(root)
    manifest = load_epochs(root)
    if not manifest.epochs:
        began = (root / FOLDER / PLAN).exists()
        what = "its first run was not finished: run headrace job archive again" if began else "it has no epoch yet"
        raise ConfigError(f"{root} holds no archived messages: {what}")
    return manifest


def load_epochs(root: Path) -> Manifest:
    """Return the manifest of a folder, without epochs where nothing was archived yet.

    Raises:
        ArchiveError: an epoch is damaged or missing, or of a newer version.
    """
    folder = root / FOLDER
    try:
        names = sorted(
            entry.name for entry in folder.iterdir() if entry.name[:-5].isdigit() and entry.suffix == ".json"
        )
    except FileNotFoundError:
        names = []
    manifest = Manifest(root, [])
    ends: dict[str, int] = {}
    for number, name in enumerate(names, start=1):
        epoch = unseal(folder / name, Epoch, _REMEDY)
        if epoch.epoch != number or name != epoch_name(number):
            raise ArchiveError(
                f"{folder / epoch_name(number)} is missing, yet {name} is there: restore it from a copy, or remove "
                f"{name} and what follows to have the rest archived anew"
            )
        for broker, covered in epoch.brokers.items():
            if ends.get(broker, covered.start) != covered.start:
                raise ArchiveError(
                    f"{folder / name} begins at {covered.start} of broker {broker}, the epoch before ended at "
                    f"{ends[broker]}: the manifest was changed by hand; restore it from a copy"
                )
            ends[broker] = covered.end
        manifest.epochs.append(epoch)
    return manifest


def epoch_name(epoch: int) -> str:
    """Return the file name of an epoch."""
    return f"{epoch:010d}.json"


def write_epoch(root: Path, epoch: Epoch) -> Path:
    """Write the next epoch; from here on its files belong to the archive.

    Raises:
        ArchiveError: the epoch exists.
        OSError: the folder cannot be written.
    """
    path = root / FOLDER / epoch_name(epoch.epoch)
    if path.exists():
        raise ArchiveError(
            f"{path} exists: another run wrote to this archive meanwhile; nothing was added, run it again"
        )
    write_json(path, seal({"version": VERSION, **asdict(epoch)}))
    return path


def seal(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with its checksum."""
    # Through JSON and back: tuples become lists and keys texts, as whoever reads it has them.
    plain: dict[str, Any] = json.loads(json.dumps(payload))
    return {**plain, "crc32": f"{_checksum(plain):08x}"}


def unseal(path: Path, kind: type[Sealed], remedy: str) -> Sealed:
    """Return what a sealed JSON object holds; members that a newer Headrace added are passed over.

    Raises:
        FileNotFoundError: there is no such file.
        ArchiveError: it is damaged, of a newer version, or holds something else.
    """
    try:
        payload = json.loads(path.read_text(encoding="utf-8"))
        noted = payload.pop("crc32")
        version = int(payload["version"])
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ArchiveError(f"{path} is damaged: it is no JSON of an archive; {remedy}") from None
    if version > VERSION:
        raise ArchiveError(f"{path} has version {version}, this Headrace reads up to {VERSION}: use a newer one")
    if noted != f"{_checksum(payload):08x}":
        raise ArchiveError(f"{path} is damaged: it fails its checksum; {remedy}")
    try:
        return msgspec.convert(payload, kind)
    except msgspec.ValidationError as error:
        raise ArchiveError(f"{path} does not hold what it should ({error}); {remedy}") from None


def write_json(path: Path, payload: object) -> None:
    """Replace a file in one step. Raises: as ``replacing``."""
    with replacing(path) as file:
        file.write(json.dumps(payload, indent=1).encode() + b"\n")


def sum_up(path: Path) -> tuple[int, int]:
    """Return the length and the CRC-32 of a file.

    Raises:
        OSError: it cannot be read.
    """
    size, crc = 0, 0
    with path.open("rb") as opened:
        while data := opened.read(_READ_BYTES):
            size += len(data)
            crc = checksum(data, crc)
    return size, crc


def data_files(root: Path) -> Iterator[str]:
    """Yield the path below ``root`` of each Parquet file that lies in an archive's folder, listed or not."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(("_", ".")))
        for name in sorted(names):
            if name.endswith(".parquet"):
                yield Path(folder, name).relative_to(root).as_posix()


def _checksum(payload: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(payload, sort_keys=True, separators=(",", ":")).encode())
