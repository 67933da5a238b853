"""``headrace registry``: run a registry by itself, without a broker."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

import headrace
from headrace.cli.options import FilePath, SettingsCommand, read_settings, settings_flags
from headrace.cli.serve import start_logging
from headrace.errors import ConfigError, StoreError
from headrace.foreground import ReadyFile, announce, leave_at_signals, stop_at_signals
from headrace.settings import Settings
from headrace.settings.folder import find_folder_problem

logger = logging.getLogger(__name__)

USES: Final = ("store.data_dir", "registry", "access.rules_file", "log")
"""Settings of a registry by itself; the others of a file that it shares with brokers mean nothing here."""


@click.command(cls=SettingsCommand, uses=USES, short_help="Run a registry (name server, nsqlookupd) without a broker.")
@click.option("--free-ports", is_flag=True, help="Listen on free ports instead of the configured ones.")
@click.option(
    "--ready-file",
    type=FilePath(),
    metavar="FILE",
    help="Write process id and listeners there, as JSON, once it accepts.",
)
@settings_flags
@click.pass_context
def registry(ctx: click.Context, config: Path | None, free_ports: bool, ready_file: Path | None) -> int:
    """Run a registry (RocketMQ: name server, NSQ: nsqlookupd) in the foreground until SIGTERM, SIGINT or SIGHUP.

    It listens on registry.address, registry.nsq_tcp_address and registry.nsq_http_address, and keeps nothing but
    ordered topics, in the folder namesrv of --data-dir. Brokers find it through broker.registries and
    nsq.lookupd_addresses. Each registry needs a data directory of its own. Settings of brokers, in a file that both
    share, are passed over.
    """
    leave_at_signals()
    settings = read_settings(ctx, config).settings
    start_logging(settings.log)
    return run_registry(settings, free_ports=free_ports, ready_file=ready_file)


def run_registry(settings: Settings, *, free_ports: bool, ready_file: Path | None) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP; return the exit code.

    Raises:
        HeadraceError: it cannot start; the text is for the user.
    """
    import uvloop  # noqa: PLC0415  # wrong settings are reported without waiting for all this to load

    from headrace.broker.access import open_rules  # noqa: PLC0415
    from headrace.clock import LoopClock  # noqa: PLC0415
    from headrace.net.address import format_address  # noqa: PLC0415
    from headrace.net.http import HttpLimits  # noqa: PLC0415
    from headrace.net.listener import raise_file_limit  # noqa: PLC0415
    from headrace.net.ports import bind_listener, listener_addresses  # noqa: PLC0415
    from headrace.nsq.lookupd.service import LISTENERS as LOOKUPD_LISTENERS  # noqa: PLC0415
    from headrace.nsq.lookupd.service import LookupdService  # noqa: PLC0415
    from headrace.remoting.registry.server import RegistryServer  # noqa: PLC0415

    if not settings.registry.address:
        raise ConfigError('registry.address = "" is not accepted: a registry alone needs an address "host:port"')
    if problem := find_folder_problem(settings.store.data_dir):
        raise StoreError(f"{problem}; choose another with --data-dir")
    raise_file_limit()
    ready = ReadyFile(ready_file)
    ready.require_writable()
    rules = open_rules(settings.access)
    clock = LoopClock()
    server = RegistryServer(settings.registry, clock, data_dir=settings.store.data_dir, rules=rules)
    sockets = {}
    wanted = listener_addresses(replace(settings, registry=replace(settings.registry, enabled=True)))
    for name in ("registry", *LOOKUPD_LISTENERS):
        sock = bind_listener(name, wanted[name], free_port=free_ports) if name in wanted else None
        if sock is not None:
            sockets[name] = sock
    listeners = {name: format_address(sock.getsockname()) for name, sock in sockets.items()}
    server.claim()
    ready.clear()

    async def serve() -> None:
        stop_wanted = asyncio.Event()
        stop_at_signals(asyncio.get_running_loop(), stop_wanted.set)
        clock.begin()
        lookupd = LookupdService(settings.registry, clock, sockets, limits=HttpLimits.within_open_files())
        await asyncio.gather(server.start(sockets.pop("registry")), lookupd.start())
        try:
            ready.put(settings.store.data_dir, listeners)
            lines = (f"  {name:<15}  {address}" for name, address in listeners.items())
            announce("\n".join((f"Headrace {headrace.__version__} registry is ready", *lines)))
            await stop_wanted.wait()
        finally:
            logger.info("stopping")
            await asyncio.gather(server.stop(), lookupd.stop())

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())
    finally:
        ready.remove()
    return 0
