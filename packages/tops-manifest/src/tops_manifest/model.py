"""The contract of an op as frozen dataclasses: what its TOML file says, read and checked."""

import dataclasses
import math
import re
from collections.abc import Container, Mapping
from typing import Literal, TypeAlias

from tops_manifest.expr import Expr

DTYPES = (
    "bool", "int4", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float32", "float64",
)  # fmt: skip
BITS = {"bool": 8, "int4": 4, "float8_e4m3fn": 8, "float8_e5m2": 8, "bfloat16": 16} | {
    f"{kind}{bits}": bits
    for kind in ("int", "uint", "float")
    for bits in (8, 16, 32, 64)
    if (kind, bits) != ("float", 8)
}
IMPLEMENTATIONS = (
    "xla",
    "pallas_tpu",
    "pallas_gpu",
)  # kernel_map keys; the platform each runs on is dispatch's business
STATUSES = ("planned", "implemented", "deprecated")
PARAM_TYPES = ("float", "int", "bool", "str", "dtype")

ParamValue: TypeAlias = "int | float | str | bool | None"
Pass: TypeAlias = Literal["fwd", "vjp"]
PASSES: tuple[Pass, ...] = ("fwd", "vjp")


@dataclasses.dataclass(frozen=True, slots=True)
class Dim:
    """A dimension of a shape: a name ("K"), a name and an offset ("N+1"), or any number of leading ones ("*B")."""

    name: str
    variadic: bool = False
    offset: int = 0  # the size is the name's value and this

    def __str__(self) -> str:
        return f"{'*' if self.variadic else ''}{self.name}{f'+{self.offset}' if self.offset else ''}"


Shape: TypeAlias = tuple[Dim, ...]


def shape_text(shape: Shape) -> str:
    """[*B, M, K]"""
    return f"[{', '.join(str(dim) for dim in shape)}]"


def shape_sizes(shape: Shape, dims: Mapping[str, "int | tuple[int, ...]"]) -> tuple[int, ...]:
    """The sizes a shape has where its letters stand for `dims`; a variadic dimension is a tuple there."""
    sizes: list[int] = []
    for dim in shape:
        size = dims[dim.name]
        sizes += size if isinstance(size, tuple) else (size + dim.offset,)
    return tuple(sizes)


@dataclasses.dataclass(frozen=True, slots=True)
class With:
    """The shape that an input or output has where an optional input is given."""

    input: str
    shape: Shape


_NUMBER = r"-?(?:inf|\d+(?:\.\d*)?(?:e[+-]?\d+)?)"
_INTERVAL = re.compile(rf"([\[(])\s*({_NUMBER})\s*,\s*({_NUMBER})\s*([\])])")


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """Where the values of an input lie."""

    low: float
    high: float
    low_closed: bool
    high_closed: bool

    @classmethod
    def read(cls, text: str) -> "Interval":
        """ "(-inf, 0]": round means open, square means closed. Raises ValueError for other text and for an empty interval."""
        match = _INTERVAL.fullmatch(text.strip())
        if match is None:
            raise ValueError(f'{text!r} is no interval like "(-inf, 0]"')
        low, high = float(match[2]), float(match[3])
        if not low < high or low == math.inf or high == -math.inf:
            raise ValueError(f"{text!r} holds no more than one number")
        return cls(low, high, match[1] == "[", match[4] == "]")

    def __str__(self) -> str:
        return f"{'[' if self.low_closed else '('}{self.low!r}, {self.high!r}{']' if self.high_closed else ')'}"

    def holds(self, other: "Interval") -> bool:
        """Whether every number of `other` is in this one."""
        below = (self.low, not self.low_closed) <= (other.low, not other.low_closed)
        return below and (self.high, self.high_closed) >= (other.high, other.high_closed)


@dataclasses.dataclass(frozen=True, slots=True)
class DtypeVar:
    """A dtype variable: the same letter is the same dtype. Either free (`choices`), or derived from another one."""

    name: str
    choices: tuple[str, ...]  # free: what it may be; derived: what it comes to for each choice of `source`, in order
    source: str | None = None
    mapping: tuple[tuple[str, str], ...] = ()  # derived: source dtype -> dtype

    def derive(self, source: str) -> str:
        """The dtype that goes with this one of `source`."""
        return dict(self.mapping)[source]


@dataclasses.dataclass(frozen=True, slots=True)
class Input:
    name: str
    shapes: tuple[Shape, ...]  # one of these, told apart by rank; the first is the usual one
    dtype: str  # a dtype variable or a dtype
    optional: bool = False
    domain: str | None = None  # interval the values lie in, as text: "(-inf, 0]" (Interval.read)
    doc: str = ""
    with_: With | None = None  # decides the shape instead, where its input is given
    rises: str | None = None  # the values rise from 0 to at most the size of this dimension
    indexes: str | None = None  # the values are positions along this dimension, each at most once; -1: none
    only: tuple[str, ...] = ()  # the implementations that take it; none named: all

    @property
    def all_shapes(self) -> tuple[Shape, ...]:
        """Every shape it may have in some call."""
        return self.shapes if self.with_ is None else (*self.shapes, self.with_.shape)

    def shapes_for(self, present: Container[str]) -> tuple[Shape, ...]:
        """The shapes it may have where these inputs are given."""
        return self.shapes if self.with_ is None or self.with_.input not in present else (self.with_.shape,)


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    name: str
    shape: Shape
    dtype: str  # a dtype variable or a dtype
    dtype_param: str | None = None  # a param of type dtype that, when given, decides instead
    doc: str = ""
    with_: With | None = None  # decides the shape instead, where its input is given

    def shape_for(self, present: Container[str]) -> Shape:
        """The shape it has where these inputs are given."""
        return self.shape if self.with_ is None or self.with_.input not in present else self.with_.shape


@dataclasses.dataclass(frozen=True, slots=True)
class Param:
    """A keyword-only, static parameter."""

    name: str
    type: str  # one of PARAM_TYPES
    default: ParamValue = None
    default_expr: Expr | None = None  # over dimensions; the callable's own default is then None
    choices: tuple[ParamValue, ...] = ()
    optional: bool = False  # None is allowed
    doc: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """A line of contract.where: must hold of dimensions, params and dtype variables."""

    expr: Expr
    hint: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Op:
    """A contract. Costs and workload rows are read apart (`tops_manifest.cost`, `tops_manifest.workloads`)."""

    name: str
    family: str
    version: int
    status: str
    ref: str
    doc: str
    kernel_map: tuple[str, ...]
    dtypes: tuple[DtypeVar, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    params: tuple[Param, ...]
    where: tuple[Condition, ...]
    vjp: tuple[str, ...]  # inputs it is differentiable in
    vmap: bool
    shard_free: tuple[str, ...]  # dimensions that shard without communication

    def input(self, name: str) -> Input:
        """The input of this name."""
        return next(spec for spec in self.inputs if spec.name == name)

    def param(self, name: str) -> Param:
        """The parameter of this name."""
        return next(spec for spec in self.params if spec.name == name)

    def lacks(self, implementation: str) -> frozenset[str]:
        """The optional inputs that this implementation does not take."""
        return frozenset(spec.name for spec in self.inputs if spec.only and implementation not in spec.only)

    def as_taken_by(self, implementation: str) -> "Op":
        """The contract without what this implementation lacks."""
        lacked = self.lacks(implementation)
        return dataclasses.replace(
            self,
            inputs=tuple(spec for spec in self.inputs if spec.name not in lacked),
            vjp=tuple(name for name in self.vjp if name not in lacked),
        )

    @property
    def variadic(self) -> Mapping[str, bool]:
        """Every dimension of the inputs, and whether it is any number of leading ones."""
        return {dim.name: dim.variadic for spec in self.inputs for shape in spec.all_shapes for dim in shape}

    @property
    def free_dtypes(self) -> Mapping[str, tuple[str, ...]]:
        """The dtype variables a caller chooses."""
        return {var.name: var.choices for var in self.dtypes if var.source is None}
