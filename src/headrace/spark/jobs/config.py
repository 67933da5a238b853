"""What a job is told: a frozen dataclass, whose fields are its options.

One declaration serves four callers: ``Config(topics=("orders",))`` in a program, ``Config.parse({"topics": "orders"})``
for texts, the flags of ``headrace job`` and those of ``spark-submit``. Whoever makes one gets a checked one: a wrong
value is a ``ConfigError`` that names the option, the value and what is accepted.

The type of a field says how its text is read:

    str, int, float, bool, Literal["a", "b"]           as they are written
    Path                                               made absolute; URLs are none
    int named ..._bytes, ..._ms                        also "64MiB", "2h"
    str with form="servers"                            registries, host:port, with semicolons or commas between them
    int | None with form="time"                        ms since 1970, ISO 8601 (UTC unless it says so), "-2h", "now"
    tuple[str, ...]                                    commas between them ("\\,": one of an item); a repeated flag
    X | None                                           None: it is not set

An empty text stands for nothing: ``--since "$SINCE"`` with a variable that is not set must not mean "all".

The settings of a broker (``settings.tree``) are declared alike and read otherwise: from a file and variables too, with
the place of each, and none of them is a list, a time or nothing.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import time
import types
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from headrace.errors import ConfigError, TopicNotFoundError
from headrace.remoting.blocking.connection import split_servers
from headrace.settings.units import parse_delays_ms, parse_duration_ms, parse_size
from headrace.spark.times import FIRST_MS, LAST_MS, first_ms
from headrace.spark.writing.route import require_topic

Value = TypeVar("Value")
Self = TypeVar("Self", bound="JobConfig")

SECRET_VARIABLE: Final = "HEADRACE_SECRET_KEY"
TRUE: Final = frozenset({"true", "1", "yes", "on"})
FALSE: Final = frozenset({"false", "0", "no", "off"})
NANOSECONDS_PER_MS: Final = 1_000_000
URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/.*", re.DOTALL)
"""Also what a ``Path`` makes of one, with a single ``/``."""
BROKER_OF_STORE: Final = "--broker says what to call the broker of --store: those of --servers have their own names"
EMPTY: Final = "a value is needed: leave the option away when it is to choose nothing"
MAX_NAMED: Final = 40
"""Names listed in an error."""


def option(
    default: Value,
    *,
    help: str,
    least: float | None = None,
    most: float | None = None,
    form: Literal["", "time", "servers", "delays", "text"] = "",
    metavar: str = "",
    required: bool = False,
) -> Value:
    """Declare one option of a job.

    Args:
        default: Value when nobody sets it.
        help: One sentence for people, without the default.
        least: Smallest accepted number.
        most: Largest accepted number.
        form: "time": a point in time, "servers": registries; see the module's text. "delays": as the setting
            ``broker.delay_levels``. "text": of which blanks are a part.
        metavar: What stands for the value in the help; made of the type when empty.
        required: It has to be set; ``default`` is what stands for "not set".
    """
    metadata = {"help": help, "least": least, "most": most, "form": form, "metavar": metavar, "required": required}
    declared: Any = field(default=default, metadata=metadata)
    return declared  # type: ignore[no-any-return]  # a field stands for its value in a dataclass body


@dataclass(frozen=True, slots=True)
class JobOption:
    """One option of a job, as flags and help need it."""

    name: str
    default: Any
    help: str
    hint: Any
    least: float | None
    most: float | None
    form: str
    metavar: str
    required: bool

    @property
    def flag(self) -> str:
        """``--dry-run``."""
        return "--" + self.name.replace("_", "-")

    @property
    def kind(self) -> Any:
        """The type without ``| None``."""
        members = [member for member in get_args(self.hint) if member is not type(None)]
        return members[0] if get_origin(self.hint) in (types.UnionType, Union) else self.hint

    @property
    def is_flag(self) -> bool:
        """Whether the flag takes no value."""
        return self.kind is bool

    @property
    def is_list(self) -> bool:
        """Whether it holds several values."""
        return get_origin(self.kind) is tuple

    @property
    def choices(self) -> tuple[str, ...]:
        """The accepted words; empty when it is no ``Literal``."""
        return tuple(get_args(self.kind)) if get_origin(self.kind) is Literal else ()

    @property
    def placeholder(self) -> str:
        """What stands for the value in the help."""
        if self.metavar:
            return self.metavar
        if self.choices:
            return "|".join(self.choices)
        if self.form == "time":
            return "TIME"
        if self.name.endswith("_bytes"):
            return "SIZE"
        if self.name.endswith("_ms"):
            return "DURATION"
        names = {str: "TEXT", int: "N", float: "X", Path: "PATH"}
        return "A,B" if self.is_list else names.get(self.kind, "VALUE")

    def read(self, value: Any) -> Any:
        """Return the value that a text stands for; what is no text is checked and returned.

        Raises:
            ConfigError: it is not accepted.
        """
        try:
            read = self._convert(value)
        except ConfigError as error:
            shown = ",".join(value) if self.is_list and _is_texts(value) else value
            raise ConfigError(f"{self.flag} {shown!r}: {error}", key=self.name) from None
        self._check_range(read)
        return read

    def _convert(self, value: Any) -> Any:
        if value is None:
            if type(None) in get_args(self.hint):
                return None
            raise ConfigError("a value is needed")
        if value == "" and value != self.default:
            raise ConfigError(EMPTY)
        if self.is_list:
            return _read_list(value)
        if self.form == "time":
            return parse_time_ms(value)
        if self.form == "servers":
            return _read_servers(value)
        if self.form == "delays":
            parse_delays_ms(_read_text(value))  # for what may be wrong with it
        if self.kind is bool:
            return _read_bool(value)
        if self.kind is Path:
            return _read_path(value)
        if self.choices:
            return _read_choice(value, self.choices)
        return self._convert_number(value) if self.kind in (int, float) else _read_text(value)

    def _convert_number(self, value: Any) -> Any:
        if isinstance(value, str):
            if self.name.endswith("_bytes"):
                return parse_size(value)
            if self.name.endswith("_ms"):
                return parse_duration_ms(value)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ConfigError("a number is needed")
        try:
            number = self.kind(value)
        except (ValueError, OverflowError):
            number = None
        is_endless = isinstance(number, float) and not math.isfinite(number)
        if number is None or is_endless or (isinstance(value, float) and number != value):
            raise ConfigError("a whole number is needed" if self.kind is int else "a number is needed")
        return number

    def _check_range(self, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        if (self.least is not None and value < self.least) or (self.most is not None and value > self.most):
            bounds = f"{_show_number(self.least)}..{_show_number(self.most)}"
            raise ConfigError(f"{self.flag} is {value}: accepted is {bounds}", key=self.name)


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """What every job has; a job adds its own fields, and names in ``without`` what it has no use for."""

    without: ClassVar[frozenset[str]] = frozenset()
    """Fields that are no options of this job."""

    servers: str = option(
        "",
        help="Registry addresses of a running cluster, with semicolons between them.",
        metavar="HOST:PORT",
        form="servers",
    )
    store: Path | None = option(
        None, help="Folder of a store, a broker's --data-dir; it is read from its files.", metavar="DIR"
    )
    access_key: str = option("", help="Access key, where the servers ask for one.", metavar="NAME")
    secret_file: Path | None = option(
        None, help=f"File that holds the secret key; without it the variable {SECRET_VARIABLE}.", metavar="FILE"
    )
    topics: tuple[str, ...] = option((), help="Only these topics; all ordinary ones by default.")
    since: int | None = option(None, help="Only messages stored at or after this time.", form="time")
    until: int | None = option(None, help="Only messages stored before this time.", form="time")
    dry_run: bool = option(False, help="Say what would be done, and change nothing.")

    def __post_init__(self) -> None:
        for declared in self.options():
            given = getattr(self, declared.name)
            # Itself, not its equal: Path() is also the folder "." that somebody names.
            if declared.required and given is declared.default:
                raise ConfigError(f"{declared.flag} is missing: {declared.help}", key=declared.name)
            object.__setattr__(self, declared.name, declared.read(given))
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ConfigError("--since is not before --until", key="since")
        if self.servers:
            self.secret_key()  # for what may be wrong with it
        elif self.access_key or self.secret_file is not None:
            raise ConfigError(
                "--access-key and --secret-file are for --servers, which is not named: leave them away",
                key="access_key",
            )
        self.validate()

    def validate(self) -> None:
        """Check what one field alone cannot say; a job overrides it.

        Raises:
            ConfigError: the options do not fit each other.
        """

    @classmethod
    def options(cls) -> list[JobOption]:
        """Return the options of this job, its own before those that every job has."""
        hints = get_type_hints(cls)
        common = {item.name for item in fields(JobConfig)}
        declared = [
            JobOption(name=item.name, default=item.default, hint=hints[item.name], **item.metadata)
            for item in fields(cls)
            if item.name not in cls.without
        ]
        return sorted(declared, key=lambda found: found.name in common)

    @classmethod
    def parse(cls: type[Self], given: Mapping[str, Any]) -> Self:
        """Make one of texts; names may be written with ``-`` or ``_``.

        Raises:
            ConfigError: there is no such option, with the nearest one, or a value is empty or not accepted.
        """
        known = {declared.name: declared for declared in cls.options()}
        values: dict[str, Any] = {}
        for written, value in given.items():
            name = written.removeprefix("--").replace("-", "_")
            if name not in known:
                raise ConfigError(unknown(f"option {written!r}", name, known), key=written)
            if isinstance(value, str) and not (value if known[name].form == "text" else value.strip()):
                raise ConfigError(f"{known[name].flag} {value!r}: {EMPTY}", key=name)
            is_repeated = known[name].is_list and isinstance(value, list | tuple)
            values[name] = [item for text in value for item in _split(text)] if is_repeated else value
        return cls(**values)

    def secret_key(self) -> str:
        """Return the secret key, empty when there is none.

        Raises:
            ConfigError: the file cannot be read, or holds nothing; or there is one of access key and secret key alone.
        """
        if self.secret_file is None:
            secret = os.environ.get(SECRET_VARIABLE, "") if self.access_key else ""
            if self.access_key and not secret:
                raise ConfigError(
                    f"--access-key needs its secret key: name --secret-file FILE, or set {SECRET_VARIABLE}",
                    key="access_key",
                )
            return secret
        try:
            secret = self.secret_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ConfigError(f"--secret-file {self.secret_file} cannot be read: {reason}", key="secret_file") from None
        if not secret:
            raise ConfigError(f"--secret-file {self.secret_file} is empty", key="secret_file")
        if not self.access_key:
            raise ConfigError(
                f"--secret-file {self.secret_file} needs --access-key, whose secret it is", key="secret_file"
            )
        return secret

    def auth_options(self) -> dict[str, str]:
        """Return the options by which ``format("headrace")`` signs what it asks; none without an access key.

        Raises:
            ConfigError: as ``secret_key``.
        """
        if not self.access_key:
            return {}
        return {"auth.accessKey": self.access_key, "auth.secretKey": self.secret_key()}

    def require_source(self) -> None:
        """Refuse a configuration that does not name exactly one of ``store`` and ``servers``.

        Raises:
            ConfigError: it names none or both, or a store that is none: said before Spark is started.
        """
        if bool(self.servers) == (self.store is not None):
            archive = ", or --archive DIR" if hasattr(self, "archive") else ""
            raise ConfigError(
                f"name either --store DIR (its files are read) or --servers HOST:PORT (the brokers are asked){archive}",
                key="store",
            )
        require_store(self.store, "store")


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return the sentence about a name that is not known, with the nearest one that is."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    meant = f"did you mean {near[0]!r}? " if near else ""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"there is no {what}: {meant}known are {', '.join(names[:MAX_NAMED]) or 'none'}{more}"


def require_store(path: Path | None, name: str) -> None:
    """Refuse a folder that is no store; None is none that is named.

    Args:
        name: Of the option that names it.

    Raises:
        ConfigError: it has no log.
    """
    if path is None:
        return
    if not path.is_dir():
        raise ConfigError(f"--{name} {path} is not a directory", key=name)
    if not (path / "commitlog").is_dir():
        raise ConfigError(
            f"--{name} {path} is no store: it has no folder commitlog; name the broker's --data-dir", key=name
        )


def require_target_topic(topic: str, given: str) -> None:
    """Refuse a topic to write to whose name no producer may use; none that is named, "", is accepted.

    Args:
        given: The option that names it, as it was written.

    Raises:
        ConfigError: it breaks a rule.
    """
    if topic:
        try:
            require_topic(topic)
        except ConfigError as error:
            raise ConfigError(f"{given}: {error}", key="topic") from None


def require_known_topics(topics: Iterable[str], known: Collection[str], where: str = "") -> None:
    """Refuse topics that are not known; ``where`` says of what ("in the archive").

    Raises:
        ConfigError: there is no such topic, with the nearest one; its cause is a TopicNotFoundError.
    """
    for topic in topics:
        if topic not in known:
            what = f"topic {topic!r} {where}".rstrip()
            raise ConfigError(unknown(what, topic, known), key="topics") from TopicNotFoundError(topic)


def parse_time_ms(value: Any) -> int:
    """Return a point in time as ms since 1970.

    Args:
        value: A number of ms, ISO 8601 ("2026-01-31", "2026-01-31T12:00:00+01:00", UTC unless it says so), a duration
            before now ("-2h"), "now", or a ``datetime``. Texts of 1 to 8 digits are none, but for "0":
            20260131 is a date, and who writes 2026 means the year.

    Raises:
        ConfigError: it is none of these, or in no year from 1 to 9999.
    """
    time_ms = _read_time(value)
    if not FIRST_MS <= time_ms <= LAST_MS:
        raise ConfigError("a time is in one of the years 1 to 9999")
    return time_ms


def _read_time(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, datetime):
        return first_ms(value)
    if not isinstance(value, str):
        raise ConfigError("a time is needed")
    text = value.strip()
    now_ms = time.time_ns() // NANOSECONDS_PER_MS
    if text == "now":
        return now_ms
    try:
        if text.isdecimal() and (len(text) > 8 or text == "0"):
            return int(text)
        if text.startswith("-"):
            return now_ms - parse_duration_ms(text[1:])
        return first_ms(datetime.fromisoformat(text))
    except (ConfigError, ValueError):
        raise ConfigError(
            "a time is ms since 1970 (0, or 9 digits and more), ISO 8601 such as 2026-01-31T12:00, "
            '"now", or a duration before now such as -2h'
        ) from None


@overload
def show_time(time_ms: int) -> str: ...
@overload
def show_time(time_ms: int | None) -> str | None: ...
def show_time(time_ms: int | None) -> str | None:
    """Write a time for people, in UTC; None for none, which is null in JSON and "-" in a table."""
    if time_ms is None:
        return None
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")[:-6]
    except (OverflowError, ValueError, OSError):
        return str(time_ms)


def _read_list(value: Any) -> tuple[str, ...]:
    """Return the items of a text, or those that a program gives, which are taken as they are; each once."""
    items = tuple(_split(value) if isinstance(value, str | Path) else value)
    if not all(isinstance(item, str) for item in items):
        raise ConfigError("texts are needed")
    if "" in items or (not items and isinstance(value, str)):
        raise ConfigError(EMPTY)
    return tuple(dict.fromkeys(items))


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


def _split(text: Any) -> list[str]:
    """Return what stands between the commas of a text; ``\\,`` is a comma of an item."""
    if not isinstance(text, str | Path):
        raise ConfigError("texts are needed")
    return [item.strip().replace("\\,", ",") for item in re.split(r"(?<!\\),", str(text))]


def _read_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word not in TRUE | FALSE:
        raise ConfigError("true or false is needed")
    return word in TRUE


def _read_path(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ConfigError("a path is needed")
    if URL.fullmatch(str(value)):
        raise ConfigError("a folder or file is needed, no URL: mount what is stored elsewhere")
    try:
        # Workers, and Spark's JVM, were started in other folders than the one that a relative path begins in.
        path = Path(value).expanduser().absolute()
        path.stat()
    except RuntimeError:
        raise ConfigError("nobody here has that name, so there is no such home folder") from None
    except (FileNotFoundError, NotADirectoryError):
        pass  # what has to be there, each job says
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"nothing can be there: {reason}") from None
    return path


def _read_choice(value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ConfigError(unknown("such value", str(value), choices))
    return str(value)


def _show_number(value: float | None) -> str:
    """Write a bound as it could be given, nothing for none: ``1e+09`` is no whole number."""
    if value is None:
        return ""
    return str(int(value)) if value == int(value) else str(value)


def _read_servers(value: Any) -> str:
    text = _read_text(value)
    if text:
        try:
            split_servers(text)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    return text


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError("a text is needed")
    return value
