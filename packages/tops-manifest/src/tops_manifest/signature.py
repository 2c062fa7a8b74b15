"""The signature a public op function must have, derived from its contract. Tests compare; nothing is generated."""

import inspect
from inspect import Parameter, Signature

from tops_manifest.contract import RESERVED
from tops_manifest.model import Op, Param


def signature(op: Op) -> Signature:
    """Inputs by position (optional ones default to None), then keyword-only: parameters, backend=None, interpret=False.

    A default that is an expression of dimensions shows as None. Annotations are left out: they are the callable's business.
    """
    inputs = [
        Parameter(
            spec.name, Parameter.POSITIONAL_OR_KEYWORD, default=None if spec.optional else inspect.Parameter.empty
        )
        for spec in op.inputs
    ]
    params = [Parameter(spec.name, Parameter.KEYWORD_ONLY, default=_default(spec)) for spec in op.params]
    backend, interpret = RESERVED
    return Signature(
        [
            *inputs,
            *params,
            Parameter(backend, Parameter.KEYWORD_ONLY, default=None),
            Parameter(interpret, Parameter.KEYWORD_ONLY, default=False),
        ]
    )


def _default(spec: Param) -> object:
    return None if spec.default_expr is not None else spec.default
