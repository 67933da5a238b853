"""The words of a command's line; the codec takes them apart with what words.pxd has."""

from typing import Final

COMMAND_NAMES: Final[tuple[str, ...]]
"""By number."""

def is_valid_name(name: bytes) -> bool:
    """Match ``^[.a-zA-Z0-9_-]+(#ephemeral)?$`` of 1 to 64 bytes: topics and channels alike (nsq.md 1.2)."""
