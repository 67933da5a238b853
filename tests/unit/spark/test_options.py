"""Options for reading: every one is checked on the driver, and none is ignored."""

import pickle
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.spark.options import OPTION_NAMES, ReadOptions, parse_time, without_catalogs
from headrace.spark.scan import ServersSource, StoreSource
from headrace.spark.streams.positions import QueueKey

ONLINE = {"servers": "127.0.0.1:9876", "topics": "orders"}


def parse(**more):
    return ReadOptions.parse(ONLINE | more)


def test_defaults():
    options = parse()
    assert options.topics == ("orders",)
    assert options.max_bytes_per_trigger == 256 << 20
    assert options.fail_on_data_loss
    assert options.commit_offsets
    assert not options.is_log_mode
    assert pickle.loads(pickle.dumps(options)) == options


def test_names_do_not_care_about_case():
    """Spark hands over lower-case names."""
    assert parse(maxbytespertrigger="1MiB", FAILONDATALOSS="false").max_bytes_per_trigger == 1 << 20


@pytest.mark.parametrize(("text", "found"), [("1500", 1_500), ("10s", 10_000), ("1d", 86_400_000), (" 500 ms ", 500)])
def test_a_timeout_is_a_number_of_ms_or_a_duration(text, found):
    assert parse(pullTimeoutMs=text).pull_timeout_ms == found


def test_every_option_is_documented():
    page = Path(__file__).parents[3].joinpath("docs/spark/source.md").read_text()
    assert [name for name in OPTION_NAMES if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": "x"}, "did you mean 'topics'"),
        ({"stratingOffsets": "earliest"}, "did you mean 'startingOffsets'"),
        ({"zzz": "1"}, "options are assign"),
        ({"connectionsPerExecutor": "4"}, "no option 'connectionsPerExecutor' for reading: a task has one connection"),
        ({"readFrom": "slave"}, "slaves are not asked"),
        ({"tls.caFile": "ca.pem"}, "do not speak TLS"),
        ({"kafka.bootstrap.servers": "a:1"}, "registries are named by servers"),
        ({"kafka.group.id": "g"}, "the name of a query is the option group"),
        ({"kafka.security.protocol": "SSL"}, "'kafka.security.protocol' for reading: there is no Kafka client"),
        ({"includeHeaders": "true"}, "headers are the column properties"),
        ({"store": "/x"}, "servers .* and store"),
        ({"scan": "log"}, "topics and scan"),
        ({"startingOffsets": "newest"}, "earliest or latest or committed"),
        ({"startingOffsets": "[1]"}, 'or JSON such as {"topic": {"broker": {"0": 17}}}'),
        ({"endingOffsets": "[1]"}, 'is latest or JSON such as {"topic": {"broker": {"0": 17}}}'),
        ({"startingOffsets": "{"}, "no JSON"),
        ({"startingOffsets": '{"t": {"b": 3}}'}, "is JSON such as"),
        ({"startingOffsets": '{"t": {"b": {"0": -3}}}'}, "-2 earliest"),
        ({"startingOffsets": '{"t": {"b": {"0": 1, "00": 30}}}'}, "is JSON such as"),
        ({"startingOffsets": '{"t": {"b": {"\N{ARABIC-INDIC DIGIT THREE}": 1}}}'}, "is JSON such as"),
        ({"startingOffsets": '{"t": {"b": {}}}'}, "is JSON such as"),
        ({"retries": "\N{ARABIC-INDIC DIGIT THREE}"}, "retries"),
        ({"batchBytes": "\N{ARABIC-INDIC DIGIT THREE}MiB"}, "batchBytes"),
        ({"startingTimestamp": "\N{ARABIC-INDIC DIGIT THREE}000000000000"}, "startingTimestamp"),
        ({"startingOffsets": '{"t": {}}'}, "is JSON such as"),
        ({"startingOffsetsByTimestamp": '{"t": {"b": {}}}'}, "is JSON such as"),
        ({"assign": '{"t": {"b": ["x"]}}'}, "is JSON such as"),
        ({"maxOffsetsPerTrigger": "many"}, "whole number"),
        ({"maxBytesPerTrigger": "5 apples"}, "a size such as"),
        ({"maxTriggerDelay": "soon"}, "a duration such as"),
        ({"startingTimestamp": "yesterday"}, "ISO 8601"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"group": "orders to lake"}, "no name of a consumer group"),
        ({"group": "g" * 115}, "1 to 114 letters"),
        ({"newQueues": "never"}, "earliest or latest"),
        ({"topicPattern": "("}, "no regular expression"),
        ({"topicPattern": "[[]a"}, "option topicPattern has no one meaning: Possible nested set at position 1; write "),
        ({"topicPattern": "t[a--b]"}, "option topicPattern has no one meaning: Possible set difference at position 3"),
        ({"topicPattern": ""}, "topicPattern is empty"),
        ({"startingOffsets": '{"t": {"b": {"0": 1, "0": 2}}}'}, "startingOffsets has '0' twice"),
        ({"assign": '{"t": {"b": [0]}, "t": {"b": [1]}}'}, "assign has 't' twice"),
        ({"pullTimeoutMs": "1000000000000000"}, r"within 1\.\.86400000"),
        ({"pullTimeoutMs": "0"}, r"within 1\.\.86400000"),
        ({"pullTimeoutMs": "2d"}, r"within 1\.\.86400000"),
        ({"pullTimeoutMs": "soon"}, "a duration such as"),
        ({"batchBytes": "2GiB"}, r"a size .* within 1\.\.1073741824"),
        ({"columns": "topics"}, "did you mean 'topic'"),
        ({"brokerName": "b"}, "goes with store"),
        ({"auth.accessKey": "me"}, "goes with auth.secretKey"),
        ({"auth.secretKeyFile": "/nowhere/at/all"}, "cannot be read"),
        ({"auth.secretKeyEnv": "HEADRACE_NO_SUCH"}, "no environment variable"),
        ({"tags": " || "}, "tag expression"),
        ({"group": " "}, "is empty"),
        ({"auth.secretKey": "a", "auth.secretKeyEnv": "B"}, "auth.secretKey and auth.secretKeyEnv say one thing"),
        ({"TOPICS": "a"}, "topics and TOPICS say one thing"),
        ({"keys": "[" * 100_000}, "option keys cannot be read"),
        ({"topicPattern": "a{99999999999}"}, "option topicPattern cannot be read"),
        ({"maxTriggerDelay": "1" * 400 + "d"}, "option maxTriggerDelay cannot be read"),
        ({"auth.secretKeyFile": "\0"}, "option auth.secretKeyFile cannot be read"),
        ({"auth.secretKeyEnv": "\ud800"}, "option auth.secretKeyEnv cannot be read"),
    ],
)
def test_mistakes_are_named(options, says):
    with pytest.raises(ConfigError, match=says):
        parse(**options)


@pytest.mark.parametrize("text", ["0", "000", "-1", "1KiB", ""])
def test_a_number_that_is_not_0_is_asked_for_as_such(text):
    with pytest.raises(ConfigError, match="batchRows is a whole number from 1 on, not"):
        ReadOptions.parse({"servers": "a:1", "topics": "t", "batchRows": text})


@pytest.mark.parametrize("name", ["batchRows", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "retries"])
@pytest.mark.parametrize("text", [str(2**63 - 1), str(10**18 + 1), "9" * 40])
def test_a_number_that_is_too_large_is_told_as_that(name, text):
    """\"A whole number from 1 on, not 9223372036854775807\"."""
    with pytest.raises(ConfigError, match=rf"{name} is a .* within [01]\.\.1000000000000000000, not '{text}'"):
        ReadOptions.parse({"servers": "a:1", "topics": "t", name: text})
    ReadOptions.parse({"servers": "a:1", "topics": "t", name: str(10**18)})


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxRecordsPerPartition"])
@pytest.mark.parametrize("place", [{"servers": "a:1"}, {"store": "/data"}])
def test_counts_of_messages_do_not_go_with_logs(name, place):
    """They were ignored."""
    with pytest.raises(ConfigError, match=f"{name} counts messages of queues.* goes with scan=log and with store"):
        ReadOptions.parse({**place, "scan": "log", name: "5"})


def test_no_option_at_all_is_what_a_table_of_a_catalog_gives():
    with pytest.raises(ConfigError, match="make it a CREATE TEMPORARY VIEW"):
        ReadOptions.parse({})
    given = {"servers": "a:1", "topics": "t"}
    noted = {"provider": "headrace", "owner": "me", "option.servers": "a:1", "option.topics": "t"}
    assert without_catalogs({**given, **noted}) == given
    assert without_catalogs({"servers": "a:1", "owner": "me"}) == {"servers": "a:1", "owner": "me"}


def test_selection_is_needed():
    with pytest.raises(ConfigError, match="topics, topicPattern, assign and scan=log"):
        ReadOptions.parse({"servers": "a:1"})


def test_secrets_are_never_shown(tmp_path):
    file = tmp_path / "secret"
    file.write_text("hush\n")
    options = parse(**{"auth.accessKey": "me", "auth.secretKeyFile": str(file)})
    assert options.secret_key == "hush"
    assert "hush" not in repr(options)
    assert "hush" not in repr(options.source)
    assert options.source.secret_key == "hush"


def test_values():
    options = parse(
        startingOffsets='{"orders": {"b": {"0": 5, "1": -1}}}',
        startingTimestamp="2026-01-31T12:00:00Z",
        endingTimestamp="1700000000000",
        tags="paid || sent",
        keys="a,b",
        maxTriggerDelay="90s",
        columns="topic,prop:x",
    )
    assert options.starting_offsets == {QueueKey("orders", "b", 0): 5, QueueKey("orders", "b", 1): -1}
    assert options.starting_timestamp == 1769860800000
    assert options.ending_timestamp == 1700000000000
    assert options.tags == ("paid", "sent")
    assert options.max_trigger_delay == 90_000
    assert options.columns == ("topic", "prop:x")
    assert parse(tags="*").tags is None
    assert parse_time("x", "2026-01-31T13:00:00+01:00") == 1769860800000
    assert parse_time("x", "2026-01-31 12:00") == 1769860800000
    assert parse_time("x", "20260131") == 1769817600000  # a date, not 1970, as for jobs
    assert [parse_time("x", text) for text in ("0", "-7", "1769860800000")] == [0, -7, 1769860800000]
    # A bound below a millisecond: what was stored at .000 lies before it, what was stored at .001 behind it.
    assert [parse_time("x", f"2026-01-31T12:00:00.000{us}") for us in ("", "001", "400", "999")] == [
        1769860800000, *[1769860800001] * 3
    ]  # fmt: skip
    assert parse_time("x", "1969-12-31T23:59:59.999400") == 0
    for text in ("20261331", "-20260131"):
        with pytest.raises(ConfigError, match="ISO 8601"):
            parse_time("x", text)


def test_sources():
    assert ReadOptions.parse({"store": "/data", "scan": "log"}).source == StoreSource("/data")
    assert ReadOptions.parse({"path": "/data", "topics": "a"}).is_log_mode
    assert isinstance(parse().source, ServersSource)
    log = ReadOptions.parse({"store": "/d", "scan": "log", "startingOffsets": '{"b": 5}'})
    assert log.starting_offsets == {QueueKey.of_log("b"): 5}
    with pytest.raises(ConfigError, match="physical offsets"):
        ReadOptions.parse({"store": "/d", "scan": "log", "startingOffsets": '{"t": {"b": {"0": 5}}}'})


def test_selection():
    options = ReadOptions.parse({"servers": "a:1", "assign": '{"t": {"b": [0, 2]}}'})
    assert options.wants_topic("t")
    assert not options.wants_topic("u")
    assert options.wants_queue("t", "b", 2)
    assert not options.wants_queue("t", "b", 1)
    pattern = ReadOptions.parse({"servers": "a:1", "topicPattern": "o.*"})
    assert pattern.wants_topic("orders")
    assert not pattern.wants_topic("xo")
    assert not ReadOptions.parse({"servers": "a:1", "topicPattern": ".*"}).wants_topic("%RETRY%g")
