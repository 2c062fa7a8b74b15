"""Cases that are no rows of the manifest: small, odd, and within the contract."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import hypothesis
from hypothesis import strategies as st

from tops_manifest import ContractTypeError, ContractValueError, Op
from tops_manifest.workloads import Case
from tops_tests.subject import case

# 1, primes, one below and one above the tiles of a TPU (8, 16 and 128).
SIZES = (1, 2, 3, 7, 8, 9, 13, 16, 17, 31, 127, 128, 129)
BATCHES = ((), (1,), (3,), (2, 2))

# The same draws on every run, as a failure on one machine is a failure on all.
_FIXED = hypothesis.settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)
NIGHTLY = hypothesis.settings(_FIXED, max_examples=30)
_MANY_INPUTS = 4
_EXAMPLES, _FEWER = 16, 4  # an example compiles: a program of many inputs takes seconds


def settings(op: Op) -> hypothesis.settings:
    """How an op's cases are drawn for every change."""
    return hypothesis.settings(_FIXED, max_examples=_FEWER if len(op.inputs) > _MANY_INPUTS else _EXAMPLES)


def dtype_choices(op: Op) -> list[dict[str, str]]:
    """Every combination of the dtype variables a caller chooses."""
    names = list(op.free_dtypes)
    return [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*op.free_dtypes.values())]


def float_dtypes(op: Op) -> list[dict[str, str]]:
    """Those of `dtype_choices` whose gradients are defined."""
    return [chosen for chosen in dtype_choices(op) if all("int" not in dtype for dtype in chosen.values())]


_MOST_BYTES = 1 << 19  # of a drawn case: many are run, interpreted too
Sizes = dict[str, int | tuple[int, ...]]


def dims(op: Op, size: int = 3, batch: tuple[int, ...] = (2,)) -> Sizes:
    """Every dimension `size` or a little more, so that no two are alike; a variadic one is `batch`."""
    result: Sizes = {}
    for spec in op.inputs:
        for shape in spec.all_shapes:
            for dim in shape:
                if dim.name not in result:
                    result[dim.name] = batch if dim.variadic else size + len(result)
    return result


def within(op: Op, sizes: Sizes, present: tuple[str, ...], **how: Any) -> Case | None:
    """The case of these sizes, or of sizes that differ in as few dimensions as the contract's conditions ask; None where none is found."""
    plain = [name for name, one in sizes.items() if isinstance(one, int)]
    for count in range(4):
        for names in itertools.combinations(plain, count):
            for chosen in itertools.product((2, 4, 1), repeat=count):
                found = case(op, {**sizes, **dict(zip(names, chosen, strict=True))}, present=present, **how)
                if allowed(found):
                    return found
    return None


def tiny(op: Op, size: int = 3, **changes: Any) -> Case:
    """A case of a few elements, within the contract where one is found; `changes` as `subject.case` takes them.

    Left out: as many optional inputs as can be given together.
    """
    sizes, present = changes.pop("dims", None), changes.pop("present", None)
    choices = [tuple(present)] if present is not None else presences(op)[::-1]
    for chosen in choices:
        if sizes is not None:
            fixed = case(op, sizes, present=chosen, **changes)
            if allowed(fixed):
                return fixed
        else:
            found = within(op, dims(op, size), chosen, **changes)
            if found is not None:
                return found
    return case(op, sizes or dims(op, size), present=choices[0], **changes)


def param_choices(op: Op) -> Iterator[dict[str, Any]]:
    """One set of parameters for each choice of each parameter, the others at their default."""
    yield {}
    for spec in op.params:
        for value in spec.choices:
            if value != spec.default:
                yield {spec.name: value}
        if spec.type == "float" and not spec.choices:
            yield {spec.name: 0.75}
        if spec.type == "bool":
            yield {spec.name: not spec.default}


def presences(op: Op) -> list[tuple[str, ...]]:
    """Every subset of the optional inputs."""
    optional = [spec.name for spec in op.inputs if spec.optional]
    return [chosen for count in range(len(optional) + 1) for chosen in itertools.combinations(optional, count)]


def alternatives(op: Op) -> list[dict[str, int]]:
    """Every choice among the shapes of each input."""
    many = {spec.name: range(len(spec.shapes)) for spec in op.inputs if len(spec.shapes) > 1}
    return [dict(zip(many, chosen, strict=True)) for chosen in itertools.product(*many.values())]


def allowed(candidate: Case) -> bool:
    """Within the contract, conditions included."""
    try:
        candidate.binding()
    except (ContractValueError, ContractTypeError):
        return False
    return True


def every_form(op: Op, dtypes: Mapping[str, str]) -> list[Case]:
    """A tiny case for each set of parameters, presence of optionals and choice of shapes, one thing changed at a time."""
    forms = [tiny(op, dtypes=dtypes, params=params) for params in param_choices(op)]
    subsets = presences(op)
    # Of many optional inputs none, each alone, and all: every subset is traced (contract.py), not compiled.
    few = (
        [present for present in subsets if len(present) < 2 or present == subsets[-1]] if len(subsets) > 4 else subsets
    )
    forms += [tiny(op, dtypes=dtypes, present=present) for present in few]
    forms += [tiny(op, dtypes=dtypes, alternatives=chosen) for chosen in alternatives(op)]
    distinct = {(*form.params.items(), form.present, *form.alternatives.items()): form for form in forms}
    return [form for form in distinct.values() if allowed(form)]


def every_form_and_dtype(op: Op) -> list[Case]:
    """Every form in the first choice of dtypes; in each other one the parameters that some dtype forbids, and the plain call."""
    first, *others = dtype_choices(op)
    forms = every_form(op, first)
    seen = {tuple(form.params.items()) for form in forms}
    for dtypes in others:
        found = every_form(op, dtypes)
        forms += [form for at, form in enumerate(found) if at == 0 or tuple(form.params.items()) not in seen]
        seen |= {tuple(form.params.items()) for form in found}
    return forms


@st.composite
def cases(draw: st.DrawFn, op: Op, differentiable: bool = False) -> Case:
    """Any case of the contract with sizes from SIZES."""
    dtypes = draw(st.sampled_from(float_dtypes(op) if differentiable else dtype_choices(op)))
    sizes: Sizes = {
        name: draw(st.sampled_from(BATCHES)) if isinstance(size, tuple) else draw(st.sampled_from(SIZES))
        for name, size in dims(op).items()
    }
    params = draw(st.sampled_from(list(param_choices(op))))
    present, chosen = draw(st.sampled_from(presences(op))), draw(st.sampled_from(alternatives(op)))
    while True:
        drawn = within(op, sizes, present, dtypes=dtypes, params=params, alternatives=chosen)
        hypothesis.assume(drawn is not None)
        if drawn is None or drawn.memory() <= _MOST_BYTES:
            break
        largest = max((name for name, one in sizes.items() if isinstance(one, int)), key=lambda name: sizes[name])
        sizes = {**sizes, largest: 3}
    assert drawn is not None
    return drawn
