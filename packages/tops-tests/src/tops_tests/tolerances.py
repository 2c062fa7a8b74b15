"""The one table of tolerances: op, dtype of the output, output, pass -> largest relative error (compare.relative_error).

Where the numbers come from. A bfloat16 result rounded once is off by up to 2^-8 = 3.91e-3 of itself, so 4e-3 leaves
room for that rounding and none for a second one of the largest value. Gradients in bfloat16 may round the gradient at
the activation or the row first, then the result: 8e-3. float32 grows with the length of the sum (XLA on a CPU: 2e-6 in
the max-norm at K = 4096), and gradients sum twice. Integers are exact. gla and simple_gla sum over all steps before, and their gradients over products of states.

`tops-tests tolerances --check` holds the table to tolerances.lock: it may tighten, and loosens only with a new version.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from tops_manifest.model import Pass
from tops_tests import compare
from tops_tests.canonical import sha256


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Key:
    op: str
    dtype: str  # of the output, or of the gradient
    output: str  # "y"; "dx" is the gradient of input x
    which: Pass

    def __str__(self) -> str:
        return f"{self.op}/{self.dtype}/{self.output}/{self.which}"


class ToleranceError(LookupError):
    """The table has no entry for what is to be compared."""


def _rows(op: str, which: Pass, outputs: tuple[str, ...], **by_dtype: float) -> Iterator[tuple[Key, float]]:
    for output in outputs:
        for dtype, value in by_dtype.items():
            yield Key(op, dtype, output, which), value


TABLE: Mapping[Key, float] = MappingProxyType(
    dict(
        [
            *_rows("gla", "fwd", ("o",), float32=2e-6, bfloat16=4e-3),
            *_rows("gla", "fwd", ("final_state",), **{"float32": 2e-6, "float32 of bfloat16": 4e-3}),
            *_rows("gla", "vjp", ("dq", "dk", "dv"), float32=2e-5, bfloat16=1e-2),
            *_rows("gla", "vjp", ("dg", "dinitial_state", "dgv"), **{"float32": 2e-5, "float32 of bfloat16": 1e-2}),
            *_rows("gla_step", "fwd", ("o",), float32=2e-6, bfloat16=4e-3),
            *_rows("gla_step", "fwd", ("new_state",), float32=2e-6),
            *_rows("gla_step", "vjp", ("dq", "dk", "dv"), float32=4e-6, bfloat16=4e-3),
            *_rows("gla_step", "vjp", ("dg", "dstate", "dgv"), float32=4e-6),
            *_rows("simple_gla_step", "fwd", ("o",), float32=2e-6, bfloat16=4e-3),
            *_rows("simple_gla_step", "fwd", ("new_state",), float32=2e-6),
            *_rows("simple_gla_step", "vjp", ("dq", "dk", "dv"), float32=4e-6, bfloat16=4e-3),
            *_rows("simple_gla_step", "vjp", ("dstate", "dg", "dg_gamma"), float32=4e-6),
            *_rows("matmul", "fwd", ("y",), float32=5e-6, bfloat16=4e-3, int32=0.0),
            *_rows("matmul", "vjp", ("da", "db", "dbias"), float32=1e-5, bfloat16=8e-3),
            *_rows("simple_gla", "fwd", ("o",), float32=2e-6, bfloat16=4e-3),
            *_rows("simple_gla", "fwd", ("final_state",), **{"float32": 2e-6, "float32 of bfloat16": 4e-3}),
            *_rows("simple_gla", "vjp", ("dq", "dk", "dv"), float32=2e-5, bfloat16=1e-2),
            *_rows(
                "simple_gla",
                "vjp",
                ("dg", "dg_gamma", "dinitial_state"),
                **{"float32": 2e-5, "float32 of bfloat16": 1e-2},
            ),
            *_rows("rms_norm", "fwd", ("y",), float32=1e-6, bfloat16=4e-3),
            *_rows("rms_norm", "vjp", ("dx", "dscale"), float32=4e-6, bfloat16=8e-3),
            *_rows("add_rms_norm", "fwd", ("y", "new_residual"), float32=1e-6, bfloat16=4e-3),
            *_rows("add_rms_norm", "vjp", ("dx", "dresidual", "dscale"), float32=4e-6, bfloat16=8e-3),
        ]
    )
)


def tolerance(
    op: str, dtype: str, output: str, which: Pass, table: Mapping[Key, float] = TABLE, *, of: str | None = None
) -> float:
    """`of`: the dtype of the operands, where it is not the output's: "float32 of bfloat16" has an entry of its own if it needs one.

    Raises ToleranceError, naming the entry to add.
    """
    own = Key(op, f"{dtype} of {of}", output, which)
    key = own if own in table else Key(op, dtype, output, which)
    if key not in table:
        raise ToleranceError(f"{op}: no tolerance for {output} in {dtype}, pass {which}: add {key} to tolerances.TABLE")
    return table[key]


def as_data(table: Mapping[Key, float] = TABLE, op: str | None = None) -> dict[str, float]:
    """The table, or one op's part, as JSON has it; with what the comparison itself forgives, which all ops share."""
    shared = {"terms/rounding": compare.TERM_ROUNDING, "terms/largest": compare.LARGEST_ROUNDING}
    return shared | {str(key): value for key, value in sorted(table.items()) if op is None or key.op == op}


def digest(op: str) -> str:
    """Of the op's part of the table."""
    return sha256(as_data(op=op))
