"""Which source files an implementation is made of, as a digest: what a certificate is about."""

import ast
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

import tops_manifest
from tops_kernels.runtime.arguments import BACKENDS

_ROOT = Path(__file__).parent.parent  # the package's folder


def source_files(op: str, implementation: str) -> tuple[Path, ...]:
    """The op's folder, less the files of other kernels, and all that they import inside this package; sorted.

    One import is not followed: op.py's of another kernel's own module, which dispatch makes and no other code of this one runs.

    Raises KeyError for an op, ValueError for an implementation that the manifest does not have.
    """
    contract = tops_manifest.op(op)
    if implementation not in contract.kernel_map:
        raise ValueError(
            f"{op}: implementation is {implementation!r}; expected one of {', '.join(contract.kernel_map)}"
        )
    folder = _ROOT / "ops" / contract.family
    others = [
        key for key in BACKENDS if key not in (implementation, "xla")
    ]  # every op's gradients may come back to xla
    todo = [path for path in sorted(folder.glob("*.py")) if not any(key in path.stem for key in others)]
    found: set[Path] = set()
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += [
                target
                for target in _imports(path)
                if not (path == folder / "op.py" and target in [folder / f"{key}.py" for key in others])
            ]
    return tuple(sorted(found))


def source_digest(op: str, implementation: str) -> str:
    """sha256 over names and contents of `source_files`, in hex."""
    sha = hashlib.sha256()
    for path in source_files(op, implementation):
        content = path.read_bytes()
        sha.update(f"{path.relative_to(_ROOT).as_posix()}\n{len(content)}\n".encode())
        sha.update(content)
    return sha.hexdigest()


def source_mtime(op: str, implementation: str) -> float:
    """When the newest of `source_files` was changed, in seconds since the epoch."""
    return max(path.stat().st_mtime for path in source_files(op, implementation))


def _imports(path: Path) -> Iterator[Path]:
    """The files of this package that one of its files imports, in function bodies too."""
    for name in _imported_names(path, path.stat().st_mtime_ns):
        base = _ROOT.joinpath(*name.split(".")[1:])
        for candidate in (base.with_suffix(".py"), base / "__init__.py"):
            if candidate.is_file() and candidate != _ROOT / "__init__.py":
                yield candidate


@functools.lru_cache(maxsize=512)
def _imported_names(path: Path, _changed: int) -> frozenset[str]:
    package = _ROOT.name
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        match node:
            case ast.Import(names=aliases):
                names |= {alias.name for alias in aliases}
            case ast.ImportFrom(module=module, names=aliases, level=level):
                base = (*path.relative_to(_ROOT.parent).parts[:-level],) if level else ()
                module = ".".join([*base, *([module] if module else [])])
                names |= {module} | {f"{module}.{alias.name}" for alias in aliases}
    return frozenset(name for name in names if name.split(".")[0] == package)
