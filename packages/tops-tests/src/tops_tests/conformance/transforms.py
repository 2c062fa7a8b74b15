"""What users do to a function: vmap, scan, remat, donation, second derivatives, other kinds of argument. Values by the oracle."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tops_manifest.workloads import Case
from tops_tests.compare import ConformanceError
from tops_tests.conformance import drawing
from tops_tests.conformance.registry import NotApplicable, check
from tops_tests.optest import OpTest
from tops_tests.subject import Subject


def _cases(subject: Subject) -> list[Case]:
    """One tiny case a floating dtype."""
    return [drawing.tiny(subject.op, size=5, dtypes=dtypes) for dtypes in drawing.float_dtypes(subject.op)]


def _vjp_cases(subject: Subject) -> list[Case]:
    found = [case for case in _cases(subject) if OpTest(case).differentiable]
    if not found:
        raise NotApplicable("no gradient in the contract")
    return found


def _draw(case: Case, seed: int = 0) -> tuple[OpTest, dict[str, jax.Array], tuple[jax.Array, ...]]:
    test = OpTest(case)
    return test, test.gen_inputs(jax.random.key(seed)), test.gen_cotangents(jax.random.key(seed + 100))


def _stacked(drawn: list[dict[str, jax.Array]]) -> dict[str, jax.Array]:
    return {name: jnp.stack([one[name] for one in drawn]) for name in drawn[0]}


def _pulled(run: Callable[..., Any], cotangents: Any, *arrays: Any) -> Any:
    return jax.vjp(run, *arrays)[1](cotangents)


def _scanned(run: Callable[..., Any], stacked: tuple[Any, ...]) -> Any:
    """`run` on each step's slice of the stacked inputs, by lax.scan."""
    return jax.lax.scan(lambda carry, one: (carry, run(*one)), 0.0, stacked)[1]


@check("implementation")
def vmap_is_a_loop(subject: Subject) -> None:
    """Mapped over a new axis of every input, each slice is the call on that slice; gradients too."""
    if not subject.op.vmap:
        raise NotApplicable("the contract has no vmap")
    for case in _cases(subject):
        drawn = [_draw(case, seed) for seed in (0, 1, 2)]
        test = drawn[0][0]
        inputs = _stacked([inputs for _, inputs, _ in drawn])
        outputs = jax.jit(jax.vmap(subject.call(case)))(*inputs.values())
        for index, (_, one, _) in enumerate(drawn):
            test.check(tuple(y[index] for y in outputs), one)
        if test.differentiable:
            cotangents = jax.tree.map(lambda *xs: jnp.stack(xs), *(cotangents for _, _, cotangents in drawn))
            gradients = jax.jit(jax.vmap(subject.gradients(case)))(cotangents, *inputs.values())
            for index, (_, one, cotangent) in enumerate(drawn):
                test.check_gradients({name: g[index] for name, g in gradients.items()}, cotangent, one)


@check("implementation")
def a_gradient_through_remat_is_the_same(subject: Subject) -> None:
    """jit(grad(checkpoint(f))) and plain grad agree with the oracle; each gradient has its primal's dtype."""
    for case in _vjp_cases(subject):
        test, inputs, cotangents = _draw(case)
        pulled = jax.jit(partial(_pulled, jax.checkpoint(subject.call(case))))
        by_name = dict(zip(inputs, pulled(cotangents, *inputs.values()), strict=True))
        test.check_gradients({name: by_name[name] for name in test.differentiable}, cotangents, inputs)


@check("op")
def checkpoint_policies_see_named_residuals(subject: Subject) -> None:
    """What the forward pass keeps for the backward pass carries a name that starts with the op's."""
    for case in _vjp_cases(subject)[:1]:
        names = set()
        for form in drawing.every_form(subject.op, case.dtypes):
            test, inputs, _ = _draw(form)
            if test.differentiable:
                text = str(jax.make_jaxpr(lambda *xs, f=form: jax.vjp(subject.call(f), *xs)[0])(*inputs.values()))
                names |= {part.split("]")[0] for part in text.split("name[name=")[1:]}
        if not any(name.startswith(subject.op.name) for name in names):
            raise ConformanceError(
                f"{subject.op.name}: no residual is named {subject.op.name}.*; found {sorted(names)}"
            )


@check("implementation")
def a_gradient_through_scan_is_the_loops(subject: Subject) -> None:
    """Two steps of lax.scan over stacked inputs: each step's gradients are those of the call alone."""
    for case in _vjp_cases(subject):
        drawn = [_draw(case, seed) for seed in (0, 1)]
        test = drawn[0][0]
        inputs = _stacked([inputs for _, inputs, _ in drawn])
        cotangents = jax.tree.map(lambda *xs: jnp.stack(xs), *(cotangents for _, _, cotangents in drawn))
        (of_inputs,) = jax.jit(partial(_pulled, partial(_scanned, subject.call(case))))(
            cotangents, tuple(inputs.values())
        )
        gradients = dict(zip(inputs, of_inputs, strict=True))
        for index, (_, one, cotangent) in enumerate(drawn):
            of_step = {name: gradients[name][index] for name in test.differentiable}
            test.check_gradients(of_step, cotangent, one)


@check("implementation")
def donated_buffers_change_nothing(subject: Subject) -> None:
    """jit with every input donated gives the oracle's values; without donation the inputs are left as they were."""
    for case in _cases(subject):
        test, inputs, _ = _draw(case)
        kept = {name: np.asarray(x) for name, x in inputs.items()}
        test.check(jax.jit(subject.call(case))(*inputs.values()), kept)
        if any(np.asarray(x).tobytes() != kept[name].tobytes() for name, x in inputs.items()):
            raise ConformanceError(f"{test.where}: an input changed under a call that was given nothing to donate")
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # jax warns of donated buffers that no output can use: nothing to do with values
            out = jax.jit(subject.call(case), donate_argnums=range(len(inputs)))(*inputs.values())
        test.check(out, kept)


@check("implementation")
def numpy_inputs_are_taken_as_jax_arrays_are(subject: Subject) -> None:
    """NumPy arrays, eager and in jit: same values, same dtypes."""
    for case in _cases(subject):
        test, inputs, _ = _draw(case)
        arrays = [np.asarray(x) for x in inputs.values()]
        test.check(subject.call(case)(*arrays), inputs)
        test.check(jax.jit(subject.call(case))(*arrays), inputs)


@check("implementation")
def x64_changes_no_value_and_no_dtype(subject: Subject) -> None:
    """With jax_enable_x64 on: the oracle's values in the contract's dtypes, forward and backward."""
    for case in _cases(subject):
        test, inputs, cotangents = _draw(case)
        with jax.enable_x64(True):
            test.check(jax.jit(subject.call(case))(*inputs.values()), inputs)
            if test.differentiable:
                test.check_gradients(jax.jit(subject.gradients(case))(cotangents, *inputs.values()), cotangents, inputs)


@check("op")
def a_second_derivative_is_the_oracles(subject: Subject) -> None:
    """Gradient of a gradient, through dispatch, against central differences of the oracle's gradient; in every form of the call."""
    dtypes = next((case.dtypes for case in _vjp_cases(subject) if set(case.dtypes.values()) == {"float32"}), None)
    if dtypes is None:
        raise NotApplicable("no float32 in the contract")
    forms = drawing.every_form(subject.op, dtypes)
    # One parameter changed at a time, and everything given: what the presence of an input changes shows in the first derivative.
    for case in [form for form in forms if form.present == forms[0].present]:
        test, inputs, cotangents = _draw(case)
        directions = {name: test.gen_inputs(jax.random.key(7))[name] for name in test.differentiable}

        def along(arrays: Any, case: Any = case, cotangents: Any = cotangents, directions: Any = directions) -> Any:
            ordered = (arrays[name] for name in case.inputs())
            gradients = subject.gradients(case)(cotangents, *ordered)
            return sum(jnp.vdot(gradients[name], directions[name]) for name in directions)

        second = jax.jit(jax.grad(along, allow_int=True))(inputs)
        step = 1e-5
        for name in test.differentiable:
            probe = np.asarray(directions[name], np.float64)
            ends = []
            for sign in (1, -1):
                moved: dict[str, Any] = {**inputs, name: np.asarray(inputs[name], np.float64) + sign * step * probe}
                gradients = test.reference_vjp(cotangents, moved)
                ends.append(sum(float(np.vdot(gradients[f"d{n}"], np.asarray(d))) for n, d in directions.items()))
            want = (ends[0] - ends[1]) / (2 * step)
            got = float(np.vdot(np.asarray(second[name], np.float64), probe))
            if abs(got - want) > 1e-3 * max(1.0, abs(want)):
                raise ConformanceError(
                    f"{test.where}: second derivative along d{name} is {got}; the oracle's is {want}"
                )
