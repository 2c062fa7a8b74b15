"""The call log: one line of JSON when a public function is called, before anything runs, and one when it is done.

Imported only where TOPS_LOG or TOPS_TRACE asks for it. What is written at which level: docs/logging.md.
"""

import dataclasses
import datetime
import functools
import inspect
import itertools
import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax

import tops_manifest
from tops_kernels.runtime import facts
from tops_kernels.runtime.overrides import current
from tops_kernels.runtime.sink import Sink
from tops_kernels.runtime.storing import warn_once
from tops_kernels.runtime.variables import LOG, LOG_FILE, LOG_IN_JIT, TRACE

_numbers = itertools.count(1)  # of calls, in this process


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What is logged, and where. level: 0 (traces alone) to 4. trace: folder for definitions, or None."""

    level: int
    sink: Sink
    in_jit: bool = False
    trace: Any = None

    @classmethod
    def read(cls) -> "Settings":
        """As the environment has it. Raises VariableError."""
        return cls(LOG.value(), Sink(LOG_FILE.value()), LOG_IN_JIT.value(), TRACE.value())


def logged(op: str, function: Callable[..., Any], settings: Settings) -> Callable[..., Any]:
    """`function` with a log around it: same signature, same results, same errors."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = _Call(op, settings)
        _safely("line", call.before, signature, args, kwargs)
        try:
            result = function(*args, **kwargs)
            # A constant may be called on inside jit: then arguments are arrays, and results are traced all the same.
            call.concrete = call.concrete and facts.concrete({"result": result})
            if settings.level and call.concrete:
                # JAX returns before the kernel has run; the line that says "done" must not.
                jax.block_until_ready(result)  # type: ignore[no-untyped-call]  # jax has no types for it
        except BaseException as error:  # noted, and raised again
            _safely("line", call.failed, error)
            raise
        _safely("line", call.after, result)
        return result

    # By this name pickle finds the wrapper itself; where the original lives it would find another object.
    wrapper.__module__ = "tops_kernels"
    return wrapper


class _Call:
    """One call. Whatever goes wrong in here is a warning (`_safely`), and the call goes on."""

    def __init__(self, op: str, settings: Settings) -> None:
        self.op, self.settings, self.number = op, settings, next(_numbers)
        self.concrete = True
        self.dump: Any = None

    def _write(self, event: str, **more: facts.Json) -> None:
        record = {
            "event": event,
            "call": self.number,
            "op": self.op,
            "pid": os.getpid(),
            "thread": threading.current_thread().name,
            "time": datetime.datetime.now(datetime.UTC).isoformat(),
        }
        self.settings.sink.write(json.dumps(record | more))

    def before(self, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The line that is written first, with all that the level asks for."""
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:  # the function itself says it better
            if self.settings.level:
                self._write("call", arguments="not those of the signature")
            return
        given.apply_defaults()
        arrays, params = facts.split(self.op, given.arguments)
        rest = {name: given.arguments[name] for name in ("backend", "interpret") if name in given.arguments}
        self.concrete = facts.concrete(arrays)
        if self.settings.trace is not None:
            _safely("trace", self._trace, arrays, params)
        if self.settings.level == 0:
            return
        more: dict[str, facts.Json] = {} if self.concrete else {"traced": True}
        if self.settings.level >= 2:
            more |= _safely("describe", self._described, arrays, params, rest) or {}
        if self.settings.level >= 3 and self.concrete:
            more["statistics"] = {name: facts.statistics(value) for name, value in _given(arrays).items()}
        if self.settings.level >= 4 and self.concrete:
            more |= _safely("dump", self._dumped, arrays, params, rest) or {}
        self._write("call", **more)
        if self.settings.level >= 3 and self.settings.in_jit and not self.concrete:
            _safely("callback", self._watch, "run", arrays, params, rest)

    def after(self, result: Any) -> None:
        """The line of a call that came back."""
        if self.settings.level == 0:
            return
        names = [spec.name for spec in tops_manifest.op(self.op).outputs]
        outputs = dict(zip(names, result if isinstance(result, tuple) else (result,), strict=False))
        more: dict[str, facts.Json] = {} if self.concrete else {"traced": True}
        if self.settings.level >= 2:
            more["outputs"] = {name: facts.array(value) for name, value in outputs.items()}
        if self.settings.level >= 3 and self.concrete:
            more["statistics"] = {name: facts.statistics(value) for name, value in outputs.items()}
        if self.dump is not None and self.concrete:
            _safely("dump", self.dump.complete, outputs)
        self._write("done", **more)
        if self.settings.level >= 3 and self.settings.in_jit and not self.concrete:
            _safely("callback", self._watch, "ran", outputs)

    def failed(self, error: BaseException) -> None:
        """The line of a call that raised. Only a contract's own message is shown: others may quote values."""
        if self.settings.level == 0:
            return
        more = {"error": type(error).__name__}
        if self.settings.level >= 2 and isinstance(
            error, tops_manifest.ContractTypeError | tops_manifest.ContractValueError
        ):
            more["message"] = str(error)
        if self.dump is not None:
            _safely("dump", self.dump.fail, type(error).__name__)
        self._write("failed", **more)

    def _described(self, arrays: Mapping[str, Any], params: Mapping[str, Any], rest: Mapping[str, Any]) -> facts.Json:
        return {
            "arguments": {name: facts.array(value) for name, value in arrays.items()},
            "params": {name: facts.param(value) for name, value in params.items()},
            "backend": facts.param(rest.get("backend")),
            "interpret": facts.interpret(rest.get("interpret", False)),
            "config": {which: repr(config) for which, config in current(self.op)},
            "devices": facts.device(arrays),
        }

    def _trace(self, arrays: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        from tops_kernels.runtime import definitions

        definitions.record(self.settings.trace, self.op, arrays, params)

    def _dumped(self, arrays: Mapping[str, Any], params: Mapping[str, Any], rest: Mapping[str, Any]) -> facts.Json:
        from tops_kernels.runtime import dumping

        started = dumping.start(self.op, arrays, params, **rest)
        if isinstance(started, str):
            return {"not_dumped": started}
        self.dump = started
        return {"dump": str(started.folder)}

    def _watch(
        self,
        event: str,
        arrays: Mapping[str, Any],
        params: Mapping[str, Any] | None = None,
        rest: Mapping[str, Any] | None = None,
    ) -> None:
        """Puts a callback into the program that is being traced. It runs whenever the program does."""
        values = _given(arrays)
        scalars = {name: facts.traced_statistics(value) for name, value in values.items()}
        dumps = event == "run" and self.settings.level >= 4
        absent = {name: None for name in arrays if name not in values}

        def seen(found: Any, held: Any) -> None:
            more: dict[str, facts.Json] = {"statistics": {name: facts.named(one) for name, one in found.items()}}
            if dumps:
                more |= _safely("dump", self._dumped, absent | held, params or {}, rest or {}) or {}
                self.dump = None  # which of its runs an output belongs to cannot be told: inputs alone are kept
            self._write(event, **more)

        jax.debug.callback(functools.partial(_safely, "callback", seen), scalars, values if dumps else {})


def _given(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arrays.items() if value is not None}


def _safely(what: str, function: Callable[..., Any], *args: Any) -> Any:
    """What the function gives, or None where it raises: then there is a warning, and the call goes on."""
    try:
        return function(*args)
    except Exception as error:  # its text is not shown: it may quote values
        warn_once(f"log {what}", f"TOPS_LOG: the {what} failed with {type(error).__name__}; going on without")
        return None
