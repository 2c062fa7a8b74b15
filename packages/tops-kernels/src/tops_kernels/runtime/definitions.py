"""Calls as definitions and workloads in flashinfer-bench's JSON schema: what is computed, on which sizes, with a reference.

    <folder>/definitions/<family>/<name>.json             op, axes (constant or variable), inputs, outputs, constraints, reference
    <folder>/workloads/<family>/<name>/<uuid>.jsonl       one line: values of the variable axes, inputs by kind

The names and texts follow from the manifest and the call's signature, so that writing them again gives the same bytes. A file a
workload: processes that trace at once do not meet in one. docs/logging.md says how the manifest maps to the schema.
"""

import dataclasses
import json
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tops_manifest
from tops_kernels.runtime import facts
from tops_kernels.runtime.storing import write_whole
from tops_manifest import ArraySpec, Binding, Op

# Dimensions that change from call to call, besides leading ones and counts: batch, rows, a pool, source and target length.
_VARIABLE = frozenset("BMPST")
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://flashinfer.ai/tops-workload")

Files = dict[str, str]  # path below the folder -> text


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A call's signature. `generic`: every axis is variable, as where no call was seen and the contract alone is told."""

    op: Op
    arrays: Mapping[str, ArraySpec]
    params: Mapping[str, Any]  # those that are not the contract's defaults
    generic: bool = False

    def bind(self) -> Binding:
        """Raises ContractValueError or ContractTypeError."""
        return tops_manifest.bind(self.op, dict(self.arrays), dict(self.params))


def call(op: str, arrays: Mapping[str, ArraySpec], params: Mapping[str, Any]) -> Call:
    """A signature of the values a call was given. Raises ContractValueError or ContractTypeError."""
    contract = tops_manifest.op(op)
    bound = tops_manifest.bind(contract, dict(arrays), dict(params)).params
    defaults = {spec.name: None if spec.default_expr is not None else spec.default for spec in contract.params}
    # As the contract holds a value (1 for a float is 1.0), where one was given that is not the default.
    other = {name: bound[name] for name, value in params.items() if value is not None and bound[name] != defaults[name]}
    return Call(contract, arrays, other)


def files(one: Call) -> Files:
    """The definition of a call, and its workload unless all of its axes are open."""
    told = _Teller(one)
    name, family = told.name(), one.op.family
    definition = {
        "name": name,
        "op_type": family,
        "description": f"{one.op.doc} ({one.op.ref})",
        "tags": told.tags(),
        "axes": told.axes(),
        "inputs": told.inputs(),
        "outputs": told.outputs(),
        "constraints": told.constraints(),
        "reference": told.reference(),
    }
    result = {f"definitions/{family}/{name}.json": json.dumps(definition, indent=2) + "\n"}
    if not one.generic:
        workload: dict[str, Any] = {"axes": told.values(), "inputs": {name: {"type": "random"} for name in one.arrays}}
        workload["uuid"] = str(uuid.uuid5(_NAMESPACE, json.dumps([name, workload], sort_keys=True)))
        record = {"definition": name, "workload": workload, "solution": None, "evaluation": None}
        result[f"workloads/{family}/{name}/{workload['uuid']}.jsonl"] = json.dumps(record) + "\n"
    return result


class _Teller:
    """A call in the schema's words."""

    def __init__(self, one: Call) -> None:
        self.call, self.bound = one, one.bind()
        self._sizes: dict[str, int] = {}  # axis -> size, in the order of the inputs
        self._variable: set[str] = set()
        self._counts: dict[str, str] = {}  # axis that is a dimension and an offset -> what it equals
        contract = one.op
        self._inputs = {
            spec.name: self._axes(
                spec, next(s for s in spec.shapes_for(self.bound.present) if self._fits(s, spec.name))
            )
            for spec in contract.inputs
            if spec.name in one.arrays
        }
        self._outputs = {spec.name: self._axes(spec, spec.shape_for(self.bound.present)) for spec in contract.outputs}

    def _fits(self, shape: Any, name: str) -> bool:
        known = all(dim.name in self.bound.dims for dim in shape)
        return known and self.bound.shape(shape) == self.call.arrays[name].shape

    def _axes(self, spec: Any, shape: Any) -> list[str]:
        """The names of an array's axes; each is noted with its size."""
        names: list[str] = []
        for dim in shape:
            size = self.bound.dims[dim.name]
            if isinstance(size, tuple):
                parts = {f"{dim.name}{i}": one for i, one in enumerate(size)}
            elif dim.offset:
                self._sizes[dim.name] = size
                parts = {f"len_{spec.name}": size + dim.offset}
                self._counts[f"len_{spec.name}"] = f"{dim.name} + {dim.offset}"
                self._variable.add(dim.name)
            else:
                parts = {dim.name: size}
            self._sizes |= parts
            if isinstance(size, tuple) or dim.offset or dim.name in _VARIABLE:
                self._variable |= parts.keys()
            names += parts
        return names

    def axes(self) -> dict[str, Any]:
        return {
            name: {"type": "var"} if self.call.generic or name in self._variable else {"type": "const", "value": size}
            for name, size in self._sizes.items()
        }

    def values(self) -> dict[str, int]:
        return {name: size for name, size in self._sizes.items() if name in self._variable}

    def inputs(self) -> dict[str, Any]:
        told = {}
        for spec in self.call.op.inputs:
            if spec.name in self.call.arrays:
                domain = f"values in {spec.domain}" if spec.domain else ""
                rises = f"rises from 0 to at most {spec.rises}" if spec.rises else ""
                words = "; ".join(word for word in (spec.doc, domain, rises) if word)
                told[spec.name] = _tensor(self._inputs[spec.name], self.call.arrays[spec.name].dtype, words)
        return told

    def outputs(self) -> dict[str, Any]:
        docs = {spec.name: spec.doc for spec in self.call.op.outputs}
        return {
            name: _tensor(self._outputs[name], spec.dtype, docs[name]) for name, spec in self.bound.outputs().items()
        }

    def constraints(self) -> list[str]:
        """The contract's, where they speak of axes: with what this call fixes (params, dtypes, which inputs) put in."""
        env = self.bound.environment()
        fixed = env.keys() - self.bound.dims.keys()
        own = [
            _put_in(one.expr.text, {name: repr(env[name]) for name in one.expr.names & fixed})
            for one in self.call.op.where
            if one.expr.names <= fixed | self._sizes.keys() and one.expr.names & self._sizes.keys()
        ]
        return own + [f"{name} == {what}" for name, what in self._counts.items()]

    def reference(self) -> str:
        names = list(self.call.arrays)
        given = "".join(f"{name}={name}, " for name in names)
        params = "".join(f"{name}={value!r}, " for name, value in self.call.params.items())
        return (
            "import tops_kernels\n\n\n"
            f"def run({', '.join(names)}):\n"
            f'    return tops_kernels.{self.call.op.name}({given}{params}backend="xla")\n'
        )

    def tags(self) -> list[str]:
        params = [f"param:{name}={json.dumps(value)}" for name, value in self.call.params.items()]
        return [f"op:{self.call.op.name}", f"contract:{self.call.op.version}", *params]

    def _given(self) -> list[tuple[Any, list[str]]]:
        return [(spec, self._inputs[spec.name]) for spec in self.call.op.inputs if spec.name in self._inputs]

    def name(self) -> str:
        """Op, constant sizes, what differs from the plainest call, dtypes: everything that a definition fixes."""
        sizes = [f"{name.lower()}{size}" for name, size in self._sizes.items() if self.axes()[name]["type"] == "const"]
        ranks = {spec.name: f"{spec.name}{len(axes)}d" for spec, axes in self._given()}
        leading = [name for name, _ in self._given() if name.shapes[0] and name.shapes[0][0].variadic][:1]
        shapes = [ranks[spec.name] for spec, _ in self._given() if spec in leading or len(spec.shapes) > 1]
        present = [spec.name for spec in self.call.op.inputs if spec.optional and spec.name in self.call.arrays]
        params = [f"{name}-{_plain(str(value))}" for name, value in self.call.params.items()]
        dtypes = [self.bound.dtypes[name] for name in self.call.op.free_dtypes if name in self.bound.dtypes]
        return "_".join([self.call.op.name, *sizes, *shapes, *present, *params, *dtypes])


def _tensor(axes: list[str], dtype: str, words: str) -> dict[str, Any]:
    return {"shape": axes, "dtype": dtype} | ({"description": words} if words else {})


def _put_in(expression: str, values: Mapping[str, str]) -> str:
    """An expression with values in place of some of its names."""
    return re.sub(r"\b[A-Za-z_]\w*\b", lambda found: values.get(found[0], found[0]), expression)


def _plain(text: str) -> str:
    """A value in a file's name."""
    return re.sub(
        r"[^A-Za-z0-9.+-]", lambda found: f"~{ord(found[0]):x}", text.lower() if text in ("True", "False") else text
    )


_recorded: set[tuple[Path, str]] = set()  # folder and signature: written by this process


def record(folder: Path, op: str, arrays: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    """Writes what a call is, once a signature. Arrays may be traced. Raises nothing for a call outside its contract."""
    given = {name: value for name, value in arrays.items() if value is not None}
    shapes = {name: (str(getattr(one, "shape", "")), str(getattr(one, "dtype", ""))) for name, one in given.items()}
    key = json.dumps([op, shapes, {name: facts.param(one) for name, one in params.items()}])
    if (folder, key) in _recorded:
        return
    _recorded.add((folder, key))
    try:
        one = call(op, {name: facts.spec(value) for name, value in given.items()}, params)
    except (
        AttributeError,
        TypeError,
        ValueError,
    ):  # no arrays, symbolic sizes, or outside the contract: the call itself says so
        return
    for path, text in files(one).items():
        if not (folder / path).exists():
            write_whole(folder / path, text.encode())
