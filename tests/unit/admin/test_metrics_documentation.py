"""docs/metrics.md and /metrics of a running broker and a running registry name the same families.

Each with the same type and labels.
"""

from __future__ import annotations

import gc
import re
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace import testing
from tests.support.access_rules import write_rules
from tests.support.registries import RegistryProcess
from tests.support.remoting import RemotingSocket, send_fields

PAGE = Path(__file__).parents[3] / "docs/metrics.md"
ROW = re.compile(r"^\| `(headrace_[a-z_]+)` \| ([a-z]+) \| ([a-z, ]*) ?\| (.+) \|$", re.MULTILINE)
WHOSE = {
    "Of a broker only.": False,
    "Of a broker, and of a registry by itself.": True,
    "Of a broker with a registry inside, and of a registry by itself.": True,
}
"""How a section begins, and whether a registry by itself has what is in it."""
UNSHOWN = {"ProducerLogCounters.replayed"}
"""What a start counts for itself."""
MANY = 1 << 40
"""More than is counted by itself meanwhile."""
# Whoever sends nothing that proves who it is: for the counters that only access rules bring.
RULES = '[[users]]\nname = "near"\naddresses = ["127.0.0.1"]\nadmin = true\n'


@dataclass(frozen=True)
class Family:
    kind: str
    labels: frozenset[str]


def documented_families(*, of_registry: bool) -> dict[str, Family]:
    """Return what the page says that a broker, or a registry by itself, has."""
    found = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        title, _, text = section.partition("\n\n")
        rows = ROW.findall(text)
        begins = [whose for whose in WHOSE if text.startswith(whose)]
        assert bool(begins) == bool(rows), f"whose are the families of the section {title}?"
        for name, kind, labels, meaning in rows:
            assert name not in found, "a family stands on the page twice"
            if not of_registry or (WHOSE[begins[0]] and not meaning.startswith("broker only:")):
                found[name] = Family(kind, frozenset(label.strip() for label in labels.split(",")) - {""})
    return found


def exported_families(text: str) -> dict[str, Family]:
    """Return the families of an answer; one that has no sample yet shows no labels."""
    found: dict[str, Family] = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("headrace_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            assert name not in found, "a family comes in one piece"
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            found[name] = Family(family.type, frozenset(labels))
    return found


def scrape_broker(folder: Path) -> str:
    """Return the metrics of a broker that has everything switched on."""
    options = {
        "access__rules_file": str(write_rules(folder, RULES)),
        "broker__dead_letter_webhook": "http://127.0.0.1:9/",
        "nsq__statsd_address": "127.0.0.1:9",
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
            return str(answer.read().decode())


def scrape_registry(folder: Path) -> str:
    """Return the metrics of a registry by itself that has everything switched on."""
    rules = str(write_rules(folder, RULES))
    with RegistryProcess(folder, "--free-ports", "--access.rules-file", rules) as registry:
        with RemotingSocket(registry.listeners["registry"]) as client:
            assert client.call(206)[0]["code"] == 0
        return registry.ask("/metrics")[1]


def test_every_listener_is_counted() -> None:
    """That of old clients, the VIP channel, counts with the one it belongs to."""
    with testing.broker() as broker:
        samples = scrape_samples(broker.admin)
        counted = {dict(labels).get("listener") for name, labels in samples if name == "headrace_net_open_connections"}
        assert counted == broker.listeners.keys() - {"remoting_vip"}


def find_counters() -> list[Any]:
    """Return every object of this process in which Headrace counts something."""
    return [
        found
        for found in gc.get_objects()
        if type(found).__name__.endswith("Counters") and type(found).__module__.startswith("headrace.")
    ]


def scrape_samples(admin: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    with urllib.request.urlopen(f"http://{admin}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        if family.name.startswith("headrace_")
        for sample in family.samples
    }


def test_every_counter_is_shown() -> None:
    """What is counted and in no family, nobody ever sees; that of a sum counts as shown."""
    earlier = find_counters()  # kept, so that no later one has the place of one of them
    known = {id(counters) for counters in earlier}
    unshown = set()
    with testing.broker(nsq__statsd_address="127.0.0.1:9") as broker:
        before = scrape_samples(broker.admin)
        for counters in find_counters():
            for name in () if id(counters) in known else dir(counters):
                if name.startswith("_") or type(getattr(counters, name)) is not int:
                    continue
                setattr(counters, name, getattr(counters, name) + MANY)
                after = scrape_samples(broker.admin)
                if not any(MANY <= after[key] - before.get(key, 0) < 2 * MANY for key in after):
                    unshown.add(f"{type(counters).__name__}.{name}")
                before = after
    assert unshown == UNSHOWN


@pytest.mark.parametrize(("scrape", "of_registry"), [(scrape_broker, False), (scrape_registry, True)])
def test_every_family_is_on_the_page_and_the_other_way_round(
    tmp_path: Path, scrape: Callable[[Path], str], of_registry: bool
) -> None:
    """docs/metrics.md; a registry by itself has nothing of a broker, which would be 0 for ever."""
    exported = exported_families(scrape(tmp_path))
    documented = documented_families(of_registry=of_registry)
    assert set(exported) - set(documented) == set(), "not in docs/metrics.md"
    assert set(documented) - set(exported) == set(), "in docs/metrics.md only"
    for name, family in exported.items():
        assert documented[name].kind == family.kind, name
        assert family.labels in (frozenset(), documented[name].labels), name
