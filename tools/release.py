"""May this tag be released? And the build of the one package it names.

A tag `tops-kernels-v0.2.0` releases tops-kernels 0.2.0 when its pyproject says 0.2.0, the newest entry of its changelog section is
0.2.0 and says something, and every sibling it needs is on the index at the version that it was tested with here.
"""

import argparse
import dataclasses
import json
import pathlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence

from tools.project import ROOT, Package, ToolError, packages, requirement_name, run, siblings, uv

TAG = re.compile(r"(?P<name>tops-[a-z]+)-v(?P<version>\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)")


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    what: str  # tag, version, changelog or dependency
    message: str


def parse_tag(tag: str, known: Mapping[str, Package]) -> tuple[Package, str]:
    match = TAG.fullmatch(tag)
    if match is None:
        raise ToolError(f"tag {tag!r}: expected tops-<package>-v<major>.<minor>.<patch>, as in tops-kernels-v0.2.0")
    if match["name"] not in known:
        raise ToolError(f"tag {tag!r}: no package {match['name']} (known: {', '.join(known)})")
    return known[match["name"]], match["version"]


def changelog(text: str) -> dict[str, dict[str, str]]:
    """Package -> version -> what its entry says, newest first as written."""
    sections: dict[str, dict[str, str]] = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        name, _, body = section.partition("\n")
        entries = sections.setdefault(name.strip(), {})
        for entry in re.split(r"^### ", body, flags=re.MULTILINE)[1:]:
            version, _, lines = entry.partition("\n")
            entries[version.split()[0] if version.split() else ""] = lines.strip()
    return sections


def check(tag: str, root: pathlib.Path, published: Callable[[str, str], bool]) -> Iterator[Fault]:
    """Every reason why `tag` must not be released. `published(name, version)` asks the index."""
    known = packages(root)
    package, version = parse_tag(tag, known)
    if package.version != version:
        where = (package.folder / "pyproject.toml").relative_to(root)
        yield Fault("version", f"{where}: version is {package.version}; the tag says {version}. Bump one or tag again")
    yield from _changelog_faults(package, version, (root / "CHANGELOG.md").read_text(encoding="utf-8"))
    for sibling in siblings(package, known):
        written = next(r for r in package.requirements if requirement_name(r) == sibling.name)
        if ">=" not in written or "<" not in written:
            yield Fault(
                "dependency",
                f"{package.name} needs {written!r}; expected a range as in '{sibling.name}>=0.1.0,<0.2': without one, "
                "an old installation keeps a sibling that this version was never tested with",
            )
        if not published(sibling.name, sibling.version):
            yield Fault(
                "dependency",
                f"{package.name} was tested with {sibling.name} {sibling.version}, which is not on the index. "
                f"Release it first: git tag {sibling.name}-v{sibling.version}",
            )


def _changelog_faults(package: Package, version: str, text: str) -> Iterator[Fault]:
    entries = changelog(text).get(package.name)
    if entries is None:
        yield Fault("changelog", f"CHANGELOG.md: no section '## {package.name}'")
    elif version not in entries:
        yield Fault(
            "changelog", f"CHANGELOG.md: {package.name} has no entry '### {version}' (has: {', '.join(entries)})"
        )
    elif next(iter(entries)) != version:
        yield Fault(
            "changelog", f"CHANGELOG.md: {package.name}: {version} stands below {next(iter(entries))}; newest first"
        )
    elif not re.search(r"^- \S", entries[version], flags=re.MULTILINE):
        yield Fault(
            "changelog", f"CHANGELOG.md: {package.name} {version} says nothing. Say what a user sees, a line each"
        )


def on_index(name: str, version: str) -> bool:
    """Whether the package index serves this version: asked by an ordinary dry run, with nothing cached believed."""
    with tempfile.TemporaryDirectory() as target:
        result = run(
            *(uv(), "pip", "install", "--dry-run", "--no-deps", "--target", target),
            *("--refresh-package", name, f"{name}=={version}"),
            cwd=pathlib.Path(target),  # outside the workspace: a sibling's source must not answer for the index
        )
    unanswered = "No solution found" in result.stderr or "not found in the package registry" in result.stderr
    if result.returncode and not unanswered:
        raise ToolError(f"asking the index for {name}=={version} failed: {result.stderr.strip()}")
    return result.returncode == 0


def build(tag: str, out: pathlib.Path) -> list[pathlib.Path]:
    """The sdist and the wheel (made from that sdist) of the package the tag names."""
    package, _ = parse_tag(tag, packages())
    result = run(uv(), "build", "--no-sources", "--package", package.name, "--out-dir", out.resolve())
    if result.returncode:
        raise ToolError(f"uv build of {package.name} failed: {result.stderr.strip()}")
    return sorted(p for p in out.iterdir() if p.name.startswith(package.module) and p.suffix in {".whl", ".gz"})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    checker = commands.add_parser("check", help="say why a tag must not be released; status 1 if there is a reason")
    checker.epilog = "example: python -m tools.release check tops-manifest-v0.1.0"
    checker.add_argument("tag")
    checker.add_argument("--json", action="store_true", help="faults as a JSON list")
    builder = commands.add_parser("build", help="build the package a tag names")
    builder.epilog = "example: python -m tools.release build tops-manifest-v0.1.0 --out dist"
    builder.add_argument("tag")
    builder.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        if args.command == "build":
            print(*build(args.tag, args.out), sep="\n")
            return 0
        faults = list(check(args.tag, ROOT, on_index))
    except ToolError as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps([dataclasses.asdict(fault) for fault in faults]))
    else:
        print("\n".join(f"{fault.what}: {fault.message}" for fault in faults) or f"{args.tag} may be released")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
