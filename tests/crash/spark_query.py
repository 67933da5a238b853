"""The driver of the pipeline that ``spark_pipeline`` kills: everything of one topic to another, then exit code 0.

Run as ``python -m tests.crash.spark_query SERVERS CHECKPOINT SEMANTICS ROWS_PER_BATCH``.
"""

from __future__ import annotations

import sys

from headrace.spark.session import TESTING, create_session

SOURCE_TOPIC = "pipe-in"
SINK_TOPIC = "pipe-out"


def main(servers: str, checkpoint: str, semantics: str, rows_per_batch: str) -> None:
    # A task may fail seven times: its worker is killed, or the broker that it talks to.
    spark = create_session("pipeline", master="local[2,8]", conf={**TESTING, "spark.cleaner.periodicGC.interval": "1h"})
    rows = (
        spark.readStream.format("headrace")
        .option("servers", servers)
        .option("topics", SOURCE_TOPIC)
        .option("group", "pipeline")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", rows_per_batch)
        .option("columns", "body")
        .load()
    )
    query = (
        rows.writeStream.format("headrace")
        .option("servers", servers)
        .option("topic", SINK_TOPIC)
        .option("semantics", semantics)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
