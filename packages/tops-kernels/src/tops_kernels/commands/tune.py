"""tops-kernels tune: the fastest block configurations for one call, on this machine."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import tops_manifest
from tops_kernels.commands import Subparsers, UsageError, parser, say
from tops_manifest.model import PASSES

_INPUT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=([a-z][a-z0-9_]*)\[((?:[0-9]+(?:,[0-9]+)*)?)\]")
_EXAMPLE = (
    "tops-kernels tune matmul a=bfloat16[4096,4096] b=bfloat16[4096,14336] --param activation=silu --file mine.json"
)


def add(subparsers: Subparsers) -> None:
    added = parser(subparsers, "tune", "the fastest block configurations for a call, on this machine's chip", _EXAMPLE)
    added.add_argument("op", choices=tops_manifest.op_names())
    added.add_argument(
        "inputs", nargs="+", metavar="NAME=DTYPE[SIZES]", help="as errors print them: a=bfloat16[64,128]"
    )
    added.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE", help="a parameter (again for more)"
    )
    added.add_argument("--pass", dest="which", choices=(*PASSES, "both"), default="both", help="default: both")
    added.add_argument("--file", type=Path, required=True, help="where the results go; others' rows in it stay")
    added.add_argument("--limit", type=float, default=60.0, help="seconds a candidate may compile (default 60)")
    added.add_argument("--candidates", type=int, default=32, help="how many are tried (default 32)")
    added.add_argument(
        "--interpret", action="store_true", help="in the interpreter, on a CPU: tries the machinery alone"
    )


def run(args: argparse.Namespace) -> int:
    """1 where a pass could not be tuned."""
    from tops_kernels.runtime.tuning import tuner
    from tops_kernels.runtime.tuning.case import Case
    from tops_kernels.runtime.tuning.row import signature_of

    params = dict(_param(text) for text in args.param)
    try:
        call = signature_of(args.op, dict(_input(text) for text in args.inputs), params)
        implementation, chip = tuner.where(None, args.interpret)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from None
    passes = PASSES if args.which == "both" else (args.which,)
    settings = tuner.Settings(limit=args.limit, candidates=args.candidates, rounds=9, children=tuner.parallel())
    cases = [Case(call, which, implementation, args.interpret) for which in passes]
    found = tuner.run(cases, chip, args.file, settings)
    lines: list[dict[str, object]] = [
        {
            "pass": one.which,
            "chip": one.chip,
            "configuration": " ".join(f"{name}={value}" for name, value in tried.config.items()),
            "outcome": tried.outcome,
            "us": "" if tried.seconds is None else round(tried.seconds * 1e6, 1),
            "": " ".join(["heuristic"] * (at == 0) + ["written"] * (tried is one.best)),
            "reason": tried.reason,
        }
        for one in found
        for at, tried in enumerate(one.tried)
    ]
    notes: list[dict[str, object]] = [{"pass": one.which, "note": one.note} for one in found if one.note]
    say(lines, as_json=args.json)
    if notes and not args.json:
        say(notes, as_json=False)
    return 1 if notes else 0


def _input(text: str) -> tuple[str, Any]:
    match = _INPUT.fullmatch(text)
    if match is None:
        raise UsageError(f"input is {text!r}; expected NAME=DTYPE[SIZES], like a=bfloat16[64,128]")
    sizes = tuple(int(size) for size in match[3].split(",") if size)
    return match[1], tops_manifest.ArraySpec(sizes, match[2])


def _param(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--param is {text!r}; expected NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value  # a word
