"""``headrace store import``: make a Headrace store of a RocketMQ broker's."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import click

from headrace.broker.adoption import Adoption, adopt_topics
from headrace.broker.config_file import read_config
from headrace.broker.consumers.offsets import FILE_NAME as OFFSETS_FILE
from headrace.broker.consumers.offsets import read_offsets
from headrace.broker.foreign_config import ForeignConfig, look_at_config, topics_fault
from headrace.broker.popped import Popped, count_popped
from headrace.broker.topic import TopicConfig
from headrace.broker.topics_file import read_topics
from headrace.cli.options import FolderPath, SettingsCommand, read_settings, settings_flags
from headrace.cli.output import ShowBytes, byte_bars, json_option, print_json
from headrace.cli.program import complain, drop
from headrace.clock import Clock
from headrace.errors import ForeignStoreError, one_line
from headrace.format.layout import StoreLayout
from headrace.format.names import RESERVED_PREFIX, SYSTEM_TOPICS, topic_of_directory
from headrace.settings import Settings
from headrace.store.foreign import ForeignStore, copy_foreign, look_at_foreign, move_up
from headrace.store.opening import RecoveryReport
from headrace.store.store import Store

DAMAGED: Final = 3
MAX_SHOWN: Final = 20


@click.command("import", cls=SettingsCommand, short_help="Copy the store of a RocketMQ 4 broker.")
@click.argument("directory", metavar="DIR", type=FolderPath())
@click.option("--commit-log", type=FolderPath(), metavar="DIR",
              help="The broker's storePathCommitLog. [DIR/commitlog]")  # fmt: skip
@json_option
@settings_flags
@click.pass_context
def import_store(
    ctx: click.Context, directory: Path, commit_log: Path | None, config: Path | None, as_json: bool
) -> int:
    """Copy the store of a stopped RocketMQ 4 broker into --data-dir and make it a Headrace store.

    DIR is the broker's storePathRootDir, of which topics.json (or SmartGo's topic.json) and subscriptionGroup.json in
    config will do, without a log; it is only read. Every record is checked; topics, queues, messages, keys,
    offsets, groups, delayed messages and open transactions are taken over. Give it the settings that `headrace serve`
    will have: broker.delay_levels must be the broker's messageDelayLevel.

    \b
    Exit codes:
      0    imported
      1    not imported: --data-dir is as it was
      2    wrong use or wrong settings
      3    imported, but records in the source are damaged or missing: each place is named
      130  interrupted: --data-dir is as it was

    \b
    Examples:
      headrace store import /home/rocketmq/store --data-dir /var/lib/headrace
      headrace config import broker.conf > headrace.toml
      headrace store import /home/rocketmq/store --config headrace.toml --data-dir /var/lib/headrace
    """
    settings = read_settings(ctx, config).settings
    if directory.exists() and not directory.is_dir():
        raise ForeignStoreError(f"{directory} is no directory: name the broker's storePathRootDir")
    configs, _ = read_topics(StoreLayout(directory).config)
    without_log = bool(configs) and commit_log is None
    source = look_at_foreign(
        directory, commit_log, new_segment_bytes=settings.store.segment_bytes if without_log else None
    )
    files = look_at_config(StoreLayout(directory).config, source.config_files)
    keep_unlisted(source, configs, files)
    with byte_bars() as bar:
        imported = take_over(source, configs, files, settings, bar)
    try:
        if as_json:
            print_json(imported.to_json())
        else:
            _print(imported, config)
    except OSError as error:  # the store is there all the same
        drop(sys.stdout)
        complain(f"{imported.target} is imported, but standard output takes nothing: {error.strerror}", 0)
    return DAMAGED if imported.recovery.scan.holes or imported.recovery.skipped_queue_offsets else 0


@dataclass(frozen=True)
class Imported:
    """A store that was imported.

    Attributes:
        config_notes: What was not as it should be in the source's folder ``config``.
        damaged_queues: ``TOPIC/QUEUE`` whose files held something else than entries.
        popped: What POP consumers (RocketMQ 5) had not acknowledged.
    """

    source: ForeignStore
    target: Path
    config_notes: list[str]
    damaged_queues: list[str]
    adoption: Adoption
    popped: Popped
    recovery: RecoveryReport

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        scan = self.recovery.scan
        return {
            "directory": str(self.target),
            "was_clean": self.source.was_clean,
            "left_out": self.source.left_out,
            "light_queues": list(self.source.light_queues),
            "config_notes": self.config_notes,
            "records": scan.records,
            "end_offset": scan.end_offset,
            "holes": [asdict(hole) for hole in scan.holes],
            "torn_offset": scan.torn_offset,
            "missing_messages": self.recovery.skipped_queue_offsets,
            "damaged_queues": self.damaged_queues,
            "batch_topics": self.source.batch_topics,
            "popped": [
                {"group": group, "topic": topic, "messages": messages}
                for (group, topic), messages in self.popped.messages.items()
            ],
            "popped_unread": self.popped.unread,
            **asdict(self.adoption),
        }


def keep_unlisted(source: ForeignStore, configs: dict[str, TopicConfig | None], files: ForeignConfig) -> None:
    """Add topics that the copy of a damaged ``topics.json`` may not know yet: a deleted one has no queue files."""
    fault = topics_fault(StoreLayout(source.root).config)
    if not fault or not configs:
        return
    with_files = dict.fromkeys(topic_of_directory(path.parts[-3]) for path in source.queue_files)
    missing = [
        name
        for name in with_files
        if not (name in configs or name in SYSTEM_TOPICS or name.startswith(RESERVED_PREFIX))
    ]
    configs.update(dict.fromkeys(missing))
    files.notes.append(
        f"{source.root}/config/topics.json is {fault}: its copy topics.json.bak is taken"
        + (f", with topics that have queues and are not in it: {', '.join(missing[:MAX_SHOWN])}" if missing else "")
    )


def take_over(
    source: ForeignStore,
    configs: Mapping[str, TopicConfig | None],
    files: ForeignConfig,
    settings: Settings,
    bar: ShowBytes,
) -> Imported:
    """Copy, check and adopt; the new store is there as a whole or not at all."""
    target = Path(settings.store.data_dir)
    clock = Clock()

    def show_copied(done: int, total: int) -> None:
        bar("copying", done, total)

    with copy_foreign(source, target, clock.now_ms(), show_copied, files.files, configs) as copy:
        total = len(source.segments) * source.segment_bytes
        store = Store.open(
            replace(settings.store, data_dir=copy.folder, segment_bytes=source.segment_bytes),
            clock,
            schedule_delays_ms=settings.broker.delays_ms,
            on_scanned=lambda offset: bar("checking", offset - source.first_offset, total),
        )
        try:
            adoption = adopt_topics(store, configs, copy.queues, clock)
            popped = count_popped(store, _read_offsets(files))
        finally:
            store.close()
        move_up(copy.folder)
    return Imported(source, target, files.notes, copy.damaged_queues, adoption, popped, store.recovery)


def _read_offsets(files: ForeignConfig) -> dict[tuple[str, str], dict[int, int]]:
    """Return what groups had committed; damaged rows have been named."""
    path = files.files.get(OFFSETS_FILE)
    content = None if path is None else read_config(path)[0]
    return {} if path is None or content is None else dict(read_offsets(content, path))


def _print(imported: Imported, config: Path | None) -> None:
    source, target, adoption = imported.source, imported.target, imported.adoption
    scan, missing = imported.recovery.scan, imported.recovery.skipped_queue_offsets
    for note in _notes(imported):
        click.echo(one_line(note))
    for hole in scan.holes[:MAX_SHOWN]:
        click.echo(f"damage: no record at physical offset {hole.first_offset} to {hole.end_offset}: {hole.reason}")
    if len(scan.holes) > MAX_SHOWN:
        click.echo(f"... and {len(scan.holes) - MAX_SHOWN} more: --json lists them all")
    if missing:
        click.echo(
            f"damage: {missing} messages that the consume queues name are not in the log, which ends at "
            f"{scan.end_offset}: its newest files are missing, or were copied before the queues were"
        )
    click.echo(
        f"{target}: imported {scan.records} records in {len(source.segments)} segments, {adoption.messages} messages "
        f"in {adoption.queues} queues of {len(adoption.topics)} topics; start it with the same settings: "
        f"headrace serve{'' if config is None else f' --config {config}'} --data-dir {target}"
    )


def _notes(imported: Imported) -> Iterator[str]:
    """Yield the lines about what is no damage, but not as one might think."""
    source, adoption, scan, popped = imported.source, imported.adoption, imported.recovery.scan, imported.popped
    if not source.segments:
        without = f", without {' and '.join(source.left_out)}" if source.left_out else ""
        yield (
            f"note: {source.root} has no commit log: its topics and groups are taken over{without}; where its log is "
            "elsewhere, remove the new store and name the log with --commit-log"
        )
    yield from (f"note: {note}" for note in imported.config_notes)
    if not source.was_clean:
        yield "note: the broker had not noted a clean end: its log was recovered as after a crash"
    if scan.torn_offset >= 0:
        yield f"note: the log ends at {scan.torn_offset} in a record that is not whole: {scan.torn_reason}"
    yield from _named(adoption.deleted, "topics were deleted before, their messages stay hidden")
    yield from _named(
        adoption.remade,
        "topics were deleted and made again before, the messages of the former ones stay hidden",
    )
    yield from _named(
        source.light_queues,
        "light queues (enableLmq) are left out, which Headrace does not have; their messages are in the topics they "
        "were sent to",
    )
    yield from _named(
        imported.damaged_queues,
        "consume queues hold something else than entries: they are made anew from the log",
    )
    if adoption.timed:
        yield (
            f"note: {adoption.timed} messages with a delivery time of their own (RocketMQ 5): what was delivered "
            "already is delivered again"
        )
    for (group, topic), messages in list(popped.messages.items())[:MAX_SHOWN]:
        yield (
            f"note: {messages} messages of {topic} were taken by POP consumers of group {group} and not acknowledged: "
            "they are not given to it again, its offset stands behind them"
        )
    if len(popped.messages) > MAX_SHOWN:
        yield f"... and of {len(popped.messages) - MAX_SHOWN} more groups and topics: --json lists them all"
    if popped.unread:
        yield (
            f"note: {popped.unread} notes of what POP consumers took or acknowledged cannot be read: the messages that "
            "they are about are not counted"
        )
    yield from _named(
        source.batch_topics,
        "topics have batches that are one record (RocketMQ 5's BatchCQ): 5.x clients take them apart, others get their "
        "bytes as stored, and a group whose offset lies within one goes on behind it",
    )


def _named(names: Sequence[str], what: str) -> Iterator[str]:
    """Yield a line about things that have names, the first of which are in it; none where there are none."""
    if names:
        yield f"note: {len(names)} {what}: {', '.join(names[:MAX_SHOWN])}"
