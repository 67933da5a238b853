"""What each request code does at a registry: decode, ask the core, encode.

A handler takes the connection and the command and returns a ``Reply``, or None when it answers later by itself.

Ref: remoting.md 4.8; docs/protocols/registry.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from headrace.net.address import parse_peer
from headrace.registry.kv_config import ORDER_NAMESPACE
from headrace.registry.routes import MASTER_ID, Registration
from headrace.remoting import fields
from headrace.remoting.codes import (
    COMPLETE,
    FIRST_VERSION_WITH_PARTS,
    TOPIC_FLAG_UNIT,
    TOPIC_FLAG_UNIT_SUB,
    RequestCode,
    ResponseCode,
)
from headrace.remoting.registry.bodies import (
    LONGEST_NAME,
    decode_queues,
    decode_registration,
    decode_version,
    encode_clusters,
    encode_route,
    encode_table,
    encode_topics,
    encode_version,
)
from headrace.remoting.reply import Reply, RequestRefusedError

if TYPE_CHECKING:
    from headrace.registry.routes import LiveBroker
    from headrace.remoting.codec import Command
    from headrace.remoting.registry.connection import RegistryConnection
    from headrace.remoting.registry.server import RegistryServer

Handler = Callable[["RegistryConnection", "Command"], Reply | None]


# -- brokers -----------------------------------------------------------------------------------------------------------


def register_broker(connection: RegistryConnection, command: Command) -> Reply:
    """REGISTER_BROKER."""
    server = connection.server
    new = _read_registration(server, command)
    name, broker_id, address = new.broker_name, new.broker_id, new.address
    before = server.routes.live.get(address)
    if _is_overtaken(connection, before, name, broker_id):
        return Reply()
    rival = server.routes.brokers[name].addresses.get(broker_id) if name in server.routes.brokers else None
    master = server.routes.register(new, connection, server.clock.monotonic_ms())
    server.counters.registrations += 1
    if broker_id == MASTER_ID and (before is None or (before.name, before.broker_id) != (name, broker_id)):
        server.broker_came(name)
    if rival is not None and rival != address:
        server.broker_log.note_place(name, broker_id, rival, address)
    elif before is None:
        server.broker_log.note_came(name, broker_id, address, new.cluster)
    if before is not None and before.name != name:
        server.broker_log.note_address(address, before, name, broker_id)
    order = server.kv.namespace(ORDER_NAMESPACE)
    return Reply(
        ext={"haServerAddr": master.ha_address, "masterAddr": master.address} if master else {},
        body=encode_table(order) if order else None,
    )


def _read_registration(server: RegistryServer, command: Command) -> Registration:
    """Return what a broker says of itself; its topics are decoded when they are asked for.

    Raises:
        RequestRefusedError: a field is missing or malformed, or the body is not what its checksum says.
        MessageTooLargeError, QuotaExceededError: as ``decode_registration``.
    """
    ext = command.ext
    cluster, name, broker_id, address = _broker_of(ext)
    crc = fields.number(ext, "bodyCrc32", 0)
    if crc and crc != zlib.crc32(command.body) & 0x7FFF_FFFF:
        raise RequestRefusedError("crc32 not match: <bodyCrc32> is not the body's")
    body = decode_registration(
        command.body,
        command.version,
        compressed=fields.flag(ext, "compressed"),
        max_bytes=server.settings.max_registration_bytes,
        max_topics=server.settings.max_topics,
    )
    ha_address = ext.get("haServerAddr", "")
    _require_short("haServerAddr", ha_address)
    is_complete = fields.flag(ext, COMPLETE)
    return Registration(
        cluster=cluster,
        broker_name=name,
        broker_id=broker_id,
        address=address,
        ha_address=ha_address,
        version=body.version,
        topics=body.topics,
        is_complete=is_complete,
        part=None if is_complete or command.version < FIRST_VERSION_WITH_PARTS else hash(command.body),
        filter_servers=body.filter_servers,
    )


def unregister_broker(connection: RegistryConnection, command: Command) -> Reply:
    """UNREGISTER_BROKER."""
    _cluster, name, broker_id, address = _broker_of(command.ext)
    routes = connection.server.routes
    is_overtaken = _is_overtaken(connection, routes.live.get(address), name, broker_id)
    if not is_overtaken and routes.unregister(name, broker_id, address):
        connection.server.brokers_left()
        connection.server.broker_log.note_left(name, broker_id, address)
    return Reply()


def _is_overtaken(connection: RegistryConnection, live: LiveBroker | None, name: str, broker_id: int) -> bool:
    """Whether a broker has come by a newer connection, which is noted: an outage has held back what it sent before.

    To take it would hang the broker on the old connection, whose end comes right behind it.
    """
    if live is None or (live.name, live.broker_id) != (name, broker_id):
        return False
    if not isinstance(live.owner, type(connection)) or live.owner.id <= connection.id:
        return False
    connection.server.note_late_words(connection, live)
    return True


def query_data_version(connection: RegistryConnection, command: Command) -> Reply:
    """QUERY_DATA_VERSION: has the broker anything to tell? The question itself is a sign of life."""
    server = connection.server
    address = _broker_of(command.ext)[3]
    known = server.routes.version_of(address)
    changed = known is None or known != decode_version(command.body)
    if not changed:
        server.routes.refresh(address, connection, server.clock.monotonic_ms())
    return Reply(ext={"changed": str(changed).lower()}, body=encode_version(known) if known else None)


def register_topic(connection: RegistryConnection, command: Command) -> Reply:
    """REGISTER_TOPIC_IN_NAMESRV: a 5.x broker names one new topic."""
    topic = _short_text(command.ext, "topic")
    connection.server.routes.put_topic(topic, decode_queues(command.body))
    return Reply()


def wipe_write_permission(connection: RegistryConnection, command: Command) -> Reply:
    """WIPE_WRITE_PERM_OF_BROKER: nobody finds its queues for writing, until it registers a change."""
    name = _short_text(command.ext, "brokerName")
    count = connection.server.routes.wipe_write_permission(name)
    connection.server.broker_log.note_permission("wiped", name, count, connection.remote_address)
    return Reply(ext={"wipeTopicCount": str(count)})


def add_write_permission(connection: RegistryConnection, command: Command) -> Reply:
    """ADD_WRITE_PERM_OF_BROKER."""
    name = _short_text(command.ext, "brokerName")
    count = connection.server.routes.add_write_permission(name)
    connection.server.broker_log.note_permission("added", name, count, connection.remote_address)
    return Reply(ext={"addTopicCount": str(count)})


def _short_text(ext: Mapping[str, str], field: str) -> str:
    value = fields.text(ext, field)
    _require_short(field, value)
    return value


def _require_short(field: str, value: str) -> None:
    if len(value) > LONGEST_NAME or not value.isprintable():
        raise RequestRefusedError(f"the custom field <{field}> has to be at most {LONGEST_NAME} printable characters")


def _broker_of(ext: Mapping[str, str]) -> tuple[str, str, int, str]:
    """Return cluster, broker name, broker id and address."""
    cluster, name, address = (_short_text(ext, field) for field in ("clusterName", "brokerName", "brokerAddr"))
    try:
        parse_peer(address)
    except ValueError:
        raise RequestRefusedError(f"the custom field <brokerAddr> is not host:port: {address!r}") from None
    broker_id = fields.number(ext, "brokerId")
    if broker_id < MASTER_ID:
        raise RequestRefusedError(f"the custom field <brokerId> is below 0: {broker_id}")
    return cluster, name, broker_id, address


# -- routes and lists --------------------------------------------------------------------------------------------------


def get_route(connection: RegistryConnection, command: Command) -> Reply | None:
    """GET_ROUTEINFO_BY_TOPIC: not of a registry that has just started and does not know all brokers yet."""
    server = connection.server
    topic = fields.text(command.ext, "topic")
    if not server.is_telling_routes():
        if connection.hold(command, get_route):
            return None
        raise RequestRefusedError("name server not ready: brokers have yet to register (registry.start_wait_ms)")
    route = server.routes.route(topic)
    if route is None:
        raise RequestRefusedError(
            f"No topic route info in name server for the topic: {topic[:LONGEST_NAME]}", ResponseCode.TOPIC_NOT_EXIST
        )
    return Reply(body=encode_route(route, server.kv.get(ORDER_NAMESPACE, topic)))


def get_clusters(connection: RegistryConnection, _command: Command) -> Reply:
    """GET_BROKER_CLUSTER_INFO."""
    return Reply(body=encode_clusters(connection.server.routes))


def get_topics(connection: RegistryConnection, _command: Command) -> Reply:
    """GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
    return Reply(body=encode_topics(connection.server.routes.topics))


def get_topics_of_cluster(connection: RegistryConnection, command: Command) -> Reply:
    """GET_TOPICS_BY_CLUSTER."""
    return Reply(body=encode_topics(connection.server.routes.topics_of_cluster(fields.text(command.ext, "cluster"))))


def get_system_topics(connection: RegistryConnection, _command: Command) -> Reply:
    """GET_SYSTEM_TOPIC_LIST_FROM_NS: the topics named like clusters and brokers, and some broker to ask for its own."""
    routes = connection.server.routes
    names = [name for cluster, brokers in routes.clusters.items() for name in (cluster, *sorted(brokers))]
    addresses = (address for broker in routes.brokers.values() for _id, address in sorted(broker.addresses.items()))
    return Reply(body=encode_topics(names, next(addresses, None)))


def _topics_with(wanted: int, unwanted: int = 0) -> Handler:
    """Return the handler of GET_UNIT_TOPIC_LIST and its like, which ask for system flags of topics."""
    return lambda connection, _: Reply(body=encode_topics(connection.server.routes.topics_with_flag(wanted, unwanted)))


def delete_topic(connection: RegistryConnection, command: Command) -> Reply:
    """DELETE_TOPIC_IN_NAMESRV."""
    topic = fields.text(command.ext, "topic")
    cluster = command.ext.get("clusterName") or None
    if connection.server.routes.delete_topic(topic, cluster):
        connection.server.broker_log.note_topic_removed(topic, connection.remote_address)
    return Reply()


# -- configuration -----------------------------------------------------------------------------------------------------


def put_kv(connection: RegistryConnection, command: Command) -> None:
    """PUT_KV_CONFIG: answered when it is on the disk."""
    ext = command.ext
    namespace, key, value = fields.text(ext, "namespace"), fields.text(ext, "key"), fields.present(ext, "value")
    is_changed = connection.server.kv.put(namespace, key, value)
    connection.save_kv(command, is_changed=is_changed)


def get_kv(connection: RegistryConnection, command: Command) -> Reply:
    """GET_KV_CONFIG."""
    namespace, key = fields.text(command.ext, "namespace"), fields.text(command.ext, "key")
    value = connection.server.kv.get(namespace, key)
    if value is None:
        raise RequestRefusedError(
            f"No config item, Namespace: {namespace[:255]} Key: {key[:255]}", ResponseCode.QUERY_NOT_FOUND
        )
    return Reply(ext={"value": value})


def delete_kv(connection: RegistryConnection, command: Command) -> None:
    """DELETE_KV_CONFIG: answered when it is on the disk."""
    namespace, key = fields.text(command.ext, "namespace"), fields.text(command.ext, "key")
    is_changed = connection.server.kv.delete(namespace, key)
    connection.save_kv(command, is_changed=is_changed)


def get_kv_namespace(connection: RegistryConnection, command: Command) -> Reply:
    """GET_KVLIST_BY_NAMESPACE."""
    namespace = fields.text(command.ext, "namespace")
    pairs = connection.server.kv.namespace(namespace)
    if not pairs:
        raise RequestRefusedError(f"No config item, Namespace: {namespace[:255]}", ResponseCode.QUERY_NOT_FOUND)
    return Reply(body=encode_table(pairs))


def get_config(connection: RegistryConnection, _command: Command) -> Reply:
    """GET_NAMESRV_CONFIG: properties under RocketMQ's names."""
    settings = connection.server.settings
    properties = {
        "listenPort": connection.server.address.rpartition(":")[2],
        "orderMessageEnable": "true",
        "scanNotActiveBrokerInterval": str(settings.scan_interval_ms),
        "serverChannelMaxIdleTimeSeconds": str(settings.idle_timeout_ms // 1000),
    }
    return Reply(body="".join(f"{name}={value}\n" for name, value in properties.items()).encode())


def update_config(_connection: RegistryConnection, command: Command) -> Reply:
    """UPDATE_NAMESRV_CONFIG: nothing of a registry changes while it runs."""
    names = [line.partition(b"=")[0].decode("utf-8", "replace").strip() for line in command.body.splitlines()]
    shown = ", ".join(name for name in names if name and not name.startswith("#"))[:LONGEST_NAME]
    raise RequestRefusedError(
        f"no setting of a Headrace registry can change while it runs: {shown or 'none named'}",
        ResponseCode.NO_PERMISSION,
    )


HANDLERS: Final[Mapping[int, Handler]] = {
    RequestCode.PUT_KV_CONFIG: put_kv,
    RequestCode.GET_KV_CONFIG: get_kv,
    RequestCode.DELETE_KV_CONFIG: delete_kv,
    RequestCode.REGISTER_BROKER: register_broker,
    RequestCode.UNREGISTER_BROKER: unregister_broker,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: get_route,
    RequestCode.GET_BROKER_CLUSTER_INFO: get_clusters,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: wipe_write_permission,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: get_topics,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: register_topic,
    RequestCode.GET_KVLIST_BY_NAMESPACE: get_kv_namespace,
    RequestCode.GET_TOPICS_BY_CLUSTER: get_topics_of_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: get_system_topics,
    RequestCode.GET_UNIT_TOPIC_LIST: _topics_with(TOPIC_FLAG_UNIT),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: _topics_with(TOPIC_FLAG_UNIT_SUB),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _topics_with(TOPIC_FLAG_UNIT_SUB, TOPIC_FLAG_UNIT),
    RequestCode.UPDATE_NAMESRV_CONFIG: update_config,
    RequestCode.GET_NAMESRV_CONFIG: get_config,
    RequestCode.QUERY_DATA_VERSION: query_data_version,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: add_write_permission,
}
