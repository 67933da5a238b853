"""headrace.settings: precedence, types, ranges, and errors that say what to do."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from types import MappingProxyType

import pytest

from headrace.errors import ConfigError
from headrace.settings import (
    BrokerSettings,
    LoadedSettings,
    NsqSettings,
    Settings,
    StoreSettings,
    TopicSettings,
    load_settings,
    validate,
)
from headrace.settings.tree import sections, setting_fields
from headrace.settings.units import format_duration, format_size, parse_duration_ms, parse_size

MIB = 1 << 20


def load(
    tmp_path: Path, toml: str = "", environ: dict[str, str] | None = None, *flags: tuple[str, str]
) -> LoadedSettings:
    """Load settings from a file with this text, these variables and these flags."""
    file = tmp_path / "headrace.toml"
    file.write_text(toml)
    return load_settings(file=file, environ=environ or {}, flags=flags)


def refusal(tmp_path: Path, toml: str = "", environ: dict[str, str] | None = None, *flags: tuple[str, str]) -> str:
    """Return the error these settings are refused with, without the folder of the file."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, toml, environ, *flags)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_defaults_are_valid_and_have_their_origin() -> None:
    """A-STORE-04, A-STORE-06, A-STORE-24, nsq.md 1.4: defaults."""
    loaded = load_settings(environ={})
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.settings.store.data_dir == Path("store")
    assert loaded.settings.store.segment_bytes == 1 << 30
    assert loaded.settings.store.queue_file_bytes == 6_000_000
    assert loaded.settings.nsq.max_rdy_count == 2500
    assert loaded.settings.nsq.max_body_bytes == 5 * MIB
    assert loaded.settings.nsq.msg_timeout_ms == 60_000


@pytest.mark.parametrize(
    ("setting", "default"),
    [
        ("store.durability", "fsync"),  # design: SmartGo's is async
        ("store.flush_interval_ms", 500),
        ("store.refuse_percent", 90),  # A-STORE-51
        ("store.index_slots", 5_000_000),  # X-STORE-16
        ("store.index_entries", 20_000_000),  # A-STORE-33
        ("broker.registration_interval_ms", 30_000),  # A-BROKER-03
        ("broker.offsets_interval_ms", 5_000),  # A-BROKER-24
        ("broker.delay_levels", "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"),  # X-BROKER-08
        ("broker.group_retry_queues", 1),  # A-BROKER-28
        ("broker.group_retry_max_times", 16),  # A-BROKER-28, X-BROKER-07
        ("broker.group_consume_from_min", True),  # X-BROKER-06
        ("broker.client_timeout_ms", 120_000),  # X-NET-08
        ("broker.queue_lock_ms", 60_000),
        ("nsq.min_output_buffer_timeout_ms", 25),
        ("nsq.max_message_bytes", 1 * MIB),  # X-NSQ-08
        ("nsq.max_msg_timeout_ms", 900_000),  # C-REL-06
        ("nsq.statsd_interval_ms", 60_000),  # nsq.md 8.1, as the next three
        ("nsq.statsd_prefix", "nsq.%s"),
        ("nsq.statsd_mem_stats", True),
        ("nsq.statsd_udp_packet_bytes", 508),
        ("nsq.heartbeat_interval_ms", 30_000),  # X-NET-08
        ("remoting.max_message_bytes", 4 * MIB),  # X-NSQ-08
        ("remoting.default_topic_queues", 16),  # A-BROKER-14
        ("remoting.flush_timeout_ms", 5_000),  # X-STORE-20
        ("remoting.idle_timeout_ms", 120_000),  # X-NET-02
        ("registry.scan_interval_ms", 10_000),  # A-REG-14
        ("registry.expiry_ms", 120_000),  # A-REG-14
        ("registry.idle_timeout_ms", 120_000),  # X-NET-02
    ],
)
def test_default_of(setting: str, default: object) -> None:
    """The numbers of the requirements that stand beside them."""
    section, _, name = setting.partition(".")
    assert getattr(getattr(Settings(), section), name) == default


def test_settings_are_frozen() -> None:
    """Nothing changes a section after start."""
    with pytest.raises(FrozenInstanceError):
        Settings().store.durability = "async"  # type: ignore[misc]


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    """C-LIFE-03: flag overrides file, file overrides default; each value's origin is kept."""
    toml = "[nsq]\nmax_rdy_count = 1\nmax_channel_consumers = 1\nmsg_timeout_ms = 1000\n"
    environ = {"HEADRACE_NSQ__MAX_RDY_COUNT": "2", "HEADRACE_NSQ__MAX_CHANNEL_CONSUMERS": "2"}
    loaded = load(tmp_path, toml, environ, ("--nsq.max-rdy-count", "3"))
    nsq = loaded.settings.nsq
    assert (nsq.max_rdy_count, nsq.max_channel_consumers, nsq.msg_timeout_ms, nsq.max_body_bytes) == (
        3,
        2,
        1000,
        5 * MIB,
    )
    assert loaded.origins["nsq.max_rdy_count"] == "flag --nsq.max-rdy-count"
    assert loaded.origins["nsq.max_channel_consumers"] == "env HEADRACE_NSQ__MAX_CHANNEL_CONSUMERS"
    assert loaded.origins["nsq.msg_timeout_ms"] == f"{tmp_path}/headrace.toml:4"
    assert loaded.origins["nsq.max_body_bytes"] == "default"


@pytest.mark.parametrize("name", ["--store.segment-bytes", "--store.segment_bytes", "store.segment_bytes"])
def test_dashes_and_underscores_are_the_same_in_flags(tmp_path: Path, name: str) -> None:
    """Both spellings of a flag name the same setting."""
    assert load(tmp_path, "", {}, (name, "2MiB")).settings.store.segment_bytes == 2 * MIB


def test_last_flag_of_a_name_wins(tmp_path: Path) -> None:
    """A wrapper script can append to the flags it was given."""
    loaded = load(tmp_path, "", {}, ("--data-dir", "a"), ("--store.data-dir", "b"))
    assert loaded.settings.store.data_dir == Path("b")


def test_every_setting_can_be_set_from_each_source(tmp_path: Path) -> None:
    """One field path gives the file's key, the variable and the flag."""
    for setting in setting_fields():
        value = setting.default
        text = str(value).lower() if setting.type is bool else str(value)
        for loaded in (load(tmp_path, "", {setting.variable: text}), load(tmp_path, "", {}, (setting.flag, text))):
            assert getattr(getattr(loaded.settings, setting.section), setting.name) == value
            assert loaded.origins[setting.path] != "default"


@pytest.mark.parametrize(
    ("toml", "line"),
    [
        ("[nsq]\nmax_rdy_count = 7", 2),
        ("nsq.max_rdy_count = 7", 1),
        ("\n# x\nnsq = { enabled = true, max_rdy_count = 7 }", 3),
        ('["nsq"]\r\n"max_rdy_count"=7', 2),
        ("[access]\nrules_file = '''\n[nsq]\nmax_rdy_count = 1\n'''\n[nsq]\nmax_rdy_count = 7 # seven", 7),
    ],
)
def test_origin_names_the_line_of_the_key(tmp_path: Path, toml: str, line: int) -> None:
    """Whatever TOML form a key has, its line is found."""
    loaded = load(tmp_path, toml)
    assert loaded.settings.nsq.max_rdy_count == 7
    assert loaded.origins["nsq.max_rdy_count"] == f"{tmp_path}/headrace.toml:{line}"


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (
            "[store]\nsegmnt_bytes = 1",
            "headrace.toml:2: unknown setting store.segmnt_bytes; did you mean store.segment_bytes?",
        ),
        ("[nsq]\nsegment_bytes = 1", "headrace.toml:2: unknown setting nsq.segment_bytes; did you mean store."),
        ("[stroe]", "headrace.toml:1: unknown setting stroe; did you mean store?"),
        ("zzz = 1", "headrace.toml:1: unknown setting zzz"),
        ("store = 1", "headrace.toml:1: store is a table: write [store]"),
        ("[[store]]", "headrace.toml:1: store is a table: write [store]"),
        ("[nsq]\nenabled = 1", "headrace.toml:2: nsq.enabled = 1 is not accepted: true or false"),
        (
            '[broker]\ndead_letter_webhook = "http://user:secret@host/"',
            'headrace.toml:2: broker.dead_letter_webhook = "http://user:secret@host/" is not accepted: '
            'an address "http://..." or "https://..." without a user in it, or "" for none',
        ),
        ('[broker]\ndead_letter_webhook = "http://[::1/"', "headrace.toml:2: broker.dead_letter_webhook = "),
        ('[broker]\ndead_letter_webhook = "http://[x]/"', "headrace.toml:2: broker.dead_letter_webhook = "),
        ('[broker]\ndead_letter_webhook = "http://h:port/"', "headrace.toml:2: broker.dead_letter_webhook = "),
        ('[broker]\ndead_letter_webhook = "http://h:65536/"', "headrace.toml:2: broker.dead_letter_webhook = "),
        ("[nsq]\nmax_rdy_count = 0", "headrace.toml:2: nsq.max_rdy_count = 0 is not accepted: 1 to 1000000"),
        ("[nsq]\nmax_rdy_count = true", "headrace.toml:2: nsq.max_rdy_count = true is not accepted: a whole number"),
        ("[nsq]\nmax_rdy_count = 1.5", "headrace.toml:2: nsq.max_rdy_count = 1.5 is not accepted: a whole number"),
        ('[nsq]\nmax_rdy_count = "1"', 'headrace.toml:2: nsq.max_rdy_count = "1" is not accepted: a whole number'),
        ("[broker]\nname = 1", "headrace.toml:2: broker.name = 1 is not accepted: a text"),
        ("[store]\ndata_dir = ''", 'headrace.toml:2: store.data_dir = "" is not accepted: a path'),
        ('[store]\ndata_dir = "a\\u0000b"', "headrace.toml:2: store.data_dir = "),
        ('[log]\nlevel = "loud"', 'headrace.toml:2: log.level = "loud" is not accepted: "debug" or "info"'),
        (
            "[store]\nsegment_bytes = 1024",
            "headrace.toml:2: store.segment_bytes = 1024 is not accepted: 1MiB to 1GiB",
        ),
        ('[store]\nsegment_bytes = "1 mb"', 'headrace.toml:2: store.segment_bytes = "1 mb" is not accepted: a size is'),
        ('[nsq]\ntcp_address = "localhost"', 'tcp_address = "localhost" is not accepted: an address "host:port"'),
        ('[nsq]\ntcp_address = "a:65536"', 'tcp_address = "a:65536" is not accepted: an address'),
        ('[nsq]\ntcp_address = "a..b:1"', 'tcp_address = "a..b:1" is not accepted: an address'),
        (f'[registry]\naddress = "{"a" * 64}:1"', "is not accepted: an address"),
        ('[broker]\nregistries = "a:0"', 'registries = "a:0" is not accepted: addresses'),
        ('[broker]\nregistries = " ;"', 'registries = " ;" is not accepted: addresses'),
        ('[nsq]\nstatsd_address = ":8125"', 'statsd_address = ":8125" is not accepted: an address "host:port" with a'),
        ('[nsq]\nstatsd_address = "a:0"', 'statsd_address = "a:0" is not accepted: an address "host:port" with a'),
        ('[nsq]\nstatsd_address = "a:1,b:1"', 'statsd_address = "a:1,b:1" is not accepted: an address "host:port"'),
        ('[nsq]\nstatsd_interval_ms = "500ms"', "statsd_interval_ms = 500 is not accepted: 1s to 24h"),
        ('[nsq]\nstatsd_prefix = "a b"', 'statsd_prefix = "a b" is not accepted: at most 128 characters of ASCII'),
        ('[nsq]\nstatsd_prefix = "a:b"', 'statsd_prefix = "a:b" is not accepted: at most 128 characters of ASCII'),
        ('[nsq]\nstatsd_prefix = "a|b"', 'statsd_prefix = "a|b" is not accepted: at most 128 characters of ASCII'),
        ('[nsq]\nstatsd_prefix = "a\\n"', "is not accepted: at most 128 characters of ASCII"),
        ("[nsq]\nstatsd_udp_packet_bytes = 255", "statsd_udp_packet_bytes = 255 is not accepted: 256 to 65507"),
        (
            "[nsq]\nstatsd_udp_packet_bytes = 256",
            "statsd_udp_packet_bytes = 256 is not accepted: at least 260, the longest line with nsq.statsd_prefix = "
            '"nsq.%s"; no line is split',
        ),
        ('[broker]\nregistries = "a:1,b..c:1"', 'registries = "a:1,b..c:1" is not accepted: addresses'),
        ('[broker]\nname = "a\\nb"', 'broker.name = "a\\nb" is not accepted: at most 255 bytes without control'),
        (f'[broker]\nname = "{"ä" * 128}"', "is not accepted: at most 255 bytes"),
        ('[remoting]\ncluster = ""', 'remoting.cluster = "" is not accepted: 1 to 255 bytes without control'),
        (
            '[remoting]\naddress = "a:2"',
            'remoting.address = "a:2" is not accepted: the port for old clients would be 0',
        ),
        (f"[store]\nsegment_bytes = {'9' * 5000}", "headrace.toml: not TOML: "),
        (f'[store]\nsegment_bytes = "{"9" * 400}.5GiB"', "is not accepted: it is more than 2^63 bytes"),
        (f'[store]\nflush_interval_ms = "{"9" * 400}s"', "is not accepted: it is more than 2^63 milliseconds"),
        (f'[store]\nsegment_bytes = "{"9" * 5000}GiB"', "is not accepted: it is more than 2^63 bytes"),
        ("[store]\nx = [\n" + "1,\n" * 20_000 + "]", "headrace.toml:2: a value of more than 100 lines"),
        ('[broker]\ndelay_levels = "5s 1s"', 'delay_levels = "5s 1s" is not accepted: delays with s, m, h or d'),
        ("[topics]\nx = 1", 'headrace.toml:2: topics."x" is a table: write [topics."x"]'),
        ("topics = 1", "headrace.toml:1: topics is a table: write [topics]"),
        ("[topics.x]\nqueues = 1", 'headrace.toml:2: unknown setting topics."x".queues; a topic has durability'),
        ("[topics.a.b]\ndurability = 'async'", 'a name with dots has quotes: [topics."a.b"]'),
        ('topics.a.b.c.durability = "async"', 'a name with dots has quotes: [topics."a.b.c"]'),
        ("[topics.a.durabilty]", 'unknown setting topics."a".durabilty; did you mean durability?'),
        ("[topic.orders]", "headrace.toml:1: unknown setting topic.orders; did you mean topics?"),
        ('[topics."a/b"]\ndurability = "async"', 'topics."a/b" is not accepted: no topic that is stored can be called'),
        ('[topics."orders.*"]\ndurability = "async"', "one name for each table, 1 to 127 of . a-z A-Z 0-9 _ - % |"),
        ('topics."a b".durability = "async"', 'headrace.toml:1: topics."a b" is not accepted'),
        (f"[topics.{'t' * 128}]", "no topic that is stored can be called so"),
        ('[topics."x#ephemeral"]', "no topic that is stored can be called so"),
        ('[topics.x]\ndurability = "none"', 'topics."x".durability = "none" is not accepted: "fsync" or "async"'),
        ("[store", "headrace.toml: not TOML: "),
        ("[store]\ndata_dir = 'a'\ndata_dir = 'b'", "headrace.toml: not TOML: "),
    ],
)
def test_file_errors_name_line_key_value_and_what_is_accepted(tmp_path: Path, toml: str, message: str) -> None:
    """C-LIFE-03: a bad file gives a clear message."""
    assert message in refusal(tmp_path, toml)


def test_a_name_that_is_no_text_is_refused() -> None:
    """Bytes of another encoding in a flag: with NSQ's they were taken, and /info was answered with 500."""
    for name in ("nsq.broadcast_address", "broker.name", "remoting.cluster"):
        with pytest.raises(ConfigError, match="255 bytes without control characters"):
            load_settings(environ={}, flags=[(f"--{name.replace('_', '-')}", "caf\udce9")])


def test_a_table_that_is_right_is_no_hint(tmp_path: Path) -> None:
    assert refusal(tmp_path, "nsq.zzz = 1").endswith("unknown setting nsq.zzz")


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"HEADRACE_STORE__SEGMENT_BYTE": "1"},
            "env HEADRACE_STORE__SEGMENT_BYTE: unknown setting; did you mean HEADRACE_STORE__SEGMENT_BYTES?",
        ),
        (
            {"HEADRACE_STORE_SEGMENT_BYTES": "1"},
            "env HEADRACE_STORE_SEGMENT_BYTES: unknown setting; did you mean HEADRACE_STORE__SEGMENT_BYTES?",
        ),
        (
            {"HEADRACE_DATA_DIR": "/x"},
            "env HEADRACE_DATA_DIR: unknown setting; did you mean HEADRACE_STORE__DATA_DIR?",
        ),
        (
            {"HEADRACE_DURABILITY": "async"},
            "env HEADRACE_DURABILITY: unknown setting; did you mean HEADRACE_STORE__DURABILITY?",
        ),
        (
            {"HEADRACE_LOGLEVEL": "debug"},
            "env HEADRACE_LOGLEVEL: unknown setting; did you mean HEADRACE_LOG__LEVEL?",
        ),
        (
            {"HEADRACE_READY_FILE": "/x"},
            "env HEADRACE_READY_FILE: unknown setting; did you mean the flag --ready-file?",
        ),
        (
            {"HEADRACE_FREE_PORTS": "1"},
            "env HEADRACE_FREE_PORTS: unknown setting; did you mean the flag --free-ports?",
        ),
        (
            {"HEADRACE_NSQ__ENABLED": "yes"},
            'env HEADRACE_NSQ__ENABLED: nsq.enabled = "yes" is not accepted: true or false',
        ),
        (
            {"HEADRACE_NSQ__MAX_RDY_COUNT": ""},
            'env HEADRACE_NSQ__MAX_RDY_COUNT: nsq.max_rdy_count = "" is not accepted',
        ),
    ],
)
def test_environment_errors_name_the_variable(tmp_path: Path, environ: dict[str, str], message: str) -> None:
    """An unknown or wrong variable is an error, too."""
    assert message in refusal(tmp_path, "", environ)


def test_a_name_like_no_other_gets_no_suggestion(tmp_path: Path) -> None:
    """What every variable begins with makes none of them alike."""
    assert refusal(tmp_path, "", {"HEADRACE_FOO__BAR": "1"}) == "env HEADRACE_FOO__BAR: unknown setting"


def test_variables_that_are_no_settings_are_left_alone(tmp_path: Path) -> None:
    """Container platforms make HEADRACE_PORT and the like for a service of that name, or of headrace-nsq."""
    of_service = ["PORT", "PORT_4150_TCP", "PORT_4150_TCP_ADDR", "PORT_4150_TCP_PORT", "PORT_4150_TCP_PROTO"]
    of_service += ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_NSQ_TCP"]
    prefixes = ("HEADRACE", *(f"HEADRACE_{section.upper()}" for section in sections()))
    environ = {f"{prefix}_{name}": "tcp://10.0.0.1:4150" for prefix in prefixes for name in of_service}
    environ |= {"HEADRACE_NAME": "/app/headrace", "HEADRACE_LEVEL": "1", "HEADRACE_CLUSTER": "blue"}
    environ |= {"HEADRACE_CONFIG": "headrace.toml", "HEADRACE_SECRET_KEY": "s", "HOME": "/"}
    assert load(tmp_path, "", environ).settings == Settings()


@pytest.mark.parametrize(
    "text", ["[broker]\nname = '{}'", "[store]\nsegment_bytes = '{}'", "[nsq]\nmax_rdy_count = '{}'"]
)
def test_a_long_value_is_not_told_whole(tmp_path: Path, text: str) -> None:
    """A megabyte of it was printed where one sentence was wanted."""
    told = refusal(tmp_path, text.format("9" * 100_000))
    assert "is not accepted: " in told
    assert '= "9999' in told
    assert len(told) < 1000


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (("--store.segment-byte", "1"), "flag --store.segment-byte: unknown setting store.segment_byte; did you mean"),
        (("--broker.node-id", "x"), 'flag --broker.node-id: broker.node_id = "x" is not accepted: a whole number'),
        (("--broker.node-id", "65536"), "broker.node_id = 65536 is not accepted: -1 or 0 to 65535"),
        (("--data-dir", ""), 'flag --data-dir: store.data_dir = "" is not accepted: a path, "." for the working'),
    ],
)
def test_flag_errors_name_the_flag(tmp_path: Path, flag: tuple[str, str], message: str) -> None:
    """A wrong flag is named as the user wrote it."""
    assert message in refusal(tmp_path, "", {}, flag)


def test_port_one_is_free_to_use_without_the_one_below(tmp_path: Path) -> None:
    """Old clients' port is what stands against it."""
    text = "[remoting]\naddress = 'a:1'\nvip_listener = false"
    assert load(tmp_path, text).settings.remoting.address == "a:1"


@pytest.mark.parametrize("port", [1, 2])
@pytest.mark.parametrize("host", ["a", "[::1]"])
@pytest.mark.parametrize("key", ["address", "advertised_address"])
def test_a_port_with_none_two_below_is_refused(tmp_path: Path, key: str, host: str, port: int) -> None:
    """Old clients derive theirs from what they are told: -1 was what they got of an advertised port 1."""
    assert refusal(tmp_path, f"[remoting]\n{key} = '{host}:{port}'") == (
        f'headrace.toml:2: remoting.{key} = "{host}:{port}" is not accepted: the port for old clients would be '
        f"{port - 2}; choose another, or set remoting.vip_listener to false"
    )


@pytest.mark.parametrize(
    "told", ['a:1"\nvip_listener = false #', 'a:1"\naddress = "', "a:3", "::1", "a::1", "a", "a:0"]
)
def test_an_advertised_address_has_no_port_below_or_needs_none(tmp_path: Path, told: str) -> None:
    load(tmp_path, f'[remoting]\nadvertised_address = "{told}"')


def test_rules_about_two_settings_name_where_either_was_set(tmp_path: Path) -> None:
    """Lowering a maximum below the default of what it bounds shows the maximum's place."""
    text = refusal(tmp_path, "[nsq]\nmax_msg_timeout_ms = 5000")
    assert text == (
        "headrace.toml:2: nsq.msg_timeout_ms = 60000 is not accepted: at most nsq.max_msg_timeout_ms = 5000"
    )
    assert "at least store.segment_bytes" in refusal(tmp_path, "[store]\nbudget_bytes = '2MiB'")
    text = refusal(tmp_path, "[nsq]\nread_coalescing_ms = 6\nmsg_timeout_ms = 20")
    assert "nsq.read_coalescing_ms = 6 is not accepted: at most a quarter of nsq.msg_timeout_ms = 20" in text
    text = refusal(tmp_path, "[nsq]\ndelivery_coalescing_ms = 6\nmin_output_buffer_timeout_ms = 5")
    assert "delivery_coalescing_ms = 6 is not accepted: at most nsq.min_output_buffer_timeout_ms = 5" in text


def test_a_packet_for_statsd_holds_the_longest_line(tmp_path: Path) -> None:
    """Whatever ``%s`` stands for, so that no packet is longer than asked for."""
    near = '[nsq]\nstatsd_udp_packet_bytes = 256\nbroadcast_address = "127.0.0.1"\n'
    assert load(tmp_path, near).settings.nsq.statsd_udp_packet_bytes == 256
    long = f'[nsq]\nbroadcast_address = "{"h" * 255}"\nstatsd_prefix = "%s.%s"'
    assert "nsq.statsd_udp_packet_bytes = 508 is not accepted: at least 711" in refusal(tmp_path, long)


def test_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    """Windows' editors write one."""
    file = tmp_path / "marked.toml"
    file.write_bytes(b"\xef\xbb\xbf[nsq]\nmax_rdy_count = 7\n")
    assert load_settings(file=file, environ={}).settings.nsq.max_rdy_count == 7


def test_unreadable_files_are_config_errors(tmp_path: Path) -> None:
    """A missing, binary or huge file gives one sentence, not a traceback."""
    with pytest.raises(ConfigError, match=r"cannot read the settings file .*: No such file"):
        load_settings(file=tmp_path / "none.toml", environ={})
    binary = tmp_path / "binary"
    binary.write_bytes(b"a = \xff")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 4"):
        load_settings(file=binary, environ={})
    binary.write_bytes(b"#" * (MIB + 1))
    with pytest.raises(ConfigError, match="larger than"):
        load_settings(file=binary, environ={})


def test_topics_have_their_own_durability(tmp_path: Path) -> None:
    """Durability levels per topic with a broker default."""
    loaded = load(tmp_path, '[topics."a.b"]\ndurability = "async"\n[topics.c]\n')
    store = loaded.settings.store
    assert store.topics == {"a.b": TopicSettings(durability="async"), "c": TopicSettings()}
    assert [store.durability_of(name) for name in ("a.b", "c", "d")] == ["async", "fsync", "fsync"]
    assert loaded.origins['topics."a.b".durability'].endswith(":2")


def test_validate_checks_settings_made_in_code() -> None:
    """Settings that come from no loader go through the same checks."""
    validate(Settings(broker=BrokerSettings(node_id=65_535), store=StoreSettings(segment_bytes=MIB)))
    with pytest.raises(ConfigError, match=r"nsq\.max_deflate_level = 10 is not accepted: 1 to 9") as caught:
        validate(Settings(nsq=replace(NsqSettings(), max_deflate_level=10)))
    assert caught.value.key == "nsq.max_deflate_level"
    topics = MappingProxyType({"t": TopicSettings(durability="never")})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="durability"):
        validate(Settings(store=StoreSettings(topics=topics)))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("64MiB", 64 * MIB),
        ("1 GiB", 1 << 30),
        ("1.5KiB", 1536),
        ("1.001GB", 1_001_000_000),
        ("10MB", 10_000_000),
        ("7B", 7),
        ("1_000", 1000),
    ],
)
def test_sizes_have_binary_and_decimal_units(text: str, size: int) -> None:
    """MiB is 1024 * 1024 and MB is 1000 * 1000."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "MiB", "-1MiB", "1mib", "1 M", "1.0001KiB", "1e3", "1 MiB ", "٣", "9" * 5000, "-" + "9" * 5000]
)
def test_other_sizes_are_refused(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(ConfigError):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("250", 250),
        ("250ms", 250),
        ("1m30s", 90_000),
        ("1.5s", 1500),
        ("72h", 259_200_000),
        ("16.1s", 16_100),
        ("1.15h", 4_140_000),
    ],
)
def test_durations_have_units(text: str, duration_ms: int) -> None:
    """nsq.md 8: Go's durations are understood."""
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize(
    ("parse", "sign", "unit"),
    [
        *((parse, sign, "") for parse in (parse_size, parse_duration_ms) for sign in ("", "-")),
        (parse_size, "", "MiB"),
        (parse_duration_ms, "", "d"),
    ],
)
def test_numbers_beyond_decimal_arithmetic_are_refused(parse: Callable[[str], int], sign: str, unit: str) -> None:
    """With a million digits: what is asked of them must not be rounded or multiplied first."""
    with pytest.raises(ConfigError, match="less than -2\\^63" if sign else "more than 2\\^63"):
        parse(f"{sign}{'9' * 1_000_001}{unit}")


@pytest.mark.parametrize("text", [f"0.{'9' * 5000}KiB", f"1.{'0' * 40}1KiB", f"{1 << 40}.{'0' * 20}1B"])
def test_a_fraction_of_a_byte_is_not_rounded(text: str) -> None:
    """Decimal keeps 28 digits of a product."""
    with pytest.raises(ConfigError, match=r"^[0-9.it]{2,40} is not a whole number of bytes"):
        parse_size(text)
    with pytest.raises(ConfigError, match="not a whole number of milliseconds"):
        parse_duration_ms(text.rstrip("KiB") + "s1ms")
    assert parse_size(f"1.5{'0' * 5000}KiB") == 1536


@pytest.mark.parametrize("text", ["", "ms", "1 s", "0.1ms", "1y", "1ns", "9" * 5000])
def test_other_durations_are_refused(text: str) -> None:
    """Fractions of a millisecond and unknown units are errors."""
    with pytest.raises(ConfigError):
        parse_duration_ms(text)


def test_values_are_shown_with_the_largest_whole_unit() -> None:
    """What is shown can be read back."""
    assert [format_size(size) for size in (0, 1023, 1024, 6_000_000, 64 * MIB, 1 << 40)] == [
        "0",
        "1023",
        "1KiB",
        "6000000",
        "64MiB",
        "1TiB",
    ]
    assert [format_duration(ms) for ms in (25, 1000, 90_000, 60_000, 259_200_000)] == ["25ms", "1s", "90s", "1m", "72h"]
