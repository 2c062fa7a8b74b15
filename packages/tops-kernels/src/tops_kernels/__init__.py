"""Pallas kernels for JAX that you can check: TPU first, GPU second, plain XLA everywhere.

    import jax, tops_kernels
    x = jax.random.normal(jax.random.key(0), (4, 1000, 512))
    y = tops_kernels.rms_norm(x)

One function an op. `support` says what runs where. The rest serves the test and benchmark stages.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tops_kernels.ops.gla.op import gla
    from tops_kernels.ops.gla_step.op import gla_step, simple_gla_step
    from tops_kernels.ops.matmul.op import matmul
    from tops_kernels.ops.rms_norm.op import add_rms_norm, rms_norm
    from tops_kernels.ops.simple_gla.op import simple_gla
    from tops_kernels.runtime.compile_cache import compile_cache
    from tops_kernels.runtime.interpreter import checking_interpreter, races_found
    from tops_kernels.runtime.overrides import use_config
    from tops_kernels.runtime.search import configurations
    from tops_kernels.runtime.sources import source_digest, source_mtime
    from tops_kernels.runtime.support import Support, support
    from tops_kernels.runtime.tune import record_tuned, tune
    from tops_kernels.runtime.tuned import tuned
    from tops_kernels.runtime.workspace import workspace_dir

__all__ = [
    "Support",
    "add_rms_norm",
    "checking_interpreter",
    "compile_cache",
    "configurations",
    "gla",
    "gla_step",
    "matmul",
    "races_found",
    "record_tuned",
    "rms_norm",
    "simple_gla",
    "simple_gla_step",
    "source_digest",
    "source_mtime",
    "support",
    "tune",
    "tuned",
    "use_config",
    "workspace_dir",
]

# Where a public name that is no op lives, below tops_kernels.runtime. An op's place follows from the manifest (runtime/public.py).
_RUNTIME = {
    "Support": "support",
    "checking_interpreter": "interpreter",
    "compile_cache": "compile_cache",
    "configurations": "search",
    "races_found": "interpreter",
    "record_tuned": "tune",
    "source_digest": "sources",
    "source_mtime": "sources",
    "support": "support",
    "tune": "tune",
    "tuned": "tuned",
    "use_config": "overrides",
    "workspace_dir": "workspace",
}

if not TYPE_CHECKING:  # a checker sees the imports above, and no name that is not there

    def __getattr__(name: str) -> object:
        """A public name at its first use; after it, it is an attribute like any other.

        So an import reads no environment: whether calls are logged (TOPS_LOG) is settled here, once for each op.
        """
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from tops_kernels.runtime import public

        found = public.member(_RUNTIME[name], name) if name in _RUNTIME else public.function(name)
        return globals().setdefault(name, found)  # of two threads, the first

    def __dir__() -> list[str]:
        return [*__all__]
