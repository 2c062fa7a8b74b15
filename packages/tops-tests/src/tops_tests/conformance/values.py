"""Values and gradients against the float64 oracle, and the oracle against itself."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given

import tops_kernels
from tops_manifest.model import Pass
from tops_manifest.workloads import Case
from tops_tests.compare import ConformanceError
from tops_tests.conformance import drawing
from tops_tests.conformance.registry import NotApplicable, check
from tops_tests.optest import OpTest
from tops_tests.subject import Subject, measure

_STEP = 1e-6  # of a central difference in float64: truncation and rounding both near 1e-10
_CLOSE = 1e-6


@check("implementation")
def forward_is_the_oracles_on_any_shape(subject: Subject) -> None:
    """Drawn shapes (1, primes, one below and above a tile), dtypes, parameters and optional inputs."""
    _hold_on_draws(subject, "fwd", drawing.settings(subject.op))


@check("implementation")
def gradients_are_the_oracles_on_any_shape(subject: Subject) -> None:
    """As above, for the gradient of every input the contract differentiates."""
    _hold_on_draws(subject, "vjp", drawing.settings(subject.op))


@check("implementation", slow=True)
def forward_is_the_oracles_on_many_shapes(subject: Subject) -> None:
    """As on any shape, with as many draws as a night allows, whatever the op's number of inputs."""
    _hold_on_draws(subject, "fwd", drawing.NIGHTLY)


@check("implementation", slow=True)
def gradients_are_the_oracles_on_many_shapes(subject: Subject) -> None:
    """As above, for gradients."""
    _hold_on_draws(subject, "vjp", drawing.NIGHTLY)


def _hold_on_draws(subject: Subject, which: Pass, settings: hypothesis.settings) -> None:
    if which == "vjp":
        _differentiable(subject)

    @settings
    @given(drawing.cases(subject.op, differentiable=which == "vjp"))
    def hold(case: Case) -> None:
        measure(subject, case, which)

    hold()


@check("implementation")
def every_form_is_the_oracles(subject: Subject) -> None:
    """Each parameter value, presence of optional inputs and alternative shape; and every dtype."""
    for case in drawing.every_form_and_dtype(subject.op):
        measure(subject, case, "fwd")
        if OpTest(case).differentiable:
            measure(subject, case, "vjp")


@check("op")
def the_oracles_gradients_are_its_finite_differences(subject: Subject) -> None:
    """The hand-written derivative of the float64 oracle against central differences of the oracle itself."""
    _differentiable(subject)
    for case in drawing.every_form(subject.op, drawing.float_dtypes(subject.op)[0]):
        test = OpTest(case)
        drawn = test.gen_inputs(jax.random.key(1)).items()
        inputs = {
            name: np.asarray(x, np.float64 if jnp.issubdtype(x.dtype, jnp.floating) else None) for name, x in drawn
        }
        cotangents = [np.asarray(x, np.float64) for x in test.gen_cotangents(jax.random.key(2))]
        analytic = test.reference_vjp(cotangents, inputs)
        random = np.random.default_rng(0)
        for name in test.differentiable:
            direction = random.standard_normal(inputs[name].shape)
            ends = []
            for sign in (1, -1):
                moved = {**inputs, name: inputs[name] + sign * _STEP * direction}
                outputs = test.reference(moved).values()
                ends.append(sum(float(np.sum(c * y)) for c, y in zip(cotangents, outputs, strict=True)))
            numeric, exact = (ends[0] - ends[1]) / (2 * _STEP), float(np.sum(analytic[f"d{name}"] * direction))
            if abs(numeric - exact) > _CLOSE * max(1.0, abs(exact)):
                raise ConformanceError(
                    f"{test.where}: oracle's d{name} is {exact} along a line; its differences {numeric}"
                )


@check("implementation")
def a_kernel_has_no_race_and_reads_nothing_unwritten(subject: Subject) -> None:
    """In the interpreter that fills memory nobody wrote with NaN and, for TPU kernels, finds races; forward and backward."""
    if subject.implementation == "xla" or subject.interpret is False:
        raise NotApplicable("no interpreted kernel")
    finds_races = subject.implementation == "pallas_tpu"  # programs of a GPU kernel share no memory that they write
    how = tops_kernels.checking_interpreter() if finds_races else True
    strict = Subject(subject.op, subject.function, subject.implementation, how)
    for dtypes in drawing.float_dtypes(subject.op):
        case = drawing.tiny(subject.op, size=17, dtypes=dtypes)
        for which in ("fwd", "vjp") if OpTest(case).differentiable else ("fwd",):
            measure(strict, case, which)
            if finds_races and tops_kernels.races_found():
                raise ConformanceError(f"{OpTest(case).where}: the {which} kernel has a data race")


def _differentiable(subject: Subject) -> None:
    if not subject.op.vjp:
        raise NotApplicable("no gradient in the contract")
