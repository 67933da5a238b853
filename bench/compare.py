"""Compare two runs: ``python -m bench.compare BASE [NEW]``.

BASE and NEW are results files or revisions that have one in bench/results; NEW defaults to the newest. Medians that
changed by over 5 % are flagged; ``?`` marks those whose samples overlap, which may be noise. The exit code is 1 if one
of Headrace's figures got worse beyond doubt, or could not be taken in the new run. The peers' figures are the control:
where they moved as well, the machine did.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.machine import resolve_commit
from bench.metrics import METRICS
from bench.results import RESULTS, RunResult, read_results

FLAGGED_CHANGE = 0.05
CONTROLS = {
    *("nsqd", "nsqd-memory", "null", "disk"),
    *("rocketmq-4.9.7", "rocketmq-5.5.0", "rocketmq-4.9.7-sync", "rocketmq-5.5.0-sync"),
    *("ceiling", "kafka", "kafka-value", "kafka-plain"),
}


@dataclass(frozen=True)
class Change:
    """One figure in both runs, as the values of all samples."""

    case: str
    contestant: str
    metric: str
    base: list[float]
    new: list[float]

    @property
    def change(self) -> float:
        """How much more the new median is, relative to the base: 0.1 is 10 % more."""
        return median(self.new) / median(self.base) - 1

    @property
    def is_doubtful(self) -> bool:
        """Whether some sample of one run lies among those of the other."""
        return max(min(self.base), min(self.new)) <= min(max(self.base), max(self.new))

    @property
    def verdict(self) -> str:
        """``better``, ``worse``, or empty for a change within the limit."""
        if abs(self.change) <= FLAGGED_CHANGE:
            return ""
        return "better" if (self.change > 0) == METRICS[self.metric].higher_is_better else "worse"

    @property
    def is_regression(self) -> bool:
        """Whether Headrace got worse beyond doubt."""
        return self.verdict == "worse" and not self.is_doubtful and self.contestant not in CONTROLS

    def __str__(self) -> str:
        metric = METRICS[self.metric]
        doubt = "?" if self.verdict and self.is_doubtful else ""
        return (
            f"{self.case:16} {self.contestant:15} {metric.title:18} {metric.show(median(self.base)):>14} "
            f"{metric.show(median(self.new)):>14} {self.change:+8.1%} {self.verdict}{doubt}"
        )


def compare(base: RunResult, new: RunResult) -> Iterator[Change]:
    """Yield every judged figure that both runs have."""
    new_results = new.by_contestant()
    for (case, contestant), base_result in base.by_contestant().items():
        if (case, contestant) not in new_results:
            continue
        base_samples, new_samples = base_result.samples, new_results[case, contestant].samples
        for name, metric in METRICS.items():
            if metric.higher_is_better is None or name not in base_samples[0] or name not in new_samples[0]:
                continue
            change = Change(
                case,
                contestant,
                name,
                base=[sample[name] for sample in base_samples],
                new=[sample[name] for sample in new_samples],
            )
            # A figure of zero (processor time below one tick) has no relative change.
            if median(change.base) > 0:
                yield change


def failed_of_ours(run: RunResult) -> list[str]:
    """Return the samples of Headrace that a run could not take: they have no figure that could be worse."""
    return [failure for failure in run.failures if CONTROLS.isdisjoint(failure.partition(": ")[0].split())]


def find_results(reference: str) -> Path:
    """Return the results file that a path or a revision names.

    Raises:
        FileNotFoundError: there is none; runs of a changed work tree do not count for their revision.
    """
    path = Path(reference)
    if path.is_file():
        return path
    commit = resolve_commit(reference)
    matches = sorted(RESULTS.glob(f"*-{commit}.json")) if commit else []
    if not matches:
        raise FileNotFoundError(f"{reference} is no results file and no revision with one in bench/results")
    return matches[-1]


def _newest_results() -> str:
    files = list(RESULTS.glob("*.json"))
    if not files:
        raise FileNotFoundError("bench/results has no results: run python -m bench.run --full")
    return str(max(files, key=lambda path: path.stat().st_mtime))


def main() -> int:
    """Print the comparison; return 1 if Headrace got worse."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", help="results file or revision to compare with")
    parser.add_argument("new", nargs="?", help="results file or revision (default: the newest results)")
    arguments = parser.parse_args()
    try:
        base = read_results(find_results(arguments.base))
        new = read_results(find_results(arguments.new or _newest_results()))
    except FileNotFoundError as exc:
        parser.error(str(exc))
    if base.machine != new.machine:
        print("warning: the runs come from different machines or settings", file=sys.stderr)
    changes = list(compare(base, new))
    for change in changes:
        print(change)
    for case, contestant in sorted(base.by_contestant().keys() - new.by_contestant().keys()):
        print(f"{case:16} {contestant:15} is not in the new run")
    failures = failed_of_ours(new)
    for failure in failures:
        print(f"failed: {failure}")
    regressions = sum(change.is_regression for change in changes)
    print(f"{base.commit} -> {new.commit}: {len(changes)} figures, {regressions} of Headrace's worse by over 5 %")
    return 1 if regressions or failures else 0


if __name__ == "__main__":
    sys.exit(main())
