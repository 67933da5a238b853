"""The config files of consumer groups as a store has them: for ``headrace store check``, which changes nothing.

Ref: docs/formats/config-files.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headrace.broker.config_file import read_config
from headrace.broker.group_services import CONFIG_FOLDER
from headrace.broker.groups import FILE_NAME as GROUPS_FILE
from headrace.broker.offsets import FILE_NAME as OFFSETS_FILE
from headrace.broker.offsets import read_offsets
from headrace.broker.topics_file import FILE_NAME as TOPICS_FILE
from headrace.format.names import TEMPLATE_TOPICS
from headrace.store.findings import CheckReport, Finding
from headrace.store.reader import StoreReader

DELAYS_FILE: Final = "delayOffset.json"

_EFFECTS: Final = {
    GROUPS_FILE: "the next start takes its copy",
    OFFSETS_FILE: "the next start takes its copy, groups read again what they committed since",
    DELAYS_FILE: "the next start takes its copy, delayed messages may be delivered again",
    TOPICS_FILE: "written anew with the next change; only other brokers' tools read it",
}


def check_groups(reader: StoreReader, report: CheckReport) -> None:
    """Check the config files; for ``check_store``."""
    folder = reader.root / CONFIG_FOLDER
    for name, effect in _EFFECTS.items():
        _check_file(report, folder / name, effect)
    _check_offsets(reader, report, folder / OFFSETS_FILE)


def _check_file(report: CheckReport, path: Path, effect: str) -> None:
    """A file, or the copy that stands in for it, must be JSON."""
    name = f"{CONFIG_FOLDER}/{path.name}"
    backup = path.with_name(path.name + ".bak")
    _, reason = read_config(path)
    _, backup_reason = read_config(backup)
    if not reason and not (backup_reason and not path.exists()):
        return
    if backup_reason or not backup.exists():
        effect = "no whole copy is beside it: restore it from a backup, or remove it to begin without what it held"
    message = f"{name} is damaged ({reason or backup_reason}); {effect}"
    report.damage.append(Finding(kind="side_file", file=name, reason="damaged", message=message))


def _check_offsets(reader: StoreReader, report: CheckReport, path: Path) -> None:
    """Say which committed offsets lie beyond their queues; the next start brings them back.

    That is no damage: a client may commit what it likes, and a crash may take the end of a queue.
    """
    content, _ = read_config(path)
    if content is None:
        return
    ends = {(queue.topic, queue.queue_id): queue.extent()[1] for queue in reader.queues()}
    for (group, topic), queues in read_offsets(content, path):
        if topic in TEMPLATE_TOPICS:
            continue  # marks of readers of whole logs, in topics that hold no messages
        for queue_id, offset in queues.items():
            end = ends.get((topic, queue_id), 0)
            if offset > end:
                message = (
                    f"group {group} has committed {offset} of queue {queue_id} of {topic}, which ends at {end}; "
                    "the next start brings it back"
                )
                report.info.append(Finding(
                    kind="offset_beyond_queue", message=message, file=f"{CONFIG_FOLDER}/{OFFSETS_FILE}", topic=topic,
                    queue_id=queue_id, queue_offset=offset,
                ))  # fmt: skip
