"""The one directory that is written to: by the environment, else the platform's cache; never made by asking."""

from pathlib import Path

import pytest

from tops_kernels import workspace_dir


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
