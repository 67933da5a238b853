"""``headrace store import``: make a Headrace store of a RocketMQ broker's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from headrace.broker.adoption import Adoption, adopt_topics
from headrace.broker.consumers.stored_groups import require_readable
from headrace.broker.topic import TopicConfig
from headrace.broker.topics_file import read_topics
from headrace.broker.withheld.schedule import parse_levels
from headrace.cli.options import SettingsCommand, read_settings, settings_flags
from headrace.cli.output import ShowBytes, byte_bars, json_option, print_json
from headrace.clock import Clock
from headrace.format.layout import StoreLayout
from headrace.settings import Settings
from headrace.store.foreign import ForeignStore, copy_foreign, look_at_foreign, move_up
from headrace.store.opening import RecoveryReport
from headrace.store.store import Store

DAMAGED: Final = 3
MAX_SHOWN: Final = 20


@click.command("import", cls=SettingsCommand, short_help="Copy the store of a RocketMQ 4 broker.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--commit-log", type=click.Path(path_type=Path), metavar="DIR",
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
    configs, _ = read_topics(StoreLayout(directory).config)
    without_log = bool(configs) and commit_log is None
    source = look_at_foreign(
        directory, commit_log, new_segment_bytes=settings.store.segment_bytes if without_log else None
    )
    require_readable(StoreLayout(directory).config, source.config_files)
    with byte_bars() as bar:
        adoption, recovery = take_over(source, configs, settings, bar)
    if as_json:
        shown = {
            "directory": str(settings.store.data_dir),
            "was_clean": source.was_clean,
            "left_out": source.left_out,
            **_facts(adoption, recovery),
        }
        print_json(shown)
    else:
        _print(source, settings.store.data_dir, adoption, recovery)
    return DAMAGED if recovery.scan.holes or recovery.skipped_queue_offsets else 0


def take_over(
    source: ForeignStore, configs: Mapping[str, TopicConfig | None], settings: Settings, bar: ShowBytes
) -> tuple[Adoption, RecoveryReport]:
    """Copy, check and adopt; the new store is there as a whole or not at all."""
    target = Path(settings.store.data_dir)
    clock = Clock()
    with copy_foreign(source, target, clock.now_ms(), lambda done, total: bar("copying", done, total)) as staging:
        total = len(source.segments) * source.segment_bytes
        store = Store.open(
            replace(settings.store, data_dir=staging, segment_bytes=source.segment_bytes),
            clock,
            schedule_delays_ms=parse_levels(settings.broker.delay_levels),
            on_scanned=lambda offset: bar("checking", offset - source.first_offset, total),
        )
        try:
            adoption = adopt_topics(store, configs, clock)
        finally:
            store.close()
        move_up(staging)
    return adoption, store.recovery


def _facts(adoption: Adoption, recovery: RecoveryReport) -> dict[str, Any]:
    return {
        "records": recovery.scan.records,
        "end_offset": recovery.scan.end_offset,
        "holes": [dataclasses.asdict(hole) for hole in recovery.scan.holes],
        "torn_offset": recovery.scan.torn_offset,
        "missing_messages": recovery.skipped_queue_offsets,
        **dataclasses.asdict(adoption),
    }


def _print(source: ForeignStore, target: Path, adoption: Adoption, recovery: RecoveryReport) -> None:
    scan = recovery.scan
    if not source.segments:
        without = f", without {' and '.join(source.left_out)}" if source.left_out else ""
        click.echo(
            f"note: {source.root} has no commit log: its topics and groups are taken over{without}; where its log is "
            "elsewhere, remove the new store and name the log with --commit-log"
        )
    if not source.was_clean:
        click.echo("note: the broker had not noted a clean end: its log was recovered as after a crash")
    if scan.torn_offset >= 0:
        click.echo(f"note: the log ends at {scan.torn_offset} in a record that is not whole: {scan.torn_reason}")
    if adoption.deleted:
        names = ", ".join(adoption.deleted[:MAX_SHOWN])
        click.echo(f"note: {len(adoption.deleted)} topics were deleted before, their messages stay hidden: {names}")
    if adoption.timed:
        click.echo(
            f"note: {adoption.timed} messages with a delivery time of their own (RocketMQ 5): what was delivered "
            "already is delivered again"
        )
    for hole in scan.holes[:MAX_SHOWN]:
        click.echo(f"damage: no record at physical offset {hole.first_offset} to {hole.end_offset}: {hole.reason}")
    if len(scan.holes) > MAX_SHOWN:
        click.echo(f"... and {len(scan.holes) - MAX_SHOWN} more: --json lists them all")
    if recovery.skipped_queue_offsets:
        click.echo(
            f"damage: {recovery.skipped_queue_offsets} messages that the consume queues name are not in the log, which "
            f"ends at {scan.end_offset}: its newest files are missing, or were copied before the queues were"
        )
    click.echo(
        f"{target}: imported {scan.records} records in {len(source.segments)} segments, {adoption.messages} messages "
        f"in {adoption.queues} queues of {len(adoption.topics)} topics; start it with: "
        f"headrace serve --data-dir {target}"
    )
