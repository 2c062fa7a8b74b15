"""tops-kernels support: what runs where, and if not why."""

import argparse
import dataclasses

import tops_manifest
from tops_kernels.commands import Subparsers, parser, say
from tops_kernels.runtime.support import GPU_TARGETS, TPU_TARGETS, support


def add(subparsers: Subparsers) -> None:
    asked = parser(
        subparsers,
        "support",
        "whether an implementation can run on a target, and if not why",
        "tops-kernels support matmul --backend pallas_tpu --target v6e",
    )
    asked.add_argument("op", choices=tops_manifest.op_names())
    asked.add_argument("--backend", help="a kernel_map key (default: all of the op's)")
    asked.add_argument("--target", help="a platform or a chip (default: cpu, every TPU, every GPU)")


def run(args: argparse.Namespace) -> int:
    backends = [args.backend] if args.backend else list(tops_manifest.op(args.op).kernel_map)
    targets = [args.target] if args.target else ["cpu", *TPU_TARGETS, *GPU_TARGETS]
    answers: list[dict[str, object]] = [
        {"op": args.op, "backend": backend, "target": target, **dataclasses.asdict(support(args.op, backend, target))}
        for backend in backends
        for target in targets
    ]
    say(answers, as_json=args.json)
    asked = bool(args.backend or args.target)
    return 1 if asked and not any(answer["ok"] for answer in answers) else 0
