"""The key-value configuration; its file is tested with the server that keeps it."""

from typing import Any

import pytest

from headrace.errors import QuotaExceededError
from headrace.registry.kv_config import ORDER_NAMESPACE, KvConfig


def test_content_is_read_back() -> None:
    """A-REG-21: PUT, restart registry: still there."""
    config = KvConfig()
    assert config.put(ORDER_NAMESPACE, "T", "broker-a:4;broker-b:4")
    assert not config.put(ORDER_NAMESPACE, "T", "broker-a:4;broker-b:4")
    config.put("NS", "k", "v")
    assert config.content() == {"configTable": {"NS": {"k": "v"}, ORDER_NAMESPACE: {"T": "broker-a:4;broker-b:4"}}}
    again = KvConfig(config.content())
    assert again.get("NS", "k") == "v"
    assert again.namespace(ORDER_NAMESPACE) == {"T": "broker-a:4;broker-b:4"}
    assert again.get("NS", "other") is None
    assert again.namespace("other") == {}


def test_deleted_value_is_gone() -> None:
    """remoting.md 4.8.2, code 102."""
    config = KvConfig({"configTable": {"NS": {"k": "v"}}})
    assert config.delete("NS", "k")
    assert not config.delete("NS", "k")
    assert config.content() == {"configTable": {}}


def test_flat_form_is_read_as_order_configuration() -> None:
    """A-REG-22, X-REG-03: SmartGo's documented form."""
    config = KvConfig({"jcpt-example-200": "broker-a:8"})
    assert config.namespace(ORDER_NAMESPACE) == {"jcpt-example-200": "broker-a:8"}


@pytest.mark.parametrize(
    "content", [{"configTable": {"NS": {"k": 1}}}, {"configTable": {"NS": []}}, {"a": {"b": "c"}}, {"configTable": 1}]
)
def test_content_of_another_form_is_refused(content: dict[str, Any]) -> None:
    """A file that is not understood must not be overwritten with nothing."""
    with pytest.raises(ValueError, match="configTable"):
        KvConfig(content)


def test_bytes_are_bounded_and_freed_again() -> None:
    config = KvConfig(max_bytes=10)
    config.put("NS", "k", "1234567")
    with pytest.raises(QuotaExceededError, match=r"registry\.max_kv_bytes"):
        config.put("NS", "l", "")
    config.put("NS", "k", "123")
    config.put("NS", "l", "1")
    config.delete("NS", "k")
    config.delete("NS", "l")
    config.put("NS", "k", "1234567")


def test_bytes_are_those_of_the_file() -> None:
    """registry.max_kv_bytes says bytes: what is no ASCII has up to four a character."""
    config = KvConfig({"configTable": {"NS": {"k": "é"}}}, max_bytes=10)
    with pytest.raises(QuotaExceededError, match=r"registry\.max_kv_bytes"):
        config.put("NS", "k", "éééé")
    config.put("NS", "k", "ééé1")
    config.put("NS", "k", "1234567")
