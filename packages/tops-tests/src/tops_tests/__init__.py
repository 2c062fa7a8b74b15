"""Oracles, tolerances, conformance checks and certificates of the tops ops.

test = tops_tests.OpTest(case)
test.check(tops_kernels.rms_norm(**inputs), inputs)
"""

from tops_tests.compare import ConformanceError
from tops_tests.optest import Measured, OpTest
from tops_tests.subject import Subject, measure

__all__ = ["ConformanceError", "Measured", "OpTest", "Subject", "measure"]
