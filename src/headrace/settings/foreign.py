"""Turn the configuration of nsqd, nsqlookupd or RocketMQ into our TOML.

Three kinds of file are read: TOML (NSQ's), command-line flags (``--max-rdy-count=100``, as in a start script) and
Java properties (``broker.conf``). Which broker a file is for is seen from its keys.
"""

import difflib
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.errors import ConfigError, one_line
from headrace.settings.aliases import SYSTEMS, Alias, Fate, System, Unmapped, canonical
from headrace.settings.load import FIELDS, build, find_entries, parse_text, read_text
from headrace.settings.reference import show_value
from headrace.settings.tree import sections
from headrace.settings.units import parse_duration_ms
from headrace.settings.validate import show, show_briefly, validate

FLAG: Final = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
PASSED_ON: Final = ("$@", "$*", "${@}", "${*}")
"""How start scripts give their own arguments to what they start."""
SUBSTITUTED: Final = re.compile(r"\$[\w{(]|`|^~")
"""In a word of which a shell makes another."""
COMMENT: Final = re.compile(r"""("(?:\\.|[^"\\])*"|'[^']*'|\\.)|(?<!\S)#.*""")
"""What is quoted, or a comment, which begins a word: within one a # stands for itself."""
PROGRAMS: Final = ("nsqd", "nsqlookupd")
"""What start scripts run, each the name of its system."""
PROPERTY: Final = re.compile(r"((?:[^\s=:\\]|\\.)+)\s*[=:\s]\s*(.*)")
ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))")
BLANKS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
LEVELS: Final = {
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "fatal": "error",
}
"""NSQ's, in small letters; any case is read."""


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """One key of the file, its value as text (list items joined by commas) and its line."""

    key: str
    text: str
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """The result: our TOML, and one line for each key that a person should know was left out."""

    toml: str
    warnings: tuple[str, ...]


def import_file(file: Path) -> Imported:
    """Read the settings file of another broker and return ours.

    Raises:
        ConfigError: unreadable or unknown kind of file, unknown key, a value we cannot take over, or a key that
            protects the broker and has no counterpart.
    """
    text = read_text(file)
    keys = list(read_keys(text, file))
    if not keys:
        raise ConfigError(f"{file}: no key found", origin=str(file))
    # The one that a start script runs; else who knows most of the keys, and of two that know as many, the one the file
    # is called after.
    program = started_program(first_words(text))
    system = max(
        SYSTEMS,
        key=lambda system: (
            system.name == program,
            sum(system.find(found.key) is not None for found in keys),
            system.name in file.name,
        ),
    )
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    notes: list[str] = []
    warnings: list[str] = []
    for found in keys:
        origin = f"{file}:{found.line}"
        alias = system.find(found.key)
        if alias is None:
            raise unknown_key(found.key, system, origin)
        if isinstance(alias, Unmapped):
            note = explain(found, alias, origin)
            notes.append(note)
            if alias.fate is Fate.MISSING and found.text not in alias.harmless:
                warnings.append(note)
            continue
        values[alias.path] = read_value(alias, found.text, origin)
        origins[alias.path] = f"{found.key}, {origin}"
    check(values, origins)
    return Imported(toml=write_toml(system, file, values, origins, notes), warnings=tuple(warnings))


def unknown_key(key: str, system: System, origin: str) -> ConfigError:
    """Make the error for a key that the broker does not have, with the nearest one it has."""
    spellings = system.spellings()
    matches = difflib.get_close_matches(canonical(key), spellings, n=1)
    hint = f"; did you mean {spellings[matches[0]]}?" if matches else ""
    return ConfigError(f"{origin}: unknown {system.name} key {key}{hint}", key=key, origin=origin)


def explain(found: ForeignKey, alias: Unmapped, origin: str) -> str:
    """Return the note for a key without a counterpart, or refuse it."""
    text = one_line(f"{origin}: {found.key} = {found.text}")
    if found.text in alias.harmless:
        return f"{text}: {Fate.NEEDLESS.value}"
    if alias.fate is Fate.REFUSED:
        raise ConfigError(f"{text} is not accepted: {alias.note}", key=found.key, origin=origin)
    return f"{text}: {alias.fate.value}, {alias.note}"


def check(values: Mapping[str, object], origins: Mapping[str, str]) -> None:
    """Check the settings as a start would, naming the foreign key when one is refused."""
    try:
        validate(build(values, {}))
    except ConfigError as exc:
        raise ConfigError(f"{origins.get(exc.key, exc.key)}: {exc}", key=exc.key) from None


def write_toml(
    system: System, file: Path, values: Mapping[str, object], origins: Mapping[str, str], notes: Sequence[str]
) -> str:
    """Write the imported settings, each with the key it came from, and the notes about the rest."""
    out = [f"# Made from {one_line(str(file))} of {system.name} by `headrace config import`."]
    for section in sections():
        own = [path for path in values if path.startswith(f"{section}.")]
        if own:
            out += ["", f"[{section}]"]
        for path in own:
            out.append(f"{FIELDS[path].name} = {show_value(FIELDS[path], values[path])}  # {one_line(origins[path])}")
    if notes:
        out += ["", *(f"# {note}" for note in notes)]
    return "\n".join(out) + "\n"


# Files ---------------------------------------------------------------------------------------------------------------


def read_keys(text: str, file: Path) -> Iterator[ForeignKey]:
    """Yield the keys of a file in any of the three forms."""
    words = first_words(text)
    if words and (words[0].startswith("-") or started_program(words)):
        return read_flags(text, file)
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError):  # a number of too many digits is no TOMLDecodeError
        return read_properties(text, file)
    return read_toml(text, file)


def first_words(text: str) -> list[str]:
    """Return the words of the first line that is no comment, without a shell's ``exec``."""
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    words = first.split()
    return words[1:] if words[:1] == ["exec"] else words


def started_program(words: Sequence[str]) -> str:
    """Return the name of the program that a start script's words run; empty if it is none of ``PROGRAMS``."""
    name = Path(words[0]).name if words else ""
    return name if name in PROGRAMS else ""


def read_toml(text: str, file: Path) -> Iterator[ForeignKey]:
    """Yield the keys of nsqd's TOML."""
    try:
        entries = list(find_entries(text))
    except ConfigError as exc:
        raise ConfigError(f"{file}:{exc}", origin=str(file)) from exc
    for entry in entries:
        items = entry.value if isinstance(entry.value, list) else [entry.value]
        yield ForeignKey(".".join(entry.path), ",".join(plain(item) for item in items), entry.line)


def plain(value: object) -> str:
    """Write a TOML value without quotes."""
    return value if isinstance(value, str) else show(value)


def read_properties(text: str, file: Path) -> Iterator[ForeignKey]:
    """Yield the keys of a Java properties file, which may have escapes, and values of several lines."""
    begun, began_at = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        whole = begun + line.lstrip()
        began_at = began_at if begun else number
        begun = ""
        if not whole or whole[0] in "#!":
            continue
        if (len(whole) - len(whole.rstrip("\\"))) % 2:
            begun = whole[:-1]  # it goes on in the next line
            continue
        yield _read_property(whole.rstrip(), file, began_at)
    if begun:
        yield _read_property(begun.rstrip(), file, began_at)


def _read_property(line: str, file: Path, number: int) -> ForeignKey:
    match = PROPERTY.fullmatch(line)
    if match is None:
        raise ConfigError(f"{file}:{number}: neither TOML, nor flags, nor key=value: {line}", origin=str(file))
    return ForeignKey(_unescape(match[1]), _unescape(match[2]).strip(), number)


def _unescape(text: str) -> str:
    """Return what Java reads of a key or value: ``\\u0041``, ``\\t`` and the like; another stands for itself."""
    return ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else BLANKS.get(found[2], found[2]), text)


def read_flags(text: str, file: Path) -> Iterator[ForeignKey]:
    """Yield the flags of a command line, which may run over several lines; a flag given twice is a list."""
    joined: dict[str, ForeignKey] = {}
    pending: ForeignKey | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        for word in split_words(line.removesuffix("\\"), f"{file}:{number}"):
            if word in PASSED_ON:
                continue
            if SUBSTITUTED.search(word):
                why = f"{file}:{number}: {word} has another value when the shell runs it: write that in its place"
                raise ConfigError(why, origin=str(file))
            match = FLAG.fullmatch(word)
            if match and not (pending and word[1:2].isdigit()):  # a negative number is a value
                if pending:
                    add_flag(joined, pending, "true")
                pending = ForeignKey(match[1], "", number)
                if match[2] is not None:
                    add_flag(joined, pending, match[2])
                    pending = None
            elif pending:
                add_flag(joined, pending, word)
                pending = None
            elif Path(word).name not in (*PROGRAMS, "exec"):
                raise ConfigError(f"{file}:{number}: {word} is no flag", origin=str(file))
    if pending:
        add_flag(joined, pending, "true")
    yield from joined.values()


def split_words(line: str, origin: str) -> list[str]:
    """Split a line as a shell does.

    Raises:
        ConfigError: a quotation is not closed on the line.
    """
    try:
        return shlex.split(COMMENT.sub(lambda found: found[1] or "", line))
    except ValueError as exc:
        raise ConfigError(f"{origin}: {exc}: a quotation ends on the line on which it begins", origin=origin) from None


def add_flag(joined: dict[str, ForeignKey], flag: ForeignKey, text: str) -> None:
    """Note the value of a flag, after the values it already has."""
    before = joined.get(canonical(flag.key))
    value = f"{before.text},{text}" if before else text
    joined[canonical(flag.key)] = ForeignKey(flag.key, value, flag.line)


# Values --------------------------------------------------------------------------------------------------------------


def read_value(alias: Alias, text: str, origin: str) -> object:
    """Read a foreign value into the type of our setting."""
    try:
        ours = READERS[alias.form](text)
    except (ConfigError, KeyError, ValueError):
        raise ConfigError(
            f"{origin}: {alias.path} cannot take {show_briefly(text)}", key=alias.path, origin=origin
        ) from None
    return parse_text(FIELDS[alias.path], ours, origin)


def read_address(text: str) -> str:
    """nsqd: ``host:port``. Unix sockets are not served."""
    if text.startswith(("/", "unix:")):
        raise ValueError(text)
    return text


def read_local_address(text: str) -> str:
    """Go: where the host is left out, this machine is meant."""
    return f"127.0.0.1{text}" if text.startswith(":") else text


READERS: Final[Mapping[str, Callable[[str], str]]] = {
    "text": str,
    "address": read_address,
    "local-address": read_local_address,
    "bool": {
        **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), "true"),
        **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), "false"),
    }.__getitem__,
    "listen-port": lambda text: f"0.0.0.0:{int(text)}",  # not a bind: RocketMQ listens everywhere
    "duration": lambda text: str(parse_duration_ms(text)),  # Go's; a plain number is milliseconds, as nsqd takes it
    "seconds": lambda text: str(int(text) * 1_000),
    "template-queues": lambda text: str(2 * int(text)),  # TBW102 has as many: half of our DEFAULT_TOPIC's
    "flush-type": {"SYNC_FLUSH": "fsync", "ASYNC_FLUSH": "async"}.__getitem__,
    "level": lambda text: LEVELS[text.lower()],
}
