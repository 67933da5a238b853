"""What ``headrace doctor --registry`` looks at: whether a registry by itself starts with these settings, or answers."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.error import HTTPError

import msgspec

from headrace.broker.access import find_rules
from headrace.cli.checkup import (
    ANSWER_S,
    Report,
    answers,
    check_files,
    check_listeners,
    check_unguarded,
    find_rule_file,
    is_certain,
    parse_listener,
)
from headrace.cli.findings import Finding
from headrace.cli.local_http import open_directly
from headrace.lock_file import is_held, owner_in
from headrace.net.address import format_address, told_host
from headrace.net.ports import REGISTRY_LISTENERS, REGISTRY_NEEDS_ADDRESS, registry_addresses
from headrace.registry.kv_config import KV_FOLDER
from headrace.remoting.registry.server import LOCK_FILE
from headrace.settings import Settings
from headrace.settings.folder import find_folder_problem

MAX_ANSWER_BYTES: Final = 10_000


class _Index(msgspec.Struct):
    pid: int


async def examine_registry(settings: Settings) -> Report:
    """Look at everything.

    Raises:
        ConfigError: the rule file or an address in the settings is wrong.
    """
    rules = find_rules(settings.access)
    listeners = registry_addresses(settings.registry)
    running = {name: await answers(address) for name, address in listeners.items()}
    http = listeners.get("nsqlookupd_http")
    told = None
    if http is not None:
        told = format_address((told_host(settings.registry.nsq_broadcast_address, http), parse_listener(http)[1]))
    report = Report({"nsqlookupd_http": told})
    add = report.findings.extend
    if "registry" not in listeners:
        add([Finding("problem", "registry", REGISTRY_NEEDS_ADDRESS)])
    if listeners:
        add(check_listeners(listeners, running, REGISTRY_LISTENERS, "registry"))
    folder = settings.store.data_dir / KV_FOLDER
    is_running = is_held(folder / LOCK_FILE)
    if "admin" in listeners and running["admin"] and is_running:
        add([await asyncio.to_thread(check_health, listeners["admin"], owner_in(folder / LOCK_FILE))])
    add(find_rule_file(settings, rules))
    add(check_unguarded(rules, listeners))
    add(check_files("each broker, producer and client takes one"))
    if problem := find_folder_problem(settings.store.data_dir):
        add([Finding("problem", "folder", f"{problem}; choose another with --data-dir")])
        return report
    fixed = [running[name] for name, address in listeners.items() if is_certain(REGISTRY_LISTENERS[name], address)]
    add(check_folder(folder, all_answer=bool(fixed) and all(fixed), is_certain=bool(fixed)))
    return report


def check_health(address: str, owner: str) -> Finding:
    """What does the admin port say of its process, and is it the one that has the folder?

    Args:
        owner: The number of the process that has the folder.
    """
    try:
        other = _find_other(_ask(address, "/")[1], owner)
        answers = {path: _ask(address, path) for path in ("/healthz", "/readyz")}
    except (OSError, HTTPException) as error:
        return Finding("problem", "health", f"{address} does not tell: {error}")
    if other:
        text = f"{address} is process {other}'s, and process {owner} has the folder: a start does without a default"
        return Finding("warning", "health", f"{text} address that is taken; set registry.admin_address to another one")
    for path, (status, text) in answers.items():
        if status != HTTPStatus.OK:
            return Finding("problem", "health", f"{address}{path} answers {status}: {text}")
    return Finding("ok", "health", f"{address} says {', '.join(text for _, text in answers.values())}")


def _ask(address: str, path: str) -> tuple[int, str]:
    """Return status and text of a GET."""
    host, port = parse_listener(address)
    host = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    try:
        with open_directly(f"http://{format_address((host, port))}{path}", timeout=ANSWER_S) as answer:
            status, body = answer.status, answer.read(MAX_ANSWER_BYTES)
    except HTTPError as error:
        with error:
            status, body = error.code, error.read(MAX_ANSWER_BYTES)
    return status, body.decode("utf-8", "replace").strip()


def _find_other(index: str, owner: str) -> str:
    """Return the number of the process whose ``/`` this is; empty if it is the owner's, or one of them is not known."""
    try:
        pid = msgspec.json.decode(index, type=_Index).pid
    except (msgspec.DecodeError, RecursionError):
        return ""
    return str(pid) if owner.isdigit() and pid != int(owner) else ""


def check_folder(folder: Path, *, all_answer: bool, is_certain: bool) -> list[Finding]:
    """Does the process that has the folder answer on the ports of these settings, and no other?"""
    lock = folder / LOCK_FILE
    held = is_held(lock)
    if not is_certain or all_answer == held:  # of ports that are all chosen at the start nobody knows whose they are
        return [Finding("ok", "folder", f"{folder} {f'is in use by process {owner_in(lock)}' if held else 'is free'}")]
    if all_answer:
        text = f"all of these ports answer, and no registry has {folder}: another program has them, or a registry"
        return [
            Finding("problem", "folder", f"{text} with other settings; doctor takes the flags and files of registry")
        ]
    text = f"{folder} is in use by process {owner_in(lock)}, which does not answer on all of these ports"
    return [Finding("problem", "folder", f"{text}: stop it, or choose another directory with --data-dir")]
