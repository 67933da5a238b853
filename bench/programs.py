"""The compiled programs a run needs: the pinned NSQ peers and our own load generator."""

import subprocess

from bench.machine import REPOSITORY

PEERS = REPOSITORY / ".cache" / "peers"
LOADGEN = REPOSITORY / ".cache" / "bench" / "loadgen"


def build_programs() -> None:
    """Build what is missing or older than its sources; takes well under a second when nothing is.

    Raises:
        subprocess.CalledProcessError: a build failed; the compiler's messages are on stderr.
    """
    subprocess.run([REPOSITORY / "tests/interop/go/build.sh", PEERS], check=True)
    LOADGEN.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["go", "build", "-trimpath", "-o", LOADGEN, "."],
        cwd=REPOSITORY / "bench" / "loadgen",
        check=True,
    )
