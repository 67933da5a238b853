"""The key-value configuration of a registry: namespace -> key -> value.

Its one known use are ordered topics: in ``ORDER_NAMESPACE`` the key is a topic and the value names the brokers and
queue numbers it is fixed to, ``broker-a:4;broker-b:4``. Admin tools write it to every registry. It is kept on disk, by
whoever serves it: ``content`` is what to write, the constructor takes it back.

Content: ``{"configTable":{NAMESPACE:{KEY:VALUE}}}``, RocketMQ's. SmartGo's flat form ``{TOPIC:"broker-a:8"}`` is read
as order configuration.

Ref: requirements A-REG-04, A-REG-21, A-REG-22, X-REG-03; remoting.md 4.8.2; docs/protocols/registry.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headrace.errors import QuotaExceededError
from headrace.format.layout import REGISTRY

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"

KV_FOLDER: Final = REGISTRY
KV_FILE: Final = "kvConfig.json"
"""Where it is kept, below the data directory."""


class KvConfig:
    """The configuration in memory.

    Attributes:
        max_bytes: Bytes of all namespaces, keys and values it takes, a namespace once for each of its keys; reading a
            file is not bounded by it.
    """

    def __init__(self, content: Mapping[str, Any] | None = None, *, max_bytes: int = 16 << 20) -> None:
        """``content`` is what ``content()`` returned in an earlier life, or SmartGo's form.

        Raises:
            ValueError: it is neither.
        """
        self.max_bytes = max_bytes
        self._table: dict[str, dict[str, str]] = {}
        self._size = 0
        for namespace, pairs in _table_of(content or {}).items():
            for key, value in pairs.items():
                self._set(namespace, key, value)

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, None when there is none."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str]:
        """Return a copy of everything in a namespace."""
        return dict(self._table.get(namespace, {}))

    def put(self, namespace: str, key: str, value: str) -> bool:
        """Set a value; return whether that changed something.

        Raises:
            QuotaExceededError: there is no room; names the setting.
        """
        before = self.get(namespace, key)
        if before == value:
            return False
        more = _size(namespace, key, value) - (_size(namespace, key, before) if before is not None else 0)
        if more > 0 and self._size + more > self.max_bytes:
            raise QuotaExceededError(
                f"the key-value configuration has its limit of {self.max_bytes} bytes (setting registry.max_kv_bytes)"
            )
        self._set(namespace, key, value)
        return True

    def delete(self, namespace: str, key: str) -> bool:
        """Remove a value; return whether it was there."""
        pairs = self._table.get(namespace, {})
        value = pairs.pop(key, None)
        if value is None:
            return False
        self._size -= _size(namespace, key, value)
        if not pairs:
            del self._table[namespace]
        return True

    def content(self) -> dict[str, dict[str, dict[str, str]]]:
        """Return a copy of everything, as the file has it."""
        return {"configTable": {namespace: dict(pairs) for namespace, pairs in self._table.items()}}

    def _set(self, namespace: str, key: str, value: str) -> None:
        pairs = self._table.setdefault(namespace, {})
        before = pairs.get(key)
        if before is not None:
            self._size -= _size(namespace, key, before)
        pairs[key] = value
        self._size += _size(namespace, key, value)


def find_kv_fault(content: Mapping[str, Any]) -> str:
    """Say what keeps the content of a file from being read; empty when it is whole."""
    try:
        _table_of(content)
    except ValueError as error:
        return str(error)
    return ""


def _size(namespace: str, key: str, value: str) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in (namespace, key, value))


def _table_of(content: Mapping[str, Any]) -> Mapping[str, Mapping[str, str]]:
    """Return namespace -> key -> value of either form; ValueError when it is none."""
    wrapped = content.get("configTable")
    if isinstance(wrapped, Mapping):
        if not all(_is_flat(pairs) for pairs in wrapped.values()):
            raise ValueError("configTable holds something else than namespaces of texts")
        return wrapped
    if not _is_flat(content):
        raise ValueError("there is neither a configTable nor a list of topics")
    return {ORDER_NAMESPACE: content} if content else {}


def _is_flat(pairs: object) -> bool:
    return isinstance(pairs, Mapping) and all(
        isinstance(key, str) and isinstance(value, str) for key, value in pairs.items()
    )
