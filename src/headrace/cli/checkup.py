"""What ``headrace doctor`` looks at: what clients will be told, and whether this machine keeps that promise.

Each check is a function that returns findings and changes nothing. A ``problem`` is what keeps clients from working or
a start from succeeding, a ``warning`` what a person should know. The broker may run meanwhile, or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import shutil
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import uvloop

from headrace.broker.access import AccessRules, User, find_rules, is_exposed
from headrace.cli.findings import Finding, Status
from headrace.cli.lookup_checkup import check_lookupds, find_lookupds, told_address
from headrace.cli.statsd_checkup import check_statsd
from headrace.errors import ClientError, ConfigError, ProtocolError, StoreError
from headrace.format import fastjson
from headrace.format.layout import log_files
from headrace.lock_file import is_held, owner_in
from headrace.net.address import format_address, is_loopback, own_name, parse_address, parse_registries
from headrace.net.listener import MIN_FILES
from headrace.net.ports import (
    EVERY_LISTENER_OFF,
    GUARDED,
    LISTENERS,
    bind_port,
    is_dispensable,
    listener_addresses,
)
from headrace.remoting.advertised import Advertised, find_advertised
from headrace.remoting.client import RemotingClient
from headrace.remoting.codec import Command
from headrace.remoting.codes import RequestCode, ResponseCode
from headrace.remoting.registration import (
    find_address_problem,
    find_registration_problem,
    require_registrations_in_time,
)
from headrace.remoting.signature import signed_ext
from headrace.settings import Settings
from headrace.settings.folder import find_folder_problem, is_there, nearest_folder
from headrace.settings.units import format_size
from headrace.settings.validate import VIP_DISTANCE
from headrace.store.directory import StoreDirectory
from headrace.store.segment_supply import require_room

ANSWER_S: Final = 2.0
COMFORTABLE_FILES: Final = 8_192
"""3,072 are for the store and HTTP; with less than this many, clients are few."""
FEW_INODES: Final = 100
"""A new store takes some thirty, then three for a topic of one queue and one for each segment."""
LATEST_PAST_S: Final = 1_700_000_000
"""November 2023: a clock before that has never been set."""
CLOCK_SLACK_S: Final = 5
SETTINGS: Final = {**LISTENERS, "remoting_vip": "remoting.address"}
"""Which setting has the address of a listener."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything found.

    Attributes:
        told: What clients are told, by what.
    """

    told: Mapping[str, Any]
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_healthy(self) -> bool:
        """Whether there is no problem; warnings do not count."""
        return all(finding.status != "problem" for finding in self.findings)


async def examine(settings: Settings) -> Report:
    """Look at everything.

    Raises:
        ConfigError: the rule file or an address in the settings is wrong.
    """
    rules = find_rules(settings.access)
    listeners = dict(configured_listeners(settings))
    running = {name: await answers(address) for name, address in listeners.items()}
    advertised = find_advertised(settings.remoting.advertised_address, parse_listener(settings.remoting.address))
    registries = find_registries(settings)
    broker_name = settings.broker.name or own_name()
    report = Report(
        {
            "cluster": settings.remoting.cluster,
            "broker": broker_name,
            "advertised_address": advertised.text if serves_remoting(settings) else None,
            "vip_address": vip_address(settings, advertised),
            "store_host": advertised.text if serves_remoting(settings) else None,
            "registries": registries,
            "nsq_address": told_address(settings),
            "nsqlookupds": find_lookupds(settings),
        }
    )
    add = report.findings.extend
    add(check_listeners(listeners, running))
    user = rules.named(settings.access.broker_user) if rules is not None and settings.access.broker_user else None
    is_running = running.get("remoting", False)
    add(await check_advertised(settings, advertised, registries, user, is_running=is_running))
    for registry in registries:
        if not parse_address(registry)[1]:
            continue  # in this process, on a port that is chosen at the start
        add(await check_registry(registry, broker_name, advertised, settings, user, is_running=is_running))
    add(check_registration(settings))
    add(await check_lookupds(settings, is_running=running.get("nsq_tcp", False)))
    add(await check_statsd(settings))
    add(check_access(settings, rules, listeners))
    add(check_clock(settings.store.data_dir, time.time()))
    add(check_files("a client takes one, the store and HTTP take up to 3,072"))
    add(check_disk(settings))
    fixed = [running[name] for name, address in listeners.items() if is_certain(SETTINGS[name], address)]
    if fixed or not listeners:  # of ports that are all chosen at the start nobody knows whose they are
        add(check_lock(settings.store.data_dir, all_answer=bool(fixed) and all(fixed)))
    add([Finding("ok", "java", "not needed: broker and registry are this one program")])
    return report


# -- addresses ---------------------------------------------------------------------------------------------------------


def configured_listeners(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield name and address of what ``headrace serve`` listens on."""
    for name, address in listener_addresses(settings).items():
        yield name, address
        host, port = parse_address(address)
        if name == "remoting" and settings.remoting.vip_listener and port:
            yield "remoting_vip", format_address((host, port - VIP_DISTANCE))


def parse_listener(address: str) -> tuple[str, int]:
    """Return host and port of a listener; every address for one that is switched off."""
    host, port = parse_address(address or ":0")
    return host or "0.0.0.0", port


def serves_remoting(settings: Settings) -> bool:
    """Return whether RocketMQ's clients are served at all."""
    return "remoting" in listener_addresses(settings)


def find_registries(settings: Settings) -> list[str]:
    """Return the registries this broker registers with."""
    own = listener_addresses(settings).get("registry", "")
    return parse_registries(settings.broker.registries, own) if serves_remoting(settings) else []


def vip_address(settings: Settings, advertised: Advertised) -> str | None:
    """Return the address that old clients derive from the advertised one; None when it is not served, or not known."""
    if not serves_remoting(settings) or not settings.remoting.vip_listener or not advertised.port:
        return None
    return format_address((advertised.host, advertised.port - VIP_DISTANCE))


async def answers(address: str) -> bool:
    """Return whether somebody listens there."""
    host, port = parse_listener(address)
    host = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    try:
        async with asyncio.timeout(ANSWER_S):
            _, writer = await asyncio.open_connection(host, port)
    except OSError:  # also of port 0
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def check_listeners(
    listeners: Mapping[str, str],
    running: Mapping[str, bool],
    settings: Mapping[str, str] = SETTINGS,
    command: str = "serve",
) -> Iterator[Finding]:
    """Does the broker answer on each port, or is each free to be used? A port that alone answers is another's.

    Args:
        settings: Which setting has the address of a listener.
        command: Which listens there.
    """
    if not listeners:
        yield Finding("problem", "listeners", EVERY_LISTENER_OFF)
    everything_answers = all(running[name] for name, at in listeners.items() if is_certain(settings[name], at))
    with ExitStack() as bound:  # held together: two of the settings may name one port
        in_order = sorted(listeners.items(), key=lambda item: is_dispensable(settings[item[0]], item[1]))
        for name, address in in_order:  # as at a start
            bad: Status = "warning" if is_dispensable(settings[name], address) else "problem"
            another = f"another program has it, or a {'broker' if command == 'serve' else command} with other settings"
            rest = f"; {command} does without it" if bad == "warning" else ""
            if running[name]:
                if everything_answers:
                    yield Finding("ok", name, f"{address} answers")
                else:
                    yield Finding(bad, name, f"{address} answers, and not all of these ports do: {another}{rest}")
                continue
            try:
                bound.enter_context(bind_port(address, settings[name], free_port=False))
            except ConfigError as error:
                yield Finding(bad, name, f"{error}{rest}")
            else:
                says = "is free" if parse_listener(address)[1] else "has its port chosen at the start"
                yield Finding("ok", name, f"{address} {says}")


def is_certain(setting: str, address: str) -> bool:
    """Return whether who runs surely listens there: its port is set, and no start does without it."""
    return parse_listener(address)[1] != 0 and not is_dispensable(setting, address)


async def check_advertised(
    settings: Settings, advertised: Advertised, registries: list[str], user: User | None, *, is_running: bool
) -> list[Finding]:
    """Can clients use what they will be told?"""
    name = "advertised"
    if not serves_remoting(settings):
        return [Finding("ok", name, "the RocketMQ protocol is switched off: clients are told nothing")]
    found = []
    remedy = "set remoting.advertised_address to the address by which clients reach this broker"
    if not advertised.port:
        found.append(Finding("warning", name, "the port is chosen at the start (port 0): clients are told another one"))
    elif is_running:
        broker_name = settings.broker.name or own_name()
        problem = await find_address_problem(advertised.text, registries, user=user, name=broker_name)
        if problem:
            if not is_local(advertised.host):
                remedy += "; where a NAT that does not lead back is between, try it from a client's machine"
            found.append(Finding("problem", name, f"{problem}; {remedy}"))
        else:
            found.append(Finding("ok", name, f"{advertised.text} is reachable from here"))
            found += await check_vip(settings, advertised, user)
    elif not is_local(advertised.host):
        text = f"{advertised.text} is no address of this machine: right behind a NAT or proxy only; {remedy}"
        found.append(Finding("warning", name, text))
    else:
        found.append(Finding("ok", name, f"{advertised.text}; start the broker to see whether it is reachable"))
    host = parse_listener(settings.remoting.address)[0]
    if is_loopback(host) and not is_loopback(advertised.host):
        text = f"clients are told {advertised.text}, but the broker listens on {host} only; set remoting.address"
        found.append(Finding("problem", name, text))
    elif is_loopback(advertised.host):
        found.append(Finding("warning", name, f"only clients on this machine can use {advertised.text}; {remedy}"))
    return found


async def check_vip(settings: Settings, advertised: Advertised, user: User | None) -> list[Finding]:
    """Can old clients use the address that they derive from the advertised one?"""
    vip = vip_address(settings, advertised)
    problem = await find_address_problem(vip, [], user=user) if vip is not None else ""
    if not problem:
        return []
    text = f"{problem}: clients up to 4.4 send there; publish that port too, or set remoting.vip_listener = false"
    return [Finding("warning", "vip", text)]


def is_local(host: str) -> bool:
    """Return whether an IP address belongs to this machine: it can be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True


async def check_registry(
    address: str, broker_name: str, advertised: Advertised, settings: Settings, user: User | None, *, is_running: bool
) -> list[Finding]:
    """Does a registry answer, and what does it say about this broker?"""
    name = "registry"
    client = RemotingClient(connect_timeout_s=ANSWER_S)
    ext = signed_ext({}, b"", user.access_key, user.secret_key) if user is not None else {}
    try:
        response = await client.call(address, Command(RequestCode.GET_BROKER_CLUSTER_INFO, ext), 2 * ANSWER_S)
    except (ClientError, ProtocolError) as error:
        own = not settings.broker.registries
        hint = "; it runs inside headrace serve" if own else "; see broker.registries"
        return [Finding("warning" if own else "problem", name, f"{error}{hint}")]
    finally:
        await client.close()
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        text = f"{address} is no registry, a broker it seems: name the registry's address in broker.registries"
        return [Finding("problem", name, text)]
    if response.code:
        return [Finding("problem", name, f"{address} refuses to answer, code {response.code}: {response.remark}")]
    try:
        brokers = fastjson.loads(response.body)["brokerAddrTable"]
        registered = brokers.get(broker_name, {}).get("brokerAddrs", {}).get("0")
    except (ValueError, LookupError, TypeError, AttributeError):
        return [Finding("problem", name, f"{address} is no RocketMQ registry: its answer is not understood")]
    if registered is None:
        text = f"{address} answers and does not know broker {broker_name}"
        if is_running:
            text += ", which runs: clients find none of its topics; the broker's log says why it is not registered"
        return [Finding("problem" if is_running else "warning", name, text)]
    if registered != advertised.text and advertised.port:
        text = (
            f"{address} sends clients of {broker_name} to {registered}, the settings say {advertised.text}: another "
            "broker has the same broker.name, or this one was started with other settings or at another address"
        )
        return [Finding("problem", name, text)]
    return [Finding("ok", name, f"{address} sends clients of {broker_name} to {registered}")]


def check_registration(settings: Settings) -> list[Finding]:
    """Does the registry in this process keep this broker until it registers again?"""
    try:
        require_registrations_in_time(settings)
    except ConfigError as error:
        return [Finding("problem", "registry", str(error))]
    return []


# -- the machine -------------------------------------------------------------------------------------------------------


def check_access(settings: Settings, rules: AccessRules | None, listeners: Mapping[str, str]) -> list[Finding]:
    """Who may do what, and is a port open to others without it?"""
    found = list(find_rule_file(settings, rules))
    if rules is not None:
        name = settings.access.broker_user
        problem = find_registration_problem(settings, rules)
        if problem or not name:
            text = problem or "this broker does not sign, so registries with rules refuse it"
            what = f"is {name}" if name else "is empty"
            found.append(Finding("problem" if problem else "warning", "access", f"access.broker_user {what}: {text}"))
    return [*found, *check_unguarded(rules, listeners)]


def find_rule_file(settings: Settings, rules: AccessRules | None) -> Iterator[Finding]:
    """Are there rules, and does nobody else read them?"""
    if rules is None:
        return
    yield Finding("ok", "access", f"{len(rules.users)} users in {settings.access.rules_file}")
    if is_exposed(Path(settings.access.rules_file)):
        text = f"{settings.access.rules_file} holds secrets and is open to every user of this machine: chmod 600"
        yield Finding("warning", "access", text)


def check_unguarded(rules: AccessRules | None, listeners: Mapping[str, str]) -> Iterator[Finding]:
    """Is a port open to others though nobody is asked there who he is?"""
    unguarded = [
        name
        for name, address in listeners.items()
        if not is_loopback(parse_listener(address)[0]) and (rules is None or name not in GUARDED)
    ]
    if unguarded:
        text = f"whoever reaches them can use {', '.join(unguarded)}: no TLS, no access rules"
        yield Finding("warning", "access", text)
    elif rules is None:
        yield Finding("ok", "access", "no rules, and only this machine can connect")


def check_clock(data_dir: Path, now_s: float) -> list[Finding]:
    """Is the clock set, and not behind what was stored?"""
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
    if now_s < LATEST_PAST_S:
        return [Finding("problem", "clock", f"{shown}: it has never been set; messages would be stored in the past")]
    newest_s = max(
        (entry.stat().st_mtime for entry in (data_dir, data_dir / "checkpoint") if is_there(entry)), default=0
    )
    if newest_s > now_s + CLOCK_SLACK_S:
        text = f"{shown}: the store was written {newest_s - now_s:.0f} s in the future; the clock went back"
        return [Finding("problem", "clock", text)]
    return [Finding("ok", "clock", shown)]


def check_files(takers: str) -> list[Finding]:
    """Are there file descriptors for clients?

    Args:
        takers: What takes them, in words.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY:
        return [Finding("ok", "open files", "no limit")]
    text = f"at most {hard}; {takers}"
    if hard < MIN_FILES:
        return [Finding("problem", "open files", f"{text}; a start needs {MIN_FILES}: raise ulimit -Hn")]
    if hard < COMFORTABLE_FILES:
        return [Finding("warning", "open files", f"{text}; raise ulimit -Hn for more clients")]
    return [Finding("ok", "open files", text)]


def check_disk(settings: Settings) -> list[Finding]:
    """Is the data directory usable, and is there room for another segment?"""
    data_dir = settings.store.data_dir
    if problem := find_folder_problem(data_dir):
        return [Finding("problem", "disk", f"{problem}; choose another with --data-dir")]
    directory = StoreDirectory(data_dir)
    identity = None
    try:
        if data_dir.is_dir():
            directory.require_not_foreign()
            identity = directory.load_identity()
        segment = identity.segment_bytes if identity is not None else settings.store.segment_bytes
        segments, has_room = count_segments(directory)
        if not has_room:
            require_room(directory, settings.store, segments * segment, segment)
    except (StoreError, OSError) as error:
        return [Finding("problem", "disk", str(error))]
    folder = nearest_folder(data_dir)
    usage, inodes = shutil.disk_usage(folder), os.statvfs(folder)
    text = f"{data_dir}: {format_size(usage.free >> 20 << 20)} free of {format_size(usage.total >> 20 << 20)}"
    if usage.free < segment:
        return [Finding("problem", "disk", f"{text}, a segment takes {format_size(segment)}")]
    if inodes.f_files and inodes.f_favail < FEW_INODES:  # none at all: the file system makes them as they are needed
        return [Finding("problem", "disk", f"{text}, but room for {inodes.f_favail} more files (df -i): remove some")]
    if usage.free < 4 * segment:
        return [Finding("warning", "disk", f"{text}, room for {usage.free // segment} segments")]
    return [Finding("ok", "disk", text)]


def count_segments(directory: StoreDirectory) -> tuple[int, bool]:
    """Return how many segments a store has, and whether the newest is one that was made ahead: nothing is in it yet."""
    folder = directory.commit_log
    paths = log_files(folder) if folder.is_dir() else []
    if not paths:
        return 0, False
    with paths[-1].open("rb") as newest:
        return len(paths), not any(newest.read(8))


def check_lock(data_dir: Path, *, all_answer: bool) -> list[Finding]:
    """Does a process that has the store answer on the ports of these settings, and no other?"""
    lock = StoreDirectory(data_dir).lock
    if all_answer == is_held(lock):
        return []
    if all_answer:
        text = f"all of these ports answer, and no process has {data_dir}: another program has them, or a broker"
        return [Finding("problem", "store", f"{text} with other settings; doctor takes the flags and files of serve")]
    text = f"{data_dir} is in use by process {owner_in(lock)}, which does not answer on all of these ports"
    return [Finding("problem", "store", f"{text}: stop it, or choose another directory with --data-dir")]


def run_checkup(settings: Settings, look: Callable[[Settings], Coroutine[Any, Any, Report]] = examine) -> Report:
    """Look at everything, outside an event loop; see ``examine``."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # the broker's: its errors are the system's
        return runner.run(look(settings))
