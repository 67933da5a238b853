"""``headrace doctor``: what clients will be told, and whether it will work."""

import dataclasses
import logging
from pathlib import Path

import click

from headrace.cli.options import SettingsCommand, read_settings, settings_flags
from headrace.cli.output import json_option, print_json
from headrace.errors import one_line

MARKS = {"ok": "ok     ", "warning": "warning", "problem": "PROBLEM"}
UNHEALTHY = 1


@click.command(cls=SettingsCommand, short_help="Say what clients are told, and whether it works.")
@click.option(
    "--registry", "is_registry", is_flag=True, help="Look at `headrace registry` instead of `headrace serve`."
)
@json_option
@settings_flags
@click.pass_context
def doctor(ctx: click.Context, config: Path | None, is_registry: bool, as_json: bool) -> int:
    """Explain what clients will be told about this broker and whether they can use it.

    Takes the settings that `headrace serve` takes, or with --registry those of `headrace registry`, looks from this
    machine, and changes nothing; the broker may run or not. Exit codes: 0 no problem, 1 a problem, 2 wrong settings.
    """
    settings = read_settings(ctx, config).settings
    from headrace.cli.checkup import examine, run_checkup  # noqa: PLC0415  # loads the broker's modules
    from headrace.cli.registry_checkup import examine_registry  # noqa: PLC0415

    # What a client logs about a peer that breaks off is in the findings; without a handler it went to standard error.
    logging.getLogger("headrace").addHandler(logging.NullHandler())
    report = run_checkup(settings, examine_registry if is_registry else examine)
    if as_json:
        findings = [dataclasses.asdict(finding) for finding in report.findings]
        print_json({"healthy": report.is_healthy, "told": report.told, "findings": findings})
        return 0 if report.is_healthy else UNHEALTHY
    click.echo("Clients will be told:")
    for name, value in report.told.items():
        shown = ", ".join(value) if isinstance(value, list) else value
        click.echo(f"  {name:<19}{shown or '-'}")
    click.echo("")
    for finding in report.findings:
        click.echo(f"{MARKS[finding.status]}  {finding.name:<15}  {one_line(finding.text)}")
    return 0 if report.is_healthy else UNHEALTHY
