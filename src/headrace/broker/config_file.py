"""The files ``config/NAME.json``: small, RocketMQ's form, replaced in one step, the content before kept as ``.bak``.

``ConfigFile`` reads and writes one of them and blocks. ``FileWriter`` has it written in a thread: what is asked for
while one write runs goes together with the next, so a burst of changes costs two writes. Whoever must not answer
before a change is on disk gives a callback.

A replacement: NAME.json.tmp is written and synced, NAME.json becomes NAME.json.bak, .tmp becomes NAME.json, the folder
is synced. A crash in between leaves .bak, which a reader takes when NAME.json is missing, is no JSON or lacks the table
that its readers look for: a flipped bit in a member's name must not pass for an empty file. A damaged file is put aside
as NAME.json.damaged, and what its copy holds takes its place, so that no later start stands on the copy alone.
Ref: docs/formats/config-files.md.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from headrace.broker.data_version import DataVersion
from headrace.errors import SideFileError
from headrace.format import fastjson
from headrace.format.side_file import is_special, naming, open_anew, sync_folder
from headrace.lock_file import require_in_place
from headrace.log_pace import Trouble

logger = logging.getLogger(__name__)

Row = TypeVar("Row")

FindFault = Callable[[Mapping[str, Any]], str]
"""Returns what a file's content, a JSON object, lacks; empty when it is whole."""

RETRY_MS: Final = 10_000
"""Between a write that failed and the next try."""

Submit = Callable[[Callable[[], None]], object]
"""Runs a job in a thread."""

Notify = Callable[[Callable[[], None]], object]
"""Runs a call on the event loop; a thread may use it."""

Build = Callable[[], bytes | bytearray]
"""Returns a file's content. Called in a thread: it must use nothing that still changes."""

Take = Callable[[], Build]
"""Takes down on the event loop what a file is to hold; returns what makes the content of it."""

Saved = Callable[[OSError | None], None]
"""Told that what was asked for is on disk, or why it is not."""


class ConfigFile:
    """One file. ``load`` is for the start, ``read`` for a store of others; ``save`` may be called from any thread."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / name
        self._lock = threading.Lock()
        self._saved_number = 0

    def load(self, find_fault: FindFault | None = None) -> Any:
        """Return the content as ``read`` does; what came from the copy takes the file's place.

        A damaged file is put aside.

        Raises:
            SideFileError, OSError: as ``read``.
        """
        content, reason, is_copy = self._read(find_fault)
        if is_copy:
            if reason:
                self.path.replace(self._beside(".damaged"))
            self._restore()
        return content

    def read(self, find_fault: FindFault | None = None) -> Any:
        """Return the content, from the ``.bak`` copy where the file is missing or damaged; None when there is neither.

        Nothing is changed.

        Args:
            find_fault: Says what a content lacks that counts as damaged.

        Raises:
            SideFileError: both are damaged, or the damaged one has no copy.
            OSError: it cannot be read.
        """
        return self._read(find_fault)[0]

    def _restore(self) -> None:
        """Write what the copy holds as the file; where that fails the copy goes on standing in for it."""
        try:
            self._write(backup_of(self.path).read_bytes())
        except OSError as error:
            logger.warning("config file stays missing, its copy stands in for it path=%s error=%s", self.path, error)

    def _read(self, find_fault: FindFault | None) -> tuple[Any, str, bool]:
        """Return the content, what damage the file itself has, and whether the content is that of its copy."""
        backup = backup_of(self.path)
        content, reason = read_config(self.path, find_fault)
        if content is not None:
            return content, "", False
        copy, copy_reason = read_config(backup, find_fault)
        if copy is not None:
            logger.warning("config file taken from its copy path=%s reason=%s", self.path, reason or "missing")
        elif reason or copy_reason:
            damaged = self.path if reason else backup
            raise SideFileError(
                damaged,
                f"is damaged ({reason or copy_reason}) and no whole copy is beside it",
                f"restore {self.path} from a backup, or remove the damaged file to begin without what it held",
            )
        return copy, reason, copy is not None

    def save(self, content: bytes | bytearray, number: int) -> None:
        """Replace the file, unless something newer is there already. Blocks.

        Args:
            number: Rises with each content; the higher one stays, whichever thread comes first.

        Raises:
            OSError: the file is as before, or only ``.bak`` has that content.
        """
        with self._lock:
            if number <= self._saved_number:
                return
            folder = self.path.parent
            require_in_place(folder)
            is_new = not folder.exists()
            folder.mkdir(exist_ok=True)  # those above it may have been moved away: they are not made anew
            self._write(content)
            if is_new:
                sync_folder(folder.parent)
            self._saved_number = number

    def _write(self, content: bytes | bytearray) -> None:
        """Write the file; what it held becomes its copy."""
        beside = self._beside(".tmp")
        with open_anew(beside) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if self.path.exists():
            self.path.replace(backup_of(self.path))
        beside.replace(self.path)
        sync_folder(self.path.parent)

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)


def backup_of(path: Path) -> Path:
    """Return where the content before a file's own is kept."""
    return path.with_name(f"{path.name}.bak")


def lacks_table(content: Mapping[str, Any], *names: str) -> str:
    """Say that a content has none of these tables, or one that is no object; empty when it is whole.

    Every broker writes its table, also where that is empty: ``{"offsetTable":{}}``.
    """
    tables = {name: content[name] for name in names if name in content}
    if not tables:
        return f"it has no {' or '.join(names)}"
    wrong = [name for name, table in tables.items() if not isinstance(table, dict)]
    return f"its {wrong[0]} is no object" if wrong else ""


def read_config(path: Path, find_fault: FindFault | None = None) -> tuple[Any, str]:
    """Return a file's content, an object, or why there is none: empty when there is no file.

    Args:
        find_fault: As ``ConfigFile.load`` has it.

    Raises:
        OSError: it cannot be read.
    """
    if is_special(path):
        return None, "no regular file"
    try:
        with naming(path):
            raw = path.read_bytes()
    except FileNotFoundError:
        # On a disk that is not mounted: not missing, and to begin without it would lose what it holds.
        leads_nowhere = path.is_symlink() or (path.parent.is_symlink() and not path.parent.exists())
        return None, "a link that leads nowhere" if leads_nowhere else ""
    try:
        content = fastjson.loads(raw)
    except ValueError as error:
        return None, str(error) or "no JSON"
    if not isinstance(content, dict):
        return None, "no JSON object"
    fault = "" if find_fault is None else find_fault(content)
    return (None, fault) if fault else (content, "")


class TableText(Generic[Row]):
    """The JSON text of a file with a table, kept by row: a change costs the rows that changed, not the table.

    ``encode`` may run in a thread, one call at a time. Rows must not change; a new value is another object.
    """

    def __init__(self, table: str, fields: Callable[[str, Row], Mapping[str, Any]]) -> None:
        """Keep nothing yet.

        Args:
            table: The name of the table.
            fields: Returns the members of one row.
        """
        self._table = table
        self._fields = fields
        self._texts: dict[str, tuple[Row, bytes]] = {}

    def encode(self, version: DataVersion, rows: Iterable[tuple[str, Row]]) -> bytes:
        """Return the content of the file."""
        texts: dict[str, tuple[Row, bytes]] = {}
        for name, row in rows:
            known = self._texts.get(name)
            if known is None or known[0] is not row:
                known = (row, fastjson.dumps(name) + b":" + fastjson.dumps(self._fields(name, row)))
            texts[name] = known
        self._texts = texts
        table = b",".join(text for _, text in texts.values())
        return b'{"dataVersion":%b,"%b":{%b}}' % (fastjson.dumps(version.to_fields()), self._table.encode(), table)


class FileWriter:
    """Has one config file written in a thread. Everything but the write itself runs on the event loop.

    Invariant: at most one job is under way; ``_wanted`` is the newest content, until a job takes it.
    """

    def __init__(self, file: ConfigFile, submit: Submit, notify: Notify) -> None:
        self.file = file
        self.path = file.path
        self.errors = 0
        self._submit = submit
        self._notify = notify
        self._number = 0
        self._running = False
        self._trouble = Trouble(logger)
        self._wanted: Take | None = None
        self._waiting: list[Saved] = []
        self._waiting_for_job: list[Saved] = []
        self._retry_ms = -1

    @property
    def is_clean(self) -> bool:
        """Whether everything asked for is on disk."""
        return not self._running and self._wanted is None

    @property
    def is_running(self) -> bool:
        """Whether a write is under way."""
        return self._running

    def request(self, take: Take) -> None:
        """Have the file replaced soon; of several requests the last one counts.

        Args:
            take: Called when the write begins, not for each of a burst of changes: it may copy a whole table.
        """
        self._wanted = take
        self._start()

    def when_saved(self, saved: Saved) -> None:
        """Call ``saved`` on the event loop when what was asked for so far is on disk; at once when it is.

        After a write that failed it is tried again now.
        """
        if self._wanted is not None:
            self._waiting.append(saved)
            self._start()
        elif self._running:
            self._waiting_for_job.append(saved)
        else:
            saved(None)

    def _start(self) -> None:
        if self._running or self._wanted is None:
            return
        take, self._wanted = self._wanted, None
        build = take()
        self._waiting_for_job, self._waiting = self._waiting, []
        self._running = True
        self._number += 1
        number = self._number
        self._submit(lambda: self._run(take, build, number))

    def _run(self, take: Take, build: Build, number: int) -> None:
        """Write, in the thread."""
        failure: OSError | None = None
        try:
            self.file.save(build(), number)
        except OSError as error:
            failure = error
        except Exception as error:
            logger.exception("config file not written by a bug path=%s", self.path)
            failure = OSError(str(error))
        self._notify(lambda: self._done(take, failure))

    def _done(self, take: Take, failure: OSError | None) -> None:
        self._running = False
        waiting, self._waiting_for_job = self._waiting_for_job, []
        if failure is not None:
            self.errors += 1
            self._trouble.note("config file not written, tried again path=%s error=%s", self.path, failure)
            self._retry_ms = -1
            self._wanted = self._wanted or take
        else:
            self._trouble.end()
            if self._wanted is not None:
                self._start()
        for saved in waiting:
            try:
                saved(failure)
            except Exception:  # the others wait for their answers
                logger.exception("reply failed by a bug path=%s", self.path)

    def tick(self, now_ms: int) -> None:
        """Try again what could not be written, after a while."""
        if self._wanted is None or self._running:
            return
        if self._retry_ms < 0:
            self._retry_ms = now_ms + RETRY_MS
        elif now_ms >= self._retry_ms:
            self._start()

    def write_last(self, build: Build, failure: str) -> None:
        """Replace the file before returning; log ``failure`` where it cannot be. Blocks: for the end."""
        self._wanted = None
        self._number += 1
        try:
            self.file.save(build(), self._number)
        except OSError as error:
            logger.error("%s path=%s error=%s", failure, self.path, error)

    def replace_both(self, content: bytes | bytearray) -> None:
        """Replace the file and its copy before returning: what they said must never count again. Blocks: for a start.

        Raises:
            OSError: it could not be written.
        """
        for _ in range(2):
            self._number += 1
            self.file.save(content, self._number)
