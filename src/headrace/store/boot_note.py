"""The boot note: on which boot of the machine a store is open that shows messages before they are on the disk.

Level ``async`` answers and shows messages at once. A kill takes none of them: the kernel has them. A power cut may, and
where nothing of them is left the log looks as if it had ended before them: their offsets would be given to new
messages. So while such a store is open a note has the machine's boot id. A start that finds the note of another boot
knows that what was shown last may be gone, and begins an epoch. At level ``fsync`` there is no note: what was not on
the disk nobody has seen.

Where nothing tells one boot from another the note says so, and a start goes by what the log and the marks tell: else
every kill would begin an epoch. Ref: docs/formats/side-files.md, "Boot note".
"""

from __future__ import annotations

import logging
from pathlib import Path

from headrace.errors import SideFileError
from headrace.format.side_file import read_side_file, write_side_file

logger = logging.getLogger(__name__)

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
"""Linux: a random number for each start of the machine. Docker's containers see the machine's; those that boot as a
machine does (LXC, systemd-nspawn) get one of their own, so that a kill of the whole container begins an epoch."""


def current_boot_id() -> str:
    """Return what tells this boot of the machine from every other, empty where nothing does."""
    try:
        return BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class BootNote:
    """The boot note of one store.

    Attributes:
        boot_id: Of the boot on which the store was open last and was not closed; None: it was closed, or showed
            nothing before it was on the disk; empty: nobody knows.
    """

    def __init__(self, path: Path) -> None:
        """Read the note; a damaged one says nothing. Raises: FormatVersionError."""
        self._path = path
        self.boot_id: str | None = None
        try:
            noted = read_side_file(path, "boot", "remove it")
            self.boot_id = None if noted is None else str(noted["boot_id"])
        except SideFileError as error:
            logger.warning("boot note damaged, a power cut before this start goes unnoticed error=%s", error)

    def is_of_another_boot(self) -> bool:
        """Whether the machine was started anew since, or the folder comes from another one."""
        now = current_boot_id()
        return bool(self.boot_id and now) and self.boot_id != now

    def write(self) -> None:
        """Note this boot: before the first message is shown. A disk without room is no reason not to start. Blocks."""
        now = current_boot_id()
        if now == self.boot_id:
            return
        try:
            write_side_file(self._path, "boot", {"boot_id": now})
        except OSError as error:
            logger.warning("boot note not written, a power cut goes unnoticed error=%s", error)
            self.remove()  # one of another boot: each kill would begin an epoch
            return
        self.boot_id = now

    def remove(self) -> None:
        """Take the note away: everything is on the disk. Should a power cut bring it back, that costs an epoch."""
        self._path.unlink(missing_ok=True)
        self.boot_id = None
