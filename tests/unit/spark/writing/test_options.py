"""Options and columns of the sink are checked before a task runs (spark.md 3.5)."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.spark.writing.options import WriteColumns, WriteOptions

NEEDED = {"servers": "localhost:9876", "topic": "orders"}


def schema(**columns: str) -> Any:
    """A Spark schema as far as it is looked at."""
    return SimpleNamespace(
        fields=[
            SimpleNamespace(name=name, dataType=SimpleNamespace(simpleString=lambda kind=kind: kind))
            for name, kind in columns.items()
        ]
    )


def plan(options: dict[str, str] | None = None, /, **columns: str) -> WriteColumns:
    return WriteColumns.plan(schema(**columns), WriteOptions.parse({**NEEDED, **(options or {})}))


def refusal(options: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        WriteOptions.parse(options)
    return str(caught.value)


def column_refusal(options: dict[str, str] | None = None, /, **columns: str) -> str:
    with pytest.raises(ConfigError) as caught:
        plan(options, **columns)
    return str(caught.value)


def test_no_option_at_all_is_what_a_table_of_a_catalog_gives() -> None:
    assert "insert into a CREATE TEMPORARY VIEW" in refusal({})
    assert "TEMPORARY VIEW" not in refusal({"topic": "orders"})


def test_defaults_are_those_of_the_documents() -> None:
    options = WriteOptions.parse({"servers": "localhost:9876"})
    assert options == WriteOptions("localhost:9876")
    assert (options.semantics, options.ack, options.batch_bytes, options.max_in_flight) == (
        "idempotent",
        "stored",
        1 << 20,
        8,
    )


def test_options_are_read_in_any_case() -> None:
    """Spark hands them over in lower case; what it adds for a stream is passed over."""
    given = {
        "SERVERS": "a:1;b:2",
        "producergroup": "g",
        "keycolumn": "id",
        "batchbytes": "512KiB",
        "maxInFlight": "4",
        "sendtimeoutms": "5s",
        "retries": "0",
        "ACK": "Flushed",
        "txnid": "nightly",
        "epoch": "17",
        "extracolumns": "properties",
        "maxmessagebytes": "1MiB",
        "auth.accesskey": "who",
        "auth.secretkey": "hush",
        "checkpointlocation": "/tmp/x",
        "queryname": "q",
    }
    options = WriteOptions.parse(given)
    assert options == WriteOptions(
        servers="a:1;b:2",
        producer_group="g",
        key_column="id",
        batch_bytes=512 << 10,
        max_in_flight=4,
        send_timeout_ms=5000,
        retries=0,
        ack="flushed",
        txn_id="nightly",
        epoch=17,
        extra_columns="properties",
        max_message_bytes=1 << 20,
        access_key="who",
        secret_key="hush",
    )
    assert pickle.loads(pickle.dumps(options)) == options
    assert WriteOptions.parse({**NEEDED, "epoch": str((1 << 63) - 1)}).epoch == (1 << 63) - 1


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({}, ["option servers is missing", "host:9876"]),
        ({"servers": ""}, ["option servers is empty"]),
        ({**NEEDED, "topics": "a"}, ["no option 'topics' for writing", "did you mean 'topic'?", "keyColumn"]),
        ({"kafka.bootstrap.servers": "a:1"}, ["registries are named by servers"]),
        ({**NEEDED, "kafka.acks": "all"}, ["no option 'kafka.acks' for writing: there is no Kafka client"]),
        ({**NEEDED, "semantic": "x"}, ["did you mean 'semantics'?"]),
        ({**NEEDED, "store": "/x"}, ["only read"]),
        ({**NEEDED, "path": "/x"}, ["without a path"]),
        ({**NEEDED, "stageTtl": "1h"}, ["remoting.stage_ttl_s"]),
        ({**NEEDED, "topic": ""}, ["option topic is empty"]),
        ({**NEEDED, "topic": "a.b"}, ["'a.b' is no name of a topic"]),
        ({**NEEDED, "topic": "x" * 128}, ["is no name of a topic"]),
        ({**NEEDED, "topic": "%SYS%x"}, ["is no name of a topic"]),
        ({**NEEDED, "semantics": "exactly-once"}, ["idempotent", "transactional", "once"]),
        ({**NEEDED, "semantics": "transaction"}, ["did you mean 'transactional'?", "at-least-once"]),
        ({**NEEDED, "ack": "received"}, ["not offered", "stored, flushed, replicated"]),
        ({**NEEDED, "ack": "flush"}, ["did you mean 'flushed'?"]),
        ({**NEEDED, "batchBytes": "5MiB"}, ["within 1024..4194304"]),
        ({**NEEDED, "batchBytes": "much"}, ["option batchBytes", "not 'much'"]),
        ({**NEEDED, "maxInFlight": "0"}, ["within 1..64"]),
        ({**NEEDED, "retries": "-1"}, ["within 0..1000"]),
        ({**NEEDED, "sendTimeoutMs": "1"}, ["within 100..3600000"]),
        ({**NEEDED, "epoch": "-1"}, ["option epoch"]),
        ({**NEEDED, "epoch": str(1 << 63)}, ["option epoch"]),
        ({**NEEDED, "txnId": "x" * 129}, ["128 visible characters"]),
        ({**NEEDED, "extraColumns": "drop"}, ["error or properties or ignore"]),
        ({**NEEDED, "auth.accessKey": "a"}, ["auth.accessKey goes with auth.secretKey"]),
        ({**NEEDED, "auth.secretKey": "a"}, ["auth.accessKey goes with auth.secretKey"]),
        ({**NEEDED, "auth.secretKey": "a", "auth.secretKeyEnv": "B"}, ["say one thing"]),
        ({**NEEDED, "auth.accessKey": "a", "auth.secretKeyEnv": "HEADRACE_NO_SUCH"}, ["no environment variable"]),
        ({**NEEDED, "auth.accessKey": "a", "auth.secretKeyFile": "/no/such"}, ["cannot be read", "No such file"]),
        ({**NEEDED, "keyColumn": "id", "semantics": "transactional"}, ["keyColumn belongs to semantics=idempotent"]),
    ],
    ids=lambda value: None,
)
def test_wrong_options_are_refused(options: dict[str, str], texts: list[str]) -> None:
    """One clear error: names the option, what is accepted, the nearest."""
    text = refusal(options)
    for part in texts:
        assert part in text


def test_secrets_are_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever way they come."""
    file = tmp_path / "secret"
    file.write_text("hush\n")
    monkeypatch.setenv("HEADRACE_TEST_SECRET", "hush")
    for name, value in (("Key", "hush"), ("KeyFile", str(file)), ("KeyEnv", "HEADRACE_TEST_SECRET")):
        options = WriteOptions.parse({**NEEDED, "auth.accessKey": "who", f"auth.secret{name}": value})
        assert options.secret_key == "hush"
        assert "hush" not in repr(options)


def test_every_column_is_found() -> None:
    columns = plan(
        {"topic": "t"},
        value="string",
        tags="string",
        keys="array<string>",
        properties="map<string,string>",
        Sharding_Key="string",
        queue_id="bigint",
        deliver_at="timestamp",
        delay_level="smallint",
        flag="int",
        born_ts="timestamp_ntz",
    )
    assert columns.roles == {
        "body": 0,
        "tags": 1,
        "keys": 2,
        "properties": 3,
        "sharding_key": 4,
        "queue_id": 5,
        "deliver_at": 6,
        "delay_level": 7,
        "flag": 8,
        "born_ts": 9,
    }
    assert (columns.extras, columns.casts, columns.is_keyed) == ((), (), False)


def test_the_option_topic_overrides_the_column() -> None:
    assert plan(body="binary", topic="int").roles == {"body": 0}
    no_option = WriteOptions.parse({"servers": "a:1"})
    assert WriteColumns.plan(schema(body="binary", topic="string"), no_option).roles == {"body": 0, "topic": 1}


def test_a_key_makes_a_write_keyed() -> None:
    """By its column, or by the column unique_key; numbers become text."""
    assert plan(body="string", unique_key="string").is_keyed
    keyed = plan({"keyColumn": "ID"}, id="bigint", body="string")
    assert (keyed.is_keyed, keyed.roles["unique_key"], keyed.casts) == (True, 0, (0,))
    both = plan({"keyColumn": "keys"}, keys="string", body="string")
    assert both.roles == {"keys": 0, "unique_key": 0, "body": 1}
    assert not plan({"semantics": "transactional"}, body="string", unique_key="string").is_keyed


def test_further_columns_become_properties_or_nothing() -> None:
    columns = plan({"extraColumns": "properties"}, body="string", region="string", n="int", price="decimal(10,2)")
    assert (columns.extras, columns.casts) == ((("region", 1), ("n", 2), ("price", 3)), (2, 3))
    assert plan({"extraColumns": "ignore"}, body="string", region="array<int>").extras == ()


def test_types_that_mean_the_same() -> None:
    """Collations and lengths of text do not matter; a column of nulls is any column."""
    assert plan(body="string collate UTF8_LCASE", tags="varchar(10)", keys="void").roles == {
        "body": 0,
        "tags": 1,
        "keys": 2,
    }


@pytest.mark.parametrize(
    ("options", "columns", "texts"),
    [
        ({}, {}, ["no column body (or value)", "there are none"]),
        ({}, {"bdy": "string", "tags": "string"}, ["unknown column 'bdy'", "did you mean 'body'?", "extraColumns"]),
        ({}, {"body": "string", "tag": "string"}, ["did you mean 'tags'?", "sharding_key"]),
        ({}, {"tags": "string"}, ["no column body (or value)", "there are tags"]),
        ({}, {"body": "string", "value": "string"}, ["'body' and 'value' are both the body"]),
        ({}, {"body": "struct<a:int>"}, ["column 'body' is of type struct<a:int>", "accepted: string, binary"]),
        ({}, {"body": "void"}, ["every body would be null"]),
        ({}, {"body": "string", "queue_id": "string"}, ["'queue_id' is of type string", "int, bigint"]),
        ({}, {"body": "string", "deliver_at": "date"}, ["accepted: timestamp, timestamp_ntz"]),
        ({}, {"body": "string", "properties": "map<string,int>"}, ["map<string,string>"]),
        ({}, {"body": "string", "keys": "array<int>"}, ["accepted: string, array<string>"]),
        ({"extraColumns": "properties"}, {"body": "string", "x": "array<int>"}, ["column 'x' is of type array<int>"]),
        ({"extraColumns": "properties"}, {"body": "string", "DELAY": "string"}, ["cannot become a property"]),
        ({"extraColumns": "properties"}, {"body": "string", "timer_x": "string"}, ["cannot become a property"]),
        ({"keyColumn": "ids"}, {"body": "string", "tags": "string"}, ["keyColumn = 'ids' is no column", "body, tags"]),
        ({"keyColumn": "ids"}, {"body": "string", "id": "string"}, ["'ids' is no column; did you mean 'id'?"]),
        ({"keyColumn": "tagz"}, {"body": "string", "tags": "string"}, ["did you mean 'tags'?"]),
        ({"keyColumn": "id"}, {"body": "string", "id": "map<string,string>"}, ["column 'id' is of type map"]),
        ({"keyColumn": "id"}, {"body": "string", "id": "int", "unique_key": "string"}, ["both say what the key is"]),
        ({"semantics": "transactional"}, {"body": "string", "delay_level": "int"}, ["cannot delay messages"]),
        ({"keyColumn": "flag"}, {"body": "string", "flag": "int"}, ["cannot be both flag and the key"]),
    ],
    ids=lambda value: None,
)
def test_wrong_columns_are_refused(options: dict[str, str], columns: dict[str, str], texts: list[str]) -> None:
    """spark.md 5.4.6: wrong schema. Lists the valid ones, names the nearest."""
    text = column_refusal(options, **columns)
    for part in texts:
        assert part in text


def test_a_topic_is_needed() -> None:
    with pytest.raises(ConfigError, match="neither the option topic nor a column topic; columns are body"):
        WriteColumns.plan(schema(body="string"), WriteOptions.parse({"servers": "a:1"}))
