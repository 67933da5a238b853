"""Figures of the RocketMQ side: its server, consumer groups, delays and transactions.

Ref: docs/metrics.md lists the families.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from headrace.admin.families import counter, gauge, labelled
from headrace.admin.lag_metrics import lag_families
from headrace.admin.slices import family_slices
from headrace.broker.consumers.clients import Role
from headrace.remoting.codes import request_name, response_name

if TYPE_CHECKING:
    from headrace.broker.exactly_once.producer_services import ProducerServices
    from headrace.remoting.assembly import RemotingAssembly
    from headrace.remoting.guard import Guard
    from headrace.remoting.request_connection import RequestServer
    from headrace.remoting.server import RemotingServer
    from headrace.remoting.services import Services


def remoting_families(assembly: RemotingAssembly) -> Iterator[Metric]:
    """Yield every family of one node's RocketMQ side."""
    if assembly.server is not None:
        yield from _server_families(assembly.server)
    yield from _group_families(assembly.services)
    yield from lag_families(assembly.services)
    yield from _message_families(assembly.services)
    yield from _reader_families(assembly.services)
    yield from _producer_families(assembly.services.producers)


def _server_families(server: RemotingServer) -> Iterator[Metric]:
    counters, services = server.counters, server.services
    requests = by_name(counters.requests) | {"plain_sends": counters.sends}
    unsupported = {"other" if code < 0 else str(code): count for code, count in counters.unsupported.items()}
    closed = server.connections.closed
    pulls_waiting = len(services.holds) + len(services.group_services.cold_pulls)
    yield labelled("headrace_remoting_requests", "Requests taken; plain sends together.", "request", requests)
    yield labelled("headrace_remoting_unsupported", "Requests of codes not served.", "code", unsupported)
    yield labelled("headrace_remoting_calls", "Requests sent to clients.", "request", by_name(counters.calls))
    yield labelled("headrace_remoting_closed_connections", "Connections ended.", "cause", closed)
    yield gauge("headrace_remoting_waiting_pulls", "Pulls that wait for a message.", pulls_waiting)
    for name, text, count in (
        ("accepted_connections", "Connections accepted, refused ones included.", server.connections.total),
        ("received_messages", "Messages of plain sends.", counters.messages_in),
        ("delivered_messages", "Messages given to pulls.", counters.messages_out),
        ("received_bytes", "Bytes received.", counters.bytes_in),
        ("sent_bytes", "Bytes sent.", counters.bytes_out),
        ("held_pulls", "Pulls that had to wait.", counters.held_pulls),
        ("joint_sends", "Reads whose sends were appended with those of other clients.", server.joint_sends.joined),
        ("late_sends", "Sends answered before they were durable, as FLUSH_DISK_TIMEOUT.", counters.late_sends),
        ("unanswered_calls", "Requests to clients without an answer in time.", counters.calls_unanswered),
        ("internal_errors", "Requests that failed by a bug.", counters.internal_errors),
        ("idle_connections", "Connections closed because nothing came from them.", counters.heartbeats_missed),
        ("read_pauses", "Times reading stopped because the store or the client was behind.", counters.read_pauses),
        ("write_pauses", "Times output waited because a client was slow.", counters.write_pauses),
        ("busy_poll_seconds", "Time spent awake between clients' requests.", server.busy_poll.seconds),
    ):
        yield counter(f"headrace_remoting_{name}", text, count)
    if server.guard is not None:
        yield from guard_families("headrace_remoting", server.guard)


def guard_families(prefix: str, guard: Guard) -> Iterator[Metric]:
    """Yield what access control has decided at one listener."""
    yield labelled(f"{prefix}_denied_requests", "Requests denied by access control.", "reason", guard.refusals)
    yield labelled(f"{prefix}_unsigned_requests", "Requests taken because of their address.", "user", guard.unsigned)


def by_name(counts: Mapping[int, int]) -> dict[str, int]:
    """Return counts of requests by name."""
    return {request_name(code): count for code, count in counts.items()}


def _group_families(services: Services) -> Iterator[Metric]:
    clients = services.clients
    members = GaugeMetricFamily("headrace_broker_group_members", "Clients in groups.", labels=("role",))
    for role in Role:
        members.add_metric((role.name.lower(),), clients.role_members(role))
    yield members
    online = (((group,), len(clients.members(group))) for group in clients.consumer_groups())
    yield from family_slices(
        GaugeMetricFamily, "headrace_broker_group_consumers", "Consumers of a group.", ("group",), online
    )
    subscribed = (((topic,), clients.clients_of(topic)) for topic in clients.topics())
    yield from family_slices(
        GaugeMetricFamily,
        "headrace_broker_topic_consumers",
        "Consumers that subscribe to a topic.",
        ("topic",),
        subscribed,
    )
    yield gauge("headrace_broker_groups", "Consumer groups, those of tools included.", len(services.groups))
    yield gauge("headrace_broker_group_offsets", "Committed offsets.", len(services.offsets))
    yield gauge("headrace_broker_waiting_resets", "Resets no consumer knows of.", services.offsets.waiting_resets)
    yield gauge("headrace_broker_queue_locks", "Queues locked by orderly consumers.", len(services.locks))
    for name, text, count in (
        ("heartbeats", "Heartbeats taken.", clients.counters.heartbeats),
        ("refused_heartbeats", "Heartbeats refused at a bound.", clients.counters.refused),
        ("expired_members", "Members dropped because they were silent.", clients.counters.expired),
        ("offset_commits", "Offsets committed.", services.offsets.counters.commits),
        ("ignored_commits", "Commits from before a reset.", services.offsets.counters.ignored),
        ("refused_commits", "Commits refused at a bound.", services.offsets.counters.refused),
        (
            "refused_holds",
            "Pulls that could not wait: above broker.max_held_pulls, or for their filters' memory.",
            services.holds.counters.refused + services.group_services.cold_pulls.counters.refused,
        ),
        ("uncounted_statistics", "Counts not taken at broker.max_statistics.", services.statistics.refused),
        ("config_file_errors", "Failed writes of config files.", services.group_services.write_errors),
    ):
        yield counter(f"headrace_broker_{name}", text, count)


def _message_families(services: Services) -> Iterator[Metric]:
    messages = services.messages
    waiting = GaugeMetricFamily(
        "headrace_broker_delayed_messages", "Messages that wait for their time.", labels=("level",)
    )
    for level, count in messages.delays.waiting.items():
        waiting.add_metric((str(level),), count)
    waiting.add_metric(("timer",), messages.timed.waiting)
    yield waiting
    delays, timed = messages.delays.counters, messages.timed.counters
    yield counter(
        "headrace_broker_delayed_deliveries", "Delayed messages delivered.", delays.delivered + timed.delivered
    )
    yield counter(
        "headrace_broker_dropped_delays", "Delayed messages without a topic any more.", delays.dropped + timed.dropped
    )
    yield counter("headrace_broker_skipped_delays", "Delayed messages without a record any more.", delays.damaged)
    yield counter("headrace_broker_clamped_delays", "Delay levels put back to the end of the log.", delays.clamped)
    transactions = messages.transactions
    yield gauge("headrace_broker_open_transactions", "Transactions that are open.", transactions.open_count)
    counters = transactions.counters
    outcomes = {
        "committed": counters.committed,
        "rolled_back": counters.rolled_back,
        "discarded": counters.discarded,
        "dropped": counters.dropped,
    }
    yield labelled("headrace_broker_transactions", "Transactions that ended.", "outcome", outcomes)
    left = {"left_open": counters.left_open, "repeated": counters.repeated, "refused": counters.refused}
    yield labelled("headrace_broker_transaction_answers", "Answers that decided nothing.", "outcome", left)
    yield counter("headrace_broker_unasked_transactions", "Questions that no producer was there for.", counters.unasked)
    put_off = {"delays": delays.errors, "timers": timed.errors, "transactions": counters.errors}
    yield labelled("headrace_broker_put_off_deliveries", "Deliveries that the store did not take.", "what", put_off)
    yield counter("headrace_broker_torn_decisions", "Decisions forgotten after a power cut.", counters.torn)
    yield counter("headrace_broker_transaction_checks", "Questions to producers.", counters.checks)
    yield counter("headrace_broker_retries", "Messages sent back to be tried again.", messages.retries.counters.retried)
    yield counter(
        "headrace_broker_dropped_retries",
        "Messages sent back by groups without a retry queue.",
        messages.retries.counters.dropped,
    )
    moved = messages.offset_moved.counters
    outcomes = {"written": moved.written, "repeated": moved.repeated, "refused": moved.refused}
    yield labelled("headrace_broker_offset_moved_events", "Pulls of what is not there.", "outcome", outcomes)
    if services.statistics_records is not None:
        written = services.statistics_records.counters
        outcomes = {"written": written.written, "refused": written.refused, "dropped": written.dropped}
        yield labelled("headrace_broker_statistics_records", "Records of what was counted.", "outcome", outcomes)
        yield counter("headrace_broker_unrecorded_lags", "Lags beyond the limit of a record.", written.left_out)
    if services.webhook is not None:
        hook = services.webhook
        outcomes = {"sent": hook.sent, "failed": hook.failed, "dropped": hook.dropped}
        yield labelled("headrace_broker_webhook_calls", "Calls of the webhook.", "outcome", outcomes)
    given_up = [((group,), count) for group, count in messages.letters.counts.items()]
    yield from family_slices(
        CounterMetricFamily, "headrace_broker_dead_letters", "Messages a group gave up.", ("group",), given_up
    )


def _reader_families(services: Services) -> Iterator[Metric]:
    """Bulk readers: docs/protocols/extensions.md."""
    counters = services.readers.counters
    waiting = len(services.readers.waits)
    yield gauge("headrace_remoting_waiting_reader_states", "READER_STATE requests that wait for news.", waiting)
    for name, text, count in (
        ("log_reads", "READ_LOG requests answered with a part of the log.", counters.log_requests),
        ("log_read_bytes", "Bytes of the log sent to them.", counters.log_bytes),
        ("paced_log_reads", "Those delayed by remoting.read_log_bytes_per_s.", counters.log_paced),
        ("queue_reads", "READ_QUEUE requests answered.", counters.queue_requests),
        ("queue_read_messages", "Messages sent to them.", counters.queue_messages),
        ("queue_read_bytes", "Bytes of these messages.", counters.queue_bytes),
        ("cold_queue_reads", "Times one waited for the disk.", counters.queue_cold),
        ("cold_records", "Single records read from the disk.", counters.cold_records),
        ("refused_reads", "READ_LOG and READ_QUEUE refused at a bound.", counters.refused),
        ("held_reader_states", "READER_STATE requests that waited.", counters.held_states),
        ("unheld_reader_states", "READER_STATE requests answered at once at a bound.", counters.unheld_states),
    ):
        yield counter(f"headrace_remoting_{name}", text, count)


def _producer_families(producers: ProducerServices) -> Iterator[Metric]:
    """Batches with an identity: docs/protocols/extensions.md."""
    sequences, keys, staged, log = producers.sequences, producers.keys, producers.staged, producers.log
    yield gauge("headrace_broker_producer_ids", "Producers whose progress is remembered.", len(sequences))
    yield gauge("headrace_broker_window_keys", "Keys that are remembered.", len(keys))
    yield gauge("headrace_broker_window_bytes", "Memory of these keys.", keys.memory_bytes)
    yield gauge("headrace_broker_staged_batches", "Batches that are not committed.", len(staged))
    yield gauge("headrace_broker_staged_messages", "Their messages.", staged.staged_rows)
    yield gauge("headrace_broker_staged_bytes", "Bytes of their bodies.", staged.staged_bytes)
    stored = {"sequence": sequences.counters.stored, "key": keys.counters.stored, "stage": staged.counters.staged}
    yield labelled("headrace_broker_identified_messages", "Messages stored with an identity.", "semantics", stored)
    duplicates = {
        "sequence": sequences.counters.duplicates,
        "key": keys.counters.duplicates,
        "stage": staged.counters.duplicates,
    }
    yield labelled("headrace_broker_duplicate_messages", "Messages dropped as duplicates.", "semantics", duplicates)
    yield labelled(
        "headrace_broker_outdated_messages",
        "Messages dropped because their txn has had a later epoch.",
        "semantics",
        producers.outdated.by_semantics,
    )
    refused = {
        "gap": sequences.counters.gaps + staged.counters.gaps,
        "window_full": keys.counters.refused,
        "stage_full": staged.counters.refused_runs,
    }
    yield labelled("headrace_broker_refused_identified_batches", "Batches refused.", "reason", refused)
    forgotten = {
        "producer": sequences.counters.forgotten,
        "keys": keys.counters.forgotten,
        "epoch": staged.counters.forgotten_txns,
    }
    yield labelled("headrace_broker_forgotten_producers", "State dropped at a bound.", "what", forgotten)
    ended = {
        "committed": staged.counters.commits,
        "repeated": staged.counters.repeated_commits,
        "refused": staged.counters.refused_commits,
        "aborted": staged.counters.aborts,
        "expired": staged.counters.expired,
    }
    yield labelled("headrace_broker_staged_batch_ends", "Batches ended, or not.", "outcome", ended)
    for name, text, count in (
        ("committed_staged_messages", "Staged messages that commits delivered.", staged.counters.committed),
        ("lost_staged_messages", "Messages of commits that could not be delivered.", staged.counters.lost),
        ("waiting_commits", "Times a commit had to wait for the store.", staged.counters.errors),
        ("unreadable_producer_records", "Records of producers that cannot be read.", log.counters.unreadable),
        ("torn_producer_records", "Records of batches of which a power cut took a part.", log.counters.torn),
        ("producer_state_errors", "Failed writes of producers.json.", log.counters.save_errors),
    ):
        yield counter(f"headrace_broker_{name}", text, count)


def refusals_by_name(server: RequestServer[Any], always: Sequence[str] = ()) -> dict[str, int]:
    """Return what a listener of brokers or registries refused by cause; ``always``: causes that are there with 0."""
    by_name = {response_name(code): count for code, count in server.counters.refusals.items()}
    return {**dict.fromkeys(always, 0), **by_name, "bad_frame": server.counters.bad_frames}
