"""What `tops-kernels replay` does: one replay in this process, or many in children with a time limit."""

import argparse
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import tops_manifest
from tops_kernels.commands import UsageError, complain, say
from tops_kernels.runtime import dumping, rerun
from tops_kernels.runtime.reading import DumpError, Recorded, read
from tops_kernels.runtime.shrink import shrink, sizes
from tops_kernels.runtime.workspace import workspace_dir

Row = dict[str, object]


def replay(args: argparse.Namespace) -> int:
    """The command's exit status. Raises UsageError."""
    folder = _folder(args.dump)
    try:
        dump = read(folder)
    except DumpError as error:
        raise UsageError(str(error)) from error
    kernels = tops_manifest.op(dump.op).kernel_map
    if args.backend is not None and args.backend not in kernels:
        raise UsageError(f"--backend is {args.backend!r}; {dump.op} has {', '.join(kernels)}")
    backend = _backend(args, dump)
    if (args.interpret or args.races) and backend == "xla":
        raise UsageError("--interpret and --races run a kernel: give --backend pallas_tpu, or leave it out")
    if args.races and backend not in (None, "pallas_tpu"):
        raise UsageError("--races are looked for in the TPU kernel: give --backend pallas_tpu, or leave it out")
    absent = rerun.missing(args.target) if args.target else ""
    if absent:
        raise UsageError(absent)
    if args.shrink:
        return _shrink(args, folder, dump)
    if args.target and not args.here:  # libtpu reads its environment as it is loaded, and may take its process down
        status, out, err = _child(folder, args)
        sys.stdout.write(out)
        complain(err.rstrip())
        return 1 if status not in (0, 1) else status
    if not args.json:
        complain(_head(dump))
    rows = _compiled(args, dump, backend) if args.target else _ran(args, dump, backend)
    say(rows if args.json else [{key: row[key] for key in ("check", "ok", "found")} for row in rows], as_json=args.json)
    return 0 if all(row["ok"] for row in rows) else 1


def _folder(text: str) -> Path:
    """A path, or the name of a folder of the workspace's dumps."""
    given = Path(text).expanduser()
    kept = workspace_dir() / "dumps" / text
    if not given.is_dir() and (os.sep in text or not kept.is_dir()):
        raise UsageError(f"{text!r} is neither a folder nor a dump in {kept.parent}; make one with TOPS_LOG=4")
    return given if given.is_dir() else kept


def _backend(args: argparse.Namespace, dump: Recorded) -> str | None:
    if args.backend is not None:
        return str(args.backend)
    # A recorded "xla" has no kernel to interpret: then the op's own is meant.
    return None if (args.interpret or args.races) and dump.backend == "xla" else dump.backend


def _head(dump: Recorded) -> str:
    """The call, and what was other than here when it was recorded."""
    arrays = ", ".join(f"{name} {one.dtype}{list(one.shape)}" for name, one in dump.inputs.items())
    params = "".join(f", {name}={value!r}" for name, value in dump.params.items())
    told = dump.record["versions"]
    now = dumping.versions()
    other = [f"{name} {told[name]} (here {now[name]})" for name in now if told.get(name, now[name]) != now[name]]
    head = f"{dump.op}({arrays}{params}): {dump.state}"
    return head + (f"\nrecorded with {', '.join(other)}" if other else "")


def _ran(args: argparse.Namespace, dump: Recorded, backend: str | None) -> list[Row]:
    races = False
    try:
        if args.races:
            outputs, races = rerun.run_checked(dump, backend)
        else:
            outputs = rerun.run(dump, backend, args.interpret or (dump.interpret and args.backend is None))
    except Exception as error:  # whatever the recorded call raises is what a replay is to show
        return [_row("runs", False, f"{type(error).__name__}: {error}")]
    rows = [_row("runs", True, f"gives {', '.join(outputs)}")]
    if args.races:
        rows.append(_row("races", not races, "a data race" if races else "none found"))
    if not args.compare:
        return rows
    if dump.outputs is not None:
        rows += _compared(outputs, dump.outputs, "the recording", args.tolerance)
    if backend != "xla":
        try:
            rows += _compared(outputs, rerun.run(dump, "xla", False), "xla", args.tolerance)
        except Exception as error:  # likewise, and the rows before stand
            rows.append(_row("xla runs", False, f"{type(error).__name__}: {error}"))
    return rows


def _compared(outputs: rerun.Arrays, expected: rerun.Arrays, name: str, tolerance: float | None) -> list[Row]:
    rows = []
    for one in rerun.compare(outputs, expected, tolerance):
        text = f"{one.differing} of {one.elements} differ ({one.unequal} are not equal)"
        if one.at is not None:
            text += f"; largest error {one.largest:.3g}, {one.relative:.3g} of the largest value, at {list(one.at)}"
        if one.first:
            text += f"; first at {', '.join(str(list(place)) for place in one.first)}"
        rows.append(_row(f"{one.output} against {name}", one.differing == 0, text, dataclasses.asdict(one)))
    return rows


def _row(check: str, ok: bool, found: str, details: object = None) -> Row:
    return {"check": check, "ok": ok, "found": found, "details": details}


def _compiled(args: argparse.Namespace, dump: Recorded, backend: str | None) -> list[Row]:
    try:
        return [_row("compiles", True, rerun.compile_for(dump, backend, args.target))]
    except Exception as error:  # the compiler's no comes as any of a dozen types
        return [_row("compiles", False, f"{type(error).__name__}: {error}")]


def _child(folder: Path, args: argparse.Namespace) -> tuple[int, str, str]:
    """Replays one dump in a process of its own.

    Returns: its exit status (negative: the signal that ended it; 1 after --limit seconds), stdout, stderr.
    """
    words = [sys.executable, "-m", "tops_kernels", "replay", str(folder), "--here"]
    flags = {"interpret": args.interpret, "races": args.races, "compare": args.compare, "json": args.json}
    values = {"backend": args.backend, "target": args.target, "tolerance": args.tolerance}
    words += [f"--{name}" for name, given in flags.items() if given]
    words += [f"--{name}={value}" for name, value in values.items() if value is not None]
    compiles = args.target is not None and args.target.startswith(("v", "tpu"))
    try:
        done = subprocess.run(
            words,
            env={**os.environ, **(rerun.COMPILE_ONLY if compiles else {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=args.limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, "", f"did not end within {args.limit:g} s (--limit)"
    ended = f"ended by signal {-done.returncode}" if done.returncode < 0 else ""
    return done.returncode, done.stdout, done.stderr + ended


def _shrink(args: argparse.Namespace, folder: Path, dump: Recorded) -> int:
    output = args.output or folder.parent / f"{folder.name}-small"
    if output.exists():
        raise UsageError(f"{output} is there already; give another folder with -o")

    def fails(candidate: Recorded) -> bool:
        dumping.write(output, dict(candidate.record) | {"error": ""}, candidate.inputs)
        return _child(output, args)[0] not in (0, 2)

    try:
        if not fails(dump):
            complain(f"{folder} does not fail with these options, without its recording; nothing to make smaller")
            return 0
        best, tried = shrink(dump, fails)
        dumping.write(output, dict(best.record) | {"error": ""}, best.inputs)
    except OSError as error:
        raise UsageError(f"{error}. Give a folder that can be written with -o") from error
    was, dims = sizes(dump), dump.binding.dims
    rows: list[Row] = [
        {"dimension": f"{name}[{part}]" if isinstance(dims[name], tuple) else name, "was": was[name, part], "is": size}
        for (name, part), size in sizes(best).items()
    ]
    complain(f"tried {tried} calls; the smallest that fails is {output}")
    say(rows, as_json=args.json)
    return 1
