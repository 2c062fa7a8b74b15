"""Whether an implementation can run somewhere, and if not, why."""

import dataclasses

import tops_manifest
from tops_kernels.runtime import chip
from tops_kernels.runtime.blocklist import blocked
from tops_kernels.runtime.dispatch import PLATFORMS

TPU_TARGETS = chip.TPU_TARGETS
GPU_TARGETS = chip.GPU_TARGETS
# A target's platform, as jax names it at lowering. "gpu" is how people and jax.devices() say cuda.
_PLATFORM = (
    {"cpu": "cpu", "tpu": "tpu", "cuda": "cuda", "gpu": "cuda", "rocm": "rocm"}
    | dict.fromkeys(TPU_TARGETS, "tpu")
    | dict.fromkeys(GPU_TARGETS, "cuda")
)


@dataclasses.dataclass(frozen=True, slots=True)
class Support:
    """Whether, and why not. True in a condition when it can run."""

    ok: bool
    reason: str  # empty where ok

    def __bool__(self) -> bool:
        return self.ok


def support(op: str, backend: str, target: str) -> Support:
    """Can `backend` of `op` run on `target`?

    Args:
      op: an op's name.
      backend: a kernel_map key: "xla", "pallas_tpu", "pallas_gpu".
      target: a platform ("cpu", "tpu", "cuda", "gpu", "rocm"), a TPU ("v4", "v5e", "v5p", "v6e", "tpu7x") or an NVIDIA GPU
        ("sm_80", "sm_90", "sm_100").
    Returns: Support(ok, reason). A question about something unknown is answered, not raised.
    """
    if op not in tops_manifest.op_names():
        return Support(False, f"no op {op!r}; known: {', '.join(tops_manifest.op_names())}")
    contract = tops_manifest.op(op)
    if contract.status == "planned":
        return Support(False, f"{op} is planned: it has a contract and no code yet")
    if target not in _PLATFORM:
        return Support(False, f"no target {target!r}; known: {', '.join(_PLATFORM)}")
    if backend not in contract.kernel_map:
        return Support(False, f"{op} has no {backend}; it has {', '.join(contract.kernel_map)}")
    platform = _PLATFORM[target]
    if backend != "xla" and platform not in PLATFORMS[backend]:
        return Support(
            False,
            f"{backend} is code for {' or '.join(PLATFORMS[backend])}, and {target} is {platform}; "
            "pass interpret=True to run the kernel in the interpreter",
        )
    row = (
        None
        if backend == "xla"
        else blocked(op, backend, target if target in (*TPU_TARGETS, *GPU_TARGETS) else platform)
    )
    if row is not None:
        return Support(False, f"on the blocklist: {row}")
    return Support(True, "")
