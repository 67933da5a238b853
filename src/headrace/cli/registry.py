"""``headrace registry``: run a registry by itself, without a broker."""

from pathlib import Path
from typing import Final

import click

from headrace.cli.options import FilePath, SettingsCommand, read_settings, settings_flags
from headrace.cli.serve import start_logging
from headrace.foreground import leave_at_signals

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

    It listens on registry.address, registry.nsq_tcp_address and registry.nsq_http_address, tells its health and metrics
    on registry.admin_address, and keeps nothing but ordered topics and the names of its brokers, in the folder namesrv
    of --data-dir. Brokers find it through broker.registries and nsq.lookupd_addresses. Each registry needs a data
    directory of its own. Settings of brokers, in a file that both share, are passed over.
    """
    leave_at_signals()
    settings = read_settings(ctx, config).settings
    # Only now: wrong settings are reported without waiting for the registry's modules to load.
    from headrace.lone_registry import run_registry  # noqa: PLC0415

    start_logging(settings.log)
    return run_registry(settings, free_ports=free_ports, ready_file=ready_file)
