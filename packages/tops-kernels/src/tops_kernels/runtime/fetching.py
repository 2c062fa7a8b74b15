"""Bundles over HTTP: bounded in size and number, taken up again where they broke off, and never in offline mode."""

import concurrent.futures
import hashlib
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tops_kernels.runtime.bundles import LOCK, MAX_LOCK, BundleError, Entry, check, read_lock
from tops_kernels.runtime.locking import locked
from tops_kernels.runtime.variables import MIRROR, OFFLINE
from tops_kernels.runtime.workspace import folder, is_plain_name

_PARALLEL = 4  # downloads at once
_TRIES = 4
_TIMEOUT = 30.0  # seconds without a byte
_CHUNK = 1 << 20
_PARTIAL = ".download"
_MAX_TAR = 16 << 30


def located(name: str) -> str:
    """Where a bundle named by the user is: a URL, or a path. A plain name that is no file here is one on TOPS_MIRROR.

    Raises BundleError for what is nowhere, and under TOPS_OFFLINE for what would be downloaded.
    """
    if re.match(r"[a-z]+://", name):
        url = name
    elif Path(name).exists():
        return name
    elif not is_plain_name(name) or not MIRROR.value():
        hint = "" if MIRROR.value() else "; to take bundles by name set TOPS_MIRROR"
        raise BundleError(f"{name}: no such file or folder{hint}")
    else:
        url = f"{MIRROR.value()}/{name}"
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        return urllib.parse.unquote(parts.path)
    if parts.scheme not in ("http", "https"):
        raise BundleError(f"{url}: expected an https://, http:// or file:// URL")
    if OFFLINE.value():
        raise BundleError(f"{url}: not downloaded, as TOPS_OFFLINE=1. Bring the file here and install it by its path")
    return url


def fetch(url: str, use: Callable[[Path], Any]) -> Any:
    """Downloads a bundle into the workspace, gives it to `use` and removes it.

    Args:
      url: of a tar file (its path ends in .tar), else of a bundle's folder.
      use: gets the tar file's path, or a folder's with the lock and every unit.
    Raises: BundleError where it cannot be had or is not what its lock says. What was downloaded so far is kept for the next try.
    """
    place = folder("artifacts") / "downloads" / hashlib.sha256(url.encode()).hexdigest()[:32]
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BundleError(
            f"{place}: cannot be written: {error.strerror or error}. Set TOPS_WORKSPACE to a place with room"
        ) from None
    with locked(place.with_suffix(".lock")):
        return _fetch(url, place, use)


def _fetch(url: str, place: Path, use: Callable[[Path], Any]) -> Any:
    if urllib.parse.urlsplit(url).path.endswith(".tar"):
        target = place / "bundle.tar"
        _download(url, target, _MAX_TAR, None)
    else:
        target = place
        _all_files(url.rstrip("/"), place)
    try:
        return use(target)
    finally:
        _remove(place)  # installed, or not what it should be: then the next try starts anew


def _all_files(url: str, place: Path) -> None:
    (place / LOCK).unlink(missing_ok=True)  # it says what the rest must be: always anew
    _download(f"{url}/{LOCK}", place / LOCK, MAX_LOCK, None)
    files = read_lock((place / LOCK).read_bytes(), url)
    for known in os.listdir(place):
        if known != LOCK and known.removesuffix(_PARTIAL) not in files:
            (place / known).unlink()  # of an older bundle at the same address
    with concurrent.futures.ThreadPoolExecutor(_PARALLEL) as pool:
        started = [pool.submit(_one_file, f"{url}/{name}", place / name, entry) for name, entry in files.items()]
        try:
            for one in concurrent.futures.as_completed(started):
                one.result()
        finally:
            for one in started:
                one.cancel()


def _one_file(url: str, target: Path, entry: Entry) -> None:
    """One that is there whole is not downloaded again; one that is not what it should be is, once."""
    for last in (False, True):
        _download(url, target, entry.size, entry.size)
        try:
            check(target.read_bytes(), entry, target.name, url)
            return
        except BundleError:
            target.unlink(missing_ok=True)
            if last:
                raise


def _download(url: str, target: Path, limit: int, size: int | None) -> None:
    """To a file beside it, from where an earlier try left off, then to target. Tries again after a fault of the network."""
    if target.exists() and (size is None or target.stat().st_size == size):
        return
    part = target.with_name(target.name + _PARTIAL)
    for tried in range(_TRIES):
        try:
            _append(url, part, limit)
            break
        except urllib.error.HTTPError as error:
            if error.code == 416:  # the rest of a file that is whole, or that became shorter
                if size is not None and part.exists() and part.stat().st_size == size:
                    break
                part.unlink(missing_ok=True)
            if (error.code != 416 and error.code < 500) or tried == _TRIES - 1:
                raise BundleError(f"{url}: HTTP status {error.code} {error.reason}") from None
        except (OSError, HTTPException) as error:  # URLError and a broken connection among them
            if tried == _TRIES - 1:
                raise BundleError(f"{url}: {error}") from None
        time.sleep(0.2 * 2**tried)
    os.replace(part, target)


def _append(url: str, part: Path, limit: int) -> None:
    begin = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={begin}-"} if begin else {})
    with _opener().open(request, timeout=_TIMEOUT) as answer:
        if begin and answer.status != 206:
            begin = 0  # a server without ranges sends it from the start
        length = answer.headers.get("Content-Length", "")
        expected = begin + int(length) if length.isdigit() else None
        if expected is not None and expected > limit:
            raise BundleError(f"{url}: {expected} bytes; expected at most {limit}")
        with part.open("r+b" if begin else "wb") as file:
            file.seek(begin)
            while chunk := answer.read(_CHUNK):
                begin += len(chunk)
                if begin > limit:
                    raise BundleError(f"{url}: more than {limit} bytes; expected at most that")
                file.write(chunk)
            file.truncate()
        if expected is not None and begin < expected:
            raise ConnectionError(f"broke off after {begin} of {expected} bytes")


def _opener() -> urllib.request.OpenerDirector:
    """HTTP and HTTPS alone: a redirect leads nowhere else."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _remove(place: Path) -> None:
    for name in os.listdir(place):
        (place / name).unlink(missing_ok=True)
    place.rmdir()
