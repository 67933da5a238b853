"""What a run of the archive job is about to write: the next epoch, and the ranges of the logs that it covers.

The plan is written down before the files are. A run that did not end leaves it; the next one carries out the same plan,
without what the logs have lost since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.spark.errors import DataLossError
from headrace.spark.jobs.manifest import (
    FOLDER,
    PLAN,
    BrokerRange,
    Manifest,
    Selection,
    unseal,
)

if TYPE_CHECKING:
    from headrace.spark.files import LogExtent
    from headrace.spark.jobs.archive import Config
    from headrace.spark.scan import LogSplit, Source


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run is about to write: the next epoch and its ranges of the log."""

    epoch: int
    selection: Selection
    splits: list[tuple[str, int, int]]
    """Broker, first and end physical offset, in the order of the tasks."""
    starts: Mapping[str, int]
    """Broker -> where the epoch begins: where the one before ended."""
    segment_bytes: Mapping[str, int]
    store_ids: Mapping[str, str]
    voids: Mapping[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Broker -> ranges without a file that a recovery left out of its log: nobody has lost anything there."""
    lost_ends: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Broker -> the range up to its durable end that no file of its log holds; as it is now, whoever made the plan."""
    absent: Mapping[str, int] = field(default_factory=dict)
    """Broker of the archive or of the plan that nobody knows -> up to where its log is archived; as it is now."""

    @property
    def bytes(self) -> int:
        """Bytes of log."""
        return sum(end - start for _, start, end in self.splits)

    @property
    def brokers(self) -> dict[str, BrokerRange]:
        """What the epoch covers of each log."""
        return {
            broker: BrokerRange(
                start=self.starts[broker],
                end=max(end for name, _, end in self.splits if name == broker),
                store_id=self.store_ids[broker],
            )
            for broker in sorted({name for name, _, _ in self.splits})
        }

    @property
    def voided_bytes(self) -> int:
        """Bytes between what is archived and the end that a recovery left out."""
        return sum(
            max(0, min(high, covered.end) - max(low, covered.start))
            for broker, covered in self.brokers.items()
            for low, high in self.voids.get(broker, ())
        )

    @property
    def missing_bytes(self) -> int:
        """Bytes between what is archived and the end that the log no longer has."""
        covered_bytes = sum(covered.end - covered.start for covered in self.brokers.values())
        return covered_bytes - self.bytes - self.voided_bytes


def make_plan(source: Source, config: Config, manifest: Manifest, *, at_once: int | None = None) -> tuple[Plan, bool]:
    """Return what to write, and whether that is the plan of a run that did not end.

    Args:
        at_once: How many ranges are written at a time, where that is known.

    Raises:
        ConfigError: the archive holds another selection or another store, or its log has lost what was archived.
        DataLossError: what comes next is gone, and ``on_data_loss`` does not say to go on.
        ArchiveError: the plan is damaged.
    """
    from headrace.spark.jobs.cut_source import CutSource  # noqa: PLC0415  # needs pyarrow

    selection = config.selection
    left = read_plan(config.to)
    if left is not None and left.epoch != len(manifest.epochs) + 1:
        left = None  # its epoch was written
    held = left.selection if left is not None else manifest.selection
    if held is not None:
        refuse_other(selection, held, config.to)
    # Without what files of a store's log lack that are too short.
    extents = {
        extent.broker: source.on_disk(extent) if isinstance(source, CutSource) else extent
        for extent in source.extents()
    }
    planned = left.store_ids if left is not None else {}
    store_ids = manifest.store_ids | {broker: store_id for broker, store_id in planned.items() if store_id}
    refuse_other_stores(extents, manifest.ends, store_ids, config.to)
    if left is not None:
        absent = absent_of({**left.starts, **manifest.ends}, extents)
        return replace(fit_plan(left, extents, config), absent=absent), True
    starts = {broker: manifest.ends.get(broker, extent.origin) for broker, extent in extents.items()}
    splits = plan_splits(source, config, starts, extents, at_once)
    return Plan(
        epoch=len(manifest.epochs) + 1,
        selection=selection,
        splits=[(split.broker, split.start, split.end) for split in splits],
        starts=starts,
        segment_bytes={broker: extent.segment_bytes for broker, extent in extents.items()},
        store_ids={broker: extent.store_id for broker, extent in extents.items()},
        voids={broker: voids_of(extent) for broker, extent in extents.items()},
        lost_ends=lost_ends_of(extents),
        absent=absent_of(manifest.ends, extents),
    ), False


def fit_plan(plan: Plan, extents: Mapping[str, LogExtent], config: Config) -> Plan:
    """Return the plan of a run that did not end without what the logs have lost since.

    A broker that is away is left out: the next run plans its log anew. Of one that has lost all that was planned an
    empty range stays, so that the epoch covers the loss, but nothing behind the end of the log: what will lie there is
    none of that.

    Raises:
        DataLossError: a log has lost something, and ``on_data_loss`` does not say to go on.
    """
    splits: list[tuple[str, int, int]] = []
    for broker, start, end in plan.splits:
        extent = extents.get(broker)
        if extent is None:
            continue
        there = [(max(start, low), min(end, high)) for low, high in extent.runs if low < end and high > start]
        if there != [(start, end)] and config.on_data_loss != "continue":
            raise lost_range(extent, start, end)
        known_end = max([extent.end, *(high for _, high in extent.missing)])
        covered = max(plan.starts[broker], min(end, known_end))
        splits += [(broker, first, last) for first, last in there] or [(broker, covered, covered)]
    return replace(plan, splits=splits, lost_ends=lost_ends_of(extents))


def plan_splits(
    source: Source,
    config: Config,
    starts: Mapping[str, int],
    extents: Mapping[str, LogExtent],
    at_once: int | None,
) -> list[LogSplit]:
    """Return the ranges of the log behind what is archived, at most ``max_bytes`` of each broker.

    Raises:
        DataLossError: what comes next is gone, and ``on_data_loss`` does not say to go on.
    """
    from headrace.spark import scan  # noqa: PLC0415  # needs pyarrow

    for broker, start in starts.items():
        if config.on_data_loss != "continue":
            if start < extents[broker].start:
                raise lost_range(extents[broker], start, extents[broker].end)
            for low, high in extents[broker].missing:  # files of the log, or the end of one
                if high > start:
                    raise lost_range(extents[broker], max(low, start), high)
    starts = {broker: max(start, extents[broker].start) for broker, start in starts.items()}
    splits = scan.plan_log(
        source, split_bytes=config.split_bytes, start=starts, extents=list(extents.values()), at_once=at_once
    )
    if not config.max_bytes:
        return splits
    taken: dict[str, int] = {}
    full: set[str] = set()
    chosen = []
    for split in splits:
        before = taken.get(split.broker, 0)
        # At least one, so that a run always gets on.
        if split.broker in full or (before and before + split.size_bytes > config.max_bytes):
            full.add(split.broker)
            continue
        taken[split.broker] = before + split.size_bytes
        chosen.append(split)
    return chosen


def voids_of(extent: LogExtent) -> list[tuple[int, int]]:
    """Return the ranges between the runs of a log that are not missing: a recovery left them out."""
    voids: list[tuple[int, int]] = []
    for (_, low), (high, _) in pairwise(extent.runs):
        for first, last in (*extent.missing, (high, high)):
            if low < first <= high:
                voids.append((low, first))
            if first <= high:
                low = max(low, last)
    return voids


def lost_ends_of(extents: Mapping[str, LogExtent]) -> dict[str, tuple[int, int]]:
    """Return of which logs the end is missing, and from where to where."""
    return {
        broker: (extent.end, extent.missing[-1][1])
        for broker, extent in extents.items()
        if extent.missing and extent.missing[-1][1] > extent.end
    }


def absent_of(ends: Mapping[str, int], extents: Mapping[str, LogExtent]) -> dict[str, int]:
    """Return those of the brokers that nobody knows any more."""
    return {broker: end for broker, end in ends.items() if broker not in extents}


def lost_range(extent: LogExtent, start: int, end: int) -> DataLossError:
    """Return the error of a range that is to be archived next and that a log no longer has."""
    first, last, reason = start, min(end, extent.start), "retention has removed them"
    if extent.origin < extent.start:
        reason = "a file of the log is missing"
    if start >= extent.start:
        first = next((high for low, high in reversed(extent.runs) if low <= start), start)
        first, last, reason = max(start, first), end, "a file of the log is missing or was cut short"
        if first >= extent.end:
            reason = f"the log ends at {extent.end}"
    return DataLossError(
        f"physical offsets {first} to {last} of broker {extent.broker!r} are to be archived next and are gone: "
        f"{reason}; --on-data-loss continue goes on behind them and counts them",
        broker=extent.broker,
        first_offset=first,
        end_offset=last,
    )


def refuse_other(wanted: Selection, held: Selection, root: Path) -> None:
    """Refuse to add another selection to an archive: its messages would be there from now on only.

    Raises:
        ConfigError: they differ.
    """
    for name, value in asdict(held).items():
        now = asdict(wanted)[name]
        if now != value:
            shown = ", ".join(value) if isinstance(value, tuple) else value
            raise ConfigError(
                f"the archive {root} was begun with --{name.replace('_', '-')} {shown or '(none)'}: go on with that, "
                "or begin another archive in another folder",
                key=name,
            )


def refuse_other_stores(
    extents: Mapping[str, LogExtent], ends: Mapping[str, int], store_ids: Mapping[str, str], root: Path
) -> None:
    """Refuse to go on at an offset that means something else, or under another name.

    Args:
        ends: Up to where each broker's log is archived.
        store_ids: Identity of each broker's store, of the archive and of what a run that did not end had begun.

    Raises:
        ConfigError: a broker has another store than the one archived, or a store comes under another broker's name.
    """
    names = {store_id: broker for broker, store_id in store_ids.items() if store_id}
    for broker, extent in extents.items():
        end = ends.get(broker)
        if extent.store_id and store_ids.get(broker, extent.store_id) != extent.store_id:
            raise ConfigError(
                f"the archive {root} holds another store of broker {broker!r}: its offsets mean other messages; begin "
                "another archive in another folder",
                key="to",
            )
        if end is not None and end > extent.end:
            raise ConfigError(
                f"the log of broker {broker!r} ends at {extent.end}, the archive {root} has it up to {end}: it lost "
                "its end or is another one; begin another archive in another folder",
                key="to",
            )
        if names.get(extent.store_id, broker) != broker:
            raise ConfigError(
                f"the archive {root} holds this store as broker {names[extent.store_id]!r}, not {broker!r}: go on with "
                f"--store DIR --broker {names[extent.store_id]}, or begin another archive in another folder",
                key="broker",
            )


def read_plan(root: Path) -> Plan | None:
    """Return the plan that a run left which did not end, None when there is none.

    Raises:
        ArchiveError: it is damaged.
    """
    path = root / FOLDER / PLAN
    try:
        return unseal(path, Plan, "remove it: files of that run then stay behind, which headrace job verify names")
    except FileNotFoundError:
        return None
