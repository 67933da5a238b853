"""The settings tree: every setting, its default and what it means.

The string under a field is its documentation: ``reference`` reads it from this source for the sample TOML and
``docs/settings.md``, so meaning, default and range stand in one place. A number's unit is the end of its name; a
``_bytes`` field also takes sizes such as ``"64MiB"`` and a ``_ms`` field durations such as ``"250ms"`` or ``"72h"``.

``option`` attaches what ``validate`` checks: an inclusive range, and values outside it that have a meaning of their
own (``special``), such as 0 for "no limit".
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40
SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000

Durability = Literal["fsync", "async"]
LogLevel = Literal["debug", "info", "warning", "error"]

Value = TypeVar("Value")


def option(
    default: Value,
    *,
    least: float | None = None,
    most: float | None = None,
    special: tuple[float, ...] = (),
    form: str = "",
    dynamic: bool = False,
) -> Value:
    """Declare one setting: its default and what is accepted.

    Args:
        default: Value when nothing sets it.
        least: Smallest accepted number; for a tuple, of its items.
        most: Largest accepted number; for a tuple, of its items.
        special: Numbers outside the range that are accepted too.
        form: Text form that ``validate`` knows by this name: "address" or "delay-levels".
        dynamic: The value may change while the broker runs.
    """
    metadata = {"least": least, "most": most, "special": special, "form": form, "dynamic": dynamic}
    declared: Any = field(default=default, metadata=metadata)
    return declared  # type: ignore[no-any-return]  # a field stands for its value in a dataclass body


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicSettings:
    """What one topic does differently from the broker's defaults."""

    durability: Durability | None = None
    """Durability level of this topic; leave it out to follow ``store.durability``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreSettings:
    """Where messages are kept, how safe they are once acknowledged, and how much room they may take."""

    data_dir: Path = option(Path("store"))
    """Folder of the store, made when missing; one broker process owns it at a time. ``--data-dir`` is short for it.
    A relative path starts at the working directory of the process, so give an absolute one to a service."""

    durability: Durability = option("fsync")
    """What an acknowledgement promises. ``fsync``: the message is on the disk, and a power cut does not lose it.
    ``async``: the operating system has it; a crash of the process loses nothing, a power cut up to
    ``flush_interval_ms``. Choose ``async`` when latency counts more than the last half second."""

    segment_bytes: int = option(1 * GIB, least=1 * MIB, most=1 * GIB)
    """Size of one commit log file; each is preallocated whole. Fixed for the life of a store: RocketMQ tools expect
    files of one size. Smaller ones give room back sooner and suit small disks and tests."""

    flush_interval_ms: int = option(500, least=10, most=MINUTE_MS)
    """At level ``async``, the longest time between two flushes to disk. Lower it to lose less in a power cut."""

    max_unflushed_bytes: int = option(64 * MIB, least=1 * MIB, most=4 * GIB)
    """Bytes that may wait for the disk. At the bound the broker stops reading from publishers until a flush returns.
    Raise it for a fast disk with long pauses; it is memory that can become dirty at once."""

    budget_bytes: int = option(0, least=1 * MIB, most=1024 * TIB, special=(0,))
    """Room the store may take on its disk; ``refuse_percent`` refers to it. 0 = its own bytes plus what is free.
    Set it when other programs write to the same disk. It must hold at least one segment."""

    refuse_percent: int = option(90, least=10, most=99)
    """Share of the budget from which publishing is refused."""

    queue_file_bytes: int = option(6_000_000, least=400, most=1 * GIB)
    """Size of one consume queue file, 20 bytes for each message, rounded up to a whole number of entries. Fixed for
    the life of a store."""

    open_segments: int = option(64, least=2, most=65_536)
    """Commit log files kept mapped at once. Raise it when consumers read far apart in a log of many segments."""

    open_queue_files: int = option(256, least=2, most=1_000_000)
    """Consume queue files kept open at once, a file descriptor each. Raise it towards the number of busy topics."""

    checkpoint_interval_ms: int = option(10 * SECOND_MS, least=10, most=10 * MINUTE_MS)
    """Longest time between two checkpoints while messages arrive. A checkpoint syncs the consume queues and notes how
    far they reach; recovery after a crash starts there, so a longer interval means a slower start."""

    checkpoint_bytes: int = option(256 * MIB, least=1 * MIB, most=64 * GIB)
    """Bytes appended after which a checkpoint is made before its time; recovery reads about a gigabyte a second."""

    topics: Mapping[str, TopicSettings] = field(default_factory=lambda: MappingProxyType({}))
    """What single topics do differently: one table ``[topics."NAME"]`` for each, in the file only."""

    def durability_of(self, topic: str) -> Durability:
        """Return the durability level of a topic."""
        override = self.topics.get(topic)
        return (override.durability if override else None) or self.durability


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerSettings:
    """Identity of this broker and the bounds of its topics and channels."""

    node_id: int = option(-1, least=0, most=65_535, special=(-1,))
    """Number of this broker in message ids; two brokers whose consumers overlap need different ones. -1 = derived from
    the host name as nsqd does (0 to 1023)."""

    name: str = option("")
    """Name of this broker in listings and statistics. Empty = the host name."""

    delay_levels: str = option("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", form="delay-levels")
    """RocketMQ's numbered delays, the first is level 1: whole numbers with s, m, h or d, shortest first. Only append
    to the list of a store in use: its delayed messages name a level.
    They are for RocketMQ clients; NSQ clients name a delay in ms."""

    journal_interval_ms: int = option(1 * SECOND_MS, least=10, most=4 * SECOND_MS)
    """Longest time until a finished message is noted on disk. A crash redelivers what was finished later than that."""

    max_deferred_in_memory: int = option(10_000_000, least=1_000, most=1_000_000_000)
    """Deferred messages of one channel that wait in memory, 24 bytes each. Beyond it those that are not due for long
    wait in files. Lower it where many channels defer much."""

    ephemeral_messages: int = option(10_000, least=1, most=100_000_000)
    """Messages an ``#ephemeral`` topic or channel keeps in memory; above it new ones are dropped and counted."""

    ephemeral_bytes: int = option(64 * MIB, least=64 * KIB, most=1 * TIB)
    """Bytes an ``#ephemeral`` topic keeps in memory; above it new messages are dropped and counted."""

    max_topics: int = option(20_000, least=1, most=1_000_000)
    """Topics this broker holds; creating one more is refused. A bound against clients that invent names."""

    max_channels: int = option(100_000, least=1, most=10_000_000)
    """Channels of all topics this broker holds; creating one more is refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NsqSettings:
    """The NSQ protocol: listeners, limits and what clients may negotiate. Defaults are nsqd's."""

    enabled: bool = option(True)
    """Serve the NSQ protocol."""

    tcp_address: str = option("127.0.0.1:4150", form="address")
    """Where NSQ clients connect, ``host:port``; port 0 takes a free one. ``0.0.0.0:4150`` or ``[::]:4150`` listens
    everywhere: whoever reaches the port can then publish and consume."""

    http_address: str = option("127.0.0.1:4151", form="address")
    """Where nsqd's HTTP interface listens, ``host:port``; empty = not at all."""

    broadcast_address: str = option("")
    """Host name or address by which clients reach this broker, as listings show it. Empty = the host name."""

    max_message_bytes: int = option(1 * MIB, least=1, most=4 * MIB)
    """Largest body of one message; larger ones are refused with E_BAD_MESSAGE."""

    max_body_bytes: int = option(5 * MIB, least=1 * KIB, most=64 * MIB)
    """Largest body of one command (MPUB, IDENTIFY, HTTP /mpub). Each connection may buffer this much."""

    max_rdy_count: int = option(2_500, least=1, most=1_000_000)
    """Largest window (RDY) a consumer may ask for."""

    msg_timeout_ms: int = option(1 * MINUTE_MS, least=10, most=24 * HOUR_MS)
    """Time a consumer has to finish a message before it is delivered again, unless the client negotiates another."""

    max_msg_timeout_ms: int = option(15 * MINUTE_MS, least=10, most=24 * HOUR_MS)
    """Longest such time a client may negotiate, and the longest a message can be kept in flight with TOUCH."""

    max_req_timeout_ms: int = option(1 * HOUR_MS, least=0, most=8_760 * HOUR_MS)
    """Longest delay of REQ (longer ones are clamped) and of DPUB (longer ones are refused)."""

    heartbeat_interval_ms: int = option(30 * SECOND_MS, least=1 * SECOND_MS, most=10 * MINUTE_MS)
    """Time between heartbeats for clients that negotiate none. A connection silent for two of them is closed."""

    max_heartbeat_interval_ms: int = option(1 * MINUTE_MS, least=1 * SECOND_MS, most=10 * MINUTE_MS)
    """Longest heartbeat interval a client may negotiate."""

    output_buffer_bytes: int = option(16 * KIB, least=64, most=16 * MIB)
    """Bytes gathered for a consumer before they are sent, for clients that negotiate nothing."""

    max_output_buffer_bytes: int = option(64 * KIB, least=64, most=16 * MIB)
    """Largest output buffer a client may negotiate."""

    output_buffer_timeout_ms: int = option(250, least=1, most=MINUTE_MS)
    """Longest time a message waits in the output buffer, for clients that negotiate nothing."""

    min_output_buffer_timeout_ms: int = option(25, least=1, most=MINUTE_MS)
    """Shortest output buffer time a client may negotiate."""

    max_output_buffer_timeout_ms: int = option(30 * SECOND_MS, least=1, most=10 * MINUTE_MS)
    """Longest output buffer time a client may negotiate."""

    write_high_water_bytes: int = option(1 * MIB, least=16 * KIB, most=1 * GIB)
    """Bytes that may wait for one slow connection; at the bound nothing more is delivered to or read from it."""

    max_channel_consumers: int = option(0, least=1, most=1_000_000, special=(0,))
    """Consumers one channel accepts; 0 = no limit."""

    max_connections: int = option(0, least=1, most=10_000_000, special=(0,))
    """Connections accepted at once; 0 = the process's limit of open files less what the store needs."""

    max_deflate_level: int = option(6, least=1, most=9)
    """Highest deflate level a client may negotiate. Higher levels cost much CPU time for little."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdminSettings:
    """The admin HTTP interface: health, metrics, inspection."""

    enabled: bool = option(True)
    """Serve the admin interface."""

    address: str = option("127.0.0.1:9877", form="address")
    """Where it listens, ``host:port``; port 0 takes a free one. It has no password: keep it on an inner network."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSettings:
    """What the process writes to standard error."""

    level: LogLevel = option("info", dynamic=True)
    """Least severe line that is written. ``debug`` logs every command and is slow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Everything that can be set, one section for each part of the broker."""

    store: StoreSettings = field(default_factory=StoreSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    nsq: NsqSettings = field(default_factory=NsqSettings)
    admin: AdminSettings = field(default_factory=AdminSettings)
    log: LogSettings = field(default_factory=LogSettings)


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingField:
    """One setting as the loaders, the checks and the reference see it."""

    section: str
    name: str
    type: Any
    default: Any
    least: float | None
    most: float | None
    special: tuple[float, ...]
    form: str
    dynamic: bool

    @property
    def path(self) -> str:
        """``store.segment_bytes``: the key in messages and in the file."""
        return f"{self.section}.{self.name}"

    @property
    def choices(self) -> tuple[str, ...]:
        """The words a ``Literal`` setting accepts; empty for any other."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def item_type(self) -> type[int] | type[float] | None:
        """The type of the numbers of a list; None for a single value."""
        return get_args(self.type)[0] if get_origin(self.type) is tuple else None

    @property
    def flag(self) -> str:
        """``--store.segment-bytes``."""
        return "--" + self.path.replace("_", "-")

    @property
    def variable(self) -> str:
        """``HEADRACE_STORE__SEGMENT_BYTES``."""
        return f"HEADRACE_{self.section}__{self.name}".upper()


def sections() -> dict[str, type[Any]]:
    """Return the class of every section by its name, in order."""
    return dict(get_type_hints(Settings))


def setting_fields() -> Iterator[SettingField]:
    """Yield every setting that has one value; the ``topics`` table is not among them."""
    for section, cls in sections().items():
        hints = get_type_hints(cls)
        for declared in fields(cls):
            if declared.metadata:
                yield SettingField(
                    section=section,
                    name=declared.name,
                    type=hints[declared.name],
                    default=declared.default,
                    **declared.metadata,
                )
