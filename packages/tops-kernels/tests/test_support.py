"""`support` answers what runs where and why not; it never raises."""

import contextlib
from collections.abc import Callable

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tops_manifest
from tops_kernels import rms_norm, support

OPS = [op.name for op in tops_manifest.ops() if op.status == "implemented"]


@pytest.mark.parametrize("op", OPS)
def test_xla_runs_everywhere(op: str) -> None:
    for target in ("cpu", "tpu", "cuda", "gpu", "rocm", "v4", "v5e", "v5p", "v6e", "tpu7x", "sm_80", "sm_90", "sm_100"):
        assert support(op, "xla", target).ok


CHIPS = {
    "pallas_tpu": ("tpu", "v4", "v5e", "v5p", "v6e", "tpu7x"),
    "pallas_gpu": ("cuda", "gpu", "sm_80", "sm_90", "sm_100"),
}


@pytest.mark.parametrize("backend", CHIPS)
@pytest.mark.parametrize("op", OPS)
def test_a_kernel_runs_on_every_chip_of_its_platform_and_nowhere_else(op: str, backend: str) -> None:
    if backend not in tops_manifest.op(op).kernel_map:
        assert support(op, backend, CHIPS[backend][0]).reason.startswith(f"{op} has no {backend}; it has xla, ")
        return
    for target in CHIPS[backend]:
        assert support(op, backend, target).ok
    for target in {"cpu", "rocm", *(chip for chips in CHIPS.values() for chip in chips)} - set(CHIPS[backend]):
        answer = support(op, backend, target)
        assert not answer
        assert f"code for {CHIPS[backend][0]}" in answer.reason
        assert "interpret=True" in answer.reason


@pytest.mark.parametrize(
    ("op", "backend", "target", "words"),
    [
        ("nonsense", "xla", "cpu", "no op 'nonsense'; known: "),
        ("rms_norm", "nonsense", "cpu", "rms_norm has no nonsense; it has xla, "),
        ("rms_norm", "xla", "v9", "no target 'v9'; known: "),
    ],
)
def test_what_is_unknown_is_answered_with_what_is_known(op: str, backend: str, target: str, words: str) -> None:
    answer = support(op, backend, target)
    assert not answer.ok
    assert words in answer.reason


@given(op=st.text(), backend=st.text(), target=st.text())
def test_no_question_raises_and_a_reason_goes_with_every_no(op: str, backend: str, target: str) -> None:
    answer = support(op, backend, target)
    assert bool(answer) == answer.ok == (answer.reason == "")


def test_what_it_says_is_what_lowering_does(on: Callable[[str], contextlib.AbstractContextManager[object]]) -> None:
    x = np.ones((16, 128), np.float32)
    for backend in tops_manifest.op("rms_norm").kernel_map:
        for platform in ("cpu", "tpu", "cuda"):
            try:
                with on(platform):
                    traced = jax.jit(lambda x, b=backend: rms_norm(x, backend=b)).trace(x)
                    traced.lower(lowering_platforms=(platform,))
                lowered = True
            except ValueError:
                lowered = False
            assert lowered == support("rms_norm", backend, platform).ok
