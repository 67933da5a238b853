"""The folder ``config`` of a RocketMQ broker, for an import: which files count, and what is not as it should be.

RocketMQ decodes a file as a whole and takes its ``.bak`` copy, the content before, where anything in it is damaged; a
broker of which neither can be read does not start. Here too, but for one difference: where the copy is no better, what
can be read of the file is taken, without the rows that no broker can have written. Each is named.
Ref: docs/running.md, "From RocketMQ and back"; docs/formats/config-files.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.broker.config_file import ConfigFile, FindFault, backup_of, read_config
from headrace.broker.consumers.groups import FILE_NAME as GROUPS_FILE
from headrace.broker.consumers.groups import find_groups_fault, read_groups
from headrace.broker.consumers.offsets import FILE_NAME as OFFSETS_FILE
from headrace.broker.consumers.offsets import find_offset_row_faults, find_offsets_fault
from headrace.broker.topics_file import FILE_NAME as TOPICS_FILE
from headrace.broker.topics_file import find_topics_fault
from headrace.broker.withheld.schedule import FILE_NAME as DELAYS_FILE
from headrace.broker.withheld.schedule import find_cursors_fault, read_cursors
from headrace.store.foreign import LIGHT_OFFSETS_FILE

MAX_NAMED: Final = 5


@dataclass(frozen=True)
class _Kind:
    """One file.

    Attributes:
        find_fault: What makes it damaged as a whole.
        find_row_faults: Says which rows of a whole one no broker can have written.
        without: What the new store does without such a row.
    """

    find_fault: FindFault
    find_row_faults: Callable[[Mapping[str, Any]], list[str]]
    without: str


def _group_faults(content: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {fault}" for name, _, fault in read_groups(content) if fault]


_KINDS: Final[dict[str, _Kind]] = {
    GROUPS_FILE: _Kind(find_groups_fault, _group_faults, "these groups begin anew with the broker's defaults"),
    OFFSETS_FILE: _Kind(find_offsets_fault, find_offset_row_faults, "these groups begin anew in these topics"),
    DELAYS_FILE: _Kind(
        find_cursors_fault,
        lambda content: read_cursors(content)[1],
        "what waited at these levels and was delivered is delivered again",
    ),
}


@dataclass
class ForeignConfig:
    """What an import takes of a folder.

    Attributes:
        files: Name of each file that the new store gets, and which one is copied for it.
        notes: What is not as it should be, a sentence each.
    """

    files: dict[str, Path] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def look_at_config(folder: Path, names: Iterable[str]) -> ForeignConfig:
    """Return what an import takes of a broker's files for groups, offsets and delays.

    Args:
        names: Those that are wanted.

    Raises:
        SideFileError: a file is damaged, and no whole copy is beside it.
        OSError: one cannot be read.
    """
    config = ForeignConfig()
    for name in names:
        source = _choose_offsets(folder, config.notes) if name == OFFSETS_FILE else folder / name
        path = _choose(source, _KINDS[name], config.notes)
        if path is not None:
            config.files[name] = path
        if path is not None and source.name == LIGHT_OFFSETS_FILE:
            left = read_config(path)[0].get("lmqOffsetTable")
            if left:
                config.notes.append(f"{path}: the offsets of {len(left)} light queues (LMQ) are left out")
    return config


def _choose_offsets(folder: Path, notes: list[str]) -> Path:
    """Return which file has the offsets of groups: the one that the broker has written last, where both are there."""
    ordinary, light = folder / OFFSETS_FILE, folder / LIGHT_OFFSETS_FILE
    ordinary_ns, light_ns = _written_ns(ordinary), _written_ns(light)
    if not light_ns:
        return ordinary
    chosen = light if light_ns > ordinary_ns else ordinary
    if ordinary_ns:
        notes.append(
            f"{folder} has {light.name} (enableLmq) and {ordinary.name}: {chosen.name} was written last and is "
            f"taken; were it the other one, remove {chosen.name} from a copy and import that"
        )
    return chosen


def _written_ns(path: Path) -> int:
    """Return when a file or its copy was written last, ns since 1970; 0 where neither is there."""
    found = (path, backup_of(path))
    return max((file.stat().st_mtime_ns for file in found if file.is_file()), default=0)


def _choose(path: Path, kind: _Kind, notes: list[str]) -> Path | None:
    """Return which of a file and its copy is taken, None where neither is there; note why it is not the file."""

    def find_any_fault(content: Mapping[str, Any]) -> str:
        return kind.find_fault(content) or "; ".join(kind.find_row_faults(content)[:MAX_NAMED])

    content, reason = read_config(path, find_any_fault)
    if content is not None:
        return path
    copy = backup_of(path)
    if read_config(copy, find_any_fault)[0] is not None:
        notes.append(f"{path} is {f'damaged ({reason})' if reason else 'missing'}: its copy {copy.name} is taken")
        return copy
    content = ConfigFile(path.parent, path.name).read(kind.find_fault)
    if content is None:
        return None
    taken = path if read_config(path, kind.find_fault)[0] is not None else copy
    faults = kind.find_row_faults(content)
    more = f" and {len(faults) - MAX_NAMED} more" if len(faults) > MAX_NAMED else ""
    notes.append(
        f"{taken} has {len(faults)} damaged rows, which are left out: {kind.without}: "
        f"{'; '.join(faults[:MAX_NAMED])}{more}"
    )
    return taken


def topics_fault(folder: Path) -> str:
    """Say why topics are read from the copy of their file, which may lack the newest; empty where they are not."""
    path = folder / TOPICS_FILE
    content, reason = read_config(path, find_topics_fault)
    if content is not None or read_config(backup_of(path), find_topics_fault)[0] is None:
        return ""
    return f"damaged ({reason})" if reason else "missing"
