import pytest

from tools.tests.bypass.workspace import faults, shown, workspace, write

_FILE = "packages/tops-kernels/src/tops_kernels/runtime/deep/op.py"
_BENCH = "packages/tops-bench/src/tops_bench/deep/run.py"


@pytest.fixture
def tree(tmp_path):
    root = workspace(tmp_path)
    write(root, "packages/tops-tests/src/tops_tests/oracles/__init__.py", "")
    write(root, "packages/tops-kernels/src/tops_kernels/runtime/deep/xla.py", "def rms_norm(x): ...\n")
    write(root, "packages/tops-manifest/src/tops_manifest/workloads.py", "")
    return root


def test_an_empty_workspace_has_no_fault(tree):
    assert shown(tree) == []


@pytest.mark.parametrize(
    "line",
    [
        "import tops_tests.oracles",
        "import tops_tests.oracles as y",
        "from tops_tests import oracles",
        "from tops_tests import anything",
        "from tops_tests.oracles import rms_norm as r",
        "import os, tops_tests",
        "from tops_manifest import workloads",
        "from tops_manifest.workloads import rows",
        "import tops_manifest.workloads as w",
        "import tops_bench",
        "from tops_workloads import Workload",
    ],
)
def test_each_form_that_crosses_is_reported_once_with_its_line(tree, line):
    write(tree, _FILE, f'"""A module."""\n\n{line}\n')
    assert shown(tree, _FILE) == ["3 import-boundary"]


def test_a_star_import_is_reported_as_a_crossing_and_as_a_star(tree):
    write(tree, _FILE, "from tops_tests import *\n")
    assert shown(tree, _FILE) == ["1 import-boundary", "1 star-import"]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (_FILE, "from . import xla"),
        (_FILE, "from .xla import rms_norm"),
        (_FILE, "from .. import deep"),
        (_FILE, "from ... import runtime"),
        ("packages/tops-kernels/src/tops_kernels/runtime/deep/__init__.py", "from . import xla"),
        ("packages/tops-kernels/src/tops_kernels/__init__.py", "from .runtime.deep.xla import rms_norm"),
        (_FILE, "from tops_manifest import op, bind"),
        (_FILE, "import tops_manifest.workloads_of_another_kind"),
        (_BENCH, "import tops_kernels, tops_workloads, tops_manifest.cost"),
        (_BENCH, "from tops_kernels import rms_norm, support"),
    ],
)
def test_what_stays_inside_or_is_seen_passes(tree, path, line):
    write(tree, path, f"{line}\n")
    assert shown(tree, path) == []


@pytest.mark.parametrize(
    "line", ["from .... import tops_tests", "from ....tops_tests import oracles", "from ..... import x"]
)
def test_a_relative_import_that_leaves_the_package_is_reported(tree, line):
    write(tree, _FILE, f"{line}\n")
    assert shown(tree, _FILE) == ["1 import-boundary"]


def test_a_neighbour_whose_name_only_begins_alike_is_not_taken_for_the_package(tree):
    write(tree, _FILE, "import tops_testsuite\n")
    assert shown(tree, _FILE) == ["1 undeclared-import"]


@pytest.mark.parametrize(
    "line",
    [
        "import tops_kernels.runtime",
        "from tops_kernels import runtime",
        "from tops_kernels.runtime.deep import xla",
        "from tops_kernels import _secret",
        "import tops_kernels as k; f = k.runtime.deep.xla.rms_norm",
        "import tops_kernels as k; f = getattr(k, 'runtime')",
        "import tops_kernels as k; f = vars(k)['runtime']",
    ],
)
def test_inner_modules_of_the_kernels_are_hidden_from_bench(tree, line):
    write(tree, _BENCH, f"{line}\n")
    assert "1 import-boundary" in shown(tree, _BENCH)


def test_the_advice_names_what_the_stage_may_import_instead(tree):
    write(tree, _BENCH, "import tops_tests\n")
    (fault,) = faults(tree, _BENCH)
    assert "tops_bench must not use tops_tests" in fault.what
    assert "tops_kernels (its public root)" in fault.do
    assert "CONTRIBUTING.md, stage bench" in fault.do


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("def f():\n    import tops_tests\n", 2),
        ('def f():\n    return __import__("tops_tests")\n', 2),
        ("try:\n    import tops_tests\nexcept ImportError:\n    pass\n", 2),
        ("import typing\nif typing.TYPE_CHECKING:\n    import tops_tests\n", 3),
        ("class A:\n    def f(self):\n        async def g():\n            from tops_tests import oracles\n", 4),
        ('from importlib import import_module as im\nim("tops_tests")\n', 2),
        ('from importlib import import_module as im\na = b = im\n[c] = [b]\nc("tops_tests")\n', 4),
        ('import importlib\nimportlib.import_module("." + "tops_tests", "tops_tests")\n', 2),
    ],
)
def test_lazy_guarded_and_dynamic_imports_count(tree, code, line):
    write(tree, _FILE, code)
    assert f"{line} import-boundary" in shown(tree, _FILE)


def test_an_import_written_in_a_docstring_is_documentation(tree):
    write(tree, _FILE, '"""Say\n\n    import tops_tests\n"""\n\n\ndef f():\n    "import tops_tests"\n')
    assert shown(tree, _FILE) == []


def test_an_argument_that_is_no_literal_is_reported_as_unresolvable(tree):
    write(tree, _FILE, "import importlib\n\n\ndef f(name):\n    return importlib.import_module(name)\n")
    found = faults(tree, _FILE)
    assert any(fault.line == 5 and "unresolvable" in fault.what for fault in found)


def test_a_relative_dynamic_import_is_resolved_against_its_own_package(tree):
    write(tree, _FILE, 'import importlib\n\nx = importlib.import_module(".xla", __package__)\n')
    assert any("of tops_kernels.runtime.deep.xla" in fault.what for fault in faults(tree, _FILE))


def test_tests_of_a_package_see_no_more_than_the_package(tree):
    path = "packages/tops-kernels/tests/test_norm.py"
    write(tree, path, "import pytest\nimport tops_kernels.runtime.deep.xla\nimport tops_tests\n")
    assert shown(tree, path) == ["3 import-boundary"]


def test_a_file_that_does_not_parse_is_a_fault(tree):
    write(tree, _FILE, "import tops_tests if\n")
    assert shown(tree, _FILE) == ["1 syntax"]


@pytest.mark.parametrize(
    ("line", "caught"),
    [
        ("from . import xla", True),
        ("from .xla import f", True),
        ("import tops_kernels", True),
        ("from tops_kernels import rms_norm", True),
        ("from tops_kernels import runtime", False),
        ("from tops_kernels.runtime.deep import xla", False),
        ("import tops_kernels.runtime.deep.xla as xla", False),
    ],
)
def test_an_ops_files_import_only_in_ways_that_its_digest_follows(tree, line, caught):
    path = "packages/tops-kernels/src/tops_kernels/ops/norm/op.py"
    write(tree, path, f"{line}\n")
    assert shown(tree, path) == (["1 kernel-digest"] if caught else [])


@pytest.mark.parametrize(
    ("code", "caught"),
    [
        ("def f(x):\n    return [getattr(x, name) for name in ('a', 'b')]\n", []),
        ("def f(x):\n    return [getattr(x, name) for name in ('a', '__globals__')]\n", ["2 introspection"]),
        ("import os\ndef f():\n    return [getattr(os, name) for name in ('sep', 'fork')]\n", ["3 process"]),
        ("def f(x, names):\n    return [getattr(x, name) for name in names]\n", ["2 introspection"]),
        ("def f(x, name):\n    for name in ('a',):\n        pass\n    return getattr(x, name)\n", ["4 introspection"]),
        ("def f(x, y):\n    for name in ('a',):\n        name = y\n        getattr(x, name)\n", ["4 introspection"]),
    ],
)
def test_getattr_by_name_is_read_where_every_name_is_spelled_out(tree, code, caught):
    write(tree, _FILE, code)
    assert shown(tree, _FILE) == caught
