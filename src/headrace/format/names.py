"""Names of files and of the topics we keep for ourselves."""

from __future__ import annotations

CONTROL_TOPIC = "%SYS%CONTROL"
"""Holds the control records. No NSQ client can spell it; other front ends hide names that begin with ``%SYS%``."""

_DOT_NAMES = {".": "~dot", "..": "~dotdot"}


def topic_directory(topic: str) -> str:
    """Return the folder name of a topic's consume queues.

    It is the topic's name, but for the two that a file system reserves; no protocol allows ``~`` in a topic.
    """
    return _DOT_NAMES.get(topic, topic)


def topic_of_directory(name: str) -> str:
    """Undo ``topic_directory``."""
    for topic, directory in _DOT_NAMES.items():
        if name == directory:
            return topic
    return name


def segment_name(first_offset: int) -> str:
    """Return the name of a commit-log or consume-queue file: its first byte's offset in 20 digits."""
    return f"{first_offset:020d}"
