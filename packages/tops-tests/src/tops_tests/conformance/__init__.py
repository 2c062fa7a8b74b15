"""The generic suite: every check below runs for every op of the manifest and every implementation of its kernel_map."""

from tops_tests.conformance.registry import CHECKS, Check, NotApplicable

__all__ = ["CHECKS", "Check", "NotApplicable"]
