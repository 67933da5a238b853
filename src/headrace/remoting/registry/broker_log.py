"""What is logged of brokers that come and go, and of what tools do to their routes.

Whoever reaches the port may register brokers as often as it likes, under any names: the same line comes once a minute,
and all together ``log_pace.LINES_A_MINUTE`` times. The counters have all of them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.log_pace import LineLimit
from headrace.remoting.registry.rivals import Rivals

if TYPE_CHECKING:
    from headrace.clock import Clock
    from headrace.registry.routes import LiveBroker

logger = logging.getLogger(__name__)


class BrokerLog:
    """One registry's.

    Attributes:
        came: Broker processes that have registered since the start, without those that took the place of another.
        went: Those that said goodbye, lost their connection or were silent.
    """

    def __init__(self, clock: Clock, quiet_ms: int) -> None:
        """``quiet_ms`` is how long brokers that put each other out must be quiet to be told of again."""
        self.came = 0
        self.went = 0
        self._rivals = Rivals(clock, quiet_ms)
        self._limit = LineLimit(clock, self._tell_of_more)

    def _tell_of_more(self) -> None:
        logger.warning("more of brokers than is logged came=%d gone=%d", self.came, self.went)

    def note_came(self, name: str, broker_id: int, address: str, cluster: str) -> None:
        """Note a broker that was not there."""
        self.came += 1
        if self._limit.is_due(f"came {broker_id} {name} {address}"):
            logger.info("broker registered broker=%s id=%d address=%s cluster=%s", name, broker_id, address, cluster)

    def note_left(self, name: str, broker_id: int, address: str) -> None:
        """Note a broker's goodbye."""
        self.went += 1
        if self._limit.is_due(f"left {broker_id} {name} {address}"):
            logger.info("broker left broker=%s id=%d address=%s", name, broker_id, address)

    def note_lost(self, broker: LiveBroker, cause: str) -> None:
        """Note a broker whose connection has ended."""
        self.went += 1
        if self._limit.is_due(f"lost {broker.broker_id} {broker.name} {broker.address}"):
            logger.warning(
                "broker lost, its routes are dropped broker=%s id=%d address=%s cause=%s",
                broker.name,
                broker.broker_id,
                broker.address,
                cause,
            )

    def note_silent(self, broker: LiveBroker, silent_ms: int) -> None:
        """Note a broker that said nothing for too long."""
        self.went += 1
        if self._limit.is_due(f"silent {broker.broker_id} {broker.name} {broker.address}"):
            logger.warning(
                "broker silent, its routes are dropped broker=%s id=%d address=%s silent_ms=%d",
                broker.name,
                broker.broker_id,
                broker.address,
                silent_ms,
            )

    def note_place(self, name: str, broker_id: int, old: str, new: str) -> None:
        """Note that a broker is at another address than before; that two are in turn is told as well, each once."""
        times = self._rivals.count(f"{broker_id} {name}", old, new)
        if times > 2 or not self._limit.is_due(f"place {times} {broker_id} {name} {old} {new}"):
            return
        if times == 1:
            logger.warning("broker took the place of another broker=%s id=%d old=%s new=%s", name, broker_id, old, new)
        else:
            logger.warning(
                "brokers of one name and id register in turn, clients find one of them at a time; give each a name of "
                "its own broker=%s id=%d addresses=%s,%s",
                name,
                broker_id,
                old,
                new,
            )

    def note_address(self, address: str, old: LiveBroker, name: str, broker_id: int) -> None:
        """Note that an address is another broker's than before; that two are in turn is told as well, each once."""
        times = self._rivals.count(address, old.name, name)
        if times > 2 or not self._limit.is_due(f"address {times} {address} {old.name} {name}"):
            return
        if times == 1:
            logger.warning(
                "broker's address is taken by another address=%s old=%s id=%d new=%s id=%d",
                address,
                old.name,
                old.broker_id,
                name,
                broker_id,
            )
        else:
            logger.warning(
                "brokers of one address register in turn, clients find one of them at a time; have each advertise its "
                "own (remoting.advertised_address, brokerIP1) address=%s brokers=%s,%s",
                address,
                old.name,
                name,
            )

    def note_permission(self, change: str, broker: str, topics: int, client: str) -> None:
        """Note that a tool took or gave a broker's right to be written to: ``change`` is wiped or added."""
        if self._limit.is_due(f"{change} {broker}"):
            logger.info("write permission %s broker=%s topics=%d client=%s", change, broker, topics, client)

    def note_topic_removed(self, topic: str, client: str) -> None:
        """Note that a tool took a topic out of the routes."""
        if self._limit.is_due(f"removed {topic}"):
            logger.info("topic removed from routes topic=%s client=%s", topic, client)
