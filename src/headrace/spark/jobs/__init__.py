"""The packaged jobs: one module each, run by ``headrace job NAME``, by ``spark-submit`` or as a function.

    from headrace.spark.jobs import archive
    from headrace.spark.session import session

    with session("nightly archive") as spark:
        summary = archive.run(spark, archive.Config(servers="127.0.0.1:9876", to="/data/archive"))

How a job is written (the module's name is the job's; ``table.JOBS`` has a line for each):

    '''One paragraph: what it does, what it reads and writes, what a second run does.'''

    @dataclass(frozen=True, kw_only=True)
    class Config(JobConfig):
        '''Options of ``headrace job example``.'''

        without = frozenset({"access_key"})          # fields of JobConfig that mean nothing here
        to: Path = option(Path(), help="Folder of the report.", metavar="DIR", required=True)
        top: int = option(20, help="Rows in each table.", least=1, most=10_000)
        span: Literal["minute", "hour"] = option("minute", help="Length of one bar.")

        def validate(self) -> None:
            self.require_source()                    # exactly one of --store and --servers

    def run(spark: SparkSession, config: Config) -> Summary:
        '''Run the job.'''
        summary = Summary(job="example", dry_run=config.dry_run)
        phase("reading")                             # what the progress bar says; Spark's tasks fill it
        ...
        summary.facts["messages"] = 17               # shown in this order; units in the names
        summary.tables.append(Table("topics", "Busiest topics", ("topic", "messages"), rows))
        summary.notes.append("3 damaged records were passed over: headrace job verify names them")
        return summary                               # exit_code stays 0 unless the job says otherwise

Rules: a module imports without what the extra ``spark`` brings, pyspark, pyarrow and numpy, so that ``--help`` works
without it (``TYPE_CHECKING`` for its types, ``headrace.spark.functions`` for those of columns, imports inside
functions, or a second module that does the work); wrong use is a ``ConfigError`` (exit code 2), other failures are
``HeadraceError`` (1); errors in tasks are unwrapped by ``failure.explain``, so a task raises a ``HeadraceError`` with
one clear sentence; nothing is printed; ``dry_run`` changes nothing; heavy work is done inside the task
(``headrace.spark.tasks.run_in_tasks``), and only results cross to the JVM. ``JobConfig.secret_key()`` reads the secret;
it never goes into a summary.
"""

import headrace.spark.workers  # noqa: F401  # what a job gives Spark runs in workers: they end as quietly
from headrace.spark.jobs.config import JobConfig, option, show_time
from headrace.spark.jobs.progress import phase
from headrace.spark.jobs.summary import Summary, Table
from headrace.spark.jobs.table import JOBS, load_job, run_job

__all__ = ["JOBS", "JobConfig", "Summary", "Table", "load_job", "option", "phase", "run_job", "show_time"]
