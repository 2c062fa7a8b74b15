"""The stages: which paths each owns and what its code may see. The one place that says so: the boundary checks, the gate,
the audit, CODEOWNERS and the tests all read this table."""

import dataclasses

ROOT_ONLY = "root only"  # the public root of a package, none of its inner modules


@dataclasses.dataclass(frozen=True, slots=True)
class Sight:
    """What a package may see of a sibling."""

    package: str
    hidden: tuple[str, ...] = ()  # inner modules it must not see; (ROOT_ONLY,): none of them


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    name: str
    paths: tuple[str, ...]  # a folder ends in "/", anything else is one file
    owner: str  # as in CODEOWNERS
    package: str = ""  # import name, where the stage is a package
    sees: tuple[Sight, ...] = ()
    rides_with: tuple[str, ...] = ()  # the other stages one pull request may change with this one
    third_party: tuple[str, ...] | None = None  # what it may depend on; None: what its pyproject.toml declares

    @property
    def folder(self) -> str:
        return self.paths[0]

    @property
    def distribution(self) -> str:
        return self.package.replace("_", "-")

    def sight(self, package: str) -> Sight | None:
        return next((sight for sight in self.sees if sight.package == package), None)


MANIFEST = Stage("manifest", ("packages/tops-manifest/",), "@tops-kernels/manifest", "tops_manifest", third_party=())
WORKLOADS = Stage(
    "workloads",
    ("packages/tops-workloads/",),
    "@tops-kernels/tests",
    "tops_workloads",
    sees=(Sight("tops_manifest", hidden=("tops_manifest.cost",)),),
    rides_with=("kernels", "tests"),
    third_party=("jax", "numpy"),
)
TESTS = Stage(
    "tests",
    ("packages/tops-tests/",),
    "@tops-kernels/tests",
    "tops_tests",
    sees=(Sight("tops_manifest"), Sight("tops_workloads"), Sight("tops_kernels", hidden=(ROOT_ONLY,))),
    rides_with=("kernels", "workloads"),
)
KERNELS = Stage(
    "kernels",
    ("packages/tops-kernels/",),
    "@tops-kernels/kernels",
    "tops_kernels",
    sees=(Sight("tops_manifest", hidden=("tops_manifest.workloads", "tops_manifest.cost")),),
    rides_with=("workloads", "tests"),
    third_party=("jax", "numpy"),
)
BENCH = Stage(
    "bench",
    ("packages/tops-bench/",),
    "@tops-kernels/bench",
    "tops_bench",
    sees=(Sight("tops_manifest"), Sight("tops_workloads"), Sight("tops_kernels", hidden=(ROOT_ONLY,))),
)
TOOLS = Stage(
    "tools",
    (
        "tools/",
        "examples/",
        ".github/",
        ".ci/",
        "pyproject.toml",
        ".pre-commit-config.yaml",
        ".gitignore",
        ".gitattributes",
        ".python-version",
        "CONTRIBUTING.md",
        "LICENSE",
    ),
    "@tops-kernels/tools",
)
# Files that any change may touch: a change to a package has a changelog line, and its version stands in the lock.
SHARED = Stage("shared", ("CHANGELOG.md", "README.md", "uv.lock", "docs/"), "@tops-kernels/tools")

STAGES = (MANIFEST, WORKLOADS, TESTS, KERNELS, BENCH, TOOLS, SHARED)
PACKAGES = tuple(stage for stage in STAGES if stage.package)


def stage_of(path: str) -> Stage | None:
    """The one stage that owns a path of the repository; None for a path that nobody owns."""
    owners = [
        stage for stage in STAGES for own in stage.paths if path == own or (own.endswith("/") and path.startswith(own))
    ]
    return owners[0] if len(owners) == 1 else None


def by_name(name: str) -> Stage:
    return next(stage for stage in STAGES if stage.name == name)


def by_package(package: str) -> Stage | None:
    return next((stage for stage in PACKAGES if stage.package == package), None)
