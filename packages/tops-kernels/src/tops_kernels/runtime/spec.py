"""The specification of a compiled unit: everything that decides what code it holds, and a name made of it."""

import dataclasses
import functools
import hashlib
import json
import math
import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import tops_manifest
from tops_kernels.runtime import toolchain as tools
from tops_kernels.runtime.overrides import Override
from tops_kernels.runtime.sources import source_digest
from tops_kernels.runtime.support import GPU_TARGETS, TPU_TARGETS, support

FORMAT = 1  # of units and bundles: a newer one is not read
Kind: TypeAlias = Literal["native", "portable"]
KINDS: tuple[Kind, ...] = ("native", "portable")
PASSES = ("fwd", "vjp")
NATIVE_TARGETS = ("cpu", *TPU_TARGETS, *GPU_TARGETS)
PORTABLE_TARGETS = ("cpu", "tpu", "cuda")
_MAX_RANK, _MAX_SIZE = 32, 1 << 40


class SpecError(ValueError):
    """A unit that cannot be specified so; the message names the field, what it is and what was expected."""


@dataclasses.dataclass(frozen=True, slots=True)
class Aval:
    """An argument: an input of the op by its name, or "d<output>", the cotangent of an output."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One compiled unit. Two that are equal are the same code; every field is in the key, and nothing else is.

    op, implementation, which: of the manifest; which is "fwd" or "vjp".
    version: of the op's contract.
    arguments: in order: the inputs that are given, in the contract's order; for "vjp" then the outputs' cotangents.
    params: every parameter of the op, sorted by name, defaults filled in.
    config: block configurations asked for, (pass, its type's name, its fields as JSON); empty: the heuristic's.
    target: "native": "cpu" or a chip; "portable": "cpu", "tpu" or "cuda".
    kind: "native": machine code; "portable": StableHLO, which the target's own machine compiles.
    source: digest of the implementation's sources.
    toolchain, flags: what toolchain.py finds.
    """

    op: str
    implementation: str
    which: str
    version: int
    arguments: tuple[Aval, ...]
    params: tuple[tuple[str, str | float | int | bool | None], ...]
    config: tuple[tuple[str, str, str], ...]
    target: str
    kind: Kind
    source: str
    toolchain: tools.Facts
    flags: tools.Facts

    @property
    def key(self) -> str:
        """sha256 of everything above, in hex."""
        return hashlib.sha256(canonical(dataclasses.asdict(self) | {"format": FORMAT})).hexdigest()

    @property
    def name(self) -> str:
        """What its files are called: readable, and unique by its last part."""
        return "-".join([self.op, self.implementation, self.which, self.target, self.kind, self.key[:32]])

    def __str__(self) -> str:
        """For people: op, pass and shapes."""
        shapes = ", ".join(f"{one.name} {one.dtype}{list(one.shape)}" for one in self.arguments)
        return f"{self.op} {self.which} ({shapes}) by {self.implementation} for {self.target}, {self.kind}"


def canonical(data: object) -> bytes:
    """One text for one value: sorted keys, no spaces, ASCII. Raises ValueError for NaN and infinities."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def spec(
    op: str,
    inputs: Mapping[str, Any],
    params: Mapping[str, Any] | None = None,
    *,
    target: str,
    which: str = "fwd",
    kind: Kind = "native",
    implementation: str | None = None,
    config: Override = (),
) -> Spec:
    """Specifies a unit for this process' toolchain, flags and options.

    Args:
      op: an op's name.
      inputs: input name -> anything with shape and dtype; optional ones may be left out or None.
      params: static parameters; those left out take their defaults.
      target: see Spec. which: "fwd" or "vjp". kind: "native" or "portable".
      implementation: a kernel_map key; None: the one that a call on the target takes.
      config: (pass, configuration) pairs, as `use_config` takes them.
    Raises: SpecError, and the contract's ValueError or TypeError for inputs and params outside it.
    """
    _one_of("op", op, tops_manifest.op_names())
    _one_of("which", which, PASSES)
    _one_of("kind", kind, KINDS)
    _one_of("target", target, NATIVE_TARGETS if kind == "native" else PORTABLE_TARGETS, f" for kind {kind!r}")
    contract = tops_manifest.op(op)
    provided = {name for name, one in inputs.items() if one is not None}
    if implementation is None:
        able = (key for key in reversed(contract.kernel_map) if not contract.lacks(key) & provided)
        implementation = next(key for key in able if key == "xla" or support(op, key, target))
    can = support(op, implementation, target)
    if not can:
        raise SpecError(f"{op}: {can.reason}")
    for name in sorted(contract.lacks(implementation) & provided):
        raise SpecError(f"{op}: {implementation} has no {name}; leave the implementation out, or {name}")
    unknown = sorted(set(inputs) - {one.name for one in contract.inputs})
    if unknown:
        raise SpecError(f"{op}: no input {unknown[0]!r}; expected {', '.join(one.name for one in contract.inputs)}")
    given = {
        one.name: _aval(op, one.name, inputs[one.name]) for one in contract.inputs if inputs.get(one.name) is not None
    }
    shapes = {name: tops_manifest.ArraySpec(one.shape, one.dtype) for name, one in given.items()}
    bound = tops_manifest.bind(contract, shapes, dict(params or {}))
    arguments = list(given.values())
    if which == "vjp":
        _gradients(op, given)
        arguments += [Aval(f"d{name}", out.shape, out.dtype) for name, out in bound.outputs().items()]
    return Spec(
        op=op,
        implementation=implementation,
        which=which,
        version=contract.version,
        arguments=tuple(arguments),
        params=tuple(sorted((name, _plain(op, name, value)) for name, value in bound.params.items())),
        config=tuple(sorted(_config(op, one, value) for one, value in config)),
        target=target,
        kind=kind,
        source=source_digest(op, implementation),
        toolchain=tools.versions(target, kind),
        flags=tools.flags(target, kind),
    )


def from_data(data: object) -> Spec:
    """The inverse of dataclasses.asdict, for what came out of a file: each field of its type and nothing else there.

    Raises SpecError. Whether this installation knows the op is not asked: only whether it is the form of a Spec.
    """
    try:
        return _from_data(data)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise SpecError(f"no specification of a unit: {error}") from error


def _from_data(data: Any) -> Spec:
    names = {field.name for field in dataclasses.fields(Spec)}
    if not isinstance(data, dict) or set(data) != names:
        raise ValueError(
            f"fields are {sorted(data) if isinstance(data, dict) else type(data).__name__}; expected {sorted(names)}"
        )
    for name in ("op", "implementation", "which", "target", "kind", "source"):
        _word(name, data[name])
    if type(data["version"]) is not int:
        raise ValueError(f"version is {data['version']!r}; expected an integer")
    return Spec(
        op=data["op"],
        implementation=data["implementation"],
        which=_one_of("which", data["which"], PASSES),
        version=data["version"],
        arguments=tuple(
            Aval(_word("name", one["name"]), _shape(one["shape"]), _word("dtype", one["dtype"]))
            for one in data["arguments"]
        ),
        params=tuple((_word("param", name), _plain(data["op"], name, value)) for name, value in data["params"]),
        config=tuple(
            (_word("pass", which), _word("type", kind), _text(fields)) for which, kind, fields in data["config"]
        ),
        target=data["target"],
        kind=KINDS[KINDS.index(data["kind"])],
        source=data["source"],
        toolchain=tuple((_text(name), _text(value)) for name, value in data["toolchain"]),
        flags=tuple((_text(name), _text(value)) for name, value in data["flags"]),
    )


def difference(one: Spec, other: Spec) -> str:
    """The fields in which two differ, for a message: "toolchain: jaxlib 0.10.2 is not 0.10.3"."""
    found = []
    for field in dataclasses.fields(Spec):
        left, right = dataclasses.asdict(one)[field.name], dataclasses.asdict(other)[field.name]
        if field.name in ("toolchain", "flags"):
            left, right = dict(left), dict(right)
            found += [
                f"{name} {left.get(name, 'absent')!r} is not {right.get(name, 'absent')!r}"
                for name in sorted(left | right)
                if left.get(name) != right.get(name)
            ]
        elif left != right:
            found.append(f"{field.name} {left!r} is not {right!r}")
    return "; ".join(found)


def configurations_of(spec: Spec) -> tuple[tuple[str, Hashable], ...]:
    """The configurations that a specification names, made anew. Raises SpecError for one this installation does not have."""
    kinds = _config_types()
    found = []
    for which, kind, fields in spec.config:
        if kind not in kinds:
            raise SpecError(f"{spec.op}: no configuration type {kind!r}; known: {', '.join(sorted(kinds))}")
        try:
            found.append((which, kinds[kind](**json.loads(fields))))
        except (TypeError, ValueError) as error:
            raise SpecError(f"{spec.op}: {kind} of {fields}: {error}") from error
    return tuple(found)


@functools.cache
def _config_types() -> Mapping[str, Any]:
    from tops_kernels.runtime import public  # it imports every op

    implemented = [op.name for op in tops_manifest.ops() if op.status == "implemented"]
    return {kind.__name__: kind for name in implemented for kind in public.configs(name).values()}


def gradients(spec: Spec) -> tuple[str, ...]:
    """The inputs whose gradients a "vjp" unit gives, in order."""
    return _gradients(spec.op, {one.name: one for one in spec.arguments})


def _gradients(op: str, given: Mapping[str, Aval]) -> tuple[str, ...]:
    names = tuple(name for name in tops_manifest.op(op).vjp if name in given and "float" in given[name].dtype)
    if not names:
        raise SpecError(f"{op}: which is 'vjp', and no given input has a gradient; expected floating inputs")
    return names


def _config(op: str, which: str, config: Any) -> tuple[str, str, str]:
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise SpecError(f"{op}: configuration is of type {type(config).__name__}; expected one of `configurations`")
    return (
        _one_of("pass of a configuration", which, PASSES),
        type(config).__name__,
        canonical(dataclasses.asdict(config)).decode(),
    )


def _aval(op: str, name: str, array: Any) -> Aval:
    shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    if not isinstance(shape, tuple) or dtype is None:
        raise SpecError(f"{op}: {name} is of type {type(array).__name__}; expected anything with shape and dtype")
    return Aval(name, _shape(shape), str(dtype))


def _shape(shape: Sequence[Any]) -> tuple[int, ...]:
    if len(shape) > _MAX_RANK or not all(isinstance(size, int) and 0 <= size < _MAX_SIZE for size in shape):
        raise SpecError(f"shape is {tuple(shape)}; expected whole numbers that are known (no symbolic ones)")
    return tuple(int(size) for size in shape)


def _plain(op: str, name: str, value: Any) -> str | float | int | bool | None:
    """A parameter as JSON has it. A whole float stays a float: 1.0 and 1 are told apart by the code that is made."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise SpecError(f"{op}: {name} is {value!r}; expected a finite number, a text, a truth value or None")


def _word(what: str, value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_.]{1,100}", value):
        raise SpecError(f"{what} is {value!r}; expected a word")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise SpecError(f"{value!r} is no text")
    return value


def _one_of(what: str, value: str, known: Sequence[str], remark: str = "") -> str:
    if value not in known:
        raise SpecError(f"{what} is {value!r}; expected one of {', '.join(known)}{remark}")
    return value
