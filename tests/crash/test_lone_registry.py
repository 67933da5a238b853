"""A registry by itself under a monitor: scraped, killed, started again, beside a broker that goes on."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from urllib.error import URLError

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.crash.broker_process import BrokerProcess
from tests.support.ports import free_port
from tests.support.registries import RegistryProcess
from tests.support.remoting import RemotingSocket
from tests.support.waiting import until

NAMESPACE = "ORDER_TOPIC_CONFIG"


def scrape(registry: RegistryProcess) -> dict[tuple[str, str], float]:
    """Return the value of each sample, by its name and the values of its labels."""
    status, text = registry.ask("/metrics")
    assert status == 200
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(registry: RegistryProcess, name: str, labels: str = "") -> float:
    return scrape(registry)[f"headrace_{name}", labels]


def fixed_addresses() -> list[str]:
    names = ("registry.address", "registry.nsq-tcp-address", "registry.nsq-http-address", "registry.admin-address")
    return [word for name in names for word in (f"--{name}", f"127.0.0.1:{free_port()}")]


def test_what_cannot_be_written_down_is_counted(tmp_path: Path) -> None:
    """A-REG-21: an ordered topic that is not on disk is refused; the registry goes on, and a monitor sees it."""
    arguments = ("--free-ports", "--registry.start-wait-ms", "0")
    with RegistryProcess(tmp_path, *arguments) as registry, RemotingSocket(registry.listeners["registry"]) as peer:
        (registry.data_dir / "namesrv").rename(tmp_path / "away")
        ordered = {"namespace": NAMESPACE, "key": "ordered", "value": "broker-a:4"}
        assert peer.call(100, ordered)[0]["code"] == 1
        names = {
            "brokerName": "broker-a",
            "brokerAddr": "127.0.0.1:1",
            "clusterName": "C",
            "haServerAddr": "127.0.0.1:2",
        }
        assert peer.call(103, names | {"brokerId": 0})[0]["code"] == 0
        until(lambda: value(registry, "registry_kv_write_errors_total") > 0)
        until(lambda: value(registry, "registry_brokers_write_errors_total") > 0)
        assert value(registry, "registry_brokers") == 1
        assert [registry.ask(path)[0] for path in ("/healthz", "/readyz")] == [200, 200]
        (tmp_path / "away").rename(registry.data_dir / "namesrv")
        kept = registry.data_dir / "namesrv" / "kvConfig.json"
        until(lambda: kept.exists() and "broker-a:4" in kept.read_text(), 30)


def test_registry_is_scraped_killed_and_started_again(tmp_path: Path) -> None:
    """A-REG-04, A-REG-16, X-REG-06: what it counts begins anew, brokers come back, ordered topics have stayed."""
    with contextlib.ExitStack() as stack:
        registry = stack.enter_context(RegistryProcess(tmp_path / "registry", *fixed_addresses()))
        broker = BrokerProcess(
            tmp_path,
            (
                *("--registry.enabled", "false", "--broker.registries", registry.listeners["registry"]),
                *("--nsq.lookupd-addresses", registry.listeners["nsqlookupd_tcp"]),
            ),
        )
        stack.callback(broker.kill)
        broker.start()
        assert registry.ask("/healthz") == (200, "ok\n")
        assert registry.ask("/readyz") == (200, "ready\n")
        until(lambda: value(registry, "registry_brokers") == value(registry, "registry_nsq_producers") == 1)
        with RemotingSocket(registry.listeners["registry"]) as tool:
            ordered = {"namespace": NAMESPACE, "key": "ordered", "value": "broker-a:4"}
            assert tool.call(100, ordered)[0]["code"] == 0
            seen = scrape(registry)
            assert seen["headrace_net_open_connections", "registry"] == 2  # the broker's and this one
        assert seen["headrace_registry_requests_total", "PUT_KV_CONFIG"] == 1
        assert seen["headrace_registry_registrations_total", ""] >= 1
        assert seen["headrace_registry_nsq_requests_total", "IDENTIFY"] == 1
        assert seen["headrace_registry_kv_write_errors_total", ""] == 0

        registry.kill()
        with pytest.raises(URLError):
            registry.ask("/readyz")
        killed_at = time.time()
        registry.start()
        again = scrape(registry)
        assert again["headrace_node_start_time_seconds", ""] > killed_at
        assert ("headrace_registry_requests_total", "PUT_KV_CONFIG") not in again
        until(lambda: value(registry, "registry_brokers") == value(registry, "registry_nsq_producers") == 1)
        with RemotingSocket(registry.listeners["registry"]) as tool:
            header, _ = tool.call(101, {"namespace": NAMESPACE, "key": "ordered"})
            assert header["extFields"]["value"] == "broker-a:4"

        broker.kill()
        until(lambda: value(registry, "registry_brokers") == value(registry, "registry_nsq_producers") == 0)
        assert value(registry, "registry_dropped_brokers_total", "connection") == 1
        assert registry.ask("/readyz") == (200, "ready\n"), "a registry without brokers is one that works"
        assert registry.stop() == 0
        assert "Traceback" not in registry.log
        assert " ERROR " not in registry.log
