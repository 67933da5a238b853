"""Small, checksummed files beside the log, replaced atomically.

Layout: one header line ``headrace <kind> <version> <crc32 in hex> <payload bytes>``, then the payload, JSON. A person
can read it with ``cat``, up to MAX_INDENTED bytes in lines; the checksum covers the payload.

Ref: docs/formats/side-files.md.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from headrace.errors import FormatVersionError, SideFileError
from headrace.format.side_shapes import SHAPES, find_fault
from headrace.lock_file import require_in_place

FORMAT_VERSION: Final = 1
"""Version of a store's files, that of each side file among them; a higher one refuses the start."""

MAX_INDENTED: Final = 1 << 20
"""A longer payload stays in one line: indenting holds every other thread, some 4 ms for each megabyte."""


MAX_HEADER_BYTES: Final = 256
"""No header line is longer."""


def write_side_file(path: Path, kind: str, payload: object) -> None:
    """Replace ``path``. Raises: as ``replacing``."""
    body = msgspec.json.encode(payload)
    if len(body) <= MAX_INDENTED:
        body = msgspec.json.format(body, indent=1)
    body += b"\n"
    header = f"headrace {kind} {FORMAT_VERSION} {zlib.crc32(body):08x} {len(body)}\n".encode()
    with replacing(path) as file:
        file.write(header + body)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a file to be written, which takes the place of ``path``: beside it, fsync, rename, fsync of the directory.

    Raises:
        OSError: with the file's name; the old file counts.
    """
    beside = path.with_name(path.name + ".new")
    with naming(beside), open_anew(beside) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Have what the system refuses of an open file say which: it names only what is opened, renamed or removed."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def open_anew(path: Path) -> BinaryIO:
    """Make the file that is to replace another, whatever is in its place: to open a fifo waits for who reads it.

    Raises:
        OSError: the folder takes no file, or there is a folder; as ``require_in_place``.
    """
    require_in_place(path)
    path.unlink(missing_ok=True)
    return path.open("xb")


def sync_folder(folder: str | Path) -> None:
    """Make the names in a folder durable: what was made, renamed or removed there survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with naming(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_above(folder: Path) -> None:
    """Have a folder found again in the one above it; where that is not to be looked at nobody but root can do so."""
    if os.access(folder.parent, os.R_OK):
        sync_folder(folder.parent)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, that a power cut does not take; nothing happens where it is there.

    Raises:
        OSError: it cannot be made.
    """
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in made:
        sync_above(folder)


def is_special(path: Path) -> bool:
    """Whether something else than a regular file is there: reading a fifo would wait for who writes to it."""
    return path.exists() and not path.is_file()


def is_removed(path: str | Path, descriptor: int) -> bool:
    """Tell whether an open file has no name any more; some file systems count no names at all."""
    try:
        status = os.fstat(descriptor)
        return not status.st_nlink and not os.path.samestat(Path(path).stat(), status)
    except FileNotFoundError:
        return True
    except OSError:  # who may not look there, as where the file system was shut down, cannot tell, and looks again
        return False


def read_side_file(path: Path, kind: str, remedy: str) -> Any:
    """Return the payload of ``path``, None where there is no such file.

    Args:
        remedy: What a person can do when the file is damaged; goes into the error.

    Raises:
        FormatVersionError: it was written by a newer version.
        SideFileError: it is damaged, or does not hold what a file of its kind does.
    """
    if is_special(path):
        raise SideFileError(path, "is no regular file", remedy)
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    with file, naming(path):
        header = file.readline(MAX_HEADER_BYTES)
        fields = header.rstrip(b"\n").split(b" ")
        if not header.endswith(b"\n") or len(fields) != 5 or fields[0] != b"headrace" or fields[1] != kind.encode():
            raise SideFileError(path, f"is not a Headrace {kind} file", remedy)
        try:
            found_version, crc, size = int(fields[2]), int(fields[3], 16), int(fields[4])
        except ValueError:
            raise SideFileError(path, "has a damaged header", remedy) from None
        if found_version > FORMAT_VERSION:
            raise FormatVersionError(
                f"{path} has format version {found_version}, this Headrace reads up to {FORMAT_VERSION}: "
                "use the Headrace that wrote it, or a newer one; nothing was changed"
            )
        # Before it is read: memory may not hold a file that something has made longer.
        excess = os.fstat(file.fileno()).st_size - len(header) - size
        if excess:
            raise SideFileError(path, f"is {abs(excess)} bytes too {'long' if excess > 0 else 'short'}", remedy)
        body = file.read()
    if zlib.crc32(body) != crc:
        raise SideFileError(path, "fails its checksum", remedy)
    try:
        payload = msgspec.json.decode(body, type=SHAPES.get(kind, Any))
        fault = find_fault(kind, payload)
    except msgspec.ValidationError as error:
        fault = str(error)
    except msgspec.DecodeError:
        raise SideFileError(path, "holds no JSON", remedy) from None
    if fault:
        reason = f"does not hold what it should, as where a later Headrace wrote it ({fault})"
        raise SideFileError(path, reason, remedy)
    return payload
