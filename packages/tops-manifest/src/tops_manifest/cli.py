"""The tops-manifest command."""

import argparse
import dataclasses
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tops_manifest import check, lock, show, table, tree
from tops_manifest.diff import OpDiff, RevisionError, diff
from tops_manifest.errors import Fault
from tops_manifest.tree import Entry, Tree

OK, FAULT, WRONG_USE = 0, 1, 2


class _WrongUseError(Exception):
    """What argparse cannot see: an unknown op, a folder that is no checkout."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0 where all is well, 1 where a fault was found, 2 where it was used wrongly."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file may hold what this terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    args = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace, Tree], int] = args.run
    try:
        status = run(args, tree.checkout(args.root) if args.root is not None else tree.installed())
        sys.stdout.flush()
    except (_WrongUseError, RevisionError, FileNotFoundError) as error:
        print(f"tops-manifest {args.command}: {error}", file=sys.stderr)
        return WRONG_USE
    except BrokenPipeError:  # `| head` has seen enough; nothing is left to flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAULT
    return status


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print JSON on stdout")
    common.add_argument(
        "--root", type=Path, metavar="DIR", help="a checkout to work on (default: the installed package's)"
    )
    parser = argparse.ArgumentParser(
        prog="tops-manifest",
        description="The contracts, workload rows and cost formulas of the tops ops. Exit status: 0 ok, 1 a fault found, 2 used wrongly.",
        epilog="example: tops-manifest check",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(
        name: str, run: Callable[[argparse.Namespace, Tree], int], text: str, example: str
    ) -> argparse.ArgumentParser:
        one = commands.add_parser(name, parents=[common], help=text, description=text, epilog=f"example: {example}")
        one.set_defaults(run=run)
        return one

    command(
        "check",
        _check,
        "hold every file against its schema, the lock and the table of ops",
        "tops-manifest check --json",
    )
    command("lock", _lock, "write manifest.lock and the table of ops from the files", "tops-manifest lock")
    one = command("show", _show, "print all the manifest says of one op", "tops-manifest show matmul")
    one.add_argument("op", metavar="OP", help="name of an op")
    command("list", _list, "print one line an op", "tops-manifest list --json")
    one = command(
        "diff", _diff,
        "say what changed since a git revision, and whether it breaks callers; 1 where a contract changed under its version",
        "tops-manifest diff origin/main",
    )  # fmt: skip
    one.add_argument("revision", metavar="REV", help="a commit, branch or tag")
    one = command("table", _table, "print the table of ops in Markdown", "tops-manifest table --write")
    one.add_argument("--write", action="store_true", help="write it to docs/ops.md of the checkout instead")
    return parser


def _check(args: argparse.Namespace, files: Tree) -> int:
    faults = check.check(files)
    if args.json:
        _print_json({"ok": not faults, "faults": [dataclasses.asdict(fault) for fault in faults]})
    elif faults:
        print("\n".join(map(str, faults)))
    else:
        count = len(tree.load(files)[0])
        what = "the lock and the table of ops are in step" if files.table is not None else "the lock is in step"
        print(f"{count} ops: every file keeps the schema; {what}")
    return FAULT if faults else OK


def _lock(args: argparse.Namespace, files: Tree) -> int:
    faults, before, now = check.relock(files)
    was = {name: dataclasses.asdict(digests) for name, digests in before.items()}
    changed = {}
    for name, digests in sorted(now.items()):
        keys = [key for key, value in dataclasses.asdict(digests).items() if was.get(name, {}).get(key) != value]
        if keys:
            changed[name] = keys
    removed = sorted(before.keys() - now.keys())
    if args.json:
        told = [dataclasses.asdict(fault) for fault in faults]
        _print_json({"ok": not faults, "faults": told, "changed": changed, "removed": removed})
    elif faults:
        print("\n".join(map(str, faults)))
        print(f"{tree.LOCK} is as it was", file=sys.stderr)
    else:
        lines = [f"{name}: {', '.join(keys)}" for name, keys in changed.items()] + [
            f"{name}: removed" for name in removed
        ]
        print("\n".join(lines) or "nothing changed")
    return FAULT if faults else OK


def _show(args: argparse.Namespace, files: Tree) -> int:
    entries, faults = tree.load(files)
    if args.op not in entries:
        mine = [fault for fault in faults if fault.file == f"ops/{args.op}.toml"]
        if mine:
            return _faulty(args, mine)
        raise _WrongUseError(f"no op {args.op!r}; known: {', '.join(sorted(entries)) or 'none'}")
    entry = entries[args.op]
    if args.json:
        _print_json(show.data(entry))
    else:
        print(show.text(entry))
    return OK


def _list(args: argparse.Namespace, files: Tree) -> int:
    entries, faults = tree.load(files)
    if faults:
        return _faulty(args, faults)
    if args.json:
        _print_json([_listed(entry) for entry in entries.values()])
    else:
        for name, entry in entries.items():
            op = entry.op
            print(f"{name:20} v{op.version:<3} {op.status:12} {','.join(op.kernel_map):20} {' '.join(op.doc.split())}")
    return OK


def _listed(entry: Entry) -> dict[str, object]:
    op = entry.op
    return {
        "name": op.name, "family": op.family, "version": op.version, "status": op.status,
        "kernel_map": list(op.kernel_map), "workloads": len(entry.rows), "doc": op.doc,
    }  # fmt: skip


def _diff(args: argparse.Namespace, files: Tree) -> int:
    found, faults = diff(files, args.revision)
    if args.json:
        told = [_diff_data(one) for one in found]
        _print_json({"ops": told, "faults": [dataclasses.asdict(fault) for fault in faults]})
    else:
        for one in found:
            print(_diff_text(one))
        for fault in faults:
            print(fault)
        if not found and not faults:
            print(f"nothing changed since {args.revision}")
    return FAULT if faults or any(one.unversioned for one in found) else OK


def _diff_data(one: OpDiff) -> dict[str, object]:
    return {**dataclasses.asdict(one), "breaking": one.breaking}


def _diff_text(one: OpDiff) -> str:
    before, now = one.version
    if one.kind != "changed":
        return f"{one.op}: {one.kind}{' (breaking)' if one.breaking else ''}"
    versions = f"version {before}" if before == now else f"version {before} -> {now}"
    lines = [f"{one.op}: {'breaking' if one.breaking else 'not breaking'}, {versions}"]
    lines += [f"  {change}" for change in one.contract]
    lines += [f"  workloads.{text}" for text in one.workloads]
    lines += [f"  cost.{text}" for text in one.cost]
    if one.unversioned:
        lines.append(f"  op.version: got {now}; expected {(before or 0) + 1}: the contract changed")
    return "\n".join(lines)


def _table(args: argparse.Namespace, files: Tree) -> int:
    entries, faults = tree.load(files)
    if faults:
        return _faulty(args, faults)
    content = table.markdown(entries)
    if args.write:
        if files.table is None:
            raise _WrongUseError("--write needs a checkout (--root DIR); tops-manifest is installed alone here")
        lock.write(files.table, content)
        written = str(files.table)
        print(json.dumps({"written": written}) if args.json else f"wrote {written}")
    elif args.json:
        _print_json({"markdown": content})
    else:
        print(content, end="")
    return OK


def _faulty(args: argparse.Namespace, faults: list[Fault]) -> int:
    if args.json:
        _print_json({"faults": [dataclasses.asdict(fault) for fault in faults]})
    else:
        print("\n".join(map(str, faults)), file=sys.stderr)
    return FAULT


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))
