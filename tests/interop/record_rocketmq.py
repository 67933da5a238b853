"""Record what unmodified clients see of a real RocketMQ 4.9.7: ``python -m tests.interop.record_rocketmq``.

Versions or scenarios may be named; the others' outcomes stay. With ``--compare`` nothing is written: what differs from
the recorded outcomes is printed. A scenario that a real broker does not get through is tried again with a new client
and a new topic; the exit code says whether there is an outcome of each, and with ``--compare`` whether it is the same.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.interop.rocketmq_peers import ALL_CLIENTS, Agent, AgentError, rocketmq
from tests.interop.rocketmq_scenarios import ROCKETMQ_OPTIONS, SCENARIOS, cases
from tests.interop.test_rocketmq_java import topic_of

FILE = Path(__file__).with_name("rocketmq_recorded.json")
ATTEMPTS = 3


class Client:
    """A client of one version, which another takes the place of where a scenario fails halfway."""

    def __init__(self, version: str, namesrv: str, folder: Path) -> None:
        self._version = version
        self._namesrv = namesrv
        self._folder = folder
        self._agent = self._start()

    def _start(self) -> Agent:
        agent = Agent(self._version, self._namesrv, self._folder)
        agent.lock_seconds = 60  # on a busy machine a member of RocketMQ's leaves without giving its locks back
        return agent

    def run(self, name: str) -> Any:
        """Return the outcome of a scenario as JSON has it; None where no attempt came to its end."""
        for attempt in range(1, ATTEMPTS + 1):
            topic = topic_of(name, self._version) + (f"_{attempt}" if attempt > 1 else "")
            sys.stderr.write(f"{self._version} {name} attempt {attempt}\n")
            try:
                return json.loads(json.dumps(SCENARIOS[name](self._agent, topic)))
            except (AssertionError, AgentError) as error:
                sys.stderr.write(f"  {error}\n")
                self._agent.kill()
                self._agent = self._start()
        return None

    def close(self) -> None:
        self._agent.close()


def main() -> int:
    """Run the scenarios with the clients."""
    wanted = [word for word in sys.argv[1:] if not word.startswith("-")]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with rocketmq("4.9.7", folder, options=ROCKETMQ_OPTIONS) as cluster:
            clients = {version: Client(version, cluster.namesrv, folder) for version in ALL_CLIENTS}
            for version, name in cases():
                if not wanted or version in wanted or name in wanted:
                    found[f"{version}/{name}"] = clients[version].run(name)
            for client in clients.values():
                client.close()
    failed = [name for name, outcome in found.items() if outcome is None]
    recorded = json.loads(FILE.read_text())
    if "--compare" in sys.argv:
        different = [name for name in found if name not in failed and found[name] != recorded.get(name)]
        for name in different:
            sys.stderr.write(f"{name}\n  recorded {recorded.get(name)}\n  found    {found[name]}\n")
        sys.stderr.write(f"{len(found)} scenarios, {len(different)} different, {len(failed)} without an outcome\n")
    else:
        different = []
        kept = {name: outcome for name, outcome in recorded.items() if wanted or name in failed}
        new = {name: outcome for name, outcome in found.items() if name not in failed}
        FILE.write_text(json.dumps({**kept, **new}, indent=1, sort_keys=True) + "\n")
    for name in failed:
        sys.stderr.write(f"{name}: no outcome in {ATTEMPTS} attempts\n")
    return 1 if different or failed else 0


if __name__ == "__main__":
    sys.exit(main())
