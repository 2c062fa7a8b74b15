"""Bundles over HTTP from a server here: whole, taken up again, bounded, and never when offline."""

import functools
import http.server
import json
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tops_kernels.cli
from tops_kernels.runtime import artifacts, fetching, storing
from tops_kernels.runtime.artifacts import Unit, pack
from tops_kernels.runtime.bundles import LOCK, BundleError, write_lock, write_tar
from tops_kernels.runtime.installing import install
from tops_kernels.runtime.spec import spec


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, with ranges; does as `fault` says for each path, once."""

    requests: list[tuple[str, str | None]]
    fault: Callable[[str], str]

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.requests.append((self.path, wanted))
        fault = self.fault(self.path)
        path = Path(self.translate_path(self.path))
        if fault in ("404", "500") or not path.is_file():
            self.send_error(500 if fault == "500" else 404)
            return
        data = path.read_bytes()
        if fault == "redirect":
            self.send_response(302)
            self.send_header("Location", "file:///etc/passwd")
            self.end_headers()
            return
        begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and fault != "no ranges" else 0
        if begin and begin >= len(data):
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        if fault == "endless":
            self.end_headers()
            for _ in range(100):
                self.wfile.write(b"x" * 100_000)
            return
        self.send_header("Content-Length", str(len(data) - begin))
        self.end_headers()
        self.wfile.write(data[begin : begin + 100] if fault == "cut" else data[begin:])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def units() -> list[Unit]:
    specs = [spec("rms_norm", {"x": np.ones((rows, 8), np.float32)}, target="cpu") for rows in range(1, 9)]
    draw = random.Random(1)
    return [Unit(one, ((one.arguments[0].shape, "float32"),), True, draw.randbytes(5000)) for one in specs]


@pytest.fixture
def site(
    tmp_path: Path, units: list[Unit], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, list[tuple[str, str | None]], dict[str, str]]]:
    """URL of a server with the bundle as folder and as tar file, its requests, and a fault for each path that it makes once."""
    monkeypatch.setenv("TOPS_WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.setattr(storing, "_warned", set())
    monkeypatch.setattr(fetching.time, "sleep", lambda _: None)
    place = tmp_path / "site" / "bundle"
    place.mkdir(parents=True)
    for unit in units:
        (place / f"{unit.spec.name}.unit").write_bytes(pack(unit))
    write_lock(place, [path.name for path in place.iterdir()])
    write_tar(place, tmp_path / "site" / "bundle.tar")
    faults: dict[str, str] = {}
    requests: list[tuple[str, str | None]] = []
    kind = type("Here", (Server,), {"requests": requests, "fault": lambda _, path: faults.pop(path, "")})
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(kind, directory=str(tmp_path / "site"))
    ) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", requests, faults
        server.shutdown()
        thread.join()


def downloads(tmp_path: Path) -> list[Path]:
    place = tmp_path / "workspace" / "artifacts" / "downloads"
    return [path for path in place.rglob("*") if path.is_file()]


@pytest.mark.parametrize("form", ["bundle", "bundle.tar", "bundle/"])
def test_a_bundle_comes_over_whole_and_leaves_nothing_behind(
    site: Any, form: str, units: list[Unit], tmp_path: Path
) -> None:
    assert len(install(f"{site[0]}/{form}").names) == 8
    assert all(artifacts.find(unit.spec) == unit for unit in units)
    assert downloads(tmp_path) == []


def test_a_name_is_looked_up_on_the_mirror_and_a_file_url_is_a_path(
    site: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOPS_MIRROR", site[0])
    assert len(install("bundle.tar").names) == 8
    monkeypatch.setenv("TOPS_MIRROR", f"file://{tmp_path}/site")
    monkeypatch.setenv("TOPS_OFFLINE", "1")
    assert len(install("bundle").names) == 8
    assert len(install(f"file://{tmp_path}/site/bundle.tar").names) == 8


def test_offline_fails_at_once_and_names_the_file(
    site: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOPS_OFFLINE", "1")
    monkeypatch.setenv("TOPS_MIRROR", site[0])
    assert tops_kernels.cli.main(["install", "bundle.tar"]) == 1
    assert f"{site[0]}/bundle.tar: not downloaded, as TOPS_OFFLINE=1" in capsys.readouterr().err
    assert site[1] == []
    assert not (tmp_path / "workspace").exists()


@pytest.mark.parametrize("form", ["bundle", "bundle.tar"])
def test_what_broke_off_is_taken_up_where_it_was(site: Any, form: str, units: list[Unit]) -> None:
    url, requests, faults = site
    path = "/bundle.tar" if form == "bundle.tar" else f"/bundle/{units[0].spec.name}.unit"
    faults[path] = "cut"
    assert len(install(f"{url}/{form}").names) == 8
    assert [wanted for asked, wanted in requests if asked == path] == [None, "bytes=100-"]


def test_a_later_install_takes_up_what_an_earlier_one_left(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, requests, faults = site
    monkeypatch.setattr(fetching, "_TRIES", 1)
    faults["/bundle.tar"] = "cut"
    with pytest.raises(BundleError, match="broke off after 100 of"):
        install(f"{url}/bundle.tar")
    assert [path.stat().st_size for path in downloads(tmp_path)] == [100]
    assert len(install(f"{url}/bundle.tar").names) == 8
    assert [wanted for _, wanted in requests] == [None, "bytes=100-"]
    assert downloads(tmp_path) == []


def test_a_server_without_ranges_and_one_that_fails_at_times_will_do(
    site: Any, units: list[Unit], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, requests, faults = site
    path = f"/bundle/{units[0].spec.name}.unit"
    faults |= {path: "cut", f"/bundle/{LOCK}": "500"}
    real = fetching._append

    def append(asked: str, part: Path, limit: int) -> None:
        if asked.endswith(path) and part.exists():
            faults[path] = "no ranges"
        real(asked, part, limit)

    monkeypatch.setattr(fetching, "_append", append)
    assert len(install(f"{url}/bundle").names) == 8
    assert (path, "bytes=100-") in requests


@pytest.mark.parametrize(("fault", "words"), [("404", "HTTP status 404"), ("redirect", "file")])
def test_what_is_not_there_or_leads_elsewhere_is_an_error(site: Any, fault: str, words: str) -> None:
    url, _, faults = site
    faults["/bundle.tar"] = fault
    with pytest.raises(BundleError, match=words):
        install(f"{url}/bundle.tar")


def test_more_than_was_said_is_not_taken(site: Any, units: list[Unit], monkeypatch: pytest.MonkeyPatch) -> None:
    url, _, faults = site
    faults[f"/bundle/{units[0].spec.name}.unit"] = "endless"
    with pytest.raises(BundleError, match="expected at most"):
        install(f"{url}/bundle")


def test_a_file_that_was_changed_is_refused(site: Any, units: list[Unit], tmp_path: Path) -> None:
    path = tmp_path / "site" / "bundle" / f"{units[0].spec.name}.unit"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(BundleError, match=r"its sha256 is not the one in artifacts\.lock"):
        install(f"{site[0]}/bundle")
    assert artifacts.find(units[1].spec) is None


def test_a_lock_with_a_hostile_name_is_refused_before_anything_else_is_fetched(site: Any, tmp_path: Path) -> None:
    url, requests, _ = site
    entry = {"sha256": "0" * 64, "bytes": 1}
    (tmp_path / "site" / "bundle" / LOCK).write_text(json.dumps({"format": 1, "files": {"../../x.unit": entry}}))
    with pytest.raises(BundleError, match="a file is called"):
        install(f"{url}/bundle")
    assert [path for path, _ in requests] == [f"/bundle/{LOCK}"]
