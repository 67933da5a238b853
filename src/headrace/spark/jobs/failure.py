"""What Spark makes of an error in a task, taken apart again.

An error raised in a Python task reaches the driver as text: a Java exception whose message holds the Python traceback,
wrapped several times. The last ``headrace.errors.SomeError: text`` line in it is what a person needs; the rest is
Spark's plumbing.
"""

from __future__ import annotations

import re
from typing import Final

from headrace import errors
from headrace.errors import HeadraceError

OURS: Final = re.compile(r"^(?:[A-Za-z.]*: )?headrace\.(?:[a-z_]+\.)*([A-Za-z]+): (.*)$", re.MULTILINE)
PYTHON: Final = re.compile(r"^(?:  .*\n([A-Za-z_][\w.]*)|([A-Za-z_.]*(?:Error|Exception))): (.*)$", re.MULTILINE)
"""Behind the indented lines of a traceback an error may be called anything, such as ``pyarrow.lib.ArrowInvalid``."""
JAVA: Final = re.compile(r"^(?:Caused by)?: (?:[a-z_]\w*\.)+([A-Za-z_$]+): (.*)$", re.MULTILINE)
"""What py4j's text has below its first line, which says no more than that some call failed."""
READ_FILE: Final = re.compile(
    r"\[FAILED_READ_FILE[.A-Z_]*\] Encountered error while reading file (?:file://)?(.+?)\.\s"
)
FULL: Final = "No space left on device"
WORKER_GONE: Final = "Python worker exited unexpectedly"
SOURCE_REMEDY: Final = re.compile(r"; failOnDataLoss=false [^;]*$")
"""An option of the source, which jobs do not have."""
MAX_CHARACTERS: Final = 600


class JobFailedError(HeadraceError):
    """A job failed in Spark; the text is the innermost reason that was found.

    Attributes:
        kind: Name of the class of the error as it was raised, empty when it is not known.
    """

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


def explain(error: BaseException) -> HeadraceError | None:
    """Return the error that a person should see for one that Spark raised, None for one that is not Spark's."""
    if not type(error).__module__.startswith(("pyspark", "py4j")):
        return None
    text = str(error)
    ours = OURS.findall(text)
    if ours:
        kind, message = ours[-1]
        found = getattr(errors, kind, None)
        if found is errors.ConfigError:
            return errors.ConfigError(message)
        return JobFailedError(SOURCE_REMEDY.sub("", message), kind)
    raised = ((kind or name, message) for kind, name, message in PYTHON.findall(text))
    python = [(kind, message) for kind, message in raised if not kind.startswith(("java.", "org.apache."))]
    if python:
        kind, message = python[-1]
        return JobFailedError(f"a task failed: {kind}: {message}"[:MAX_CHARACTERS], kind)
    if WORKER_GONE in text:
        return JobFailedError(
            "a Python worker of Spark ended in the middle of its task: it was killed, perhaps by the system for want "
            "of memory; run the job again, with fewer tasks at a time (--master local[1]) if it was that"
        )
    if FULL in text:
        return JobFailedError(
            "a disk is full: that of the folder the job writes to, or Spark's own, where it sorts (--conf "
            "spark.local.dir=DIR names another); make room and run the job again"
        )
    java = JAVA.findall(text)
    if java:
        kind, message = java[-1]
        for outer, says in reversed(java[:-1]):
            if outer == "SparkException" or message not in says:
                break
            kind, message = outer, says  # it says the same and more, such as the name of a file
        file = READ_FILE.search(text)
        if file and file[1] not in message:
            return JobFailedError(f"{file[1]} cannot be read: {kind}: {message}"[:MAX_CHARACTERS], kind)
        return JobFailedError(f"Spark failed: {kind}: {message}"[:MAX_CHARACTERS], kind)
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return JobFailedError(f"Spark failed: {first}"[:MAX_CHARACTERS])
