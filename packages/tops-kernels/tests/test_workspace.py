"""The one directory that is written to: by the environment, else the platform's cache; never made by asking."""

from pathlib import Path

import pytest

from tops_kernels import workspace_dir
from tops_kernels.runtime import workspace


def test_the_variable_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOPS_WORKSPACE", str(tmp_path / "here"))
    assert workspace_dir() == tmp_path / "here"
    assert not (tmp_path / "here").exists()


def test_home_is_expanded_and_a_relative_place_is_made_absolute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TOPS_WORKSPACE", "~/tops")
    assert workspace_dir() == tmp_path / "tops"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOPS_WORKSPACE", "tops")
    assert workspace_dir() == tmp_path / "tops"


@pytest.mark.parametrize(
    ("platform", "variables", "want"),
    [
        ("linux", {}, ".cache/tops"),
        ("linux", {"XDG_CACHE_HOME": "{home}/xdg"}, "xdg/tops"),
        ("darwin", {}, "Library/Caches/tops"),
        ("win32", {}, "AppData/Local/tops"),
        ("win32", {"LOCALAPPDATA": "{home}/local"}, "local/tops"),
    ],
)
def test_without_it_each_platform_has_its_own_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, variables: dict[str, str], want: str
) -> None:
    for name in ("TOPS_WORKSPACE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(home=tmp_path))
    monkeypatch.setattr("sys.platform", platform)
    assert workspace_dir() == tmp_path / want
    assert not list(tmp_path.iterdir())


def test_its_folders_are_named_and_counted_and_not_made_by_asking(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOPS_WORKSPACE", str(tmp_path / "w"))
    assert [workspace.folder(name) for name in workspace.FOLDERS] == [
        tmp_path / "w" / name for name in ("xla", "artifacts", "tune", "dumps")
    ]
    assert workspace.usage("xla") == (0, 0)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "w" / "xla" / "below").mkdir(parents=True)
    (tmp_path / "w" / "xla" / "below" / "file").write_bytes(b"12345")
    assert workspace.usage("xla") == (1, 5)
    with pytest.raises(ValueError, match="no folder 'other'; expected one of xla, artifacts, tune, dumps"):
        workspace.folder("other")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/a", ".a", "a\\b", "a\n", "a b", "-a", "é", "a" * 201, None, 3]
)
def test_a_name_out_of_a_file_that_could_lead_elsewhere_is_no_plain_one(name: object) -> None:
    assert not workspace.is_plain_name(name)
    assert workspace.is_plain_name("rms_norm-xla-fwd-cpu-native-0af3.unit")
