"""The Python blocks of docs/spark/source.md and sink.md, as they stand there, each after the one before it.

What a page takes for granted (a session, DataFrames to write, a query) is made here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import headrace.spark
from headrace.testing import RunningBroker
from tests.spark.conftest import make_topic, send, wait_registered
from tests.support.notebook import read_page, run_blocks

PAGES = Path(__file__).parents[2] / "docs" / "spark"
ROWS = 5

pytestmark = [
    pytest.mark.timeout(600),
    # A Python worker that needs more than 10 s to start ends the query; on a machine that is busy it may.
    pytest.mark.flaky(reruns=2, only_rerun="failed to connect back"),
]


@pytest.fixture
def orders(broker: RunningBroker) -> RunningBroker:
    """A broker with a topic for the pages."""
    make_topic(broker, "orders", 2)
    wait_registered(broker, "orders")
    return broker


def bodies(spark: Any, broker: RunningBroker, topic: str) -> list[str]:
    """Return what a topic has."""
    frame = headrace.spark.read(spark, servers=broker.registry, topics=topic, columns="body")
    return sorted(bytes(row.body).decode() for row in frame.collect())


def test_reading(spark: Any, orders: RunningBroker, tmp_path: Path) -> None:
    """docs/spark/source.md."""
    sent = [f"order {number}" for number in range(ROWS)]
    send(orders, "orders", sent)
    here = {"127.0.0.1:9876": orders.registry, "/var/lib/headrace": str(orders.data_dir)}
    text = read_page(PAGES / "source.md", here)
    names: dict[str, Any] = {"spark": spark}
    blocks = run_blocks("source.md", text, names)
    next(blocks)
    for frame in ("orders", "since", "offline"):
        assert names[frame].count() == ROWS, frame
    read_view, write_view, insert = re.findall(r"^    ((?:CREATE|INSERT) [^;]*?)(?:;?\n(?! {8}))", text, re.MULTILINE)
    for statement in (read_view, write_view, insert):
        spark.sql(statement)
    assert spark.table("orders").count() == ROWS
    shipped = headrace.spark.read(spark, servers=orders.registry, topics="shipped", columns="body,tags").collect()
    assert [tuple(row) for row in shipped] == [(b"order 1", "paid")]
    for view in ("orders", "shipped"):
        spark.catalog.dropTempView(view)

    names["query"] = query = (
        names["stream"]
        .writeStream.foreachBatch(lambda batch, batch_id: batch.count())
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        (block,) = blocks
        (shown,) = re.findall(r"headrace\.spark\.lag\(query\)  # (.*)\{\.\.\.\}\)$", block.code, re.MULTILINE)
        assert str(headrace.spark.lag(query)).startswith(f"{shown}{{")
    finally:
        query.stop()
        if "listener" in names:
            spark.streams.removeListener(names["listener"])


def test_writing(spark: Any, orders: RunningBroker, tmp_path: Path) -> None:
    """docs/spark/sink.md."""
    for topic in ("large", "shipped"):
        make_topic(orders, topic, 2)
        wait_registered(orders, topic)
    (tmp_path / "in").mkdir()
    rows = [{"body": f"amount {amount}", "amount": amount} for amount in (150, 5, -3)]
    (tmp_path / "in" / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    here = {"127.0.0.1:9876": orders.registry, "/data/checkpoints": str(tmp_path / "checkpoints")}
    names: dict[str, Any] = {
        "spark": spark,
        "df": spark.createDataFrame([("of a batch", "red")], "body string, tags string"),
        "stream": spark.readStream.schema("body string, amount int").json(str(tmp_path / "in")),
    }
    before = spark.streams.active
    try:
        for _ in run_blocks("sink.md", read_page(PAGES / "sink.md", here), names):
            for query in spark.streams.active:
                query.processAllAvailable()
    finally:
        for query in spark.streams.active:
            if query not in before:
                query.stop()
    assert bodies(spark, orders, "orders") == ["of a batch"]
    assert bodies(spark, orders, "shipped") == sorted(row["body"] for row in rows)
    assert bodies(spark, orders, "large") == ["amount -3", "amount 150"]
