"""The command `tops-kernels`: what is here, what runs where, and what a bug report needs."""

import argparse
import dataclasses
import importlib.metadata
import json
import platform
import sys
from collections.abc import Sequence

import tops_manifest
from tops_kernels.runtime.sources import source_digest
from tops_kernels.runtime.support import GPU_TARGETS, TPU_TARGETS, support
from tops_kernels.runtime.workspace import workspace_dir


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 fine, 1 something cannot run, 2 used wrongly."""
    args = _parser().parse_args(argv)
    if args.command == "support":
        return _support(args)
    data = _list() if args.command == "list" else _env()
    print(json.dumps(data, indent=1) if args.json else _table(data))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tops-kernels",
        description="What is here, what runs where.",
        epilog="example: tops-kernels support rms_norm --backend pallas_tpu --target v5e",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listing = commands.add_parser(
        "list", help="the ops and their implementations", epilog="example: tops-kernels list --json"
    )
    asked = commands.add_parser(
        "support",
        help="whether an implementation can run on a target, and if not why",
        epilog="example: tops-kernels support matmul --backend pallas_tpu --target v6e",
    )
    asked.add_argument("op", choices=tops_manifest.op_names())
    asked.add_argument("--backend", help="a kernel_map key (default: all of the op's)")
    asked.add_argument("--target", help="a platform or a chip (default: cpu, every TPU, every GPU)")
    report = commands.add_parser(
        "env", help="versions and places, for a bug report", epilog="example: tops-kernels env"
    )
    for command in (listing, asked, report):
        command.add_argument("--json", action="store_true", help="for machines")
    return parser


def _support(args: argparse.Namespace) -> int:
    backends = [args.backend] if args.backend else list(tops_manifest.op(args.op).kernel_map)
    targets = [args.target] if args.target else ["cpu", *TPU_TARGETS, *GPU_TARGETS]
    answers = [
        {"op": args.op, "backend": backend, "target": target, **dataclasses.asdict(support(args.op, backend, target))}
        for backend in backends
        for target in targets
    ]
    print(json.dumps(answers, indent=1) if args.json else _table(answers))
    asked = bool(args.backend or args.target)
    return 1 if asked and not any(answer["ok"] for answer in answers) else 0


def _list() -> list[dict[str, object]]:
    return [
        {
            "op": op.name,
            "version": op.version,
            "status": op.status,
            "implementation": key,
            "source": source_digest(op.name, key),
        }
        for op in tops_manifest.ops()
        if op.status != "planned"
        for key in op.kernel_map
    ]


def _env() -> list[dict[str, object]]:
    """Nothing here imports jax: a broken installation can still be described."""

    def version(name: str) -> str:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return "not installed"

    packages = ("tops-kernels", "tops-manifest", "jax", "jaxlib", "libtpu", "numpy")
    facts = {"python": sys.version.split()[0], "platform": platform.platform()} | {
        name: version(name) for name in packages
    }
    return [{"name": name, "value": value} for name, value in (facts | {"workspace": str(workspace_dir())}).items()]


def _table(rows: Sequence[dict[str, object]]) -> str:
    if not rows:
        return ""
    cells = [[str(name) for name in rows[0]], *([str(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )
