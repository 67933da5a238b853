"""The config files of consumer groups as a store has them: for those who change nothing, ``headrace store`` above all.

Ref: docs/formats/config-files.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headrace.broker.config_file import FindFault, backup_of, read_config
from headrace.broker.consumers.groups import FILE_NAME as GROUPS_FILE
from headrace.broker.consumers.groups import find_groups_fault
from headrace.broker.consumers.offsets import FILE_NAME as OFFSETS_FILE
from headrace.broker.consumers.offsets import find_offsets_fault, read_offsets
from headrace.broker.topics_file import FILE_NAME as TOPICS_FILE
from headrace.broker.topics_file import find_topics_fault
from headrace.broker.withheld.schedule import FILE_NAME as DELAYS_FILE
from headrace.broker.withheld.schedule import find_cursors_fault
from headrace.format.findings import Finding
from headrace.format.layout import CONFIG
from headrace.format.names import TEMPLATE_TOPICS
from headrace.store.check_report import CheckReport
from headrace.store.reader import StoreReader

_WRITTEN_ANEW: Final = "written anew with the next change; only other brokers' tools read it"
_REFUSED: Final = (
    "no whole copy is beside it and the start is refused: restore it from a backup, or remove it to begin without what "
    "it held"
)

_FILES: Final[dict[str, tuple[FindFault, str, str]]] = {
    GROUPS_FILE: (find_groups_fault, "the next start takes its copy", _REFUSED),
    OFFSETS_FILE: (
        find_offsets_fault,
        "the next start takes its copy, groups read again what they committed since",
        _REFUSED,
    ),
    DELAYS_FILE: (
        find_cursors_fault,
        "the next start takes its copy, delayed messages may be delivered again",
        _REFUSED,
    ),
    TOPICS_FILE: (find_topics_fault, _WRITTEN_ANEW, _WRITTEN_ANEW),
}
"""What makes each file damaged, what comes of it where its copy is whole, and where there is none."""


def check_groups(reader: StoreReader, report: CheckReport) -> None:
    """Check the config files; for ``check_store``."""
    folder = reader.directory.config
    for name, (find_fault, effect, effect_alone) in _FILES.items():
        check_config_file(reader, report, folder / name, find_fault, effect, effect_alone)
    _check_offsets(report, folder / OFFSETS_FILE)


def check_config_file(
    reader: StoreReader,
    report: CheckReport,
    path: Path,
    find_fault: FindFault,
    effect: str,
    effect_alone: str = _REFUSED,
) -> None:
    """A file, or the copy that stands in for it, must be whole.

    Args:
        effect: What comes of a damaged one that has a whole copy.
        effect_alone: What comes of one that has none.
    """
    name = reader.name_of(path)
    content, reason = read_config(path, find_fault)
    copy, copy_reason = read_config(backup_of(path), find_fault)
    if content is not None:
        if copy_reason:
            message = f"{name}.bak is damaged ({copy_reason}); the next change of {name} replaces it"
            report.info.append(Finding(kind="no_backup", file=f"{name}.bak", message=message))
        return
    if copy is not None and not reason:
        report.info.append(Finding(kind="missing_file", file=name, message=f"{name} is missing; {effect}"))
        return
    if not reason and not copy_reason:
        return
    damaged = name if reason else f"{name}.bak"
    message = f"{damaged} is damaged ({reason or copy_reason}); {effect if copy is not None else effect_alone}"
    report.damage.append(Finding(kind="side_file", file=damaged, reason="damaged", message=message))


def _check_offsets(report: CheckReport, path: Path) -> None:
    """Say which committed offsets lie beyond their queues; the next start brings them back.

    That is no damage: a client may commit what it likes, and a crash may take the end of a queue.
    """
    content, _ = read_config(path, find_offsets_fault)
    if content is None:
        return
    for (group, topic), queues in read_offsets(content, path):
        if topic in TEMPLATE_TOPICS:
            continue  # marks of readers of whole logs, in topics that hold no messages
        for queue_id, offset in queues.items():
            end = report.queue_ends.get((topic, queue_id), 0)
            if offset > end:
                message = (
                    f"group {group} has committed {offset} of queue {queue_id} of {topic}, which ends at {end}; "
                    "the next start brings it back"
                )
                report.info.append(Finding(
                    kind="offset_beyond_queue", message=message, file=f"{CONFIG}/{OFFSETS_FILE}", topic=topic,
                    queue_id=queue_id, queue_offset=offset,
                ))  # fmt: skip
