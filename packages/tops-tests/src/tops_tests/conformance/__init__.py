"""The generic suite: every check runs for every op of the manifest, and where it says so for every implementation of its kernel_map."""

from tops_tests.conformance import contract, platforms, transforms, values
from tops_tests.conformance.registry import CHECKS, Check, NotApplicable

__all__ = ["CHECKS", "Check", "NotApplicable", "contract", "platforms", "transforms", "values"]
