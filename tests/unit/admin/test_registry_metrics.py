"""Registry and registration in /metrics."""

import asyncio

from prometheus_client import CollectorRegistry, Metric, generate_latest

from headrace.admin.registry_metrics import registration_families, registry_families
from headrace.admin.remoting_metrics import refusals_by_name
from headrace.broker.access import parse_rules
from headrace.broker.data_version import DataVersion
from headrace.broker.topic import Topic
from headrace.remoting.registration import BrokerIdentity, Registrar
from tests.unit.remoting.registry_bench import Bench


class Families:
    """A collector of families that are there already."""

    def __init__(self, *families: Metric) -> None:
        self.families = families

    def collect(self) -> tuple[Metric, ...]:
        return self.families


def text_of(*families: Metric) -> str:
    registry = CollectorRegistry()
    registry.register(Families(*families))
    return generate_latest(registry).decode()


def test_registry_families() -> None:
    """docs/metrics.md: no addresses in labels."""
    bench = Bench(rules=parse_rules({"users": [{"name": "near", "addresses": ["127.0.0.1"], "admin": True}]}, "test"))
    link = bench.link("127.0.0.1")
    link.register()
    link.call(105, {"topic": "X"})
    link.call(9999)
    bench.link("192.0.2.1").call(206)
    bench.link("127.0.0.1").send(b"GET / HTTP/1.1\r\n\r\n")
    refused = {"TOPIC_NOT_EXIST": 1, "bad_frame": 1, "REQUEST_CODE_NOT_SUPPORTED": 1}
    assert refused.items() <= refusals_by_name(bench.server).items()
    assert len(bench.server.connections) == 3
    text = text_of(*registry_families(bench.server))
    for line in (
        "headrace_registry_brokers 1.0",
        "headrace_registry_topics 1.0",
        "headrace_registry_registrations_total 1.0",
        "headrace_registry_late_words_total 0.0",
        'headrace_registry_requests_total{request="GET_ROUTEINFO_BY_TOPIC"} 1.0',
        'headrace_registry_dropped_brokers_total{cause="silence"} 0.0',
        'headrace_registry_unsigned_requests_total{user="near"} 2.0',
        'headrace_registry_denied_requests_total{reason="unsigned"} 1.0',
    ):
        assert line + "\n" in text


class NoTopics:
    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.topic_version = DataVersion()


def test_registration_families() -> None:
    """A registry is named by its place: addresses are no labels."""

    async def make() -> Registrar:
        name = BrokerIdentity(cluster="C", name="b", address="127.0.0.1:1")
        return Registrar(NoTopics(), name, ["127.0.0.1:2", "127.0.0.1:3"], interval_ms=30_000)

    registrar = asyncio.run(make())
    registrar.links[1].is_registered = True
    registrar.links[1].registrations = 4
    registrar.links[0].failures = 2
    text = text_of(*registration_families(registrar))
    for line in (
        'headrace_remoting_registered{registry="1"} 0.0',
        'headrace_remoting_registered{registry="2"} 1.0',
        'headrace_remoting_registrations_total{registry="2"} 4.0',
        'headrace_remoting_registration_failures_total{registry="1"} 2.0',
    ):
        assert line + "\n" in text
