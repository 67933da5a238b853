"""The entry point: finds the command, and turns errors into one line on standard error and an exit code."""

import errno
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from importlib.metadata import version
from typing import Any, Final, TextIO

import click

from headrace.errors import MEMORY_REMEDY, ConfigError, HeadraceError, one_line

FAILURE: Final = 1
WRONG_USE: Final = 2
INTERRUPTED: Final = 130
NEAR: Final = 0.6

# Command -> module and object. A module is imported when its command runs, so that ``headrace --version`` stays quick
# and a broken optional part breaks its own command only.
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "serve": ("headrace.cli.serve", "serve"),
    "registry": ("headrace.cli.registry", "registry"),
    "config": ("headrace.cli.config", "config"),
    "store": ("headrace.cli.store", "store"),
    "doctor": ("headrace.cli.doctor", "doctor"),
    "job": ("headrace.cli.job", "job"),
}


class Program(click.Group):
    """A group whose commands are imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the table."""
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; of a wrong name the nearest is named, which click can do for imported commands only."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = get_close_matches(args[0], COMMANDS, n=1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{meant}", ctx)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("headrace"), message="headrace %(version)s")
def program() -> None:
    """A durable message broker that unmodified NSQ and RocketMQ clients can use."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program and exit.

    Exit codes: 0 done, 1 failed, 2 wrong use or wrong settings, 130 interrupted; what a command returns wins.
    """
    open_standard_files()
    name_standard_output()
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def open_standard_files() -> None:
    """Put /dev/null in the place of a closed standard input, output or error.

    The next file or socket that is opened would get its number otherwise, and what the interpreter or a library
    writes to standard error would land there: in the log of the store, say.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed; the lowest free number is taken
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))


class StandardOutput(io.FileIO):
    """Standard output, whose errors say that they are its: the system names no file where a write fails."""

    def write(self, data: Any) -> int:
        """Write what the system takes of ``data``."""
        try:
            return super().write(data)
        except OSError as exc:
            drop(self)
            reason = f"{exc.strerror}; what it has got is cut short"
            raise OSError(exc.errno, reason, "standard output") from exc


def name_standard_output() -> None:
    """Have every command's output go through ``StandardOutput``; a test's own stays what it is."""
    text = sys.stdout
    if text is sys.__stdout__ and isinstance(text, io.TextIOWrapper):
        file = io.BufferedWriter(StandardOutput(text.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(file, text.encoding, text.errors, line_buffering=text.line_buffering)


def spell_what_has_no_letters() -> None:
    """Have both outputs write as an escape what their encoding has not: names of files may be any bytes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def run(arguments: Sequence[str]) -> int:
    """Run the program and return its exit code."""
    spell_what_has_no_letters()
    try:
        result = program.main(args=list(arguments), prog_name="headrace", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as exc:
        tell(exc.format_message())
        return WRONG_USE
    except click.UsageError as exc:
        return complain(explain_usage(exc), WRONG_USE)
    except click.ClickException as exc:
        return complain(exc.format_message(), WRONG_USE)
    except ConfigError as exc:
        return complain(str(exc), WRONG_USE)
    except BrokenPipeError:
        drop(sys.stdout)  # whoever read our output has gone
        return FAILURE
    except HeadraceError as exc:
        return complain(str(exc), FAILURE)
    except click.Abort:
        return INTERRUPTED
    except (MemoryError, ImportError, SystemError, OSError) as exc:
        if is_out_of_memory(exc):
            return complain(f"not enough memory: {MEMORY_REMEDY}", FAILURE)
        if isinstance(exc, OSError):
            return complain(explain_system(exc), FAILURE)
        raise  # a broken installation, or a bug
    return result if isinstance(result, int) else 0


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether the system gave no memory; imports say so in several ways."""
    if isinstance(error, ImportError):
        return "failed to map segment" in str(error)
    if isinstance(error, SystemError):
        return str(error) == "error return without exception set"
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


def explain_usage(error: click.UsageError) -> str:
    """Say what is wrong with the command line, and which help has what is right."""
    text = error.format_message()
    if isinstance(error, click.NoSuchOption) and not any(
        is_near(name, error.option_name) for name in error.possibilities or ()
    ):
        text = error.message
    if error.ctx is None or "Did you mean" in text:
        return text
    return f"{text.rstrip('.')}; see {error.ctx.command_path} --help"


def is_near(name: str, wanted: str) -> bool:
    """Tell whether an option may have been meant; click counts the dashes that all begin with as likeness."""
    return SequenceMatcher(None, name.strip("-"), wanted.strip("-")).ratio() >= NEAR


def explain_system(error: OSError) -> str:
    """Say what the system refused, and of which file."""
    if error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror


def complain(text: str, code: int) -> int:
    """Print one line on standard error and return the exit code."""
    tell(f"headrace: {one_line(' '.join(text.split()))}")
    return code


def tell(text: str) -> None:
    """Print on standard error. Where that takes nothing, the exit code still says what happened."""
    try:
        click.echo(text, err=True)
    except OSError:
        drop(sys.stderr)


def drop(stream: TextIO | io.FileIO) -> None:
    """Have an output that takes nothing go nowhere; Python would complain once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
