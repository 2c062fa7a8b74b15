"""Attempts by code: imports in every dress, code that is built or run, files that are read, another's objects that are changed."""

from tools.tests.bypass.tree import BENCH, KERNELS, TESTS, WORKLOADS, Attempt, Edit, adds


def _kernel(code: str) -> Edit:
    return adds(f"{KERNELS}_attempt.py", code)


def _bench(code: str) -> Edit:
    return adds(f"{BENCH}_attempt.py", code)


IMPORTS = (
    Attempt("a static import", "import-boundary", "tops_kernels may import tops_manifest", _kernel("import tops_tests.oracles\n")),
    Attempt(
        "an import inside a function", "import-boundary", "stage kernels",
        _kernel("def f():\n    from tops_tests import tolerances\n    return tolerances\n"),
    ),
    Attempt(
        "an import for type checkers", "import-boundary", "stage bench",
        _bench("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tops_tests.compare import relative_error\n"),
    ),
    Attempt("an aliased import", "import-boundary", "stage bench", _bench("import tops_tests.oracles.rms_norm as norm\n")),
    Attempt(
        "a guarded import", "import-boundary", "not tops_manifest.workloads",
        _kernel("try:\n    from tops_manifest import workloads\nexcept ImportError:\n    workloads = None\n"),
    ),
    Attempt(
        "an inner module by attributes of the root", "import-boundary", "its public root",
        _bench("import tops_kernels as k\n\n\ndef f(x):\n    return k._attempt.secret(x)\n"),
    ),
    Attempt("a relative import that leaves the package", "import-boundary", "by their own name", _kernel("from ..tops_tests import oracles\n")),
    Attempt("a star import", "star-import", "each name", _bench("from tops_manifest import *\n")),
    Attempt("an undeclared package", "undeclared-import", "Declare the dependency", _kernel("import torch\n")),
    Attempt("the tools that judge", "import-boundary", "into the package", _bench("from tools.trust import stages\n")),
    Attempt(
        "pallas outside of the kernels", "pallas-outside-kernels", "tops_kernels alone",
        _bench("from jax.experimental import pallas as pl\n"),
    ),
)  # fmt: skip

DYNAMIC = (
    Attempt(
        "importlib with a literal", "dynamic-import", "by a statement",
        _kernel('import importlib\n\noracle = importlib.import_module("tops_tests.oracles")\n'),
    ),
    Attempt(
        "importlib with a built string", "dynamic-import", "by a statement",
        _kernel('from importlib import import_module as im\n\n\ndef f(stage):\n    return im("tops_" + stage)\n'),
    ),
    Attempt(
        "importlib by a relative name", "dynamic-import", "by a statement",
        _bench('import importlib\n\nx = importlib.import_module("..tops_tests", __package__)\n'),
    ),
    Attempt("__import__", "dynamic-import", "by a statement", _kernel('x = __import__("tops_te" "sts.oracles")\n')),
    Attempt(
        "an entry point", "dynamic-import", "as an argument",
        _kernel('from importlib.metadata import entry_points\n\nx = [e.load() for e in entry_points(group="tops.baselines")]\n'),
    ),
    Attempt("sys.modules", "dynamic-import", "as an argument", _kernel('import sys\n\nx = sys.modules.get("tops_tests.oracles")\n')),
    Attempt(
        "sys handed on", "dynamic-import", "as an argument", _kernel('import sys\n\nx = getattr(*[sys, "mod" + "ules"])["tops_tests"]\n')
    ),
    Attempt("runpy", "dynamic-import", "as an argument", _bench('import runpy\n\nx = runpy.run_module("tops_tests.oracles.rms_norm")\n')),
    Attempt("exec", "dynamic-import", "as an argument", _kernel('exec("import tops_tests")\n')),
    Attempt("eval under another name", "dynamic-import", "as an argument", _kernel("run = eval\n\n\ndef f(s):\n    return run(s)\n")),
    Attempt(
        "exec by getattr on builtins", "dynamic-import", "as an argument", _kernel('import builtins\n\ngetattr(builtins, "ex" + "ec")("1")\n')
    ),
    Attempt("a Python that imports it", "process", "allowlist", _bench('import subprocess\n\nsubprocess.run(["python", "-c", "import tops_tests"])\n')),
)  # fmt: skip

REACHES = (
    Attempt(
        "sys through another module", "dynamic-import", "as an argument", _kernel('import dataclasses\n\nx = dataclasses.sys.modules\n')
    ),
    Attempt(
        "sys imported from another module", "dynamic-import", "as an argument", _kernel("from dataclasses import sys as s\n\nx = s.modules\n")
    ),
    Attempt(
        "from any object to every class", "introspection", "as an argument",
        _kernel("def f(names):\n    x = ()\n    for name in names:\n        x = getattr(x, name)\n    return x\n"),
    ),
    Attempt("a package path that leads elsewhere", "dynamic-import", "as an argument", adds(f"{KERNELS}__init__.py", '\n__path__.append("/tmp")\n')),
    Attempt("a part of the library that nobody thought of", "unusual-import", "Do without", _kernel("import symtable\n")),
    Attempt(
        "a kernel that ends the tests early", "process", "allowlist", _kernel("import os\n\n\ndef f():\n    os._exit(0)\n")
    ),
    Attempt(
        "a kernel that skips its own test", "unusual-import", "Do without", _kernel("from unittest import SkipTest\n\n\ndef f():\n    raise SkipTest\n")
    ),
    Attempt(
        "a plugin named by a test", "dynamic-import", "as an argument",
        adds("packages/tops-kernels/tests/test_attempt.py", 'pytest_plugins = ["tops_kernels.plugin"]\n'),
    ),
)  # fmt: skip

FILES = (
    Attempt(
        "a certificate written by hand", "file-read", "owns the data",
        _bench("import json\n\n\ndef f(folder, body):\n    (folder / 'certificates' / 'x.json').write_text(json.dumps(body))\n"),
    ),
    Attempt(
        "the oracle's source by path", "file-read", "owns the data",
        _kernel('from pathlib import Path\n\nx = (Path("packages") / "tops-tests/src/tops_tests/oracles/rms_norm.py").read_text()\n'),
    ),
    Attempt(
        "a path that names the test stage", "literal-reach", "as an argument",
        _kernel('ORACLE = "packages/tops-tests/src/tops_tests/oracles/rms_norm.py"\n'),
    ),
    Attempt(
        "the oracle's npz", "file-read", "owns the data",
        _kernel('import numpy as np\n\n\ndef f(folder):\n    return np.load(f"{folder}/oracles/rms_norm.npz")\n'),
    ),
    Attempt(
        "the oracle from the kernels' own tests", "import-boundary", "stage kernels",
        adds("packages/tops-kernels/tests/test_attempt.py", "def test_it():\n    from tops_tests.oracles import rms_norm\n"),
    ),
    Attempt(
        "the oracle's data from the kernels' own tests", "file-read", "owns the data",
        adds("packages/tops-kernels/tests/test_attempt.py", 'from importlib.resources import files as f\n\nx = f("tops_tests.oracles")\n'),
    ),
    Attempt(
        "another package's data by importlib.resources", "file-read", "owns the data",
        _bench('from importlib import resources\n\nx = resources.files("tops_tests") / "tolerances.lock"\n'),
    ),
)  # fmt: skip

PATCHES = (
    Attempt(
        "a kernel that replaces the oracle", "dynamic-import", "as an argument",
        _kernel('import sys\n\nsys.modules["tops_tests.oracles.rms_norm"].rms_norm = lambda *a, **k: a[0]\n'),
    ),
    Attempt(
        "a kernel that finds the oracle among live objects", "introspection", "as an argument",
        _kernel("import gc\n\nfor one in gc.get_objects():\n    if getattr(one, '__name__', '') == 'assert_close':\n        one.__code__ = (lambda *a: None).__code__\n"),
    ),
    Attempt("a kernel that patches jax", "patching", "nothing imported is assigned to", _kernel("import jax\n\njax.numpy.allclose = lambda *a, **k: True\n")),
    Attempt(
        "a kernel that asks whether a test runs", "introspection", "behaves otherwise under test",
        _kernel('import os\n\nslow = "PYTEST_CURRENT_TEST" in os.environ\n'),
    ),
    Attempt(
        "a kernel that looks who calls", "introspection", "behaves otherwise under test",
        _kernel('import sys\n\n\ndef f():\n    return sys._getframe(1).f_globals["__name__"]\n'),
    ),
)  # fmt: skip

CONTENT = (
    Attempt(
        "bench compares results", "bench-asserts-nothing", "read its certificate",
        _bench("import numpy as np\n\n\ndef f(a, b):\n    np.testing.assert_allclose(a, b, atol=1)\n"),
    ),
    Attempt("bench asserts", "bench-asserts-nothing", "read its certificate", _bench("def f(a, b):\n    assert abs(a - b) < 1\n")),
    Attempt(
        "the test stage takes times", "no-clocks", "belong to tops_bench",
        adds(f"{TESTS}_attempt.py", "from time import perf_counter as now\n\n\ndef f():\n    return now()\n"),
    ),
    Attempt(
        "a workload with a reference and a check", "workloads-only-draw", "go to tops_tests",
        adds(f"{WORKLOADS}_attempt.py", "class Norm:\n    def ref_program(self, x):\n        return x\n"),
    ),
    Attempt(
        "a workload that counts flops", "workloads-only-draw", "manifest's cost",
        adds(f"{WORKLOADS}_attempt.py", "def f(case):\n    return case.flops('fwd')\n"),
    ),
    Attempt(
        "a table of workload rows in the kernels", "no-workload-tables", "by shape, generation and memory",
        _kernel("BLOCKS = [dict(M=8192, K=4096, N=14336), dict(M=16, K=4096, N=4096)]\n"),
    ),
    Attempt(
        "a kernel part that the certificate's digest does not follow", "kernel-digest", "holds what is used",
        adds(f"{KERNELS}ops/attempt/op.py", "from . import hidden\n"),
    ),
    Attempt(
        "workload rows in the kernels' data", "no-workload-tables", "by shape, generation and memory",
        adds(f"{KERNELS}tuned.json", '{"square-4k": 128}\n'),
    ),
    Attempt(
        "an oracle that calls pallas", "oracles-know-no-kernels", "NumPy float64",
        adds(f"{TESTS}oracles/_attempt.py", "import tops_kernels\n\n\ndef f(x):\n    return tops_kernels.rms_norm(x)\n"),
    ),
)  # fmt: skip
