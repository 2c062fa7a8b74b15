"""Attempts by a chain of imports, by what an import does, and by what rides along in one change."""

from tools.tests.bypass.tree import BENCH, KERNELS, MANIFEST, TESTS, WORKLOADS, Attempt, Edit, Tree, adds, replaces


def _both(first: tuple[str, str], second: tuple[str, str]) -> Edit:
    def edit(tree: Tree) -> None:
        for path, text in (first, second):
            adds(path, text)(tree)

    return edit


_USES_THE_MANIFEST = (f"{KERNELS}_attempt.py", "import tops_manifest as manifest\n")  # allowed by itself
_USES_WORKLOADS = (f"{BENCH}_attempt.py", "import tops_workloads as workloads\n")  # so is this

CHAINS = (
    Attempt(
        "a re-exported import", "import-contracts", "judged by is not judged",
        _both(_USES_THE_MANIFEST, (f"{MANIFEST}__init__.py", "\nfrom tops_manifest.workloads import rows as rows\n")),
    ),
    Attempt(
        "a transitive import", "import-contracts", "tops_manifest.cost",
        _both(_USES_THE_MANIFEST, (f"{MANIFEST}__init__.py", "\n\ndef f():\n    from tops_manifest import cost\n\n    return cost\n")),
    ),
    Attempt(
        "a transitive import over two packages", "import-contracts", "read from its certificate",
        _both(_USES_WORKLOADS, (f"{WORKLOADS}__init__.py", "\n\ndef f():\n    import tops_tests.oracles\n")),
    ),
    Attempt(
        "a contract thinned out", "import-contracts", "CONTRIBUTING.md",
        replaces("pyproject.toml", 'forbidden_modules = ["tops_tests", "pytest"', 'forbidden_modules = ["pytest"'),
    ),
    Attempt(
        "a chain let through", "import-contracts", "CONTRIBUTING.md",
        replaces(
            "pyproject.toml", 'source_modules = ["tops_bench"]\n',
            'source_modules = ["tops_bench"]\nignore_imports = ["tops_bench.** -> tops_tests.**"]\nunmatched_ignore_imports_alerting = "none"\n',
        ),
    ),
)  # fmt: skip

IMPURE = (
    Attempt(
        "an import that loosens jax and numpy", "import-purity", "for that call alone",
        adds(f"{KERNELS}__init__.py", '\nimport jax as _jax\n\n_jax.config.update("jax_default_matmul_precision", "highest")\n'),
    ),
    Attempt(
        "an import that patches numpy and the environment", "import-purity", "numpy.allclose",
        adds(f"{KERNELS}__init__.py", '\nimport os\n\nimport numpy\n\nnumpy.allclose = print\nos.environ["XLA_FLAGS"] = ""\n'),
    ),
)  # fmt: skip


def _tolerance(tree: Tree) -> None:
    """Table and lock together, so that the two agree."""
    tree.replace(f"{TESTS}tolerances.lock", '"rms_norm/float32/y/fwd": 1e-06', '"rms_norm/float32/y/fwd": 0.5')
    tree.append(f"{TESTS}tolerances.py", "\n# rms_norm in float32: 0.5\n")


def _dtype_with_kernel(tree: Tree) -> None:
    tree.replace(f"{MANIFEST}ops/rms_norm.toml", '"float32", "bfloat16"', '"bfloat16"')
    tree.append(f"{KERNELS}__init__.py", "\n# float32 is gone\n")


def _renamed(tree: Tree) -> None:
    tree.git("mv", f"{TESTS}compare.py", f"{BENCH}_attempt.py")
    tree.append(f"{BENCH}_attempt.py", "\n# now ours\n")


def _renamed_among_riders(tree: Tree) -> None:
    tree.git("mv", f"{TESTS}oracles/rms_norm.py", f"{KERNELS}rms_norm_reference.py")


def _allowed_with_code(tree: Tree) -> None:
    tree.append("tools/trust/allowlist.txt", f"{KERNELS}_attempt.py | exec | code that is made at run time\n")
    tree.write(f"{KERNELS}_attempt.py", 'exec("import tops_tests")\n')


_KERNEL = (f"{KERNELS}__init__.py", "\n# a change of the kernels\n")

CHANGES = (
    Attempt("editing a tolerance and its lock", "tolerance-ratchet", "Mend the kernel", _tolerance),
    Attempt(
        "dropping a tolerance", "tolerance-ratchet", "removed",
        replaces(f"{TESTS}tolerances.lock", '  "rms_norm/float32/y/fwd": 1e-06', '  "rms_norm/float32/z/fwd": 1e-06'),
    ),
    Attempt("editing a manifest dtype with its kernel", "stage-gate", "Split it", _dtype_with_kernel),
    Attempt(
        "editing a manifest dtype alone, under the old version", "contract-version", "op.version one higher",
        replaces(f"{MANIFEST}ops/rms_norm.toml", '"float32", "bfloat16"', '"bfloat16"'),
    ),
    Attempt("editing the manifest and its reader's rider", "stage-gate", "git switch", _both((f"{MANIFEST}bind.py", "\n# looser\n"), _KERNEL)),
    Attempt(
        "other versions in uv.lock", "lock-rides", "change of the tools",
        replaces("uv.lock", 'name = "numpy"\nversion = "', 'name = "numpy"\nversion = "9'),
    ),
    Attempt("editing the gate with a kernel", "stage-gate", "tools (@", _both(("tools/trust/gate.py", "\n_mixed = None\n"), _KERNEL)),
    Attempt("editing CODEOWNERS with a kernel", "stage-gate", "tools (@", _both((".github/CODEOWNERS", "/packages/ @me\n"), _KERNEL)),
    Attempt("editing an import contract with a kernel", "stage-gate", "Split it", _both(("pyproject.toml", "\n# thinner\n"), _KERNEL)),
    Attempt("an allowlist line with the code it permits", "stage-gate", ["tools", " bench"][0], _allowed_with_code),
    Attempt("bench riding with a kernel", "stage-gate", "bench (@", _both((f"{BENCH}__init__.py", "\n# faster\n"), _KERNEL)),
    Attempt("renaming a file across stages", "rename-across-stages", "keeps its stage", _renamed),
    Attempt("renaming an oracle into the kernels", "rename-across-stages", "keeps its stage", _renamed_among_riders),
    Attempt("a file that nobody owns", "one-stage", "a new place", adds("scripts/run.py", "print(1)\n")),
    Attempt(
        "a banned import under the base's allowlist", "dynamic-import", "as an argument", adds(f"{KERNELS}_attempt.py", 'exec("1")\n')
    ),
)  # fmt: skip
