"""The store's folder: whose it is, what version, who has it open."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass

from headrace.errors import ForeignStoreError, SideFileError, StoreError, StoreLockedError
from headrace.format.layout import IDENTITY_BACKUP, REGISTRY, SIDE, StoreLayout
from headrace.format.side_file import (
    FORMAT_VERSION,
    make_folder,
    read_side_file,
    sync_above,
    sync_folder,
    write_side_file,
)
from headrace.lock_file import LockHeldError, take_lock

# The registry may have run in this folder before the store was made.
_OURS_BEFORE_IDENTITY = {"lock", "abort", SIDE, "lost+found", REGISTRY}

# What a first start that was killed before it had written the identity can leave.
_LEFT_BY_A_FIRST_START = {"channels", IDENTITY_BACKUP, f"{IDENTITY_BACKUP}.new", "store.json.new"}


@dataclass(frozen=True)
class Identity:
    """What a store is: written once, when it is made."""

    store_id: str
    format_version: int
    segment_bytes: int
    queue_file_bytes: int
    created_ms: int


class StoreDirectory(StoreLayout):
    """One store's folder."""

    def require_ours(self) -> None:
        """Refuse a folder that holds something else, before anything in it is touched.

        Raises:
            ForeignStoreError: the folder has content and is no Headrace store.
            SideFileError: it is one without its identity.
            StoreError: it cannot be made or read.
        """
        try:
            make_folder(self.root)
        except FileExistsError as error:  # a file, or a link that leads nowhere
            raise StoreError(f"{self.root} is no directory; choose another with --data-dir") from error
        except OSError as error:
            raise self._cannot_use(error) from error
        self.require_not_foreign()

    def _cannot_use(self, error: OSError) -> StoreError:
        return StoreError(f"cannot use {self.root} as data directory: {error.strerror}; choose another with --data-dir")

    def require_not_foreign(self) -> None:
        """Refuse a folder that is there and holds something else; it is only looked at.

        Raises:
            ForeignStoreError, SideFileError, StoreError: as ``require_ours``.
        """
        try:
            names = {path.name for path in self.root.iterdir()}
        except OSError as error:
            raise self._cannot_use(error) from error
        if self.identity.exists():
            return
        left = {path.name for path in self.side.iterdir()} if self.side.is_dir() else set()
        has_backup = IDENTITY_BACKUP in left
        holds_data = False
        for folder in (self.commit_log, self.consume_queues):
            if folder.is_dir() and any(folder.iterdir()):
                holds_data = True
            else:
                names.discard(folder.name)  # left by a first start that was killed
        # With messages and the copy of an identity the folder is a broker's, whatever stands beside them.
        is_ours = holds_data and has_backup
        strangers = sorted(names - _OURS_BEFORE_IDENTITY - ({"checkpoint"} if has_backup else set()))
        if strangers and not is_ours:
            is_rocketmq = self.commit_log.is_dir() and self.consume_queues.is_dir()
            remedy = "`headrace store import` copies a RocketMQ broker's into one; " if is_rocketmq else ""
            raise ForeignStoreError(
                f"{self.root} is not a Headrace store: it holds {strangers[0]!r} and no headrace/store.json; "
                f"{remedy}choose an empty directory with --data-dir; nothing was changed"
            )
        if is_ours or left - _LEFT_BY_A_FIRST_START:
            raise SideFileError(
                self.identity,
                "is missing",
                f"copy {self.identity}.bak over it if that exists, or restore the folder from a backup",
            )

    def acquire_lock(self) -> int:
        """Lock the store for this process; return the descriptor that holds the lock.

        Raises:
            StoreLockedError: a live process has it.
            StoreError: the folder cannot be written.
        """
        try:
            return take_lock(self.lock, with_folder=True)
        except LockHeldError as error:
            if error.is_removed:
                who = "another Headrace process, whose lock file was removed"
            elif error.owner == str(os.getpid()):
                who = (
                    f"this process already, or by another with the same number in another container (pid {error.owner})"
                )
            else:
                who = f"another Headrace process{f' (pid {error.owner})' if error.owner else ''}"
            raise StoreLockedError(
                f"{self.root} is in use by {who}; stop that one first, or choose another directory with --data-dir"
            ) from error
        except OSError as error:
            raise StoreError(
                f"cannot write to {self.lock}: {error.strerror}; make it writable for this user, "
                "make room or mend the disk, or choose another directory with --data-dir"
            ) from error

    def load_identity(self) -> Identity | None:
        """Return the store's identity, None for a new store.

        Raises:
            FormatVersionError, SideFileError: see ``read_side_file``.
        """
        payload = read_side_file(self.identity, "store", f"copy {self.identity}.bak over it; nothing was changed")
        return None if payload is None else Identity(**payload)

    @property
    def is_caseless(self) -> bool:
        """Whether its disk takes upper and lower case in the names of files for one; its identity is there."""
        return self.identity.with_name(self.identity.name.upper()).exists()

    def create_identity(self, segment_bytes: int, queue_file_bytes: int, now_ms: int) -> Identity:
        """Make the folders and the identity of a new store."""
        for folder in (self.side, self.channels, self.commit_log, self.consume_queues):
            folder.mkdir(exist_ok=True)
        # Each file is synced with the folder it is in; these folders themselves must be found again too.
        sync_folder(self.root)
        sync_above(self.root.resolve())
        identity = Identity(
            store_id=uuid.uuid4().hex,
            format_version=FORMAT_VERSION,
            segment_bytes=segment_bytes,
            queue_file_bytes=queue_file_bytes,
            created_ms=now_ms,
        )
        payload = identity.__dict__
        write_side_file(self.identity_backup, "store", payload)
        write_side_file(self.identity, "store", payload)
        return identity
