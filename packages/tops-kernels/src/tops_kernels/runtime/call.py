"""How a public op function runs its jitted body: at jit's own cost when all is well, with a named error when it is not."""

from collections.abc import Callable, Mapping
from typing import Any

from tops_kernels.runtime.arguments import explain
from tops_kernels.runtime.overrides import current
from tops_manifest import ContractTypeError, ContractValueError


def call(
    body: Callable[..., Any],
    op: str,
    arrays: Mapping[str, Any],
    params: Mapping[str, Any],
    backend: str | None,
    interpret: object,
) -> Any:
    """body(*arrays, **params, backend, interpret, override), a jitted function whose keywords are static.

    jax.jit raises before tracing for a list, an object, an unhashable or traced parameter; its message names none of ours. So on a
    TypeError or ValueError that is not a contract's the arguments are looked at again, and what is wrong with them is said.
    """
    try:
        return body(*arrays.values(), **params, backend=backend, interpret=interpret, override=current(op))
    except (ContractTypeError, ContractValueError):
        raise
    except (TypeError, ValueError):
        explain(op, arrays, params, backend, interpret)
        raise
