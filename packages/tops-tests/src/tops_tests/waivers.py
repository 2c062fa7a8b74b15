"""Skips and expected failures: all in waivers.toml, each with a reason from a fixed list and a day on which it ends."""

import dataclasses
import datetime
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, cast

Kind = Literal["skip", "xfail"]

FILE = Path(__file__).with_name("waivers.toml")
KINDS = ("skip", "xfail")
REASONS: Mapping[str, str] = {
    "no-device": "needs an accelerator that is not here",
    "not-supported": "tops_kernels.support says that this implementation cannot run here, and why",
    "not-applicable": "the contract leaves nothing to check",
    "not-quick": "too long for a quick run: the full one has it",
    "upstream-bug": "a fault of jax, jaxlib or libtpu; detail names its issue",
    "known-fault": "a fault of ours; detail names its issue",
}
_KEYS = {"kind": str, "op": str, "check": str, "reason": str, "detail": str, "expires": datetime.date}


@dataclasses.dataclass(frozen=True, slots=True)
class Waiver:
    kind: Kind
    op: str
    check: str
    implementation: str | None
    reason: str
    detail: str
    expires: datetime.date

    def covers(self, op: str, check: str, implementation: str | None) -> bool:
        return (self.op, self.check) == (op, check) and self.implementation in (None, implementation)

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail} (until {self.expires})"


def read(path: Path = FILE) -> tuple[tuple[Waiver, ...], tuple[str, ...]]:
    """The waivers, and what is wrong with the file's form."""
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        return (), (f"{path.name}: {error}",)
    entries = table.get("waiver", [])
    if set(table) - {"waiver"} or not isinstance(entries, list):
        return (), (f"{path.name}: expected [[waiver]] tables alone; got {', '.join(table)}",)
    waivers, faults = [], []
    for index, entry in enumerate(entries):
        wrong = _form_faults(entry)
        faults += [f"{path.name}: waiver[{index}].{text}" for text in wrong]
        if not wrong:
            kind = cast(Kind, entry["kind"])
            rest = {key: entry[key] for key in ("op", "check", "reason", "detail", "expires")}
            waivers.append(Waiver(kind=kind, implementation=entry.get("implementation"), **rest))
    return tuple(waivers), tuple(faults)


def _form_faults(entry: Mapping[str, object]) -> list[str]:
    faults = [f"{key}: no such key" for key in entry if key not in {*_KEYS, "implementation"}]
    for key, kind in _KEYS.items():
        value = entry.get(key)
        if not isinstance(value, kind) or isinstance(value, datetime.datetime) or value == "":
            faults.append(f"{key}: got {value!r}; expected a {'date' if kind is datetime.date else 'text'}")
    if not isinstance(entry.get("implementation", ""), str):
        faults.append(f"implementation: got {entry['implementation']!r}; expected a text")
    if not faults and entry["kind"] not in KINDS:
        faults.append(f"kind: got {entry['kind']!r}; expected {' or '.join(KINDS)}")
    if not faults and entry["reason"] not in REASONS:
        faults.append(f"reason: got {entry['reason']!r}; expected one of {', '.join(REASONS)}")
    return faults


def faults(
    waivers: Iterable[Waiver], kernel_maps: Mapping[str, Iterable[str]], checks: Iterable[str], today: datetime.date
) -> list[str]:
    """What is wrong with waivers of good form: a name that nothing has, or a day gone by."""
    known, found = set(checks), []
    for waiver in waivers:
        at = f"waivers.toml: {waiver.op}/{waiver.check}"
        if waiver.op not in kernel_maps:
            found.append(f"{at}: no such op (known: {', '.join(kernel_maps)})")
        elif waiver.implementation is not None and waiver.implementation not in kernel_maps[waiver.op]:
            found.append(f"{at}: {waiver.op} has no implementation {waiver.implementation!r}")
        if waiver.check not in known:
            found.append(f"{at}: no such check (known: {', '.join(sorted(known))})")
        if waiver.expires < today:
            found.append(f"{at}: expired on {waiver.expires}: mend what it waives, or renew it with a new reason")
    return found


def find(waivers: Iterable[Waiver], op: str, check: str, implementation: str | None) -> Waiver | None:
    return next((waiver for waiver in waivers if waiver.covers(op, check, implementation)), None)


def summary(waivers: Iterable[Waiver]) -> str:
    """For every report: "waivers: 1 skip, 0 xfail"."""
    kinds = [waiver.kind for waiver in waivers]
    return "waivers: " + ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("skip", "xfail"))
