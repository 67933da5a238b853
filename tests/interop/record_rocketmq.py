"""Record what unmodified clients see of a real RocketMQ 4.9.7: ``python -m tests.interop.record_rocketmq``.

Versions or scenarios may be named; the others' outcomes stay. With ``--compare`` nothing is written: what differs from
the recorded outcomes is printed, and the exit code says so.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.interop.rocketmq_peers import ALL_CLIENTS, Agent, rocketmq
from tests.interop.rocketmq_scenarios import ROCKETMQ_OPTIONS, SCENARIOS, cases
from tests.interop.test_rocketmq_java import topic_of

FILE = Path(__file__).with_name("rocketmq_recorded.json")


def main() -> int:
    """Run the scenarios with the clients."""
    wanted = [word for word in sys.argv[1:] if not word.startswith("-")]
    outcomes: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with rocketmq("4.9.7", folder, options=ROCKETMQ_OPTIONS) as cluster:
            agents = {version: Agent(version, cluster.namesrv, folder) for version in ALL_CLIENTS}
            for agent in agents.values():
                agent.lock_seconds = 60  # on a busy machine a member of RocketMQ's leaves without giving its locks back
            for version, name in cases():
                if wanted and version not in wanted and name not in wanted:
                    continue
                sys.stderr.write(f"{version} {name}" + "\n")
                outcomes[f"{version}/{name}"] = SCENARIOS[name](agents[version], topic_of(name, version))
            for agent in agents.values():
                agent.close()
    recorded, found = json.loads(FILE.read_text()), json.loads(json.dumps(outcomes))
    if "--compare" not in sys.argv:
        FILE.write_text(json.dumps({**(recorded if wanted else {}), **found}, indent=1, sort_keys=True) + "\n")
        return 0
    different = [name for name in found if found[name] != recorded.get(name)]
    for name in different:
        sys.stderr.write(f"{name}\n  recorded {recorded.get(name)}\n  found    {found[name]}" + "\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
