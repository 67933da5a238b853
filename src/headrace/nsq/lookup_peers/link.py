"""One nsqlookupd, kept told: connect, IDENTIFY, everything that there is, then changes and pings, and all again.

    connect -> IDENTIFY -> REGISTER everything -> (changes | PING)*
       ^________ pause ________ any failure ___________|

While everything is said, what changes is noted and said behind it. Where nobody is connected nothing is noted: the next
connection begins with everything. Commands go out ``WINDOW`` at a time and their replies are awaited together, so
100,000 channels take 200 round trips, and the event loop is given back between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from headrace.errors import ClientError, ConnectionLostError, HeadraceError, InternalError, ProtocolError
from headrace.net.dialing import connect
from headrace.nsq.lookup_peers.announcements import Change, announce_all, announce_changes
from headrace.nsq.lookup_peers.codec import PING, LookupdIdentity, NsqdIdentity, encode_identify
from headrace.nsq.lookup_peers.connection import LookupConnection
from headrace.nsq.lookup_peers.counters import LookupCounters, cause_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.topic import Topic
    from headrace.log_pace import LogPace
    from headrace.net.names import Names

logger = logging.getLogger(__name__)

CONNECT_S: Final = 1.0
PING_S: Final = 15.0
FIRST_PAUSE_S: Final = 0.5
OWN_S: Final = 60.0
"""Then an address that leads to the registry of the own process is looked at again: a name may lead elsewhere."""
LONGEST_PAUSE_S: Final = 15.0
"""Between two tries to connect: nsqd tries again with its next ping."""
MAX_CHANGES: Final = 200_000
"""Those that wait to be said, some 250 bytes each; a nsqlookupd that leaves more waiting is told everything anew."""
WINDOW: Final = 500
"""Commands on their way at once, some 20 KiB: about a millisecond of the loop to encode."""


class Topics(Protocol):
    """What is announced; ``Broker`` is one."""

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Every topic by name."""


class LookupLink:
    """One nsqlookupd.

    Attributes:
        address: Where it is, as the settings spell it.
        is_connected: It has taken everything and the connection has not broken since.
        is_own: It is the one in this process, which is told without a connection.
        last_error: Why the last connection failed; empty while there is one.
        tried: Set when it is known whether the first try to connect worked.
    """

    def __init__(
        self,
        address: str,
        identity: NsqdIdentity,
        broker: Topics,
        counters: LookupCounters,
        names: Names,
        pace: LogPace,
        *,
        own_listener: str = "",
    ) -> None:
        """Do nothing yet.

        Args:
            own_listener: Where the nsqlookupd in this process listens, as bound.
        """
        self.address = address
        self.is_connected = False
        self.is_own = False
        self._own_listener = own_listener
        self.last_error = ""
        self.tried = asyncio.Event()
        self._identify = encode_identify(identity)
        self._broker = broker
        self._counters = counters
        self._names = names
        self._pace = pace
        self._changes: dict[Change, None] | None = None  # None: nobody is to be told
        self._connection: LookupConnection | None = None
        self._wanted = asyncio.Event()
        self._lookupd: LookupdIdentity | None = None
        self._is_news = True  # the log does not say that it is connected

    @property
    def http_address(self) -> str:
        """Where it says that it answers over HTTP; empty where it says nothing, or is not connected."""
        return self._lookupd.http_address if self._lookupd is not None else ""

    def note(self, change: Change) -> None:
        """Have a change said soon; cheap."""
        if self._changes is None:
            return
        self._changes.pop(change, None)  # behind what came meanwhile
        self._changes[change] = None
        self._wanted.set()
        if len(self._changes) > MAX_CHANGES and self._connection is not None:
            self._changes = None
            self._connection.fail(ConnectionLostError(self.address, f"more than {MAX_CHANGES} changes wait for it"))

    async def serve(self) -> None:
        """Keep it told until cancelled."""
        loop = asyncio.get_running_loop()
        pause_s = FIRST_PAUSE_S
        while True:
            began = loop.time()
            try:
                await self._converse()
            except (ClientError, ProtocolError) as error:
                self._failed(error)
            except Exception:
                logger.exception("announcing to a nsqlookupd failed by a bug address=%s", self.address)
                self._failed(InternalError("internal error"))
            # One that takes everything and then hangs up is not told everything again and again at once.
            pause_s = FIRST_PAUSE_S if loop.time() - began >= PING_S else pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _converse(self) -> None:
        """Tell one connection everything, then what changes, until it breaks."""
        connection = await connect(
            self.address, self._names, lambda: LookupConnection(self.address, self._wanted.set), CONNECT_S
        )
        try:
            if self._own_listener and connection.leads_to(self._own_listener):
                connection.close()
                await self._leave_to_own()
                return
            self.is_own = False
            self._lookupd = await connection.identify(self._identify)
            self._connection, self._changes = connection, {}
            self.tried.set()
            await self._say(connection, announce_all(self._broker.topics))
            self._connected()
            await self._keep_told(connection)
        finally:
            self.is_connected = False
            self._lookupd = self._changes = self._connection = None
            connection.close()

    async def _leave_to_own(self) -> None:
        """Tell nothing: over a connection it would list this broker twice, and keep names behind what is deleted."""
        if not self.is_own:
            logger.info("nsqlookupd is the one in this process, told without a connection address=%s", self.address)
        self.is_own = self._is_news = True
        self.last_error = ""
        self.tried.set()
        await asyncio.sleep(OWN_S)

    async def _keep_told(self, connection: LookupConnection) -> None:
        loop = asyncio.get_running_loop()
        ping_at = loop.time() + PING_S
        while True:
            self._wanted.clear()  # first: whatever happens from here on is looked at in the next round
            connection.require()
            if loop.time() >= ping_at:
                ping_at = loop.time() + PING_S
                await connection.say((PING,))
                self._counters.pings += 1
            changes, self._changes = self._changes, {}  # None goes with an error, which the next round finds
            if changes:
                await self._say(connection, announce_changes(self._broker.topics, changes))
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(ping_at):
                    await self._wanted.wait()

    async def _say(self, connection: LookupConnection, commands: Iterator[bytes]) -> None:
        """Send registrations and their ends, some at a time."""
        while window := tuple(itertools.islice(commands, WINDOW)):
            await connection.say(window)
            ends = _count_ends(window)
            self._counters.unregistrations += ends
            self._counters.registrations += len(window) - ends

    def _connected(self) -> None:
        self.is_connected = True
        self.last_error = ""
        lookupd = self._lookupd
        if lookupd is not None and self._is_news:
            self._is_news = False
            logger.info(
                "announced to nsqlookupd address=%s http_address=%s version=%s",
                self.address,
                self.http_address,
                lookupd.version,
            )

    def _failed(self, error: HeadraceError) -> None:
        self.is_own = False
        self._counters.failures[cause_of(error)] += 1
        self.last_error = str(error)
        self.tried.set()
        if self._pace.is_due(self.address):
            self._is_news = True
            logger.warning("not announced to nsqlookupd, tried again address=%s error=%s", self.address, error)


def _count_ends(commands: Iterable[bytes]) -> int:
    return sum(command.startswith(b"UN") for command in commands)
