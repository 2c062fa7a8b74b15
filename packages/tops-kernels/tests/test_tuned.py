"""Tuned configurations: which row is used when, which is not, and what becomes of a file that is not what it seems."""

import dataclasses
import functools
import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tops_kernels
from tops_kernels.ops.matmul.op import CONFIGS
from tops_kernels.runtime import storing, tables, tuned
from tops_kernels.runtime.chip import GPU_TARGETS, TPU_TARGETS, chip_name, tracing_for
from tops_kernels.runtime.overrides import current
from tops_kernels.runtime.tables import Row, Table, TableError
from tops_kernels.runtime.tuning.row import signature_of
from tops_kernels.runtime.tuning.tuner import calls
from tops_manifest import ArraySpec

A, B = np.zeros((512, 512), np.float32), np.zeros((512, 512), np.float32)
ROW = Row(
    op="matmul",
    implementation="pallas_tpu",
    which="fwd",
    chip="v5e",
    dtype="float32",
    dims=(("B", 1), ("K", 512), ("M", 512), ("N", 512)),
    config=(("block_k", 512), ("block_m", 128), ("block_n", 128)),
    origin="schedule estimate",
    seconds=1e-3,
    heuristic_seconds=2e-3,
    toolchain=(("jax", jax.__version__),),
    call="matmul(a=float32[512,512], b=float32[512,512])",
)
PACKAGE = tuned.package_table  # the tests have another in its place
GRID = (1, 4, 4, 1)  # of ROW's configuration; the heuristic takes the whole in one step


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing traced before, no warning given before, and an empty package."""
    monkeypatch.setattr(storing, "_warned", set())
    monkeypatch.setattr(tuned, "package_table", lambda op, chip: Table(()))
    jax.clear_caches()
    yield
    jax.clear_caches()


def planted(monkeypatch: pytest.MonkeyPatch, *rows: Row) -> None:
    monkeypatch.setattr(
        tuned, "package_table", lambda op, chip: Table(row for row in rows if (row.op, row.chip) == (op, chip))
    )


def written(path: Path, *rows: Row) -> Path:
    mine = [dataclasses.replace(row, kernel=tops_kernels.source_digest(row.op, row.implementation)) for row in rows]
    path.write_bytes(tables.dumps(mine))
    return path


# Insisting, as a kernel that was left to dispatch is traced at lowering alone: a jaxpr does not show it.
MATMUL = functools.partial(tops_kernels.matmul, backend="pallas_tpu")


def grid(chip: str = "v5e", fn: Any = MATMUL, a: Any = A, b: Any = B, **how: Any) -> tuple[int, ...]:
    """The grid that the TPU kernel is traced with, for a chip."""
    with tracing_for(chip):
        text = str(jax.make_jaxpr(lambda a, b: fn(a, b, **how))(a, b))
    found = re.search(r"grid=\(([\d, ]+)\)", text)
    assert found, text
    return tuple(int(size) for size in found[1].split(",") if size.strip())


def test_the_packages_row_is_used_on_its_chip_and_on_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert grid() != GRID
    jax.clear_caches()
    planted(monkeypatch, ROW)
    assert grid("v5e") == GRID
    assert grid("v6e") != GRID
    assert grid("none") != GRID  # traced on a CPU, for whatever chip


def test_a_row_is_for_its_bucket_dtype_pass_and_op_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, ROW)
    assert grid(a=A[:300], b=B[:, :257]) == (1, 3, 3, 1)  # 512 is the power of two above both
    assert grid(a=A[:256])[1:3] != (2, 4)
    half = A.astype(jnp.bfloat16)
    assert grid(a=half, b=half) != GRID
    for other in ({"which": "vjp"}, {"op": "gla"}, {"implementation": "pallas_gpu"}):
        jax.clear_caches()
        planted(monkeypatch, dataclasses.replace(ROW, **other))
        assert grid() != GRID


def test_tops_tuned_0_and_tuned_none_leave_heuristics_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    planted(monkeypatch, ROW)
    with tops_kernels.tuned(None):
        assert grid() != GRID
    monkeypatch.setenv("TOPS_TUNED", "0")
    assert grid() != GRID
    with tops_kernels.tuned(written(tmp_path / "mine.json", ROW)):
        assert grid() != GRID


def test_a_file_holds_within_its_block_for_functions_jitted_before_too(tmp_path: Path) -> None:
    file = written(tmp_path / "mine.json", ROW)
    jitted = jax.jit(MATMUL)
    before = grid(fn=jitted)
    with tops_kernels.tuned(file):
        assert grid(fn=jitted) == GRID
        with tops_kernels.tuned(None):
            assert grid(fn=jitted) == before
        assert grid(fn=jitted) == GRID
    assert grid(fn=jitted) == before != GRID


def test_a_users_file_goes_before_the_package_and_use_config_before_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planted(monkeypatch, dataclasses.replace(ROW, config=(("block_k", 512), ("block_m", 256), ("block_n", 256))))
    with tops_kernels.tuned(written(tmp_path / "mine.json", ROW)):
        assert grid() == GRID
        asked = CONFIGS["pallas_tpu"](block_m=512, block_n=128, block_k=512)
        with tops_kernels.use_config("matmul", "fwd", asked):
            assert grid() == (1, 1, 4, 1)
    assert grid() == (1, 2, 2, 1)


def test_a_row_changes_blocks_and_no_result(tmp_path: Path) -> None:
    a, b = (jax.random.normal(jax.random.key(at), (512, 512)) for at in range(2))
    plain = tops_kernels.matmul(a, b, interpret=True)
    with tops_kernels.tuned(written(tmp_path / "mine.json", dataclasses.replace(ROW, chip="interpreter"))):
        assert jnp.allclose(tops_kernels.matmul(a, b, interpret=True), plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ((("block_k", 512), ("block_m", 100), ("block_n", 128)), "block_m is 100"),
        ((("block_k", 512), ("block_m", 0), ("block_n", 128)), "block_m is 0"),
        ((("block_k", 512), ("block_m", True), ("block_n", 128)), "block_m of the wrong type"),
        ((("block_k", 512), ("block_m", 128)), "block_n missing"),
        ((("block_k", 512), ("block_m", 128), ("block_n", 128), ("warps", 4)), "warps unknown"),
        ((), "missing"),
    ],
)
def test_a_row_that_does_not_fit_is_ignored_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, config: Any, why: str
) -> None:
    planted(monkeypatch, dataclasses.replace(ROW, config=config))
    with tops_kernels.tuned(None):
        plain = grid()
    for _ in range(2):
        jax.clear_caches()
        assert grid() == plain
    (record,) = [record for record in caplog.records if "tuned configuration" in record.message]
    assert why in record.message


def test_a_row_for_wide_rows_takes_narrower_ones_of_its_bucket_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    config = (("block_d", 4096), ("block_n", 16))
    planted(monkeypatch, dataclasses.replace(ROW, op="rms_norm", dims=(("B", 64), ("D", 4096)), config=config))
    for d in (4096, 2500):
        assert grid(
            fn=lambda a, _: tops_kernels.rms_norm(a, backend="pallas_tpu"), a=np.zeros((64, d), np.float32)
        ) == (4,)
    assert grid(fn=lambda a, _: tops_kernels.rms_norm(a, backend="pallas_tpu"), a=np.zeros((64, 1024), np.float32)) != (
        4,
    )


def test_blocks_that_a_chips_vmem_has_no_room_for_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    big = np.zeros((8192, 8192), np.float32)
    large = tuple((name, 4096) for name in ("block_k", "block_m", "block_n"))
    row = dataclasses.replace(ROW, dims=(("B", 1), ("K", 8192), ("M", 8192), ("N", 8192)), config=large)
    planted(monkeypatch, row)
    assert grid(a=big, b=big) != (1, 2, 2, 2)


def test_stale_rows_are_ignored_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kernel = tops_kernels.source_digest("matmul", "pallas_tpu")
    file = tmp_path / "mine.json"
    old = dataclasses.replace(ROW, kernel=kernel, toolchain=(("jax", "0.1"),))
    other = dataclasses.replace(ROW, kernel="0" * 64, dtype="bfloat16")
    file.write_bytes(tables.dumps([old, other]))
    with tops_kernels.tuned(file):
        assert grid() != GRID
    assert "2 of 2 rows are stale" in caplog.text
    absent = dataclasses.replace(ROW, kernel=kernel, toolchain=(("not-installed-here", "1.0"),))
    assert tuned.stale(absent) == ""
    assert "other kernel sources" in tuned.stale(dataclasses.replace(ROW, kernel="", op="no_such_op"))


def test_a_call_outside_of_any_block_carries_no_table() -> None:
    assert current("matmul") == ()


def test_tables_are_equal_by_content_and_a_file_is_the_same_bytes_for_the_same_rows() -> None:
    other = dataclasses.replace(ROW, which="vjp")
    assert Table([ROW, other]) == Table([other, ROW]) != Table([ROW])
    assert hash(Table([ROW])) == hash(Table([ROW]))
    assert Table([ROW]) != Table([ROW], alone=True)
    content = tables.dumps([other, ROW])
    assert tables.dumps(tables.parse(content, "it")) == content == tables.dumps([ROW, other])
    assert tables.parse(tables.dumps([]), "it") == ()


def test_buckets_are_powers_of_two() -> None:
    assert [tables.bucket(size) for size in (0, 1, 2, 3, 4096, 4097)] == [0, 1, 2, 4, 4096, 8192]


def test_the_package_holds_rows_of_its_own_chips_and_ops_that_gain_over_two_percent() -> None:
    folder = Path(tops_kernels.__file__).parent / "tuned"
    for path in sorted(folder.glob("*/*.json")):
        for row in tables.parse(path.read_bytes(), str(path)):
            assert (row.chip, row.op) == (path.parent.name, path.stem)
            assert row.chip in (*TPU_TARGETS, *GPU_TARGETS)
            assert row.origin in ("schedule estimate", "hardware")
            assert row.seconds <= 0.98 * row.heuristic_seconds
            assert row.toolchain, "how it was made"
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} <= {".json"}


def test_another_schema_is_refused_by_its_number() -> None:
    content = tables.dumps([ROW]).replace(b'"schema": 1', b'"schema": 2')
    with pytest.raises(TableError, match="it: schema is 2; expected 1"):
        tables.parse(content, "it")


def test_the_packages_tables_are_read_where_there_are_any() -> None:
    assert isinstance(PACKAGE("matmul", "v5e"), Table)
    assert PACKAGE("no_such_op", "v5e") == Table(())


def test_every_search_space_offers_what_fits_its_own_call() -> None:
    """What tuning tries may be used afterwards; the heuristic's own choice stands first."""
    specs = {
        "matmul": {"a": ArraySpec((2, 384, 640), "bfloat16"), "b": ArraySpec((640, 1280), "bfloat16")},
        "rms_norm": {"x": ArraySpec((1000, 4096), "bfloat16")},
        "add_rms_norm": {"x": ArraySpec((64, 8192), "float32"), "residual": ArraySpec((64, 8192), "float32")},
        "gla": {
            **{name: ArraySpec((2, 256, 8, 128), "bfloat16") for name in "qkv"},
            "g": ArraySpec((2, 256, 8, 128), "float32"),
        },
    }
    for op, inputs in specs.items():
        call = signature_of(op, inputs, {})
        for key in ("pallas_tpu", "pallas_gpu"):
            for which in ("fwd", "vjp"):
                for chip in ("v4", "v6e"):
                    with tracing_for(chip):
                        configs: Any = tops_kernels.configurations(op, key, which, inputs, dict(call.params), chip)
                        fitting = [one for one in configs if not one.misfit(which, inputs, dict(call.params))]
                    assert len(fitting) >= len(configs) // 2, (op, key, which, chip)


def test_the_space_of_a_chip_is_the_same_from_any_machine() -> None:
    inputs = {"a": ArraySpec((8192, 8192), "bfloat16"), "b": ArraySpec((8192, 8192), "bfloat16")}
    small, large = (
        tops_kernels.configurations("matmul", "pallas_tpu", "fwd", inputs, {}, chip) for chip in ("v4", "v6e")
    )
    assert set(small) < set(large)


def test_chips_are_named_as_support_names_them() -> None:
    assert chip_name("pallas_tpu") == chip_name("pallas_gpu") == ""
    for target in TPU_TARGETS:
        with tracing_for(target):
            assert (chip_name("pallas_tpu"), chip_name("pallas_gpu")) == (target, "")


def test_a_recorder_sees_calls_inside_functions_jitted_before() -> None:
    inner = jax.jit(lambda a, b: tops_kernels.matmul(a, b, activation="relu"))
    inner.trace(A, B)
    found = calls(inner, (A, B), {}, None)
    assert [(call.op, dict(call.params)["activation"], which) for call, which in found] == [("matmul", "relu", "fwd")]
    assert {which for _, which in calls(jax.grad(lambda a, b: inner(a, b).sum()), (A, B), {}, None)} == {"fwd", "vjp"}
    assert [which for _, which in calls(inner, (A, B), {}, ("vjp",))] == ["vjp"]


# Files that are not what they seem.


def _mutations(content: bytes, count: int) -> Iterator[bytes]:
    """Bit flips, truncation, doubling, wrong versions, hostile values; the same on each run."""
    draw = random.Random(0)
    values: list[Any] = [
        None,
        -1,
        0,
        3,
        10**12,
        1e308,
        True,
        "",
        "../../etc/passwd",
        "/dev/zero",
        "x" * 5000,
        [],
        {},
        [[]],
        "\x00",
    ]
    for at in range(count):
        kind = at % 5
        if kind == 0:
            flipped = bytearray(content)
            for _ in range(draw.randint(1, 3)):
                flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
            yield bytes(flipped)
        elif kind == 1:
            yield content[: draw.randrange(len(content))]
        elif kind == 2:
            data = json.loads(content)
            row = draw.choice(data["rows"])
            row[draw.choice(sorted(row))] = draw.choice(values)
            yield json.dumps(data).encode()
        elif kind == 3:
            data = json.loads(content)
            inner = draw.choice(data["rows"])[draw.choice(["dims", "config", "toolchain"])]
            inner[draw.choice([*sorted(inner), "../x", "new"])] = draw.choice(values)
            yield json.dumps(data).encode()
        else:
            start, end = sorted(draw.randrange(len(content)) for _ in range(2))
            yield draw.choice(
                [
                    content[:start] + content[end:],
                    content[:end] + content[start:],
                    content.replace(b'"schema": 1', b'"schema": %d' % draw.choice([0, 2, 10**9])),
                    b"[" * 200_000,
                    content.replace(b"0.001", draw.choice([b"NaN", b"Infinity", b"-1", b"1e999", b"9" * 5000])),
                ]
            )


def test_of_1000_mutated_files_each_is_refused_or_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = tops_kernels.source_digest("matmul", "pallas_tpu")
    rows = [
        dataclasses.replace(ROW, kernel=kernel, chip="interpreter", which=which, dtype=dtype)
        for which in ("fwd", "vjp")
        for dtype in ("float32", "bfloat16")
    ]
    call = signature_of("matmul", {"a": A, "b": B}, {})
    path = tmp_path / "mutated.json"
    messages, used = set[str](), set[Any]()
    for content in _mutations(tables.dumps(rows), 1000):
        path.write_bytes(content)
        try:
            with tops_kernels.tuned(path):
                override = current("matmul")
                config = tuned.tuned_config(call, override, "pallas_tpu", "fwd", True, CONFIGS["pallas_tpu"])
        except TableError as error:
            messages.add(str(error))
            continue
        if config is not None:
            used.add(config)
    assert len(messages) > 100
    assert all(str(path) in message and len(message) < 1000 for message in messages)
    assert used
    assert sorted(os.listdir(tmp_path)) == ["mutated.json"]
    # What got through is a configuration like any other: the results are the xla path's.
    a, b = (jax.random.normal(jax.random.key(at), (512, 512)) for at in range(2))
    expected = tops_kernels.matmul(a, b, backend="xla")
    for config in sorted(used, key=repr)[:2]:
        with tops_kernels.use_config("matmul", "fwd", config):
            assert jnp.allclose(tops_kernels.matmul(a, b, interpret=True), expected, rtol=1e-4, atol=1e-3), config


def test_what_is_no_file_is_named_and_nothing_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b" " * (tables.MAX_BYTES + 1))
    (tmp_path / "locked").mkdir()
    for path in (tmp_path, tmp_path / "none", tmp_path / "pipe", "/dev/zero", tmp_path / "large", "a\x00b", ""):
        with pytest.raises(TableError), tops_kernels.tuned(path):
            raise AssertionError("entered")
