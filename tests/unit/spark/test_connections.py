"""Connections that a thread of Spark's keeps."""

import subprocess
import sys

from headrace import testing

ASK = """\
import sys
from headrace.spark.connections import cluster_of
from headrace.spark.scan import ServersSource
print(list(cluster_of(ServersSource(sys.argv[1])).brokers()))
"""


def test_a_process_that_ends_closes_what_it_kept() -> None:
    """Whoever runs a job with Python's warnings on was told of a socket for each server."""
    with testing.broker(broker__name="b") as broker:
        command = [sys.executable, "-W", "default::ResourceWarning", "-c", ASK, broker.registry]
        asked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert asked.stdout == "['b']\n"
    assert "ResourceWarning" not in asked.stderr
