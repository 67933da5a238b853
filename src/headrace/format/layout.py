"""What lies where in a store's folder. Nothing is opened or locked here.

Ref: docs/formats/side-files.md.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from headrace.format.names import MAX_QUEUES, is_offset_name, segment_name, topic_directory, topic_of_directory

COMMIT_LOG: Final = "commitlog"
CONSUME_QUEUES: Final = "consumequeue"
INDEX: Final = "index"
CONFIG: Final = "config"
"""The folder that RocketMQ keeps topics, groups and offsets in."""
REGISTRY: Final = "namesrv"
"""The folder of the registry in the same process."""
SIDE: Final = "headrace"
"""The folder of what RocketMQ does not know."""

SIDE_KINDS: Final = ("store", "epochs", "holes", "checkpoint", "index", "catalog", "producers", "boot")
"""Kinds of side files; each is in SIDE under its kind's name."""

IDENTITY_BACKUP: Final = "store.json.bak"

ROCKETMQ_CHECKPOINT_BYTES: Final = 4096

ROOT_NAMES: Final = frozenset(
    {"abort", "checkpoint", COMMIT_LOG, CONFIG, CONSUME_QUEUES, SIDE, INDEX, "lock", "lost+found", REGISTRY}
)
"""What may lie in a store's folder; ``lost+found`` is the file system's."""

SIDE_NAMES: Final = frozenset({*(f"{kind}.json" for kind in SIDE_KINDS), IDENTITY_BACKUP, "durable", "channels"})
"""What may lie in SIDE."""


class StoreLayout:
    """Paths inside one store's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commit_log = root / COMMIT_LOG
        self.consume_queues = root / CONSUME_QUEUES
        self.index = root / INDEX
        self.config = root / CONFIG
        self.registry = root / REGISTRY
        self.side = root / SIDE
        self.channels = self.side / "channels"
        self.identity = self.side_file("store")
        self.identity_backup = self.side / IDENTITY_BACKUP
        self.epochs = self.side_file("epochs")
        self.holes = self.side_file("holes")
        self.checkpoint = self.side_file("checkpoint")
        self.index_note = self.side_file("index")
        self.durable_mark = self.side / "durable"
        self.boot_note = self.side_file("boot")
        self.catalog = self.side_file("catalog")
        self.producers = self.side_file("producers")
        self.rocketmq_checkpoint = root / "checkpoint"
        self.abort = root / "abort"
        self.lock = root / "lock"

    def side_file(self, kind: str) -> Path:
        """Return the side file of one kind."""
        return self.side / f"{kind}.json"

    def name_of(self, path: Path) -> str:
        """Return a path as reports show it: below the store's folder."""
        return str(path.relative_to(self.root))


def queue_folder(consume_queues: Path | str, topic: str, queue_id: int) -> Path:
    """Return the folder of one queue in that of all queues."""
    return Path(consume_queues, topic_directory(topic), str(queue_id))


def queue_folders(consume_queues: Path) -> list[tuple[str, int, str]]:
    """Return (topic, queue id, path) of every folder that holds a consume queue; what else lies there is passed over.

    Strings, since ten thousand Path objects cost a second.
    """
    found = []
    for topic, path in topic_folders(consume_queues):
        with os.scandir(path) as queues:
            for queue in queues:
                if _is_queue_id(queue.name) and queue.is_dir():
                    found.append((topic, int(queue.name), queue.path))
    return sorted(found)


def topic_folders(consume_queues: Path) -> list[tuple[str, str]]:
    """Return (topic, path) of every folder that may hold a topic's consume queues."""
    with os.scandir(consume_queues) as topics:
        return [
            (topic_of_directory(topic.name), topic.path)
            for topic in topics
            # The last one is root's, where the folder is a file system of its own.
            if topic.is_dir() and _is_text(topic.name) and topic.name != "lost+found"
        ]


def _is_queue_id(name: str) -> bool:
    """Whether a folder's name is a queue id as we write it: "07" would be a second folder of queue 7.

    No record is taken whose id is higher, and a topic gets every queue below its highest.
    """
    return name.isascii() and name.isdigit() and len(name) < 6 and name == str(int(name)) and int(name) < MAX_QUEUES


def _is_text(name: str) -> bool:
    """Whether a file's name is UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def log_files(commit_log: Path) -> list[Path]:
    """Return the files of a log in their order; what else has such a name is passed over, as a start does."""
    with os.scandir(commit_log) as entries:
        paths = [Path(entry.path) for entry in entries if is_offset_name(entry.name)]
    return sorted(path for path in paths if path.is_file())  # of an entry that is a link to itself it is an error


def no_log_files(commit_log: Path) -> list[Path]:
    """Return what is named as a file of a log, and is none or a link that leads to none, in order."""
    with os.scandir(commit_log) as entries:
        paths = [Path(entry.path) for entry in entries if is_offset_name(entry.name)]
    return sorted(path for path in paths if not path.is_file() and os.path.lexists(path))


def segment_file(physical_offset: int, segment_bytes: int) -> str:
    """Return the file of the log that holds an offset, as reports show it: below the store's folder."""
    return f"{COMMIT_LOG}/{segment_name(physical_offset // segment_bytes * segment_bytes)}"
