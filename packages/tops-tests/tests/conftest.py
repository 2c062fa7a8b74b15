"""Eight host devices, so that sharding is tested everywhere; and skips for reasons of the fixed list alone."""

from collections.abc import Iterator

import jax
import pytest

from tops_tests.waivers import REASONS

jax.config.update(
    "jax_num_cpu_devices", 8
)  # counts only before a backend starts: tests that need them say so if it came too late


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A skip whose reason is not of `waivers.REASONS` is a failure."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
        if reason.split(":")[0] not in REASONS:
            report.outcome = "failed"
            report.longrepr = f"skipped for {reason!r}; expected one of {', '.join(REASONS)} (tops_tests.waivers)"
    return report
