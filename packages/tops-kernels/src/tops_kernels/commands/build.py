"""tops-kernels build: compiles ops ahead of time, into a bundle for machines that shall not compile."""

import argparse
import os
from pathlib import Path

import tops_manifest
from tops_kernels.commands import Subparsers, UsageError, complain, parser, say


def add(subparsers: Subparsers) -> None:
    added = parser(
        subparsers,
        "build",
        "compile ops ahead of time into a bundle: native code and portable exports",
        "tops-kernels build --ops rms_norm --targets v5e,cpu --workloads calls.json -o bundle",
    )
    added.add_argument("--ops", help="names, separated by commas (default: all that the workloads name)")
    added.add_argument(
        "--targets", required=True, help="cpu, chips (v5e, v6e, ..) and platforms (tpu, cuda), by commas"
    )
    added.add_argument(
        "--workloads",
        required=True,
        type=Path,
        metavar="FILE",
        help='a JSON list of {"op", "inputs": {name: {"shape", "dtype"}}, "params": {}, "pass": "fwd" or "vjp"}',
    )
    added.add_argument("--kinds", default="native,portable", help="native, portable or both (default: both)")
    added.add_argument(
        "-o", "--out", required=True, type=Path, metavar="DIR", help="a folder; a tar file if it ends in .tar"
    )
    added.add_argument("-j", "--processes", type=int, metavar="N", help="at once (default: by cores and memory)")


def run(args: argparse.Namespace) -> int:
    from tops_kernels.runtime.bundles import BundleError
    from tops_kernels.runtime.bundling import bundle
    from tops_kernels.runtime.plan import PlanError, plan

    ops = args.ops.split(",") if args.ops else None
    unknown = [name for name in ops or () if name not in tops_manifest.op_names()]
    if unknown:
        raise UsageError(f"--ops: no op {unknown[0]!r}; known: {', '.join(tops_manifest.op_names())}")
    if args.processes is not None and args.processes < 1:
        raise UsageError(f"-j: got {args.processes}; expected 1 or more")
    parent = args.out.absolute().parent
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(f"-o: {parent} is no folder that can be written")
    try:
        specs, remarks = plan(args.workloads, ops, args.targets.split(","), args.kinds.split(","))
    except PlanError as error:
        raise UsageError(str(error)) from None
    for remark in remarks:
        complain(f"tops-kernels build: {remark}")
    done: list[int] = []

    def finished(spec: object, fault: str) -> None:
        done.append(1)
        complain(f"[{len(done)}/{len(specs)}] {spec}: {fault or 'done'}")

    try:
        rows = bundle(specs, args.out, processes=args.processes, finished=finished)
    except BundleError as error:
        complain(f"tops-kernels build: {error}")
        return 1
    say(rows, as_json=args.json)
    return 1 if any(row["fault"] for row in rows) else 0
