"""Builds all five packages, then uses them as a stranger would: in clean environments, outside the tree, from files alone.

    uv run python -m tools.wheels

1. Each wheel holds every source file of its package, and each sdist builds the same wheel again.
2. tops-kernels installed beside tops-manifest, and nothing else of ours: an op runs, the command runs.
3. tops-kernels without its sibling's wheel: the installer refuses and names tops-manifest.
"""

import pathlib
import sys
import tempfile
import zipfile
from collections.abc import Mapping

from tools.project import ROOT, Package, ToolError, packages, run, siblings, uv

_USER = "tops-kernels"  # what people install

_PROGRAM = """
import pathlib, sys
import jax, tops_kernels
x = jax.numpy.ones((3, 5))
y = tops_kernels.rms_norm(x, jax.numpy.full((5,), 2.0))
if abs(float(y[0, 0]) - 2.0) > 1e-5:
    sys.exit(f"rms_norm of ones came to {y}")
print(pathlib.Path(tops_kernels.__file__).parent)
"""


def main() -> int:
    """Exit status: 0 all well, 1 a fault (it is printed)."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            check(pathlib.Path(folder))
    except ToolError as error:
        print(f"wheels: {error}", file=sys.stderr)
        return 1
    print("wheels: ok")
    return 0


def check(folder: pathlib.Path) -> None:
    """Raises ToolError at the first fault."""
    known = packages()
    dist = folder / "dist"
    _must(uv(), "build", "--all-packages", "--quiet", "--out-dir", dist)
    for package in known.values():
        _complete(package, _wheel(dist, package))
    again = folder / "again"
    for package in (known[_USER], *siblings(known[_USER], known)):
        sdist = dist / f"{package.module}-{package.version}.tar.gz"
        _must(uv(), "build", "--wheel", "--quiet", "--out-dir", again, sdist)
        _complete(package, _wheel(again, package))
    for source in (dist, again):
        _use(known, source, folder / f"env-{source.name}")
    _refused(known[_USER], dist, folder / "env-dist")


def _wheel(dist: pathlib.Path, package: Package) -> pathlib.Path:
    path = dist / f"{package.module}-{package.version}-py3-none-any.whl"
    if not path.is_file():
        raise ToolError(f"{package.name}: no {path.name}; found {sorted(p.name for p in dist.iterdir())}")
    return path


def _complete(package: Package, wheel: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    if held != package.files():
        missing, extra = sorted(package.files() - held), sorted(held - package.files())
        raise ToolError(f"{wheel.name}: missing {missing}, not of the sources {extra}")


def _use(known: Mapping[str, Package], dist: pathlib.Path, env: pathlib.Path) -> None:
    """Installs what users install, from files, and runs an op somewhere else."""
    user = known[_USER]
    wanted = [_wheel(dist, package) for package in (user, *siblings(user, known))]
    _must(uv(), "venv", "--quiet", env)
    _must(uv(), "pip", "install", "--quiet", "--python", env, *wanted)
    installed = _must(uv(), "pip", "freeze", "--python", env)
    ours = {line.split(" @ ")[0].split("==")[0] for line in installed.splitlines() if line.startswith("tops-")}
    if ours != {package.name for package in (user, *siblings(user, known))}:
        raise ToolError(f"{user.name} brought {sorted(ours)} of this workspace")
    python = env / "bin" / "python"
    where = _must(python, "-I", "-c", _PROGRAM, cwd=env)
    if not pathlib.Path(where.strip()).is_relative_to(env):
        raise ToolError(f"{user.name} was imported from {where.strip()}, not from {env}")
    _must(env / "bin" / user.name, "list", cwd=env)
    _must(python, "-I", "-m", user.module, "list", cwd=env)


def _refused(user: Package, dist: pathlib.Path, env: pathlib.Path) -> None:
    """In an environment that has all else, without an index: the installer must name the sibling."""
    _must(uv(), "pip", "uninstall", "--quiet", "--python", env, user.name, "tops-manifest")
    done = run(uv(), "pip", "install", "--python", env, "--no-index", _wheel(dist, user), cwd=env)
    if done.returncode == 0 or "tops-manifest" not in done.stderr:
        raise ToolError(f"{user.name} without its sibling: status {done.returncode}, {done.stderr.strip()}")


def _must(*command: str | pathlib.Path, cwd: pathlib.Path | None = None) -> str:
    done = run(*command, cwd=cwd or ROOT, drop=("PYTHONPATH", "VIRTUAL_ENV"))
    if done.returncode:
        shown = " ".join(str(part) for part in command[:4])
        raise ToolError(f"{shown} ...: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
