"""``headrace config``: show, sample and import settings."""

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.syntax import Syntax

from headrace.cli.options import FilePath, SettingsCommand, read_settings, settings_flags
from headrace.cli.program import tell
from headrace.settings.foreign import import_file
from headrace.settings.reference import loaded_toml, sample_toml


@click.group()
def config() -> None:
    """Show, sample and import settings."""


@config.command("print", cls=SettingsCommand, short_help="Print the settings in force, as TOML.")
@click.option("--origins", is_flag=True, help="Say behind each value where it came from.")
@settings_flags
@click.pass_context
def print_settings(ctx: click.Context, config: Path | None, origins: bool) -> None:
    """Print the settings that `headrace serve` would use with the same flags, as TOML."""
    print_toml(loaded_toml(read_settings(ctx, config), origins=origins))


@config.command(short_help="Print a settings file to start from.")
def sample() -> None:
    """Print a settings file with every setting at its default, commented out and explained."""
    print_toml(sample_toml())


@config.command("import", short_help="Print the settings of nsqd or RocketMQ as ours.")
@click.argument("file", type=FilePath())
def import_settings(file: Path) -> None:
    """Print the settings of another broker as ours.

    FILE is the configuration of nsqd or nsqlookupd (TOML, or flags as in a start script) or RocketMQ's broker.conf.
    Standard error names what could not be taken over.
    """
    imported = import_file(file)
    for warning in imported.warnings:
        tell(f"headrace: {warning}")
    print_toml(imported.toml)


def print_toml(text: str) -> None:
    """Print TOML, with colours on a terminal; elsewhere it is UTF-8 also where the locale is not."""
    if sys.stdout.isatty():  # Rich would also take a file for one where FORCE_COLOR is set, as in CI
        # Lines are left to the terminal: one that is wrapped here is no comment any more when it is copied.
        Console().print(Syntax(text, "toml", theme="ansi_dark").highlight(text), soft_wrap=True, end="")
    else:
        # What is no text in the name of a folder has no spelling in TOML: the line shows it, and is refused when read.
        click.echo(text.encode("utf-8", "backslashreplace"), nl=False)
