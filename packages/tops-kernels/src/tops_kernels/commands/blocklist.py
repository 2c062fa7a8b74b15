"""tops-kernels blocklist: what is known to fail where, and with --verify whether it still does."""

import argparse
import datetime
import json
from collections.abc import Sequence

from tops_kernels.commands import Subparsers, complain, parser, say
from tops_kernels.runtime import blocklist
from tops_kernels.runtime.blocklist import Blocked
from tops_kernels.runtime.versions import version

_STILL = "still fails"
_COMPILED_FOR = {"tpu": "v5e"}  # what a row of a whole platform is compiled for
_NEEDS = {
    "pallas_tpu": (("libtpu",), "libtpu is not installed. Run: uv pip install 'jax[tpu]' (no TPU is needed)"),
    "pallas_gpu": (
        ("jax-cuda13-plugin", "jax-cuda12-plugin"),
        "no CUDA plugin is installed. Run: uv pip install 'jax[cuda13]', where a GPU is",
    ),
}


def add(subparsers: Subparsers) -> None:
    text = "implementations that are known to fail somewhere and are not chosen there"
    added = parser(subparsers, "blocklist", text, "tops-kernels blocklist --verify")
    added.add_argument("--verify", action="store_true", help="compile each again, to find those that no longer fail")
    added.add_argument("--limit", type=float, default=300.0, help="seconds that a row may compile (default 300)")


def run(args: argparse.Namespace) -> int:
    """1 where a row has expired, no longer fails, or could not be looked at."""
    rows = blocklist.rows()
    verdicts = [verify(row, args.limit) for row in rows] if args.verify else [""] * len(rows)
    today = datetime.date.today()
    say([_line(row, verdict, today) for row, verdict in zip(rows, verdicts, strict=True)], as_json=args.json)
    if not rows:
        complain("the blocklist is empty: no kernel is known to fail")
    return 1 if any(row.expired(today) for row in rows) or set(verdicts) - {"", _STILL} else 0


def _line(row: Blocked, verdict: str, today: datetime.date) -> dict[str, object]:
    return {
        "op": row.op,
        "implementation": row.implementation,
        "target": row.target,
        "versions": ", ".join(f"{package} {text}" for package, text in row.versions) or "all",
        "holds here": row.is_current,
        "expires": f"{row.expires}{' EXPIRED' if row.expired(today) else ''}",
        "verdict": verdict,
        "issue": row.issue,
    }


def verify(row: Blocked, limit: float, command: Sequence[str] = ()) -> str:
    """ "still fails", or what else came of compiling the row's call. limit: seconds. command: see `children.Child`."""
    from tops_kernels.runtime.tuning import children

    packages, why = _NEEDS[row.implementation]
    if not command and not any(map(version, packages)):
        return f"not looked at: {why}"
    target = _COMPILED_FOR.get(row.target, row.target)
    job = {
        **json.loads(row.call),
        "op": row.op,
        "implementation": row.implementation,
        "interpret": False,
        "target": target,
        "config": None,
        "lift": True,
    }
    (answer,) = children.run([job], target, limit=limit, count=1, command=command)
    if "unable" in answer:
        return f"not looked at: {answer['unable']}"
    return "NO LONGER FAILS: take the row out" if "compiled" in answer else _STILL
