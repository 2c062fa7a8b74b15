"""The child that compiles: a job a line comes in as JSON, an answer a line goes out. It ends with its input.

    python -m tops_kernels.runtime.tuning.worker

A job is `Case.job()` with "target" (a chip, a platform, "interpreter") and "config" (fields by name, or null for the heuristic's). The
answer is {"compiled": true}, {"refused": why} where the compiler said no, {"disagrees": why} where the child may run what it compiled, or
{"unable": why} where this machine cannot tell. With "lift" the blocklist does not hold.
"""

import contextlib
import json
import sys
from collections.abc import Mapping
from typing import Any, TextIO

_MAX_REASON = 300
# What jax.experimental.topologies calls a chip's smallest machine.
TOPOLOGIES = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "tpu7x": "tpu7x:2x2x1"}


def answer(job: Mapping[str, Any]) -> dict[str, Any]:
    """Never raises for what a kernel or a compiler does."""
    # Here, not above: a fault of an import is then an answer, not a silent end.
    try:
        return _compile(job)
    except Exception as error:  # the compiler's no comes as any of a dozen types
        text = " ".join(str(error).split()) or type(error).__name__
        return {"refused": text[:_MAX_REASON]}


def _compile(job: Mapping[str, Any]) -> dict[str, Any]:
    import jax

    from tops_kernels.runtime import blocklist
    from tops_kernels.runtime.tuning import case as cases

    case, target = cases.from_job(job), str(job["target"])
    config = None
    if job["config"] is not None:
        found = [one for one in cases.configurations(case, target) if cases.fields(one) == job["config"]]
        if not found:
            return {"refused": "it is not in the search space here"}
        config = found[0]
    program, avals = cases.program(case, case.implementation), cases.avals(case)
    if case.implementation == "pallas_gpu" and not case.interpret and jax.default_backend() != "gpu":
        return {"unable": "there is no GPU here"}
    with cases.configured(case, config), blocklist.lifted() if job.get("lift") else contextlib.nullcontext():
        if target in TOPOLOGIES:
            _for_tpu(program, avals, target)
            return {"compiled": True}
        compiled = jax.jit(program).trace(*avals).lower().compile()
    arrays = cases.drawn(case)
    why = cases.disagreement(compiled(*arrays), jax.jit(cases.program(case, "xla"))(*arrays), arrays)
    return {"disagrees": why} if why else {"compiled": True}


def _for_tpu(program: Any, avals: tuple[Any, ...], target: str) -> None:
    """Compiles for a TPU that this process has not got."""
    import jax
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, SingleDeviceSharding, use_abstract_mesh

    device = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGIES[target]).devices[0]
    here = SingleDeviceSharding(device)
    struct: Any = jax.ShapeDtypeStruct  # Any: jax has no types for it
    placed = jax.tree.map(lambda one: struct(one.shape, one.dtype, sharding=here), avals)
    with use_abstract_mesh(Mesh(np.array([device]), ("x",)).abstract_mesh):
        jax.jit(program, out_shardings=here).trace(*placed).lower(lowering_platforms=("tpu",)).compile()


def serve(source: TextIO, sink: TextIO) -> None:
    for line in source:
        sink.write(json.dumps(answer(json.loads(line))) + "\n")
        sink.flush()


if __name__ == "__main__":
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # a stray print is no answer
        serve(sys.stdin, answers)
