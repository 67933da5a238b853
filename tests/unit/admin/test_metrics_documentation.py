"""docs/metrics.md and /metrics of a running broker name the same families, with the same types and labels."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from headrace import testing
from tests.support.access_rules import write_rules
from tests.support.remoting import RemotingSocket, send_fields

PAGE = Path(__file__).parents[3] / "docs/metrics.md"
ROW = re.compile(r"^\| `(headrace_[a-z_]+)` \| ([a-z]+) \| ([a-z, ]*) ?\| .+ \|$", re.MULTILINE)
# Whoever sends nothing that proves who it is: for the counters that only access rules bring.
RULES = '[[users]]\nname = "near"\naddresses = ["127.0.0.1"]\nadmin = true\n'


def exported_families(folder: Path) -> dict[str, tuple[str, set[str]]]:
    """Return type and labels of each family of a broker that has everything switched on."""
    options = {
        "access__rules_file": str(write_rules(folder, RULES)),
        "broker__dead_letter_webhook": "http://127.0.0.1:9/",
    }
    with testing.broker(**options) as broker:
        with RemotingSocket(broker.remoting) as client:
            assert client.call(310, send_fields("orders"), b"one")[0]["code"] == 0
            assert client.call(999)[0]["code"] == 3
        create = urllib.request.Request(
            f"http://{broker.nsq_http}/channel/create?topic=orders&channel=c", method="POST"
        )
        urllib.request.urlopen(create, timeout=10).close()
        with urllib.request.urlopen(f"http://{broker.admin}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    families = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("headrace_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            families[name] = (family.type, labels)
    return families


def test_every_family_is_on_the_page_and_the_other_way_round(tmp_path: Path) -> None:
    """docs/metrics.md; a family that has no sample yet shows no labels."""
    rows = ROW.findall(PAGE.read_text())
    documented = {name: (kind, {label.strip() for label in labels.split(",")} - {""}) for name, kind, labels in rows}
    assert len(documented) == len(rows), "a family stands on the page twice"
    exported = exported_families(tmp_path)
    assert set(exported) - set(documented) == set(), "not in docs/metrics.md"
    assert set(documented) - set(exported) == set(), "in docs/metrics.md only"
    for name, (kind, labels) in exported.items():
        assert documented[name][0] == kind, name
        assert labels in (set(), documented[name][1]), name
