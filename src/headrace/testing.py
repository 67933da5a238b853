"""A real broker inside a test: started in a thread, on free ports, with a store of its own that goes away.

    from headrace import testing

    def test_orders():
        with testing.broker() as broker:
            publish_orders(broker.nsq_tcp)          # an NSQ client
            consume_orders(namesrv=broker.registry)  # a RocketMQ client

As a pytest fixture:

    @pytest.fixture
    def broker():
        with testing.broker(store__durability="async") as broker:
            yield broker

It is the broker of ``headrace serve``, with the same defaults but for segments of 1 MiB, which are quickly made; so a
message larger than that is refused, unless ``store__segment_bytes`` is raised. Nor does it poll busily: its clients
need the one interpreter. Several brokers run side by side. Each has one thread with its own event loop, and nothing of
it is left when the ``with`` block ends. A forked child may use a broker, which stays the parent's: it neither stops it
nor removes its store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import uvloop

from headrace.errors import ConfigError, InternalError, StoreClosedError
from headrace.net.listener import bind
from headrace.net.ports import with_addresses
from headrace.node import Node
from headrace.settings import Settings, TopicSettings, validate
from headrace.settings.load import convert_typed, nearest
from headrace.settings.tree import setting_fields

logger = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 1 << 20
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 30.0


@contextmanager
def broker(**overrides: Any) -> Iterator[RunningBroker]:
    """Run a broker until the ``with`` block ends.

    Args:
        overrides: Settings as ``SECTION__FIELD``, spelled as in the environment but in lower case:
            ``store__durability="async"``, ``nsq__msg_timeout_ms=200``, ``nsq__enabled=False``; sizes and durations
            may be texts (``"2MiB"``, ``"200ms"``). ``store__topics`` is a mapping of topic names to
            ``headrace.settings.TopicSettings``. With ``store__data_dir`` the store is kept there and stays; ports are
            always free ones.

    Raises:
        ConfigError: there is no such setting, or its value is not accepted; or gevent has replaced threads.
        HeadraceError: the store cannot be opened.
    """
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and gevent.is_module_patched("threading"):
        raise ConfigError(
            "gevent has replaced threads in this process (monkey.patch_all), and headrace.testing.broker runs the "
            "broker in one: start `headrace serve --free-ports --ready-file FILE` as a process of its own"
        )
    pid = os.getpid()
    folder = tempfile.mkdtemp(prefix="headrace-testing-")
    try:
        running = RunningBroker(make_settings(Path(folder, "store"), overrides))
        running.start()
        try:
            yield running
        finally:
            running.close()
    finally:
        if os.getpid() == pid:
            shutil.rmtree(folder)


class RunningBroker:
    """A broker and its thread.

    Attributes:
        settings: What it runs with.
        listeners: Address of each listener by its name, as in the ready file of ``headrace serve``.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.listeners: dict[str, str] = {}
        self._node: Node
        self._loop: asyncio.AbstractEventLoop
        self._changing = threading.RLock()  # who starts or stops it; others wait
        self._thread: threading.Thread | None = None
        self._pid = 0  # whose thread it is: a forked child has none
        self._failure: BaseException | None = None
        self._is_closed = False
        self._held: list[socket.socket] = []  # its ports, which nobody else gets while it is down

    @property
    def nsq_tcp(self) -> str:
        """Where NSQ clients connect, ``host:port``; empty when switched off, as for the others."""
        return self.listeners.get("nsq_tcp", "")

    @property
    def nsq_http(self) -> str:
        """Where nsqd's HTTP interface answers, ``host:port``."""
        return self.listeners.get("nsq_http", "")

    @property
    def remoting(self) -> str:
        """Where RocketMQ clients reach the broker, ``host:port``; most of them ask ``registry`` for it."""
        return self.listeners.get("remoting", "")

    @property
    def remoting_vip(self) -> str:
        """The second port of the same, two below, which RocketMQ clients up to 4.4 use (``host:port``)."""
        return self.listeners.get("remoting_vip", "")

    @property
    def registry(self) -> str:
        """What RocketMQ clients are given as their name server, ``host:port``."""
        return self.listeners.get("registry", "")

    @property
    def nsqlookupd_http(self) -> str:
        """What NSQ consumers are given as their nsqlookupd, ``host:port``."""
        return self.listeners.get("nsqlookupd_http", "")

    @property
    def admin(self) -> str:
        """Where health and metrics are, ``host:port``."""
        return self.listeners.get("admin", "")

    @property
    def data_dir(self) -> Path:
        """The folder of the store."""
        return self.settings.store.data_dir

    def start(self) -> None:
        """Start the broker and return once every listener accepts; nothing happens when it runs already.

        The first start takes free ports, later ones take the same again, so that clients find their broker. They are
        kept for it until ``close``.

        Raises:
            StoreClosedError: ``close`` was called, as at the end of the ``with`` block: its folder is gone.
            HeadraceError: it cannot start; nothing stays open.
        """
        with self._changing:
            if self._is_closed:
                raise StoreClosedError(f"the broker on {self.data_dir} has ended for good; start another")
            if self._thread is not None:
                return
            self._failure = None
            is_first = not self.listeners
            ready: Future[None] = Future()
            self._pid = os.getpid()
            self._thread = threading.Thread(target=self._run, args=(ready,), name="headrace-testing")
            self._thread.start()
            _RUNNING.add(self)
            try:
                ready.result(START_SECONDS)
            except BaseException:
                ready.cancel()  # given up: what is started now is stopped
                self._join()
                if is_first:
                    self._let_go()
                raise

    def stop(self) -> None:
        """Stop the broker as SIGTERM does and wait for its end; nothing happens when it does not run.

        Nor in a forked child: it is its parent's.
        """
        if self._pid != os.getpid():
            return
        with self._changing:
            if self._thread is None:
                return
            with contextlib.suppress(RuntimeError):  # its loop has ended by itself: by what, is raised below
                self._loop.call_soon_threadsafe(self._node.request_stop)
            self._join()
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure

    def close(self) -> None:
        """Stop the broker for good: its ports are anybody's. Raises: as ``stop``."""
        self._is_closed = True
        try:
            self.stop()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        while self._held:
            self._held.pop().close()

    def restart(self) -> None:
        """Stop the broker, which closes its connections, and start it on the same ports and store."""
        with self._changing:
            self.stop()
            self.start()

    def _join(self) -> None:
        assert self._thread is not None
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            raise InternalError(f"the broker on {self.data_dir} did not stop within {STOP_SECONDS:.0f} s")
        self._thread = None
        _RUNNING.discard(self)

    def _run(self, ready: Future[None]) -> None:
        """Be the broker's thread."""
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve(ready))
        except BaseException as error:  # noqa: BLE001  # the thread's outermost line: start() or stop() raises it
            if ready.done():
                self._failure = error
            else:
                ready.set_exception(error)

    async def _serve(self, ready: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._node = node = Node(self.settings, free_ports=not self.listeners)
        node.open()
        try:
            if not self.listeners:
                # Bound a second time without listening, nobody is given them as free ones while a broker is away.
                with contextlib.suppress(OSError):  # as on macOS: as long as nobody takes one, it works too
                    self._held.extend(bind(address) for address in node.listeners.values())
            await node.start()
            if not self.listeners:
                self.listeners = dict(node.listeners)
                self.settings = _with_addresses(self.settings, self.listeners)
            if ready.set_running_or_notify_cancel():
                ready.set_result(None)
                await node.wait_stopped()
        finally:
            await node.stop()


_RUNNING: Final[set[RunningBroker]] = set()


def _stop_all() -> None:
    """Stop what nobody has stopped, or the interpreter would wait for its thread for ever."""
    for running in tuple(_RUNNING):
        try:
            running.stop()
        except Exception:  # the others are stopped all the same
            logger.exception("broker not stopped data_dir=%s", running.data_dir)


# Not atexit, which is later: the interpreter has waited for the broker's thread then, and no executor takes a job.
threading._register_atexit(_stop_all)  # type: ignore[attr-defined]


def make_settings(data_dir: Path, overrides: dict[str, Any]) -> Settings:
    """Return the settings of a broker for tests; ``overrides`` are those of ``broker``.

    Raises:
        ConfigError: there is no such setting, or its value is not accepted.
    """
    settings = Settings()
    known = {setting.path.replace(".", "__"): setting for setting in setting_fields()}
    by_section: dict[str, dict[str, Any]] = {
        "store": {"data_dir": data_dir, "segment_bytes": SEGMENT_BYTES},
        "broker": {"busy_poll_us": 0},
    }
    for key, value in overrides.items():
        section, _, field = key.partition("__")
        if key == "store__topics":
            accepted: object = _take_topics(value)
        elif key in known:
            accepted = convert_typed(known[key], str(value) if isinstance(value, Path) else value, key)
        else:
            hint = nearest(key, known) or ": write SECTION__FIELD, such as store__durability"
            raise ConfigError(f"{key} is no setting{hint}", key=key)
        by_section.setdefault(section, {})[field] = accepted
    store = by_section["store"]
    store["data_dir"] = store["data_dir"].absolute()  # a test may change the working directory while the broker runs
    settings = _replace(settings, by_section)
    validate(settings)
    return settings


def _take_topics(value: Any) -> Mapping[str, TopicSettings]:
    if not isinstance(value, Mapping) or not all(isinstance(own, TopicSettings) for own in value.values()):
        raise ConfigError(
            "store__topics is not accepted: a mapping of names to headrace.settings.TopicSettings", key="store.topics"
        )
    return value


def _with_addresses(settings: Settings, listeners: dict[str, str]) -> Settings:
    """Return the settings with the ports that were taken."""
    settings = with_addresses(settings, listeners)
    return _replace(settings, {"remoting": {"vip_listener": "remoting_vip" in listeners}})


def _replace(settings: Settings, by_section: dict[str, dict[str, Any]]) -> Settings:
    """Return the settings with some fields of some sections replaced."""
    return replace(settings, **{name: replace(getattr(settings, name), **by_section[name]) for name in by_section})
