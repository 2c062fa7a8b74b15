"""What changed between two contracts of one op, and whether a call that was right before may now fail or mean something else."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping

from tops_manifest import model
from tops_manifest.expr import Expr, ExpressionError
from tops_manifest.model import Input, Interval, Op, Output, Param, Shape
from tops_manifest.table import default_text

_MAX_COMBINATIONS = 20_000  # of dtypes; no op comes near


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Change:
    """One change of a contract."""

    key: str  # dotted, as in the file
    breaking: bool
    what: str

    def __str__(self) -> str:
        return f"{self.key}: {self.what} ({'breaking' if self.breaking else 'not breaking'})"


def contract_changes(old: Op, new: Op) -> list[Change]:
    """Every change a caller could see. In doubt it is breaking."""
    found = [
        *_inputs(old, new),
        *_outputs(old, new),
        *_dtypes(old, new),
        *_params(old, new),
        *_where(old, new),
        *_sets("contract.vjp", old.vjp, new.vjp),
        *_sets("contract.shard_free", old.shard_free, new.shard_free),
        *_sets("op.kernel_map", old.kernel_map, new.kernel_map),
    ]
    if old.vmap != new.vmap:
        found.append(Change("contract.vmap", old.vmap, f"{_toml(old.vmap)} -> {_toml(new.vmap)}"))
    if old.status != new.status:
        found.append(Change("op.status", new.status == "planned", f"{old.status} -> {new.status}"))
    return sorted(found)


def _sets(key: str, old: Iterable[str], new: Iterable[str]) -> Iterator[Change]:
    """What callers may rely on: less of it breaks them."""
    yield from (Change(key, True, f"without {name}") for name in sorted(set(old) - set(new)))
    yield from (Change(key, False, f"with {name}") for name in sorted(set(new) - set(old)))


def _inputs(old: Op, new: Op) -> Iterator[Change]:
    was, now = {spec.name: spec for spec in old.inputs}, {spec.name: spec for spec in new.inputs}
    for name in was.keys() - now.keys():
        yield Change(f"inputs.{name}", True, "removed")
    for name in now.keys() - was.keys():
        kind = "optional" if now[name].optional else "required"
        yield Change(f"inputs.{name}", not now[name].optional, f"added, {kind}")
    kept = [name for name in was if name in now]
    if [*now][: len(kept)] != kept:
        yield Change("inputs", True, f"positions: ({', '.join(was)}) -> ({', '.join(now)})")
    for name in kept:
        yield from _input(was[name], now[name], old, new)


def _input(old: Input, new: Input, was: Op, now: Op) -> Iterator[Change]:
    key = f"inputs.{old.name}"
    if old.optional != new.optional:
        yield Change(f"{key}.optional", old.optional, f"{_toml(old.optional)} -> {_toml(new.optional)}")
    moved = [(one, other) for one in old.shapes for other in new.shapes if _is_moved(one, other)]
    for one, other in moved:
        yield Change(f"{key}.shape", _moving_breaks(one, other, was, now), f"offset: {_arrow([one], [other])}")
    for shape in old.shapes:
        if not any(_covers(wide, shape) for wide in new.shapes) and shape not in [one for one, _ in moved]:
            yield Change(f"{key}.shape", True, f"no longer {model.shape_text(shape)}")
    for shape in new.shapes:
        if shape not in old.shapes and shape not in [other for _, other in moved]:
            yield Change(f"{key}.shape", False, f"also {model.shape_text(shape)}")
    for name in _deciding(old, new):
        yield from _with(f"{key}.with.{name}", name, old.shapes_for((name,)), new.shapes_for((name,)), was, now)
    if old.rises != new.rises:
        yield Change(f"{key}.rises", new.rises is not None, f"{old.rises or 'none'} -> {new.rises or 'none'}")
    if old.indexes != new.indexes:
        yield Change(f"{key}.indexes", new.indexes is not None, f"{old.indexes or 'none'} -> {new.indexes or 'none'}")
    if set(old.only) != set(new.only):
        fewer = bool(new.only) and not (old.only and set(old.only) <= set(new.only))
        before, after = (", ".join(sorted(spec.only)) or "all" for spec in (old, new))
        yield Change(f"{key}.only", fewer, f"{before} -> {after}")
    if old.domain != new.domain:
        narrower = not _domain(new).holds(_domain(old))
        yield Change(f"{key}.domain", narrower, f"{old.domain or 'any number'} -> {new.domain or 'any number'}")


def _deciding(old: Input | Output, new: Input | Output) -> list[str]:
    """The optional inputs that decide the shape, before or now, where that is not the same."""
    return [] if old.with_ == new.with_ else sorted({one.with_.input for one in (old, new) if one.with_ is not None})


def _with(key: str, name: str, before: Iterable[Shape], after: Iterable[Shape], was: Op, now: Op) -> Iterator[Change]:
    """What has become of a shape in calls that give the optional input `name`."""
    before, after = list(before), list(after)
    if before == after:
        return
    if len(before) == len(after) == 1 and _is_moved(before[0], after[0]):
        breaking = _moving_breaks(before[0], after[0], was, now)
        yield Change(key, breaking, f"offset: {_arrow(before, after)}")
        return
    fits = all(any(_covers(wide, shape) for wide in after) for shape in before)
    is_known = name in [spec.name for spec in was.inputs]  # else no call gave it
    yield Change(key, is_known and not fits, _arrow(before, after))


def _arrow(before: Iterable[Shape], after: Iterable[Shape]) -> str:
    return " -> ".join(" or ".join(map(model.shape_text, shapes)) for shapes in (before, after))


def _is_moved(old: Shape, new: Shape) -> bool:
    """Whether the same dimensions stand there, and only what is added to one differs."""
    return old != new and [(dim.name, dim.variadic) for dim in old] == [(dim.name, dim.variadic) for dim in new]


def _moving_breaks(old: Shape, new: Shape, was: Op, now: Op) -> bool:
    """A larger offset refuses sizes that were right; a smaller one changes what the letter is wherever else it stands."""
    changed = [(one.name, one.offset, other.offset) for one, other in zip(old, new, strict=True) if one != other]
    return any(after > before or _uses(was, name) > 1 or _uses(now, name) > 1 for name, before, after in changed)


def _uses(op: Op, letter: str) -> int:
    """How often a dimension stands in what a caller sees: shapes, conditions, defaults."""
    shapes = [shape for spec in op.inputs for shape in spec.all_shapes]
    shapes += [shape for spec in op.outputs for shape in (spec.shape, *([spec.with_.shape] if spec.with_ else []))]
    exprs = [condition.expr for condition in op.where]
    exprs += [spec.default_expr for spec in op.params if spec.default_expr is not None]
    return sum(dim.name == letter for shape in shapes for dim in shape) + sum(letter in expr.names for expr in exprs)


def _covers(wide: Shape, shape: Shape) -> bool:
    """Whether every array of `shape` fits `wide`: the same, or leading dimensions where there was one."""
    if wide == shape:
        return True
    if not len(wide) == len(shape) > 0 or wide[1:] != shape[1:]:
        return False
    return wide[0].variadic and wide[0].name == shape[0].name and not shape[0].offset


def _domain(spec: Input) -> Interval:
    if spec.rises is not None:
        return Interval(0.0, math.inf, True, False)
    if spec.indexes is not None:
        return Interval(-1.0, math.inf, True, False)
    return Interval(-math.inf, math.inf, True, True) if spec.domain is None else Interval.read(spec.domain)


def _outputs(old: Op, new: Op) -> Iterator[Change]:
    was, now = [spec.name for spec in old.outputs], [spec.name for spec in new.outputs]
    if was != now:
        yield Change("outputs", True, f"({', '.join(was)}) -> ({', '.join(now)})")
    by_name = {spec.name: spec for spec in new.outputs}
    for spec in old.outputs:
        if spec.name in by_name:
            yield from _output(spec, by_name[spec.name], old, new)


def _output(old: Output, new: Output, was: Op, now: Op) -> Iterator[Change]:
    key = f"outputs.{old.name}"
    if not _covers(new.shape, old.shape):
        yield Change(f"{key}.shape", True, f"{model.shape_text(old.shape)} -> {model.shape_text(new.shape)}")
    elif new.shape != old.shape:
        yield Change(f"{key}.shape", False, f"{model.shape_text(old.shape)} -> {model.shape_text(new.shape)}")
    for name in _deciding(old, new):
        shapes = (old.shape_for((name,)),), (new.shape_for((name,)),)
        yield from _with(f"{key}.with.{name}", name, *shapes, was, now)
    if old.dtype_param != new.dtype_param:
        decides = new.dtype_param is not None and now.param(new.dtype_param).default is not None
        breaking = old.dtype_param is not None or decides
        yield Change(f"{key}.dtype_param", breaking, f"{old.dtype_param or 'none'} -> {new.dtype_param or 'none'}")


def _dtypes(old: Op, new: Op) -> Iterator[Change]:
    """Compares what goes in and comes out together, so that it does not matter which letters say it."""
    inputs = [spec.name for spec in old.inputs if spec.name in {one.name for one in new.inputs}]
    outputs = [spec.name for spec in old.outputs if spec.name in {one.name for one in new.outputs}]
    was, now = _combinations(old, inputs, outputs), _combinations(new, inputs, outputs)
    if was is None or now is None:
        if old.dtypes != new.dtypes:
            yield Change("dtypes", True, "changed, and too many combinations to compare")
        return
    lost = sorted(was.keys() - now.keys())
    if lost:
        yield Change("dtypes", True, f"no longer {_some(inputs, lost)}")
    gained = sorted(now.keys() - was.keys())
    if gained:
        yield Change("dtypes", False, f"also {_some(inputs, gained)}")
    for chosen in sorted(was.keys() & now.keys()):
        for name, before, after in zip(outputs, was[chosen], now[chosen], strict=True):
            if before != after:
                yield Change(f"outputs.{name}.dtype", True, f"{before} -> {after} for {_some(inputs, [chosen])}")


def _combinations(op: Op, inputs: list[str], outputs: list[str]) -> Mapping[tuple[str, ...], tuple[str, ...]] | None:
    """Dtypes of the inputs -> dtypes of the outputs, for each choice of the dtype variables."""
    free = op.free_dtypes
    if math.prod(len(choices) for choices in free.values()) > _MAX_COMBINATIONS:
        return None
    result = {}
    for chosen in itertools.product(*free.values()):
        letters = dict(zip(free, chosen, strict=True))
        letters |= {var.name: var.derive(letters[var.source]) for var in op.dtypes if var.source is not None}
        dtype_of = {spec.name: spec.dtype for spec in op.inputs} | {spec.name: spec.dtype for spec in op.outputs}
        dtype_of = {name: letters.get(dtype, dtype) for name, dtype in dtype_of.items()}
        result[tuple(dtype_of[name] for name in inputs)] = tuple(dtype_of[name] for name in outputs)
    return result


def _some(names: list[str], combinations: list[tuple[str, ...]]) -> str:
    """One or two of them in words, and how many more."""
    texts = [", ".join(f"{name} {dtype}" for name, dtype in zip(names, one, strict=True)) for one in combinations[:2]]
    more = len(combinations) - len(texts)
    return " or ".join(f"({text})" for text in texts) + (f" and {more} more" if more else "")


def _params(old: Op, new: Op) -> Iterator[Change]:
    was, now = {spec.name: spec for spec in old.params}, {spec.name: spec for spec in new.params}
    for name in was.keys() - now.keys():
        yield Change(f"params.{name}", True, "removed")
    for name in now.keys() - was.keys():
        yield Change(f"params.{name}", False, f"added, default {default_text(now[name])}")
    for name in was.keys() & now.keys():
        yield from _param(was[name], now[name])


def _param(old: Param, new: Param) -> Iterator[Change]:
    key = f"params.{old.name}"
    if old.type != new.type:
        yield Change(f"{key}.type", (old.type, new.type) != ("int", "float"), f"{old.type} -> {new.type}")
    if _default(old) != _default(new):
        yield Change(f"{key}.default", True, f"{default_text(old)} -> {default_text(new)}")
    if old.optional != new.optional:
        yield Change(f"{key}.optional", old.optional, f"{_toml(old.optional)} -> {_toml(new.optional)}")
    lost = set(old.choices) - set(new.choices) if new.choices else set()
    for choice in sorted(lost, key=repr):
        yield Change(f"{key}.choices", True, f"no longer {choice!r}")
    if new.choices and not old.choices:
        yield Change(f"{key}.choices", True, f"only {' or '.join(map(repr, new.choices))}")
    elif old.choices and not new.choices:
        yield Change(f"{key}.choices", False, "any value")
    elif gained := sorted(set(new.choices) - set(old.choices), key=repr):
        yield Change(f"{key}.choices", False, f"also {' and '.join(map(repr, gained))}")


def _default(spec: Param) -> object:
    return spec.default if spec.default_expr is None else ("expression", repr(spec.default_expr.data()))


def _where(old: Op, new: Op) -> Iterator[Change]:
    was = {repr(condition.expr.data()): condition.expr for condition in old.where}
    now = {repr(condition.expr.data()): condition.expr for condition in new.where}
    removed = [expr for text, expr in was.items() if text not in now]
    added_params = {spec.name: spec.default for spec in new.params if spec.name not in {one.name for one in old.params}}
    for expr in (expr for text, expr in now.items() if text not in was):
        looser = next((before for before in removed if _is_looser(before, expr)), None)
        if looser is not None:
            removed.remove(looser)
            yield Change("contract.where", False, f"looser: {looser.text} -> {expr.text}")
        else:
            spares = _holds(expr, {name: value for name, value in added_params.items() if value is not None})
            yield Change("contract.where", not spares, f"now {expr.text}")
    for expr in removed:
        yield Change("contract.where", False, f"no longer {expr.text}")


def _holds(expr: Expr, defaults: Mapping[str, model.ParamValue]) -> bool:
    """Whether the defaults of parameters that are new decide it: then no old call can break it."""
    try:
        return bool(expr.evaluate(defaults))
    except ExpressionError:
        return False


def _is_looser(old: Expr, new: Expr) -> bool:
    """`K <= 256` -> `K <= 512`: one comparison with a number on the right, and the number moved outwards."""
    before, after = old.bound(), new.bound()
    if before is None or after is None or before[:2] != after[:2]:
        return False
    return after[2] > before[2] if before[1] in ("<", "<=") else after[2] < before[2]


def _toml(value: bool) -> str:
    return str(value).lower()
