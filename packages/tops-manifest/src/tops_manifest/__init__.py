"""The contracts of the tops ops, as data: what goes in, what comes out, what a call may be.

    import tops_manifest
    tops_manifest.op("rms_norm").inputs

Costs are in `tops_manifest.cost`, workload rows in `tops_manifest.workloads`: importing this package loads neither.
"""

from tops_manifest.bind import ArraySpec, Binding, bind
from tops_manifest.contract import op, op_names, ops
from tops_manifest.errors import ContractTypeError, ContractValueError, Fault, ManifestError
from tops_manifest.model import Op

__all__ = [
    "ArraySpec",
    "Binding",
    "ContractTypeError",
    "ContractValueError",
    "Fault",
    "ManifestError",
    "Op",
    "bind",
    "op",
    "op_names",
    "ops",
]
