"""Benchmarks of the tops kernels: timers, baselines, records and the rule that nothing gets slower.

    timings = tops_bench.race({"ours": f, "theirs": g}, arrays)  # in turns; seconds an iteration
    tops_bench.paired_speed(timings["theirs"].samples, timings["ours"].samples)

`tops-bench --help` has the commands. Whether a result is right is not for this package to say: that is read from the
certificates of the test stage, as data.
"""

from tops_bench.benchmark import BenchmarkBase, Contender, OpBenchmark, TimedBenchmark
from tops_bench.figures import FIGURES, Figure, measure_figures
from tops_bench.records import Record, Row
from tops_bench.stats import Interval, Summary, interval, judge, paired_speed, summary, unpaired_speed
from tops_bench.timing import Effort, Timing, TimingError, call_overhead, race, time_calls

__all__ = [
    "FIGURES",
    "BenchmarkBase",
    "Contender",
    "Effort",
    "Figure",
    "Interval",
    "OpBenchmark",
    "Record",
    "Row",
    "Summary",
    "TimedBenchmark",
    "Timing",
    "TimingError",
    "call_overhead",
    "interval",
    "judge",
    "measure_figures",
    "paired_speed",
    "race",
    "summary",
    "time_calls",
    "unpaired_speed",
]
