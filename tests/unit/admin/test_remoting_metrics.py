"""What the RocketMQ side drops, puts off and does not decide is in ``/metrics``. Ref: docs/metrics.md."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from headrace.admin.remoting_metrics import remoting_families
from tests.support.remoting import RemotingRig


def test_nothing_is_silent(tmp_path: Path) -> None:
    """Each counter of the core has its sample."""
    rig = RemotingRig(tmp_path)
    messages = rig.services.messages
    messages.delays.counters.errors = 1
    messages.timed.counters.errors = 2
    messages.transactions.counters.errors = 3
    messages.transactions.counters.left_open = 4
    messages.transactions.counters.repeated = 5
    messages.transactions.counters.refused = 6
    messages.transactions.counters.unasked = 7
    messages.retries.counters.dropped = 8
    families = remoting_families(SimpleNamespace(server=None, services=rig.services))  # type: ignore[arg-type]
    samples = [sample for family in families for sample in family.samples]
    rig.close()
    found = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
    for sample, value in {
        ("put_off_deliveries_total", "delays"): 1,
        ("put_off_deliveries_total", "timers"): 2,
        ("put_off_deliveries_total", "transactions"): 3,
        ("transaction_answers_total", "left_open"): 4,
        ("transaction_answers_total", "repeated"): 5,
        ("transaction_answers_total", "refused"): 6,
        ("unasked_transactions_total",): 7,
        ("dropped_retries_total",): 8,
    }.items():
        assert found[f"headrace_broker_{sample[0]}", *sample[1:]] == value
