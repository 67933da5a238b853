"""``headrace serve``: run the broker in the foreground."""

import faulthandler
import logging
import time
from pathlib import Path

import click

from headrace.cli.options import FilePath, SettingsCommand, read_settings, settings_flags
from headrace.errors import one_line
from headrace.foreground import STANDARD_ERROR, LogOutput, leave_at_signals
from headrace.settings import LogSettings


@click.command(cls=SettingsCommand, short_help="Run a broker, with a registry inside.")
@click.option("--free-ports", is_flag=True, help="Listen on free ports instead of the configured ones.")
@click.option(
    "--ready-file",
    type=FilePath(),
    metavar="FILE",
    help="Write process id and listeners there, as JSON, once every listener accepts.",
)
@settings_flags
@click.pass_context
def serve(ctx: click.Context, config: Path | None, free_ports: bool, ready_file: Path | None) -> int:
    """Run the broker in the foreground until SIGTERM, SIGINT or SIGHUP.

    Settings come from flags, HEADRACE_SECTION__FIELD variables and the --config file, in this order; `headrace config
    sample` prints a file to start from.
    """
    leave_at_signals()
    settings = read_settings(ctx, config).settings
    # Only now: wrong settings are reported without waiting for the broker's modules to load.
    from headrace.node import run_node  # noqa: PLC0415

    start_logging(settings.log)
    return run_node(settings, free_ports=free_ports, ready_file=ready_file)


class LineFormatter(logging.Formatter):
    """Writes a message as one line, whatever a client's texts in it hold; a traceback follows on lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the library's name
        """Return the line, with control characters spelled as Python does."""
        return one_line(super().formatMessage(record))


def start_logging(settings: LogSettings) -> None:
    """Send log lines to standard error: UTC time, level, module, text; and what each thread did at a fatal signal.

    Such as SIGBUS, where a file of the store was cut, or its disk cannot read a sector: no handler can go on behind it.
    """
    faulthandler.enable(file=STANDARD_ERROR)
    formatter = LineFormatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(LogOutput())
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(settings.level.upper())
    logging.captureWarnings(True)
