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

# The same draws on every run: a failure on one machine is a failure on all.
SETTINGS = hypothesis.settings(
    max_examples=10,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)


def dtype_choices(op: Op) -> list[dict[str, str]]:
    """Every combination of the dtype variables a caller chooses."""
    names = list(op.free_dtypes)
    return [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*op.free_dtypes.values())]


def float_dtypes(op: Op) -> list[dict[str, str]]:
    """Those of `dtype_choices` whose gradients are defined."""
    return [chosen for chosen in dtype_choices(op) if all("int" not in dtype for dtype in chosen.values())]


def dims(op: Op, size: int = 3, batch: tuple[int, ...] = (2,)) -> dict[str, int | tuple[int, ...]]:
    """Every dimension `size` or a little more, so that no two are alike; a variadic one is `batch`."""
    result: dict[str, int | tuple[int, ...]] = {}
    for spec in op.inputs:
        for shape in spec.shapes:
            for dim in shape:
                if dim.name not in result:
                    result[dim.name] = batch if dim.variadic else size + len(result)
    return result


def tiny(op: Op, size: int = 3, **changes: Any) -> Case:
    """A case of a few elements; `changes` as `subject.case` takes them."""
    return case(op, changes.pop("dims", dims(op, size)), **changes)


def param_choices(op: Op) -> Iterator[dict[str, Any]]:
    """One set of parameters for each choice of each parameter, the others at their default."""
    yield {}
    for spec in op.params:
        for value in spec.choices:
            if value != spec.default:
                yield {spec.name: value}
        if spec.type == "float" and not spec.choices:
            yield {spec.name: 0.75}


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
    forms += [tiny(op, dtypes=dtypes, present=present) for present in presences(op)]
    forms += [tiny(op, dtypes=dtypes, alternatives=chosen) for chosen in alternatives(op)]
    return [form for form in forms if allowed(form)]


@st.composite
def cases(draw: st.DrawFn, op: Op, differentiable: bool = False) -> Case:
    """Any case of the contract with sizes from SIZES."""
    dtypes = draw(st.sampled_from(float_dtypes(op) if differentiable else dtype_choices(op)))
    sizes: dict[str, int | tuple[int, ...]] = {
        name: draw(st.sampled_from(BATCHES)) if isinstance(size, tuple) else draw(st.sampled_from(SIZES))
        for name, size in dims(op).items()
    }
    params = draw(st.sampled_from(list(param_choices(op))))
    present, chosen = draw(st.sampled_from(presences(op))), draw(st.sampled_from(alternatives(op)))
    drawn = case(op, sizes, dtypes, params, present, chosen)
    hypothesis.assume(allowed(drawn))
    return drawn
