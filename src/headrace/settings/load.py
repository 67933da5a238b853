"""Read settings from flags, environment and file, and remember where each value came from.

Precedence: flags, then ``HEADRACE_SECTION__FIELD`` variables, then the TOML file, then defaults. An unknown key is an
error wherever it stands, with the nearest known key as a suggestion. Values of flags and variables are texts and are
parsed by the type of their field; values of the file must have the right TOML type, but sizes and durations may be
texts there too.
"""

import difflib
import os
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from headrace.errors import ConfigError
from headrace.settings.tree import SettingField, Settings, TopicSettings, sections, setting_fields
from headrace.settings.units import INTEGER, parse_duration_ms, parse_size
from headrace.settings.validate import describe_range, show_briefly, validate

PREFIX: Final = "HEADRACE_"
DEFAULT: Final = "default"
MAX_FILE_BYTES: Final = 1 << 20
MAX_LINES: Final = 100
"""Of one value."""
BOOLEANS: Final = {"true": True, "false": False}

FIELDS: Final = {setting.path: setting for setting in setting_fields()}
VARIABLES: Final = {setting.variable: setting for setting in FIELDS.values()}

COMMAND_FLAGS: Final = ("--free-ports", "--ready-file")
"""Flags of the commands that take settings which are none themselves: no variable stands for them."""

_WORDS_OF_OTHERS: Final = frozenset({"name", "level", "cluster"})
"""Platforms have these in variables, too: a container that is linked to one named headrace gets ``HEADRACE_NAME``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedSettings:
    """Settings and, for every path, where its value came from: "default", "FILE:LINE", "env NAME" or "flag --NAME"."""

    settings: Settings
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of the file: its whole path, its value and the line it starts on."""

    path: tuple[str, ...]
    value: object
    line: int


def load_settings(
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Iterable[tuple[str, str]] = (),
) -> LoadedSettings:
    """Read settings from every source and check them.

    Args:
        file: TOML file; None reads none.
        environ: Environment variables; None means those of the process.
        flags: (name, value) pairs such as ("--store.segment-bytes", "64MiB"); the last one of a name wins.

    Raises:
        ConfigError: unreadable file, unknown key, wrong type or value; the text names the key, the value, where it
            stands and what is accepted.
    """
    values: dict[str, object] = {}
    origins = dict.fromkeys(FIELDS, DEFAULT)
    topics: dict[str, dict[str, object]] = {}
    for entry in read_file(file) if file else ():
        origin = f"{file}:{entry.line}"
        if entry.path[0] == "topics":
            key = place_topic_entry(topics, entry, origin)
            origins[key] = origin
            continue
        if entry.value == {} and entry.path[0] in sections() and len(entry.path) == 1:
            continue  # the table's own line
        setting = find_field(".".join(entry.path), origin)
        values[setting.path] = convert_typed(setting, entry.value, origin)
        origins[setting.path] = origin
    for setting, text, origin in (*from_environment(os.environ if environ is None else environ), *from_flags(flags)):
        values[setting.path] = parse_text(setting, text, origin)
        origins[setting.path] = origin
    settings = build(values, topics)
    try:
        validate(settings)
    except ConfigError as exc:
        # A rule about two settings may be broken by setting either: show where each one in the text was set.
        places = [origin for path, origin in origins.items() if path in str(exc).split() and origin != DEFAULT]
        where = ", ".join(places) or origins[exc.key]
        raise ConfigError(f"{where}: {exc}", key=exc.key, origin=where) from None
    return LoadedSettings(settings=settings, origins=MappingProxyType(origins))


def build(values: Mapping[str, object], topics: Mapping[str, Mapping[str, object]]) -> Settings:
    """Put values by path into a settings tree; what is missing takes its default."""
    built = {}
    for section, cls in sections().items():
        own: dict[str, Any] = {
            path.partition(".")[2]: value for path, value in values.items() if path.partition(".")[0] == section
        }
        if section == "store":
            overrides: dict[str, Any] = {name: dict(table) for name, table in topics.items()}
            own["topics"] = MappingProxyType({name: TopicSettings(**table) for name, table in overrides.items()})
        built[section] = cls(**own)
    return Settings(**built)


def find_field(path: str, origin: str) -> SettingField:
    """Return the setting of that path, or refuse it with the nearest one."""
    setting = FIELDS.get(path)
    if setting is None:
        section, _, name = path.partition(".")
        if section in sections() and not name:
            raise ConfigError(f"{origin}: {section} is a table: write [{section}]", key=path, origin=origin)
        table = "" if section in sections() else nearest(section, [*sections(), "topics"])
        hint = nearest(path, FIELDS) or table if name else table or nearest(path, FIELDS)
        raise ConfigError(f"{origin}: unknown setting {path}{hint}", key=path, origin=origin)
    return setting


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean X?`` for the known name most like this one, or nothing."""
    canonical = {candidate.replace("-", "_").lower(): candidate for candidate in known}
    wanted = name.replace("-", "_").lower()
    matches = difflib.get_close_matches(wanted, canonical, n=1, cutoff=0.6)
    if not matches:  # the right field in no or the wrong section
        last = wanted.rpartition(".")[2]
        fields = {candidate.rpartition(".")[2]: candidate for candidate in canonical}
        matches = [fields[match] for match in difflib.get_close_matches(last, fields, n=1, cutoff=0.8)]
    return f"; did you mean {canonical[matches[0]]}?" if matches else ""


# The file ------------------------------------------------------------------------------------------------------------


def read_file(file: Path) -> list[Entry]:
    """Return every key of a TOML file with its line.

    Raises:
        ConfigError: the file cannot be read or is not TOML.
    """
    text = read_text(file)
    try:
        tomllib.loads(text)  # the whole file first: it finds duplicate keys and tables
        return list(find_entries(text))
    except ConfigError as exc:
        raise ConfigError(f"{file}:{exc}", origin=str(file)) from exc
    except (ValueError, RecursionError) as exc:  # a number of too many digits is no TOMLDecodeError
        raise ConfigError(f"{file}: not TOML: {exc}", origin=str(file)) from exc


def read_text(file: Path) -> str:
    """Return the text of a settings file.

    Raises:
        ConfigError: the file cannot be read, is larger than 1 MiB or is not UTF-8.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"{file}: larger than {MAX_FILE_BYTES} bytes, which no settings file is")
        return data.decode("utf-8-sig")  # Windows' editors put a byte order mark in front
    except OSError as exc:
        raise ConfigError(f"cannot read the settings file {file}: {exc.strerror}", origin=str(file)) from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{file}: not UTF-8 at byte {exc.start}", origin=str(file)) from exc


def find_entries(text: str) -> Iterator[Entry]:
    """Yield the keys and table lines of a TOML text that is known to be valid, each with its line.

    ``tomllib`` tells no lines. So the text is cut into statements, the shortest runs of lines that parse by
    themselves, and each is parsed alone: quoted keys, dotted keys and inline tables need no rules of our own here.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    header: tuple[str, ...] = ()
    start = 0
    while start < len(lines):
        end, table = parse_statement(lines, start)
        found = list(leaves(table))
        if lines[start].lstrip().startswith("["):
            header = found[0][0]
            yield Entry(header, found[0][1], start + 1)
        else:
            for path, value in found:
                yield Entry(header + path, value, start + 1)
        start = end


def parse_statement(lines: Sequence[str], start: int) -> tuple[int, dict[str, Any]]:
    """Parse the statement that begins on line ``start``; return the line after it and its keys.

    Raises:
        ConfigError: it has too many lines, each of which takes one more try.
    """
    for end in range(start + 1, len(lines)):
        if end - start > MAX_LINES:
            raise ConfigError(f"{start + 1}: a value of more than {MAX_LINES} lines, which no setting has")
        try:
            return end, tomllib.loads("\n".join(lines[start:end]))
        except tomllib.TOMLDecodeError:
            continue  # inside an array or a text of several lines
    return len(lines), tomllib.loads("\n".join(lines[start:]))


def leaves(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield path and value of everything in a table that is not a table with keys."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def place_topic_entry(topics: dict[str, dict[str, object]], entry: Entry, origin: str) -> str:
    """Note one key of a ``[topics."NAME"]`` table and return its path."""
    _, *names = entry.path
    key = topic_path(names)
    if len(names) <= 1 and entry.value != {}:
        raise ConfigError(f"{origin}: {key} is a table: write [{key}]", key=key, origin=origin)
    if not names:
        return key  # the line [topics]
    own = topics.setdefault(names[0], {})
    if len(names) == 1:
        return key  # the table's own line
    known = [declared.name for declared in fields(TopicSettings)]
    if len(names) != 2 or names[1] not in known:
        whole = names if entry.value == {} else names[:-1]
        quoted = f'; a name with dots has quotes: [topics."{".".join(whole)}"]' if len(whole) > 1 else ""
        hint = nearest(names[1], known) or quoted or f"; a topic has {', '.join(known)}"
        raise ConfigError(f"{origin}: unknown setting {key}{hint}", key=key, origin=origin)
    own[names[1]] = entry.value
    return key


def topic_path(names: Sequence[str]) -> str:
    """Write ``topics."NAME".durability``."""
    return ".".join(["topics", *(f'"{name}"' for name in names[:1]), *names[1:]])


def convert_typed(setting: SettingField, value: object, origin: str) -> object:
    """Turn a value of the file into the field's type."""
    if isinstance(value, str) and not accepts_text(setting):
        if setting.is_size or setting.name.endswith("_ms"):
            return parse_text(setting, value, origin)
        raise wrong_type(setting, value, origin)
    if setting.type is Path and isinstance(value, str):
        return parse_text(setting, value, origin)
    if accepts_text(setting) and isinstance(value, str):
        return value
    if setting.type is bool and isinstance(value, bool):
        return value
    if setting.type is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    raise wrong_type(setting, value, origin)


def accepts_text(setting: SettingField) -> bool:
    """Tell whether the setting is a text, a path or one of several words."""
    return setting.type in (str, Path) or bool(setting.choices)


# Environment and flags ------------------------------------------------------------------------------------------------


def from_environment(environ: Mapping[str, str]) -> Iterator[tuple[SettingField, str, str]]:
    """Yield setting, text and origin of every ``HEADRACE_SECTION__FIELD`` variable.

    A variable without the double underscore is somebody else's (a container platform makes ``HEADRACE_PORT`` for a
    service named headrace) and is left alone, unless it can only be meant for a setting or a flag (``near_names``).
    """
    near = near_names()
    for name in sorted(environ):
        if not name.startswith(PREFIX):
            continue
        origin = f"env {name}"
        if name in VARIABLES:
            yield VARIABLES[name], environ[name], origin
            continue
        meant = near.get(without_separators(name.removeprefix(PREFIX)))
        if meant or "__" in name:
            hint = f"; did you mean {meant}?" if meant else nearest_variable(name)
            raise ConfigError(f"{origin}: unknown setting{hint}", key=name, origin=origin)


def nearest_variable(name: str) -> str:
    """Return ``; did you mean X?``; what all variables begin with makes no two of them alike."""
    variables = {variable.removeprefix(PREFIX): variable for variable in VARIABLES}
    matches = difflib.get_close_matches(name.removeprefix(PREFIX), variables, n=1, cutoff=0.6)
    return f"; did you mean {variables[matches[0]]}?" if matches else ""


def near_names() -> dict[str, str]:
    """Return the variable or flag that is meant by a name without its prefix, its section or some of its underscores.

    A part that several sections have, such as ``address``, means none, and so does an everyday word.
    """
    uses = Counter(setting.name for setting in FIELDS.values())

    def is_own(name: str) -> bool:
        return uses[name] == 1 and name not in _WORDS_OF_OTHERS

    near = {without_separators(flag): f"the flag {flag}" for flag in COMMAND_FLAGS}
    near |= {without_separators(one.name): one.variable for one in FIELDS.values() if is_own(one.name)}
    near |= {without_separators(one.path): one.variable for one in FIELDS.values()}
    return near


def without_separators(name: str) -> str:
    """Return ``DATADIR`` for ``DATA_DIR`` and ``--data-dir``."""
    return "".join(letter for letter in name.upper() if letter not in "_-.")


def from_flags(flags: Iterable[tuple[str, str]]) -> Iterator[tuple[SettingField, str, str]]:
    """Yield setting, text and origin of every flag; underscores and dashes are the same in its name."""
    for name, text in flags:
        origin = f"flag {name}"
        path = name.removeprefix("--").replace("-", "_")
        yield FIELDS["store.data_dir"] if path == "data_dir" else find_field(path, origin), text, origin


def parse_text(setting: SettingField, text: str, origin: str) -> object:
    """Turn the text of a flag, a variable or a size or duration of the file into the field's type."""
    try:
        return parse_as(setting, text)
    except ConfigError as exc:
        raise wrong_type(setting, text, origin, str(exc)) from None
    except ValueError:
        raise wrong_type(setting, text, origin) from None


def parse_as(setting: SettingField, text: str) -> object:
    """Parse by type and unit; ValueError when the text is not of the type."""
    if setting.type is Path:
        return parse_path(text)
    if accepts_text(setting):
        return text
    if setting.type is bool:
        if text not in BOOLEANS:
            raise ValueError(text)
        return BOOLEANS[text]
    if setting.is_size:
        return parse_size(text)
    if setting.name.endswith("_ms"):
        return parse_duration_ms(text)
    if not INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def parse_path(text: str) -> Path:
    """Return a path. An empty one is refused: it would be the working directory, and comes of ``"$UNSET"``."""
    if not text or "\0" in text:
        raise ConfigError('a path, "." for the working directory')
    return Path(text)


def wrong_type(setting: SettingField, value: object, origin: str, reason: str = "") -> ConfigError:
    """Make the error for a value of the wrong type or form."""
    accepted = ", ".join(part for part in (reason or type_text(setting), describe_range(setting)) if part)
    shown = show_briefly(value) if isinstance(value, str | bool | int | float | list) else str(value)
    return ConfigError(
        f"{origin}: {setting.path} = {shown} is not accepted: {accepted}", key=setting.path, origin=origin
    )


def type_text(setting: SettingField) -> str:
    """Name the type a person has to write."""
    if setting.type is bool:
        return "true or false"
    if setting.type is not int:
        return "a text"
    if setting.is_size:
        return 'a size such as "64MiB" or 67108864'
    if setting.name.endswith("_ms"):
        return 'a duration such as "250ms" or 250'
    return "a whole number"
