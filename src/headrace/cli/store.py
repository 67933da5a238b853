"""``headrace store``: look at a store without changing it; take over one of RocketMQ's."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.text import Text

from headrace.broker.catalog import Catalog
from headrace.broker.channels.stored_channels import (
    JournalView,
    check_channels,
    read_catalog,
    read_journal,
    written_control_records,
)
from headrace.broker.consumers.stored_groups import check_config_file, check_groups
from headrace.cli.options import FolderPath
from headrace.cli.output import byte_bars, draw_table, json_option, print_json, result_console
from headrace.cli.program import complain
from headrace.cli.store_import import import_store
from headrace.errors import QueueNotFoundError, SideFileError, one_line
from headrace.format.names import CONTROL_TOPIC
from headrace.registry.kv_config import KV_FILE, KV_FOLDER, find_kv_fault
from headrace.store.check import check_store
from headrace.store.check_report import STATUS, CheckReport
from headrace.store.dump import Selection, dump_entries, dump_records
from headrace.store.inspect import Tail, inspect_store
from headrace.store.reader import StoreReader

MAX_SHOWN: Final = 100

directory_argument = click.argument("directory", metavar="DIR", type=FolderPath())


@click.group(short_help="Check, read and import stores.")
def store() -> None:
    """Check and read a store, DIR being a broker's --data-dir.

    check, inspect and dump lock and change nothing: they also work while a broker has the store open. import makes a
    new store of a RocketMQ broker's, which it leaves as it is.
    """


store.add_command(import_store)


@store.command()
@directory_argument
@json_option
def check(directory: Path, as_json: bool) -> int:
    """Verify every record, queue entry and side file.

    \b
    Exit codes:
      0  whole; what a killed broker left behind its last flush is no damage
      1  damaged but readable: each damaged or misplaced record is named
      2  unreadable: not a store, identity damaged, or of a newer version

    \b
    Examples:
      headrace store check /var/lib/headrace
      headrace store check /var/lib/headrace --json | jq '.damage[]'
    """
    with byte_bars() as bars:
        report = check_store(directory, partial(bars, "checking"), _check_broker)
    if as_json:
        print_json(report.to_json())
    else:
        _print_report(report)
    return report.exit_code


def _check_broker(reader: StoreReader, report: CheckReport) -> None:
    """Check what the broker, and the registry in it, keep in the store."""
    check_channels(reader, report)
    check_groups(reader, report)
    kv_path = reader.root / KV_FOLDER / KV_FILE
    check_config_file(reader, report, kv_path, find_kv_fault, "the next start takes its copy, older by a change")


@store.command()
@directory_argument
@json_option
def inspect(directory: Path, as_json: bool) -> int:
    """Show identity, epochs, segments, topics, queues and channels.

    What queues and channels have is read from their files, and from the log where the files are behind.

    \b
    Exit codes:
      0  shown; whether it is whole is what check says
      1  shown but for what a failed read left out
      2  unreadable: not a store, identity damaged, or of a newer version

    \b
    Examples:
      headrace store inspect /var/lib/headrace
      headrace store inspect /var/lib/headrace --json | jq '.topics.orders'
    """
    shown, tail = inspect_store(directory)
    shown["channels"] = _channels(StoreReader(directory), shown["topics"], tail)
    if as_json:
        print_json(shown)
    else:
        _print_inspection(shown)
    for sentence in shown["unreadable"]:
        complain(
            f"{sentence}; queues and channels may have more than is shown, headrace store check says what is lost", 1
        )
    return 1 if shown["unreadable"] else 0


@store.command()
@directory_argument
@click.option("--topic", metavar="NAME", help="Only records of this topic.")
@click.option("--queue", "queue_id", type=click.IntRange(0), metavar="ID", help="Only records of this queue.")
@click.option("--from-offset", type=click.IntRange(0), metavar="N", help="Begin at this queue offset; needs --topic.")
@click.option("--physical-offset", type=click.IntRange(0), metavar="N", help="Only the record there.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Stop after so many.")
@click.option("--body", type=click.Choice(["text", "base64", "none"]), show_default="text",
              help="How to show message bodies.")  # fmt: skip
@click.option("--queue-entries", is_flag=True, help="Dump consume-queue entries instead of records.")
@click.option("--control", is_flag=True, help="Dump control records: creations and deletions of topics and channels.")
def dump(directory: Path, queue_entries: bool, control: bool, **chosen: Any) -> None:
    """Print records as JSON, one a line.

    --from-offset and --queue-entries go by the queue files, which a living broker writes behind the log, every
    store.checkpoint_interval_ms (10 s by default).

    \b
    Examples:
      headrace store dump DIR --topic orders --limit 10
      headrace store dump DIR --topic orders --queue 0 --from-offset 5000 --body base64
      headrace store dump DIR --physical-offset 1073741824
      headrace store dump DIR --queue-entries --topic orders
      headrace store dump DIR --control
    """
    if control:
        if chosen["topic"] not in (None, CONTROL_TOPIC):
            raise click.UsageError("--control and --topic name two different topics")
        chosen["topic"] = CONTROL_TOPIC
    if chosen["physical_offset"] is not None and (queue_entries or chosen["from_offset"] is not None):
        other = "--queue-entries" if queue_entries else "--from-offset"
        raise click.UsageError(f"--physical-offset names one record, which leaves nothing to {other}: give one of them")
    if queue_entries and chosen["body"] is not None:
        raise click.UsageError("--queue-entries have no bodies, which leaves nothing to --body: give one of them")
    chosen["body"] = chosen["body"] or "text"
    if chosen["from_offset"] is not None and chosen["topic"] is None and not queue_entries:
        raise click.UsageError("--from-offset counts within a queue: name its --topic too")
    selection = Selection(**chosen)
    reader = StoreReader(directory)
    lines = dump_entries(reader, selection) if queue_entries else dump_records(reader, selection)
    try:
        for line in lines:
            sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    except QueueNotFoundError:
        if not _is_made(reader, selection):
            raise


def _is_made(reader: StoreReader, selection: Selection) -> bool:
    """Whether a queue exists that a selection names: the first message makes its files, not the creation."""
    _, tail = inspect_store(reader.root)
    return any(
        selection.topic in (None, topic) and (selection.queue_id or 0) < entry.queues
        for topic, entry in _catalog(reader, tail).topics.items()
    )


def _print_report(report: CheckReport) -> None:
    if report.error is not None:
        complain(report.error, report.exit_code)
        click.echo(f"{report.directory}: unreadable")
        return
    for finding in report.info:
        click.echo(f"note: {one_line(finding.message)}")
    for finding in report.damage[:MAX_SHOWN]:
        where = f" [{finding.file}]" if finding.file is not None else ""
        click.echo(one_line(f"damage: {finding.kind}: {finding.message}{where}"))
    if len(report.damage) > MAX_SHOWN:
        click.echo(f"... and {len(report.damage) - MAX_SHOWN} more: --json lists them all")
    log, queues, channels = report.log, report.queues, report.channels
    speed = log.checked_bytes / 1e6 / report.seconds if report.seconds else 0.0
    click.echo(
        f"{report.directory}: {STATUS[report.exit_code]} ({report.state}), {log.records} records in {log.segments} "
        f"segments {log.first_offset}..{log.end_offset}, {queues.entries} entries in {queues.queues} queues of "
        f"{queues.topics} topics, {channels.channels} channels, {report.index.keys} indexed keys; "
        f"{report.seconds:.1f} s, {speed:.0f} MB/s"
    )


def _channels(reader: StoreReader, topics: dict[str, list[dict[str, Any]]], tail: Tail) -> list[dict[str, Any]]:
    """Every durable channel with its floors and counts, from catalog, control records and journal."""
    catalog = _catalog(reader, tail)
    view = read_journal(reader.directory.channels)
    ends = {(topic, queue["queue_id"]): queue["next_offset"] for topic, queues in topics.items() for queue in queues}
    return [
        _channel(catalog, view, ends, topic, name)
        for topic, entry in sorted(catalog.topics.items())
        for name in sorted(entry.channels)
    ]


def _catalog(reader: StoreReader, tail: Tail) -> Catalog:
    try:
        payload = reader.side_file(reader.directory.catalog, "catalog")
    except SideFileError:
        payload = None
    return read_catalog(payload, {*written_control_records(reader), *tail.control})


def _channel(
    catalog: Catalog, view: JournalView, ends: dict[tuple[str, int], int], topic: str, name: str
) -> dict[str, Any]:
    entry = catalog.topics[topic].channels[name]
    state = view.channels.get(entry.key.to_bytes(8, "big"))
    queues = []
    for queue_id, start in enumerate(entry.start):
        floor = max(start, state.floors.get(queue_id, 0)) if state is not None else start
        finished = state.count_finished(queue_id) if state is not None else 0
        end = ends.get((topic, queue_id), 0)
        queues.append({
            "queue_id": queue_id, "start": start, "floor": floor, "finished_above_floor": finished,
            "unfinished": max(0, end - floor - finished),
        })  # fmt: skip
    waiting = state.live_entries() if state is not None else []
    return {
        "topic": topic,
        "channel": name,
        "key": entry.key,
        "paused": entry.paused,
        "deferred": sum(due_ms > 0 for due_ms, _, _, _ in waiting),
        "requeued": sum(due_ms == 0 for due_ms, _, _, _ in waiting),
        "unfinished": sum(queue["unfinished"] for queue in queues),
        "queues": queues,
    }


def _print_inspection(shown: dict[str, Any]) -> None:
    identity, checkpoint, mark = shown["identity"], shown["checkpoint"], shown["durable_mark"]
    console = result_console()
    console.print(
        f"store {identity['store_id']}, format {identity['format_version']}, {shown['state']}, epoch {shown['epoch']}, "
        f"durable mark {'none' if mark is None else mark}, "
        f"checkpoint {checkpoint['physical_offset'] if checkpoint else 'none'}, "
        f"{len(shown['holes'])} holes",
        markup=False,
    )
    segments = shown["segments"]
    _print_table(
        console, "segments", ["file", "size", "allocated", "first record stored (ms)"],
        [[s["file"], s["size_bytes"], s["allocated_bytes"], s["first_store_timestamp_ms"] or "-"] for s in segments],
    )  # fmt: skip
    _print_table(
        console, "queues", ["topic", "queue", "min offset", "next offset", "files"],
        [[topic, q["queue_id"], q["min_offset"], q["next_offset"], q["files"]]
         for topic, queues in shown["topics"].items() for q in queues],
    )  # fmt: skip
    index = shown["index"] or {"files": []}
    _print_table(
        console, "index files", ["file", "keys", "slots used", "begins at", "ends at", "allocated"],
        [[f["file"], f["keys"], f["used_slots"], f["begin_offset"], f["end_offset"], f["allocated_bytes"]]
         for f in index["files"]],
    )  # fmt: skip
    _print_table(
        console, "channels", ["topic", "channel", "floors", "unfinished", "deferred", "requeued", "paused"],
        [[c["topic"], c["channel"], " ".join(str(q["floor"]) for q in c["queues"]), c["unfinished"], c["deferred"],
          c["requeued"], "yes" if c["paused"] else "no"] for c in shown["channels"]],
    )  # fmt: skip


def _print_table(console: Console, title: str, columns: list[str], rows: list[list[object]]) -> None:
    console.print(Text(f"{title} ({len(rows)})", "table.title"))
    texts = [[one_line(str(cell)) for cell in row] for row in rows]
    console.print(draw_table(columns, texts, console.width, is_right=[at > 0 for at in range(len(columns))]))
