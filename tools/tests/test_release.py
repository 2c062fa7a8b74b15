import json
import pathlib
import shutil

import pytest

from tools import release
from tools.project import ROOT, ToolError, packages

TAG = "tops-kernels-v0.2.0"
CHANGES = "# Changelog\n\n## tops-manifest\n\n### 0.1.3\n\n- More ops.\n\n## tops-kernels\n\n### 0.2.0\n\n- Faster.\n\n### 0.1.0\n\n- First.\n"


def _project(name: str, version: str, *dependencies: str) -> str:
    return f'[project]\nname = "{name}"\nversion = "{version}"\ndependencies = {json.dumps(dependencies)}\n'


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    """A workspace of two packages in which TAG may be released."""
    for name, text in {
        "packages/tops-manifest/pyproject.toml": _project("tops-manifest", "0.1.3"),
        "packages/tops-kernels/pyproject.toml": _project(
            "tops-kernels", "0.2.0", "jax>=0.10", "tops-manifest>=0.1.0,<0.2"
        ),
        "CHANGELOG.md": CHANGES,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def _everything(name: str, version: str) -> bool:
    return True


def _messages(tree: pathlib.Path, tag: str = TAG, published=_everything) -> list[str]:
    return [f"{fault.what}: {fault.message}" for fault in release.check(tag, tree, published)]


def test_a_tag_that_matches_version_changelog_and_index_may_be_released(tree):
    assert _messages(tree) == []


def test_a_version_that_differs_from_the_tag_is_a_fault(tree):
    (tree / "packages/tops-kernels/pyproject.toml").write_text(_project("tops-kernels", "0.1.9"))
    (fault,) = _messages(tree)
    assert "packages/tops-kernels/pyproject.toml: version is 0.1.9; the tag says 0.2.0" in fault


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("## tops-kernels\n", "## tops-other\n", "no section '## tops-kernels'"),
        ("### 0.2.0\n\n- Faster.\n", "", "no entry '### 0.2.0' (has: 0.1.0)"),
        ("- Faster.\n", "", "0.2.0 says nothing"),
        ("### 0.2.0\n", "### 0.3.0\n\n- Later.\n\n### 0.2.0\n", "0.2.0 stands below 0.3.0"),
    ],
    ids=["no-section", "no-entry", "empty-entry", "not-newest"],
)
def test_a_changelog_that_does_not_match_is_a_fault(tree, old, new, said):
    assert old in CHANGES
    (tree / "CHANGELOG.md").write_text(CHANGES.replace(old, new))
    (fault,) = _messages(tree)
    assert fault.startswith("changelog: ")
    assert said in fault


def test_an_entry_of_another_package_does_not_stand_in(tree):
    (tree / "CHANGELOG.md").write_text(
        CHANGES.replace("### 0.1.3", "### 0.2.0").replace("### 0.2.0\n\n- Faster.\n\n", "")
    )
    assert any("tops-kernels has no entry '### 0.2.0'" in fault for fault in _messages(tree))


def test_a_sibling_that_is_not_published_is_a_fault_that_says_what_to_release_first(tree):
    asked = []
    (fault,) = _messages(tree, published=lambda name, version: asked.append((name, version)))
    assert asked == [("tops-manifest", "0.1.3")]  # the version tested with, and nothing about jax
    assert "git tag tops-manifest-v0.1.3" in fault


@pytest.mark.parametrize("written", ["tops-manifest", "tops-manifest>=0.1.0", "tops_manifest<0.2"])
def test_a_sibling_without_a_range_is_a_fault(tree, written):
    (tree / "packages/tops-kernels/pyproject.toml").write_text(_project("tops-kernels", "0.2.0", written))
    (fault,) = _messages(tree)
    assert "expected a range" in fault


@pytest.mark.parametrize(
    "tag", ["v0.2.0", "tops-kernels-0.2.0", "tops-kernels-v0.2", "tops-kernels-v0.2.0 ", "tops-nothing-v0.2.0"]
)
def test_a_tag_of_another_form_is_refused_by_name(tree, tag):
    with pytest.raises(ToolError, match="tag '"):
        _messages(tree, tag)


def test_a_tag_of_another_form_is_wrong_use(capsys):
    assert release.main(["check", "v1"]) == 2
    assert "expected tops-<package>-v" in capsys.readouterr().err


@pytest.mark.parametrize("name", packages())
def test_each_package_of_this_repository_may_be_released_once_its_siblings_are(name):
    tag = f"{name}-v{packages()[name].version}"
    assert _messages(ROOT, tag) == []


def test_the_index_is_asked_for_the_exact_version(monkeypatch, tmp_path):
    """A local folder of wheels stands for the index."""
    shutil.copy(_wheel(tmp_path, "1.0.0"), tmp_path / "wheels")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))
    assert release.on_index("tops-dummy", "1.0.0")
    assert not release.on_index("tops-dummy", "1.0.1")
    assert not release.on_index("tops-missing", "1.0.0")


def _wheel(folder: pathlib.Path, version: str) -> pathlib.Path:
    import zipfile

    (folder / "wheels").mkdir()
    wheel = folder / f"tops_dummy-{version}-py3-none-any.whl"
    info = f"tops_dummy-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tops-dummy\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel
