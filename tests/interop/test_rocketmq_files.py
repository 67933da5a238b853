"""Stores go both ways: a real RocketMQ opens a copy of ours, and ``headrace store import`` takes a copy of its.

Ref: docs/running.md, "From RocketMQ and back"; docs/formats/commit-log.md, consume-queue.md, config-files.md.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.interop.nsq_peers import HEADRACE
from tests.interop.rocketmq_peers import headrace, rocketmq, stop
from tests.interop.rocketmq_stores import DELAYS, SEGMENT_BYTES, fill, require_same

VERSIONS = ["4.9.7", pytest.param("5.5.0", marks=pytest.mark.slow)]
HEADRACE_FLAGS = (
    "--broker.name=broker-a",
    f"--broker.delay-levels={DELAYS}",
    "--broker.transaction-timeout-ms=1000",
    "--broker.transaction-check-interval-ms=1000",
)
ROCKETMQ_OPTIONS = {
    "messageDelayLevel": DELAYS,
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    # It counts checks also while there is no producer to ask, which may take longer than 15 s to come.
    "transactionCheckMax": "1000",
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_real_broker_opens_a_copy_of_our_store(tmp_path: Path, version: str) -> None:
    """A-STORE: after a clean stop every file is one that RocketMQ reads."""
    with headrace(tmp_path / "ours", *HEADRACE_FLAGS) as cluster:
        written = fill(cluster, tmp_path)
        assert stop(cluster.process) == 0
        copy = tmp_path / "copy"
        shutil.copytree(cluster.data_dir, copy)
    with rocketmq(version, tmp_path, store=copy, options=ROCKETMQ_OPTIONS) as cluster:
        require_same(cluster, tmp_path, written)


@pytest.mark.parametrize("version", VERSIONS)
def test_we_open_a_copy_of_a_real_store(tmp_path: Path, version: str) -> None:
    """A-STORE: ``headrace store import`` leaves the source as it is; the copy has everything."""
    with rocketmq(version, tmp_path, options=ROCKETMQ_OPTIONS) as cluster:
        written = fill(cluster, tmp_path)
        stop(cluster.process)
        source = cluster.data_dir
    command = [str(HEADRACE), "store", "import", str(source), "--data-dir", str(tmp_path / "ours" / "store")]
    command.append(f"--broker.delay-levels={DELAYS}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "hold something else than entries" not in done.stdout
    with headrace(tmp_path / "ours", *HEADRACE_FLAGS) as cluster:
        require_same(cluster, tmp_path, written)
