"""The settings tree: every setting, its default and what it means.

The string under a field is its documentation: ``reference`` reads it from this source for the sample TOML and
``docs/settings.md``, so meaning, default and range stand in one place. A number's unit is the end of its name; a
``_bytes`` field (also one ``_per_s``) takes sizes such as ``"64MiB"`` too, and a ``_ms`` field durations such as
``"250ms"`` or ``"72h"``.

``option`` attaches what ``validate`` checks: an inclusive range, and values outside it that have a meaning of their
own (``special``), such as 0 for "no limit".
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from headrace.settings.units import parse_delays_ms

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
        least: Smallest accepted number.
        most: Largest accepted number.
        special: Numbers outside the range that are accepted too.
        form: Text form that ``validate`` knows by this name: "address", "addresses", "delay-levels", "name",
            "name-or-empty", "peer", "statsd-prefix" or "url".
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
    files of one size. Smaller ones suit small disks and tests."""

    flush_interval_ms: int = option(500, least=10, most=MINUTE_MS)
    """At level ``async``, the longest time between two flushes to disk. Lower it to lose less in a power cut."""

    max_unflushed_bytes: int = option(64 * MIB, least=1 * MIB, most=4 * GIB)
    """Bytes that may wait for the disk. At the bound the broker stops reading from publishers until a flush returns.
    Raise it for a fast disk with long pauses; it is memory that can become dirty at once."""

    budget_bytes: int = option(0, least=1 * MIB, most=1024 * TIB, special=(0,))
    """Room the store may take on its disk; ``refuse_percent`` refers to it. 0 = its own bytes plus what is free.
    Set it when other programs write to the same disk. ``refuse_percent`` of it must hold at least one segment."""

    refuse_percent: int = option(90, least=10, most=99)
    """Share of the budget from which publishing is refused."""

    queue_file_bytes: int = option(6_000_000, least=400, most=1 * GIB)
    """Size of one consume queue file, 20 bytes for each message, rounded up to a whole number of entries. Fixed for
    the life of a store."""

    index_slots: int = option(5_000_000, least=1_000, most=50_000_000)
    """Slots of one key index file, 4 bytes each: in memory for the file that is being filled. Fixed for the life of an
    index: remove ``index/`` and ``headrace/index.json`` while the broker is down to have it made anew."""

    index_entries: int = option(20_000_000, least=1_000, most=50_000_000)
    """Keys that one key index file has room for, 20 bytes each on disk as they are used. Fixed like ``index_slots``."""

    open_segments: int = option(64, least=2, most=65_536)
    """Commit log files kept mapped at once, a file descriptor each; at most a sixteenth of the limit of open files.
    Raise it when consumers read far apart in a log of many segments."""

    open_queue_files: int = option(256, least=2, most=1_000_000)
    """Consume queue files kept open at once, a file descriptor each; at most a quarter of the limit of open files.
    Raise it towards the number of busy topics."""

    checkpoint_interval_ms: int = option(10 * SECOND_MS, least=10, most=10 * MINUTE_MS)
    """Longest time between two checkpoints while messages arrive, where flushes are not further apart
    (``flush_interval_ms``). A checkpoint syncs the consume queues and notes how far they reach; recovery after a crash
    starts there, so a longer interval means a slower start. Looked at every 100 ms: less is the same."""

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

    name: str = option("", form="name-or-empty")
    """Name of this broker in listings and statistics. Empty = the host name."""

    registries: str = option("", form="addresses")
    """Registries this broker registers with, ``host:port`` with commas between them. Empty = the registry inside this
    process, if there is one. Each gets everything: registries do not talk to each other."""

    registration_interval_ms: int = option(30 * SECOND_MS, least=1 * SECOND_MS, most=1 * MINUTE_MS)
    """Time between two registrations. A registry drops a broker it has not heard from for two minutes."""

    delay_levels: str = option("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", form="delay-levels")
    """RocketMQ's numbered delays, the first is level 1: whole numbers with s, m, h or d, shortest first. Only append
    to the list of a store in use: its delayed messages name a level.
    They are for RocketMQ clients; NSQ clients name a delay in ms."""

    delay_offsets_interval_ms: int = option(10 * SECOND_MS, least=100, most=10 * MINUTE_MS)
    """Longest time until the progress of the delay levels is on disk. A crash delivers again what was delivered later
    than that; lower it where that disturbs, at the cost of two small writes each time."""

    max_delay_ms: int = option(30 * 24 * HOUR_MS, least=1 * SECOND_MS, most=3_660 * 24 * HOUR_MS)
    """Longest time from now at which a message may ask to be delivered (``TIMER_DELIVER_MS``, ``TIMER_DELAY_SEC``,
    ``TIMER_DELAY_MS`` of RocketMQ clients); a later one is refused."""

    transaction_timeout_ms: int = option(6 * SECOND_MS, least=0, most=24 * HOUR_MS)
    """Age at which a producer is first asked what became of an open transaction. A message may name one of its own."""

    transaction_check_interval_ms: int = option(30 * SECOND_MS, least=100, most=24 * HOUR_MS)
    """Time between two such questions about one transaction."""

    transaction_check_max: int = option(15, least=1, most=10_000)
    """Questions about one transaction; after the last its message goes to ``TRANS_CHECK_MAX_TIME_TOPIC``, undelivered.
    Those that no producer was there to hear do not count."""

    transaction_keep_ms: int = option(72 * HOUR_MS, least=1 * SECOND_MS, most=3_660 * 24 * HOUR_MS)
    """Time after which an open transaction goes the same way though no producer of its group was there to be asked:
    since it was stored, or since a producer was last asked."""

    max_open_transactions: int = option(1_000_000, least=1, most=100_000_000)
    """Transactions that may be open at once, some 300 bytes of memory each; one more is refused."""

    journal_interval_ms: int = option(1 * SECOND_MS, least=10, most=4 * SECOND_MS)
    """Longest time until a finished message is noted on disk. A crash redelivers what was finished later than that.
    Looked at every 50 ms: less is the same."""

    max_deferred_in_memory: int = option(10_000_000, least=1_000, most=1_000_000_000)
    """Deferred messages of one channel that wait in memory, 24 bytes each. Beyond it those that are not due for long
    wait in files. Lower it where many channels defer much."""

    ephemeral_messages: int = option(10_000, least=1, most=100_000_000)
    """Messages an ``#ephemeral`` topic keeps in memory; above it the oldest are dropped and counted."""

    ephemeral_bytes: int = option(64 * MIB, least=64 * KIB, most=1 * TIB)
    """Bytes an ``#ephemeral`` topic keeps in memory; above it the oldest messages are dropped and counted."""

    max_topics: int = option(20_000, least=1, most=1_000_000)
    """Topics this broker holds, without its own; creating one more is refused. A bound against clients that invent
    names."""

    max_channels: int = option(100_000, least=1, most=10_000_000)
    """Channels of all topics this broker holds; creating one more is refused."""

    offsets_interval_ms: int = option(5 * SECOND_MS, least=10, most=1 * MINUTE_MS)
    """Longest time until an offset that a consumer group commits is on disk. A crash redelivers what was committed
    later than that. Looked at every 50 ms: less is the same. For RocketMQ's groups; NSQ's channels have
    ``journal_interval_ms``."""

    max_groups: int = option(20_000, least=1, most=1_000_000)
    """Consumer groups this broker holds; one more is refused. A bound against clients that invent names."""

    max_group_offsets: int = option(1_000_000, least=1, most=100_000_000)
    """Committed offsets this broker holds, one for each group and queue; a commit for one more is refused."""

    group_retry_max_times: int = option(16, least=0, most=10_000)
    """Times a failed message is delivered again before it becomes a dead letter, in groups made by their first
    consumer. A group made or changed by a tool has its own number. A client that names one itself comes first: newer
    ones do (Java: ``setMaxReconsumeTimes``, 16 where it was not called)."""

    group_retry_queues: int = option(1, least=1, most=1_024)
    """Queues of the retry topic of such a group."""

    group_consume_from_min: bool = option(True)
    """Whether such a group may begin at the oldest message of a queue; tools show it."""

    client_timeout_ms: int = option(2 * MINUTE_MS, least=1 * SECOND_MS, most=1 * HOUR_MS)
    """Time without a heartbeat after which a client is no longer a member of its groups. Clients send one in 30 s."""

    max_group_members: int = option(200_000, least=1, most=10_000_000)
    """Memberships this broker keeps, one for each client and group; a heartbeat that needs more is refused."""

    max_group_subscriptions: int = option(1_000_000, least=1, most=100_000_000)
    """Subscriptions this broker keeps, one for each group and topic; a heartbeat that needs more is refused."""

    queue_lock_ms: int = option(1 * MINUTE_MS, least=1 * SECOND_MS, most=1 * HOUR_MS)
    """Time after which an orderly consumer that does not renew its lock loses a queue. Clients renew every 20 s and
    trust a lock for 30 s."""

    max_queue_locks: int = option(1_000_000, least=1, most=100_000_000)
    """Queue locks of all groups; a request for more is refused."""

    dead_letter_webhook: str = option("", form="url")
    """``http://`` or ``https://`` address that gets a JSON POST for each message that becomes a dead letter; empty =
    none. The log has a line and ``/metrics`` a counter for them anyway."""

    max_held_pulls: int = option(100_000, least=1, most=10_000_000)
    """Pulls of all connections that wait for a message; one more is answered at once, with nothing found."""

    max_statistics: int = option(50_000, least=100, most=10_000_000)
    """Topics, groups and hosts counted apart for the last minute, hour and day, about 1.2 KB each; more are not
    counted. What nothing was counted for in a day is forgotten."""

    busy_poll_us: int = option(150, least=0, most=10_000)
    """How long the event loop looks for a client's next request before it sleeps, as long as looking pays; 0 = never.
    It halves the time of a publish that a client waits for, and costs processor time while such clients are at work:
    set 0 where that is billed or limited by a quota. Nothing is looked for on a machine with one processor."""

    queue_statistics: bool = option(False)
    """Count messages of each queue apart as well, and how many bytes behind the log's end its groups read it."""

    statistics_records: bool = option(True)
    """Write down each minute what was counted, as a message in the topic ``HR_STATS``: how much was put, got, sent back
    and left to do, by topic, group, protocol and host. ``headrace job stats`` and ``alerts`` read it. Nothing is
    written when nothing was counted."""

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """The delay of each of ``delay_levels``, the first is level 1."""
        return parse_delays_ms(self.delay_levels)


@dataclass(frozen=True, kw_only=True, slots=True)
class NsqSettings:
    """The NSQ protocol: listeners, limits and what clients may negotiate. Defaults are nsqd's."""

    enabled: bool = option(True)
    """Serve the NSQ protocol."""

    tcp_address: str = option("127.0.0.1:4150", form="address")
    """Where NSQ clients connect, ``host:port``; port 0 takes a free one; empty = not at all. ``0.0.0.0:4150`` or
    ``[::]:4150`` listens everywhere: whoever reaches the port can then publish and consume."""

    http_address: str = option("127.0.0.1:4151", form="address")
    """Where nsqd's HTTP interface listens, ``host:port``; empty = not at all."""

    broadcast_address: str = option("", form="name-or-empty")
    """Host name or address by which clients reach this broker, as listings and nsqlookupds show it. Empty = the address
    it listens on, the host name where that is every address."""

    broadcast_tcp_port: int = option(0, least=1, most=65_535, special=(0,))
    """Port of ``broadcast_address`` at which NSQ clients reach this broker, as nsqlookupds tell them: for where a proxy
    or a container's port mapping is in front. 0 = the one of ``tcp_address``, as bound."""

    broadcast_http_port: int = option(0, least=1, most=65_535, special=(0,))
    """The same for HTTP: what nsqadmin and the other tools that ask nsqlookupds connect to. 0 = the one of
    ``http_address``, as bound."""

    lookupd_addresses: str = option("", form="addresses")
    """TCP addresses of the nsqlookupds to which this broker announces its topics and channels, ``host:port`` with
    commas between them: consumers that ask those find it. Each gets everything; the registry in this process knows it
    anyway. ``PUT /config/nsqlookupd_tcp_addresses`` changes them until the next start."""

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
    """Output buffer that clients are told of when they negotiate none. Nothing waits for it to be full; see
    ``nsq.delivery_coalescing_ms``."""

    max_output_buffer_bytes: int = option(64 * KIB, least=64, most=16 * MIB)
    """Largest output buffer a client may ask for; one that asks for more is refused."""

    output_buffer_timeout_ms: int = option(250, least=1, most=MINUTE_MS)
    """Output buffer time that clients are told when they negotiate none; no message waits for so long."""

    min_output_buffer_timeout_ms: int = option(25, least=1, most=MINUTE_MS)
    """Shortest output buffer time a client may ask for; one that asks for less is refused."""

    max_output_buffer_timeout_ms: int = option(30 * SECOND_MS, least=1, most=10 * MINUTE_MS)
    """Longest output buffer time a client may ask for; one that asks for more is refused."""

    write_high_water_bytes: int = option(1 * MIB, least=16 * KIB, most=1 * GIB)
    """Bytes that may wait for one slow connection; at the bound nothing more is delivered to or read from it."""

    max_unread_bytes: int = option(1 * GIB, least=1 * MIB, most=1 * TIB)
    """Bytes that may wait for all slow connections together; above it the one with most is closed."""

    read_coalescing_ms: int = option(1, least=0, most=10)
    """How long FINs of a consumer with plenty in flight may wait to be read many at once, twice this at most from when
    they have come; 0 = not at all. Such a consumer costs the broker a fraction; one that it slows down by more than a
    fifth is read from at once. At most a quarter of ``nsq.msg_timeout_ms``."""

    delivery_coalescing_ms: int = option(1, least=0, most=10)
    """How long a message may wait to be sent with others, where its channel has just delivered all it had to consumers
    with a window of 16 or more and room in it; 0 = not at all. Messages that come one by one do not wait, nor those of
    consumers that ask for no output buffer (``output_buffer_size`` or ``output_buffer_timeout`` -1). It is longer, up
    to 25 ms, while the broker has no processor time to spare, delivers thousands of small pieces a second, and gets
    more messages out that way. At most ``nsq.min_output_buffer_timeout_ms``: no client gets its messages later than it
    asks for."""

    max_channel_consumers: int = option(0, least=1, most=1_000_000, special=(0,))
    """Consumers one channel accepts; 0 = no limit."""

    max_connections: int = option(0, least=1, most=10_000_000, special=(0,))
    """Connections accepted at once; 0 = the process's limit of open files less what the store needs."""

    max_deflate_level: int = option(6, least=1, most=9)
    """Highest deflate level, as clients and ``/config`` are told. Deflate itself is answered as off."""

    statsd_address: str = option("", form="peer")
    """Where statistics of topics and channels are pushed to, the UDP ``host:port`` of a statsd; empty = nowhere. The
    name is looked up for each push."""

    statsd_interval_ms: int = option(1 * MINUTE_MS, least=1 * SECOND_MS, most=24 * HOUR_MS)
    """Time between two pushes. The packets of one are spread over it, but for its last second. nsqadmin's
    ``--statsd-interval`` has to be the same."""

    statsd_prefix: str = option("nsq.%s", form="statsd-prefix")
    """What the keys begin with, and a dot. ``%s`` stands for ``nsq.broadcast_address`` and the HTTP port as nsqlookupds
    tell them, with ``_`` for each ``.`` and ``:``, such as ``host_example_4151``: set ``nsq.broadcast_address`` to what
    nsqd had for keys to go on. Empty = nothing before them."""

    statsd_mem_stats: bool = option(True)
    """Push figures of the process's memory as well, those that ``/stats`` has under Go's names."""

    statsd_udp_packet_bytes: int = option(508, least=256, most=65_507)
    """Most bytes of one packet, without the headers of UDP and IP. 508 pass everywhere in one piece, 1,432 where frames
    have 1,500 bytes all the way. The longest line that the prefix makes must fit."""

    statsd_exclude_ephemeral: bool = option(False)
    """Push nothing of ``#ephemeral`` topics and channels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RemotingSettings:
    """The RocketMQ protocol: listeners, limits, what clients are told. Defaults are RocketMQ 4.9's where it has any."""

    enabled: bool = option(True)
    """Serve the RocketMQ protocol."""

    address: str = option("127.0.0.1:10911", form="address")
    """Where RocketMQ clients connect, ``host:port``; port 0 takes a free one; empty = not at all. ``0.0.0.0:10911``
    listens everywhere: whoever reaches the port can then publish, consume and administer."""

    vip_listener: bool = option(True)
    """Listen on ``address``'s port - 2 as well. Clients up to 4.4 send there by default ("VIP channel"), newer ones
    when told to."""

    advertised_address: str = option("")
    """Host, or ``host:port``, by which clients reach this broker: registered at the registries, part of message ids and
    of every record. Empty = the address it listens on; where that is every address, the one that leads outwards."""

    cluster: str = option("DefaultCluster", form="name")
    """Name of the cluster this broker belongs to, as listings and routes show it."""

    max_frame_bytes: int = option(16 * MIB, least=64 * KIB, most=128 * MIB)
    """Largest request frame; a client that announces a larger one is disconnected. Each connection may buffer this
    much."""

    max_message_bytes: int = option(4 * MIB, least=1, most=4 * MIB)
    """Largest body of one message, and of one batch; larger ones are answered MESSAGE_ILLEGAL."""

    max_connections: int = option(0, least=1, most=10_000_000, special=(0,))
    """Connections accepted at once; 0 = the process's limit of open files less what the store needs."""

    write_high_water_bytes: int = option(4 * MIB, least=64 * KIB, most=1 * GIB)
    """Bytes that may wait for one slow connection; at the bound nothing more is read from it."""

    max_unread_bytes: int = option(1 * GIB, least=1 * MIB, most=1 * TIB)
    """Bytes that may wait for all slow connections together; above it the one with most is closed."""

    max_pull_messages: int = option(1_024, least=1, most=100_000)
    """Most messages one pull is answered with, however many it asks for."""

    max_pull_bytes: int = option(256 * KIB, least=4 * KIB, most=64 * MIB)
    """Bytes of records after which a pull is answered; one message always fits."""

    read_log_bytes_per_s: int = option(0, least=1 * MIB, most=64 * GIB, special=(0,))
    """Bytes of the raw log that one connection of a bulk reader (Spark) gets in a second, on average: its answers are
    delayed, not refused; 0 = as fast as it takes them. A bound where readers share a broker's disk or network with
    producers. A reader usually has one connection for each task that runs."""

    max_hold_ms: int = option(25 * SECOND_MS, least=0, most=10 * MINUTE_MS)
    """Longest time a pull waits for a message. Clients give up after 30 s and close the connection then."""

    max_subscriptions: int = option(10_000, least=1, most=1_000_000)
    """Groups, and subscriptions of one group, that one heartbeat may name; a larger heartbeat is refused."""

    idle_timeout_ms: int = option(2 * MINUTE_MS, least=1 * SECOND_MS, most=24 * HOUR_MS)
    """A connection from which no request came for this long is closed. Clients send a heartbeat every 30 s."""

    request_timeout_ms: int = option(10 * SECOND_MS, least=100, most=10 * MINUTE_MS)
    """Time a client has to answer what the broker asks it, such as a consumer's status."""

    flush_timeout_ms: int = option(5 * SECOND_MS, least=100, most=10 * MINUTE_MS)
    """Time after which a send whose flush is not done is answered FLUSH_DISK_TIMEOUT: the message is stored and becomes
    durable, or the broker stops taking messages."""

    auto_create_topics: bool = option(True, dynamic=True)
    """Make a topic when a message for it comes, with the queues of the template the client names. Off, such a message
    is refused with TOPIC_NOT_EXIST, unless its template is a topic that was made with the permission to inherit (7)."""

    auto_create_groups: bool = option(True, dynamic=True)
    """Make a consumer group when it is first seen. Off, its pulls are refused with SUBSCRIPTION_GROUP_NOT_EXIST."""

    default_topic_queues: int = option(16, least=1, most=4_096)
    """Queues of the template topic DEFAULT_TOPIC: a new topic has as many as its producer asks for (Java 4), at most
    this. TBW102, which RocketMQ's clients name, has half as many."""

    max_topic_queues: int = option(1_024, least=1, most=4_096)
    """Most queues a topic may be given by a tool."""

    max_producer_ids: int = option(100_000, least=1, most=10_000_000)
    """Producers that number what they send (SEND_SEQUENCED) whose progress is remembered, some 300 bytes each; beyond
    it the one that was quiet for longest is forgotten, and what it sends again is stored a second time."""

    max_window_keys: int = option(4_000_000, least=1, most=1_000_000_000)
    """Keys of messages sent with key semantics that are remembered, those of two epochs of each query, 22 to 43 bytes
    each. Beyond it the query that was quiet for longest is forgotten; one that does not fit alone is refused."""

    stage_ttl_s: int = option(24 * HOUR_MS // SECOND_MS, least=1, most=30 * 24 * HOUR_MS // SECOND_MS)
    """Seconds for which staged messages wait for their batch to be committed, counted from the last that came."""

    max_staged_runs: int = option(1_000_000, least=1, most=100_000_000)
    """Runs of staged messages (about one for each request) that may wait for a commit, some 200 bytes each. A queue of
    an attempt counts as one more, an attempt as four, a batch as five. Beyond it requests are refused with
    SYSTEM_BUSY."""

    store_replies: bool = option(True)
    """Keep the replies of request-reply in ``<cluster>_REPLY_TOPIC`` as well, as RocketMQ does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RegistrySettings:
    """The registry (RocketMQ: name server; NSQ: nsqlookupd): tells clients which broker serves which topic."""

    enabled: bool = option(True)
    """Serve a registry inside ``headrace serve``. Switch it off where registries run by themselves
    (``headrace registry``), and name those in ``broker.registries``."""

    address: str = option("127.0.0.1:9876", form="address")
    """Where clients, brokers and tools reach it, ``host:port``; port 0 takes a free one; empty = not at all."""

    expiry_ms: int = option(2 * MINUTE_MS, least=1 * SECOND_MS, most=1 * HOUR_MS)
    """A broker that has not registered again for this long is dropped with all its routes. Brokers register every 30 s;
    one whose connection closes is dropped at once."""

    start_wait_ms: int = option(2 * SECOND_MS, least=0, most=10 * MINUTE_MS)
    """Longest time after the start in which no routes are told: clients would take brokers that have yet to register
    for gone. It ends early, when all have come that were there before. In its first 2 s what a client asks is held,
    then refused: one that knows its routes keeps them. Headrace's brokers come within a second, RocketMQ's within 30;
    with those, set 35 s. 0 = routes are told at once."""

    scan_interval_ms: int = option(10 * SECOND_MS, least=100, most=10 * MINUTE_MS)
    """Time between two looks for brokers that have expired."""

    max_brokers: int = option(10_000, least=1, most=1_000_000)
    """Broker addresses the registry holds; one more is refused."""

    max_topics: int = option(200_000, least=1, most=10_000_000)
    """Topics the registry holds; a registration that would add one more is refused whole. A bound on its memory."""

    max_routes: int = option(5_000_000, least=1, most=1_000_000_000)
    """Routes the registry holds, one for each topic on each broker that has it, some 70 bytes each beside the topic; a
    registration that would add one more is refused whole. A bound on its memory."""

    max_frame_bytes: int = option(16 * MIB, least=64 * KIB, most=1 * GIB)
    """Largest request; a longer one closes the connection. A registration has some 150 bytes for each topic."""

    max_registration_bytes: int = option(64 * MIB, least=64 * KIB, most=1 * GIB)
    """Largest registration after decompression; a larger one is refused. A bound against compressed bombs."""

    max_kv_bytes: int = option(16 * MIB, least=1 * KIB, most=1 * GIB)
    """Bytes of all names and values of the key-value configuration; what does not fit is refused."""

    max_connections: int = option(0, least=1, most=10_000_000, special=(0,))
    """Connections accepted at once; 0 = a quarter of the process's limit of open files, 10,000 at most. Those of NSQ
    producers are counted apart; for them 0 = an eighth of it."""

    idle_timeout_ms: int = option(2 * MINUTE_MS, least=1 * SECOND_MS, most=1 * HOUR_MS)
    """A connection without a request for this long is closed. RocketMQ clients ask every 30 s. An NSQ producer has at
    least twice ``nsq_silent_ms``."""

    write_high_water_bytes: int = option(4 * MIB, least=16 * KIB, most=1 * GIB)
    """Bytes that may wait for one slow connection; at the bound nothing more is read from it."""

    max_unread_bytes: int = option(1 * GIB, least=1 * MIB, most=1 * TIB)
    """Bytes that may wait for all slow connections together; above it the one with most is closed."""

    nsq_tcp_address: str = option("127.0.0.1:4160", form="address")
    """Where NSQ producers (nsqd, Headrace) register as at nsqlookupd, ``host:port``; port 0 takes a free one; empty =
    not at all. Nobody is asked who they are here, whatever ``access.rules_file`` says: keep it on an inner network."""

    nsq_http_address: str = option("127.0.0.1:4161", form="address")
    """Where NSQ consumers and tools look for producers, as at nsqlookupd (``lookupd_http_addresses``), ``host:port``;
    empty = not at all. Nobody is asked who they are here either."""

    nsq_broadcast_address: str = option("", form="name-or-empty")
    """Host name or address by which producers reach ``nsq_http_address``; they are told of it when they register. Empty
    = the address it listens on, the host name where that is every address."""

    admin_address: str = option("127.0.0.1:9878", form="address")
    """Where ``headrace registry`` tells its health and metrics, ``host:port``; port 0 takes a free one; empty = not at
    all. Nobody is asked who they are here either. Of a registry inside ``headrace serve``, ``admin.address`` does."""

    nsq_silent_ms: int = option(5 * MINUTE_MS, least=100, most=24 * HOUR_MS)
    """An NSQ producer that has said nothing for this long is hidden from consumers until it is heard again; nsqd says
    that it lives every 15 s. One whose connection closes is gone at once."""

    nsq_tombstone_ms: int = option(45 * SECOND_MS, least=100, most=24 * HOUR_MS)
    """How long an NSQ producer stays hidden for a topic that a tool is deleting there ("tombstone")."""

    max_nsq_channels: int = option(1_000_000, least=1, most=100_000_000)
    """Channels of NSQ topics the registry holds, some 300 bytes each; one more is refused. Producers and topics have
    ``max_brokers`` and ``max_topics``, counted apart from RocketMQ's."""

    max_nsq_registrations: int = option(2_000_000, least=2, most=100_000_000)
    """Topics and channels of all NSQ producers, each counted for each producer that has it, some 200 bytes; one more is
    refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessSettings:
    """Who may do what. Off unless there is a rule file; see docs/access.md."""

    rules_file: str = option("")
    """TOML file of users, their keys and what they may publish, subscribe to and administer; empty = everybody may do
    everything. A relative path starts at the working directory of the process. The file is read at the start."""

    broker_user: str = option("")
    """Name of the user in the rule file whose keys this broker signs its own requests with, those to registries above
    all; it needs ``admin = true`` there. Empty = they are not signed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdminSettings:
    """The admin HTTP interface: health, metrics, inspection."""

    enabled: bool = option(True)
    """Serve the admin interface."""

    address: str = option("127.0.0.1:9877", form="address")
    """Where it listens, ``host:port``; port 0 takes a free one; empty = not at all. It has no password: keep it on an
    inner network."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSettings:
    """What the process writes to standard error."""

    level: LogLevel = option("info", dynamic=True)
    """Least severe line that is written. ``debug`` logs every command but NSQ's NOP, and is slow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Everything that can be set, one section for each part of the broker."""

    store: StoreSettings = field(default_factory=StoreSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    nsq: NsqSettings = field(default_factory=NsqSettings)
    remoting: RemotingSettings = field(default_factory=RemotingSettings)
    registry: RegistrySettings = field(default_factory=RegistrySettings)
    access: AccessSettings = field(default_factory=AccessSettings)
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
    def is_size(self) -> bool:
        """Whether it is a number of bytes, or of bytes in a second, and may be written as a size."""
        return self.name.endswith(("_bytes", "_bytes_per_s"))

    @property
    def choices(self) -> tuple[str, ...]:
        """The words a ``Literal`` setting accepts; empty for any other."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

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
