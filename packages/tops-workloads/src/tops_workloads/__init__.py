"""Inputs for the tops ops: each row of the manifest as a workload that gives shapes, parameters and values.

from tops_workloads import workloads
inputs = workloads("rms_norm")[0].gen_inputs(jax.random.key(0))
"""

from tops_workloads.protocols import BenchmarkWorkload, InputGeneratingWorkload, ShapeDtypeWorkload
from tops_workloads.room import Room, cpu_room, rows
from tops_workloads.workload import Workload, parametrization, workloads

__all__ = [
    "BenchmarkWorkload",
    "InputGeneratingWorkload",
    "Room",
    "ShapeDtypeWorkload",
    "Workload",
    "cpu_room",
    "parametrization",
    "rows",
    "workloads",
]
