"""Attempts by what lies in the tree: plugins, configuration, files of a kind that no reader reads, owners, the allowlist itself."""

from tools.tests.bypass.tree import KERNELS, Attempt, Tree, adds, replaces

_FIXTURE = "import pytest\n\n\n@pytest.fixture(autouse=True)\ndef loose(monkeypatch):\n    monkeypatch.setattr('numpy.allclose', lambda *a: True)\n"


def _linked(tree: Tree) -> None:
    (tree.root / f"{KERNELS}oracle.py").symlink_to("../../../tops-tests/src/tops_tests/oracles/rms_norm.py")


LAYOUT = (
    Attempt("a conftest that injects a fixture", "conftest", "in the test's own file", adds("packages/tops-kernels/tests/deep/conftest.py", _FIXTURE)),
    Attempt("a conftest above all packages", "one-stage", "tools/trust/stages.py", adds("packages/conftest.py", _FIXTURE)),
    Attempt(
        "a pytest plugin by entry point", "package-config", "CONTRIBUTING.md",
        adds("packages/tops-kernels/pyproject.toml", '\n[project.entry-points.pytest11]\ntops = "tops_kernels.plugin"\n'),
    ),
    Attempt("a pytest.ini beside the tests", "package-config", "root pyproject.toml", adds("packages/tops-kernels/tests/pytest.ini", "[pytest]\n")),
    Attempt(
        "a sibling declared that is not to be seen", "dependencies", "CONTRIBUTING.md",
        replaces("packages/tops-kernels/pyproject.toml", '"tops-manifest', '"tops-workloads>=0.1.0,<0.2", "tops-manifest'),
    ),
    Attempt(
        "a build hook that copies files in", "package-config", "no hook",
        adds("packages/tops-kernels/pyproject.toml", '\n[tool.hatch.build.hooks.custom]\npath = "hook.py"\n'),
    ),
    Attempt(
        "a second tops_tests in the kernels' folder", "foreign-package", "Put it below",
        adds("packages/tops-kernels/src/tops_tests/compare.py", "def assert_close(*_):\n    return None\n"),
    ),
    Attempt("stored answers", "file-kind", "computed, not stored", adds(f"{KERNELS}answers.npz", "not read as text anyway\n")),
    Attempt("a symbolic link to the oracle", "file-kind", "Write the file", _linked),
    Attempt("code at every start of Python", "file-kind", "Call what is to run", adds(f"{KERNELS}sitecustomize.py", "import tops_kernels\n")),
    Attempt(
        "an allowlist line for everything", "allowlist", "no wildcards",
        adds("tools/trust/allowlist.txt", "packages/tops-kernels/* | exec | because it is handy so\n"),
    ),
    Attempt(
        "an allowlist line kept for later", "allowlist", "Remove it",
        adds("tools/trust/allowlist.txt", f"{KERNELS}__init__.py | exec | may come in useful one day\n"),
    ),
    Attempt(
        "editing CODEOWNERS", "codeowners", "tools/trust/stages.py",
        replaces(".github/CODEOWNERS", "@tops-kernels/manifest", "@somebody"),
    ),
)  # fmt: skip
