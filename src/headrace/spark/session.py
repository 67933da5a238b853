"""A Spark session that works without preparation: Java is found, workers use this Python, ``headrace`` is registered.

``session`` sets what Spark would otherwise get wrong on a fresh machine: ``JAVA_HOME`` (``headrace.spark.java``),
``PYSPARK_PYTHON`` (Spark would take ``python3`` of the PATH, which is not that of a virtual environment) and, for local
masters, the address 127.0.0.1 (a host name that does not resolve stops the start), quicker checkpoints and quicker
starts of tasks. Under ``spark-submit`` the JVM runs already and all that is settled there.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import logging
import os
import pwd
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError
from headrace.spark.extras import how_to_install
from headrace.spark.java import cache_folder, java_home
from headrace.spark.jobs.failure import explain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

QUIET: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
FILE_MANAGER: Final[Mapping[str, str]] = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Writes a stream's checkpoint by renaming files, as Spark's default does. On a local disk that one has processes
started for every file, which takes a small micro-batch nearly half of its time."""
LOCAL: Final[Mapping[str, str]] = {
    **FILE_MANAGER,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # 200 tasks of a few rows each take longer than the work they share.
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
}
UNIX_SOCKETS_ENV: Final = "PYSPARK_UDS_MODE"
SOCKET_FOLDER: Final = "spark.python.unix.domain.socket.dir"
MAX_SOCKET_PARENT: Final = 40
"""Bytes of a path: a socket's has 103 in macOS, 107 in Linux, of which its name takes 42 and that of its folder 18."""
_socket_folders: Final[dict[int, str]] = {}
"""Process -> its folder for sockets."""
LOG4J: Final = """\
# Made by Headrace: errors only. Without such a file Spark tells at each start which log settings it takes.
rootLogger.level = error
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
# Why a task failed is in the error that the action raises; here it would stand two or three times more.
# And a session that is ended amid its tasks, by Ctrl-C, has each logged that is handed out or comes back still.
appender.stderr.filter.told.type = RegexFilter
appender.stderr.filter.told.regex = \
    (Exception in task|Abort(ing|ed) (task|job|commit)|Data source write support).*\
|Task [0-9]+ in stage .* aborting job|Exception in statusUpdate|Executor launch task .* rejected from .*\
|Failed to update accumulator .*|Error in Task(Completion|Failure)Listener
appender.stderr.filter.told.onMatch = DENY
appender.stderr.filter.told.onMismatch = NEUTRAL
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
MASTER: Final = re.compile(
    r"local(\[(\*|[1-9]\d*)(\s*,\s*[1-9]\d*)?\])?"
    r"|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|yarn"
    r"|\w[\w.+-]*://.+"
)
"""What Spark can take for a master. Of anything else it tells by a trace of Java calls."""
TESTING: Final[Mapping[str, str]] = {
    **FILE_MANAGER,
    "spark.driver.memory": "1g",
    # Most of the time of short runs goes into compiling well what runs a few times.
    JAVA_OPTIONS: "-XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
"""What makes tests quick; for nothing else (docs/spark/README.md has what to keep in production)."""


def create_session(
    app_name: str = "headrace", *, master: str | None = "local[*]", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session with ``headrace`` registered; that of this process if there is one, as it is.

    Args:
        master: As Spark has it, "local[*]" or "spark://host:7077"; "sc://host:15002" is a Spark Connect server. None:
            whatever ``spark-submit`` or ``spark-defaults.conf`` say.
        conf: Further Spark settings; they win, and are all that a session gets that was there before.

    Raises:
        ConfigError: no master is written so, there is no Java that Spark can use, pyspark or what Spark Connect needs
            is not installed, or ``SPARK_HOME`` is another Spark.
        HeadraceError: Spark does not start.
    """
    if master is not None and not MASTER.fullmatch(master):
        raise ConfigError(
            f"{master!r} is no master of Spark: write local[*], local[N], spark://HOST:PORT, yarn, k8s://URL, or "
            "sc://HOST:PORT for Spark Connect",
            key="master",
        )
    try:
        spark = _get_or_start(app_name, master, conf or {})
        from headrace.spark import register as register_source  # noqa: PLC0415  # that package re-exports this module

        register_source(spark)
        logger.info("spark session ready app=%s master=%s version=%s", app_name, master, spark.version)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: {how_to_install('spark')}") from error
    except ImportError as error:  # pyspark's own, of what only its client for Spark Connect needs
        raise ConfigError(f"Spark Connect lacks something: {error}; {how_to_install('connect')}") from error
    except Exception as error:
        found = explain(error)
        if found is None:
            raise
        raise found from error
    return spark


def _get_or_start(app_name: str, master: str | None, conf: Mapping[str, str]) -> SparkSession:
    """Return the session of this process, or a new one. Raises: also what Spark raises, which is not for people."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  # only who starts Spark needs it

    settings = dict(conf)
    builder = SparkSession.builder
    if master is not None and master.startswith("sc://"):
        builder = builder.appName(app_name).remote(master)
    elif running_session() is None:
        settings = prepare(master, conf)
        builder = builder.appName(app_name)
        if master is not None:
            builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    folder = settings.get(SOCKET_FOLDER)
    if folder is not None and folder == _socket_folders.get(os.getpid()):
        _leave_to_java(spark, folder)
    return spark


def _leave_to_java(spark: SparkSession, folder: str) -> None:
    """Have the JVM remove the folder of sockets when it ends: a process that was killed does not."""
    java: Any = spark.sparkContext._jvm
    try:
        java.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(java.java.io.File(folder))
    except Exception as error:  # noqa: BLE001  # Spark does not promise to have this, and py4j many ways to say so
        logger.info("a process that is killed will leave its folder of sockets path=%s error=%s", folder, error)


@contextmanager
def session(
    app_name: str = "headrace", *, master: str | None = "local[*]", conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield what ``create_session`` returns, and stop it at the end unless it was there before."""
    before = running_session()
    spark = create_session(app_name, master=master, conf=conf)
    try:
        yield spark
    except BaseException:
        if before is None:
            # Its JVM may have gone: why the work ended is to be told, and not that nobody is there to be stopped.
            with suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                spark.stop()
        raise
    if before is None:
        spark.stop()


def running_session() -> SparkSession | None:
    """Return the session of this process, whatever thread made it; None without one, and without pyspark."""
    try:
        from pyspark.errors import PySparkException  # noqa: PLC0415  # only who starts Spark needs it
        from pyspark.sql import SparkSession  # noqa: PLC0415  # only who starts Spark needs it
    except ModuleNotFoundError:
        return None
    try:
        found = SparkSession.active()
    except PySparkException:
        return None
    context = getattr(found, "_sc", None)  # Spark Connect has none; one that was stopped has no JVM
    return None if context is not None and context._jsc is None else found


def prepare(master: str | None, conf: Mapping[str, str]) -> dict[str, str]:
    """Set the environment for a JVM that this process starts; return the settings for it.

    Raises:
        ConfigError: this user has no name, ``SPARK_HOME`` is no Spark for this pyspark, or there is no Java that Spark
            can use.
    """
    if is_submitted():
        return {"spark.sql.session.timeZone": "UTC", **conf}
    check_user()
    check_spark_home()
    os.environ["JAVA_HOME"] = java_home()
    if sys.flags.utf8_mode:  # Python passes over a locale without letters, or that is not installed; Java goes by it
        os.environ["LC_ALL"] = "C.UTF-8"
    settings = dict(QUIET)
    if master is not None and master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= {**LOCAL, **socket_settings()}
        settings["spark.sql.warehouse.dir"] = str(Path(tempfile.gettempdir(), f"headrace-warehouse-{os.getuid()}"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings |= quiet_logging()
    if JAVA_OPTIONS in settings and JAVA_OPTIONS in conf:  # who sets some does not ask for Spark's log
        conf = {**conf, JAVA_OPTIONS: f"{settings[JAVA_OPTIONS]} {conf[JAVA_OPTIONS]}"}
    return {**settings, **conf}


def socket_settings() -> Mapping[str, str]:
    """Return the settings that let Spark and its Python workers talk through Unix sockets, where they can.

    Through TCP, as Spark has it, a task often begins 40 ms late: its last bytes wait until the worker's kernel
    acknowledges the first ones. The folder is this user's alone, since Spark asks for no secret on these sockets.
    """
    if os.environ.get(UNIX_SOCKETS_ENV):
        return {}  # Spark takes its default from there
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) > MAX_SOCKET_PARENT:
        logger.info("path of temporary files too long for Unix sockets, Spark's workers use TCP path=%s", parent)
        return {}
    try:
        folder = _socket_folder()
    except OSError as error:
        logger.info("no folder for Unix sockets, Spark's workers use TCP path=%s error=%s", parent, error)
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", SOCKET_FOLDER: folder}


def _socket_folder() -> str:
    """Return this process' folder for sockets; made anew where it is gone, as who clears /tmp leaves it.

    It goes with the process that made it, not with one that was forked off that.
    """
    process = os.getpid()
    folder = _socket_folders.get(process)
    if folder is None or not Path(folder).is_dir():
        folder = _socket_folders[process] = tempfile.mkdtemp(prefix="headrace-")
        atexit.register(_remove_socket_folder, folder, process)
    return folder


def _remove_socket_folder(folder: str, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def quiet_accumulators() -> None:
    """Have tasks that Spark gives up report nothing: pyspark prints a traceback where such a report breaks off."""
    from pyspark import accumulators  # noqa: PLC0415  # only who has started Spark needs it

    for server in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
        setattr(server, "handle_error", lambda *_: None)  # noqa: B010  # a method, as type checkers see it


def check_user() -> None:
    """Refuse a user without a name, as a number given to a container is one: Spark's JVM ends with a trace of Java.

    Raises:
        ConfigError: names the remedy.
    """
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        raise ConfigError(
            f"Spark needs a user with a name, and {os.getuid()} has none: give it a line in /etc/passwd"
        ) from None


def check_spark_home() -> None:
    """Refuse a ``SPARK_HOME`` that pyspark would start, and could not talk to.

    Raises:
        ConfigError: there is no Spark in it, or one of another version than pyspark's.
    """
    home = os.environ.get("SPARK_HOME")
    if not home:
        return
    remedy = "unset SPARK_HOME, and the Spark that pyspark brings is used"
    if not Path(home, "bin", "spark-submit").is_file():
        raise ConfigError(f"SPARK_HOME={home} has no bin/spark-submit: {remedy}", key="SPARK_HOME")
    jar = next(Path(home, "jars").glob("spark-core_*-*.jar"), Path())
    found = jar.stem.partition("-core_")[2].partition("-")[2]
    version = importlib.metadata.version("pyspark")
    if found and found.split(".")[:2] != version.split(".")[:2]:
        raise ConfigError(
            f"SPARK_HOME={home} is Spark {found}, and the installed pyspark is {version}: {remedy}", key="SPARK_HOME"
        )


def quiet_logging() -> dict[str, str]:
    """Return the setting that keeps the driver's JVM from talking; none where the cache folder cannot be written."""
    path = cache_folder() / "log4j2.properties"
    try:
        if not path.is_file() or path.read_text(encoding="utf-8") != LOG4J:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f"{path.name}.{os.getpid()}")
            beside.write_text(LOG4J, encoding="utf-8")
            beside.replace(path)
    except OSError as error:
        logger.info("cache folder cannot be written, spark logs as it likes path=%s error=%s", path, error)
        return {"spark.log.level": "ERROR"}
    return {JAVA_OPTIONS: f"-Dlog4j2.configurationFile={path.as_uri()}"}


def is_submitted() -> bool:
    """Whether ``spark-submit`` started this process: master, Java and settings are then its business."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def settings_of(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Have a session, whosever it is, work as a job needs it for a while."""
    before = {key: spark.conf.get(key) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, known in before.items():
            if known is not None:
                spark.conf.set(key, known)
