"""The manifest's expressions: numbers, names, arithmetic, comparisons, and/or/not, min, max, cdiv. Never `eval`.

    parse("2*B*M*N*K").evaluate({"B": 1, "M": 8, "N": 8, "K": 8})

Python's own parser reads the text; every node must be on the list below, and a walk over the tree gives the value.
"""

import ast
import dataclasses
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

Value: TypeAlias = "int | float | str | bool | None"

_MAX_TEXT = 500  # characters; a manifest expression is a line
_MAX_DEPTH = 40  # of nesting; a walk must never meet Python's recursion limit
_MAX_EXPONENT = 64  # no formula of an op needs more, and 9**9**9 must not hang a check
_MAX_BITS = 4096  # of a power's result: ((9**64)**64)**64 must not either
_CHARACTERS = re.compile(
    r"""[A-Za-z0-9_+\-*/%<>=!()., '"]*\Z"""
)  # no line breaks, backslashes, comments, other alphabets


class ExpressionError(ValueError):
    """The text is not an expression of the manifest's grammar, or has no value for these names."""


def _cdiv(a: float, b: float) -> float:
    return -(-a // b)


def _pow(a: float, b: float) -> float:
    if abs(b) > _MAX_EXPONENT:
        raise ExpressionError(f"exponent {b} is over {_MAX_EXPONENT}")
    if isinstance(a, int) and a.bit_length() * abs(b) > _MAX_BITS:
        raise ExpressionError(f"a power of over {_MAX_BITS} bits")
    result: float = a**b
    if isinstance(result, complex):
        raise ExpressionError(f"{a} ** {b} is not a real number")
    return result


_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _pow,
}
_ORDER: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_SIGNS: dict[type[ast.cmpop], str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_FUNCTIONS: dict[str, Callable[..., float]] = {"min": min, "max": max, "cdiv": _cdiv}


@dataclasses.dataclass(frozen=True, slots=True)
class Expr:
    """A parsed expression. `data()` says whether two mean the same."""

    text: str  # as it was written
    names: frozenset[str]
    _tree: ast.expr = dataclasses.field(repr=False, compare=False)

    def evaluate(self, env: Mapping[str, Value]) -> Value:
        """The value under `env`. Raises ExpressionError where a name is missing or the arithmetic has no result."""
        try:
            return _value(self._tree, env)
        except (ZeroDivisionError, OverflowError, TypeError) as error:
            raise ExpressionError(f"{self.text!r} has no value: {error}") from error

    def number(self, env: Mapping[str, Value]) -> float:
        """The value, which must be a finite number. Raises ExpressionError."""
        value = self.evaluate(env)
        try:
            finite = not isinstance(value, str | None) and math.isfinite(value)
        except OverflowError:  # an integer beyond every float
            finite = False
        if not finite or isinstance(value, str | None):
            raise ExpressionError(f"{self.text!r} is {_shown(value)}, not a finite number")
        return value

    def data(self) -> object:
        """The tree as nested lists, for digests: the same in every Python version, whatever `ast.unparse` prints."""
        return _data(self._tree)

    def bound(self) -> tuple[str, str, float] | None:
        """("K", "<=", 256) of `K <= 256`, an order comparison with a number on its right; None of anything else."""
        match self._tree:
            case ast.Compare(left=left, ops=[op], comparators=[ast.Constant(value=int() | float() as limit)]):
                sign = _SIGNS.get(type(op))
                return None if sign is None else (ast.unparse(left), sign, limit)
        return None


def parse(text: str) -> Expr:
    """Reads one expression. Raises ExpressionError naming what the grammar does not have."""
    if len(text) > _MAX_TEXT:
        raise ExpressionError(f"{len(text)} characters; at most {_MAX_TEXT}")
    if not _CHARACTERS.match(text):
        strange = next(char for char in text if not _CHARACTERS.match(char))
        raise ExpressionError(f"{strange!r} is not in the grammar")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        names: set[str] = set()
        _check(tree, names, _MAX_DEPTH)
        return Expr(text.strip(), frozenset(names), tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, ExpressionError):
            raise
        raise ExpressionError(getattr(error, "msg", None) or str(error) or "too deeply nested") from error


def _check(node: ast.expr, names: set[str], depth: int) -> None:
    """Raises at the first node that is not of the grammar or lies too deep; collects the names."""
    if depth == 0:
        raise ExpressionError(f"nested deeper than {_MAX_DEPTH}")
    depth -= 1
    match node:
        case ast.Constant(value=float(value)) if not math.isfinite(value):
            raise ExpressionError("a number beyond every float")
        case ast.Constant(value=value) if type(value) in (int, float, str, type(None)):
            return
        case ast.Name(id=name):
            names.add(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            _check(left, names, depth)
            _check(right, names, depth)
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            _check(operand, names, depth)
        case ast.BoolOp(values=values):
            for part in values:
                _check(part, names, depth)
        case ast.Compare(left=left, ops=ops, comparators=comparators) if all(
            type(op) in _ORDER or isinstance(op, ast.Eq | ast.NotEq) for op in ops
        ):
            for side in (left, *comparators):
                _check(side, names, depth)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS and len(args) >= 2:
            if name == "cdiv" and len(args) != 2:
                raise ExpressionError("cdiv takes two arguments")
            for arg in args:
                _check(arg, names, depth)
        case _:
            raise ExpressionError(
                f"{ast.unparse(node)!r} is not in the grammar (+ - * / // % ** < <= > >= == != and or not min max cdiv)"
            )


def _value(node: ast.expr, env: Mapping[str, Value]) -> Value:
    match node:
        case ast.Constant(value=value):
            return value  # type: ignore[return-value]  # _check admitted int, float, str and None alone
        case ast.Name(id=name):
            if name not in env:
                raise ExpressionError(f"unknown name {name!r} (known: {' '.join(sorted(env))})")
            return env[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_number(left, env), _number(right, env))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, env)
        case ast.UnaryOp(operand=operand):
            return -_number(operand, env)
        case ast.BoolOp(op=op, values=values):
            stop_at = isinstance(op, ast.Or)
            return stop_at if any(bool(_value(part, env)) is stop_at for part in values) else not stop_at
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            parts = [left, *comparators]
            return all(_compare(a, op, b, env) for a, op, b in zip(parts, ops, parts[1:], strict=False))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_number(arg, env) for arg in args))
    raise AssertionError(f"_check let {ast.dump(node)} through")


def _compare(left: ast.expr, op: ast.cmpop, right: ast.expr, env: Mapping[str, Value]) -> bool:
    if isinstance(op, ast.Eq | ast.NotEq):
        return (_value(left, env) == _value(right, env)) is isinstance(op, ast.Eq)
    return _ORDER[type(op)](_number(left, env), _number(right, env))


def _number(node: ast.expr, env: Mapping[str, Value]) -> float:
    value = _value(node, env)
    if isinstance(value, str) or value is None:
        raise ExpressionError(f"{ast.unparse(node)!r} is {value!r}, not a number")
    return value


def _data(node: ast.expr) -> object:
    match node:
        case ast.Constant(value=value):
            return {"constant": value}
        case ast.Name(id=name):
            return name
        case ast.BinOp(left=left, op=op, right=right):
            return [type(op).__name__, _data(left), _data(right)]
        case ast.UnaryOp(op=op, operand=operand):
            return [type(op).__name__, _data(operand)]
        case ast.BoolOp(op=op, values=values):
            return [type(op).__name__, *map(_data, values)]
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            return ["Compare", [type(op).__name__ for op in ops], *map(_data, (left, *comparators))]
        case ast.Call(func=ast.Name(id=name), args=args):
            return [name, *map(_data, args)]
    raise AssertionError(f"_check let {ast.dump(node)} through")


def _shown(value: object) -> str:
    return "an integer beyond every float" if isinstance(value, int) else repr(value)
