"""The end of a write, on the driver: transactional ones are committed or aborted, the others are done already."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.errors import ClientError, ConnectionLostError, RequestTimeoutError
from headrace.format import fastjson
from headrace.remoting.blocking import BlockingClient
from headrace.remoting.codec import Command
from headrace.remoting.codes import RequestCode, ResponseCode, response_name
from headrace.spark.connections import cluster_of
from headrace.spark.errors import ExtensionMissingError
from headrace.spark.retry import insist
from headrace.spark.writing.options import TRANSACTIONAL
from headrace.spark.writing.partition_writer import Written
from headrace.spark.writing.plan import WritePlan, servers_of
from headrace.spark.writing.send import PASSING

logger = logging.getLogger(__name__)

COMMIT_TIMEOUT_S: Final = 600.0
"""A commit is answered when every message of the batch is where it belongs, durably."""
COMMIT_ASK_S: Final = 30.0
"""How long it is waited for before it is asked for again: a broker closes a connection on which nothing is asked for
``remoting.idle_timeout_ms``, whoever waits there."""


def end_write(
    plan: WritePlan, written: Sequence[Written], *, is_commit: bool, txn: str | None = None, epoch: int = 0
) -> None:
    """Commit or abort what tasks wrote; only a transaction is open still.

    Args:
        txn, epoch: Of the write, where no task tells.

    Raises:
        ClientError: the broker refuses, or does not answer; for a commit. An abort that fails is logged: the broker
            forgets what nobody commits.
    """
    rows = sum(each.rows for each in written)
    _log_end(plan, written, rows, is_commit=is_commit)
    if plan.options.semantics != TRANSACTIONAL:
        return
    if written:
        txn, epoch = written[0].txn, written[0].epoch
    elif txn is not None:
        txn = plan.identity(txn)
    if txn is None or (is_commit and not rows):
        return
    chosen = [
        {"partition": each.partition, "attempt": each.attempt, "count": each.rows} for each in written if each.rows
    ]
    # The tasks' broker, not that of this plan: in a stream it is another plan, with the route of this moment.
    home = written[0].home if written else plan.home(txn)
    try:
        end_batch(plan, home, txn, epoch, chosen if is_commit else [], is_commit=is_commit)
    except ClientError as error:
        if is_commit:
            raise
        logger.warning("abort not told, the broker forgets the rows later txn=%s epoch=%d error=%s", txn, epoch, error)


def _log_end(plan: WritePlan, written: Sequence[Written], rows: int, *, is_commit: bool) -> None:
    """Say what tasks wrote, and what of it is not as one might think."""
    duplicates = sum(each.counters.duplicates for each in written)
    logger.info(
        "write %s tasks=%d rows=%d duplicates=%d unsure=%d left_out=%d retries=%d",
        "done" if is_commit else "failed",
        len(written),
        rows,
        duplicates,
        sum(each.counters.unsure for each in written),
        sum(each.left_out for each in written),
        sum(each.counters.retries for each in written),
    )
    if is_commit and rows and rows == duplicates:
        logger.warning(
            "nothing written: all rows are duplicates, the identity has had this epoch or a later one txn=%s epoch=%d",
            written[0].txn, written[0].epoch,
        )  # fmt: skip
    if plan.options.semantics != TRANSACTIONAL and not is_commit and rows:
        logger.warning("rows of a failed write are visible already semantics=%s rows=%d", plan.options.semantics, rows)


def end_batch(
    plan: WritePlan, broker: str, txn: str, epoch: int, chosen: list[dict[str, int]], *, is_commit: bool
) -> None:
    """Tell a transaction's broker how it ends; asking again is harmless.

    Raises:
        ClientError: it refuses, or did not answer.
    """
    options = plan.options
    ext = {
        "txn": txn,
        "epoch": str(epoch),
        "decision": "commit" if is_commit else "abort",
        "producerGroup": options.producer_group,
    }
    body = fastjson.dumps({"chosen": chosen})
    cluster = cluster_of(servers_of(options), use="write")
    cluster.remember(plan.addresses)

    def ask() -> None:
        address = cluster.broker_address(broker)
        response = _call_long(cluster.client(address), ext, body)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise ExtensionMissingError(options.semantics, address)
        # SYSTEM_ERROR is how a commit is refused whose rows are not there: asking again does not bring them.
        if response.code in PASSING and response.code != ResponseCode.SYSTEM_ERROR:
            raise ConnectionLostError(address, f"{response_name(response.code)} {response.remark}")
        if response.code != ResponseCode.SUCCESS:
            what = f"{ext['decision']} of txn {txn!r} epoch {epoch}"
            raise ClientError(f"broker {broker!r} refuses the {what}: {response_name(response.code)} {response.remark}")

    insist(cluster, broker, f"the end of txn {txn!r}", options.retries, ask)


def _call_long(client: BlockingClient, ext: Mapping[str, str], body: bytes) -> Command:
    """Ask for the end of a batch until it is answered; a commit that is asked for again waits with the one before.

    Raises:
        RequestTimeoutError: no answer within ``COMMIT_TIMEOUT_S``.
        ConnectionLostError: as ``BlockingClient.call``.
    """
    until = time.monotonic() + COMMIT_TIMEOUT_S
    while True:
        try:
            return client.call(RequestCode.END_BATCH, ext, body, timeout_s=COMMIT_ASK_S)
        except RequestTimeoutError:
            if time.monotonic() >= until:
                raise
            logger.warning("no answer to a commit or abort, waiting txn=%s epoch=%s", ext["txn"], ext["epoch"])
