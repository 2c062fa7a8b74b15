"""With the real compiler. Slow; where libtpu is not installed, what must hold is that the command says how to get it."""

import json

import pytest

from tops_bench import cli
from tops_bench.aot import toolchain

pytestmark = pytest.mark.slow

ROW = [
    "aot",
    "rms_norm",
    "--target",
    "v5e",
    "--pass",
    "fwd",
    "--workload",
    "llama-3.1-70b-decode",
    "--contender",
    "pallas_tpu",
]


def says_what_to_install(capsys) -> bool:
    if toolchain.missing("tpu") is None:
        return False
    assert cli.main(ROW) == 1
    assert "tops-bench[tpu]" in capsys.readouterr().err
    return True


def test_two_runs_give_identical_figures(capsys):
    if says_what_to_install(capsys):
        return
    figures = []
    for _ in range(2):
        assert cli.main([*ROW, "--json"]) == 0
        figures.append(json.loads(capsys.readouterr().out)["rows"])
    assert figures[0] == figures[1]
    assert figures[0][0]["figures"]["seconds"] > 0


def test_a_limit_of_no_time_is_a_row_and_no_hang(capsys):
    if says_what_to_install(capsys):
        return
    assert cli.main([*ROW, "--limit", "0.1", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["rows"][0]["status"] == "timeout"


def test_what_was_saved_checks_clean_and_a_worse_baseline_does_not(capsys, tmp_path):
    if says_what_to_install(capsys):
        return
    place = ["--baselines", str(tmp_path)]
    assert cli.main([*ROW, "--save", *place]) == 0
    assert cli.main([*ROW, "--check", *place]) == 0
    path = tmp_path / "v5e.json"
    saved = json.loads(path.read_text())
    (entry,) = saved["rows"].values()
    entry["cycles"] /= 2
    path.write_text(json.dumps(saved))
    capsys.readouterr()
    assert cli.main([*ROW, "--check", *place]) == 1
    assert "cycles" in capsys.readouterr().out


def test_the_hottest_loop_is_explained_and_drawn(capsys, tmp_path):
    if says_what_to_install(capsys):
        return
    page = tmp_path / "loop.html"
    assert cli.main([*ROW, "--explain", "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert "hottest loop" in out
    assert "longest dependency chains" in out
    assert "<svg" in page.read_text()


def test_a_decode_step_moves_the_states_it_steps_and_no_pool(capsys):
    """8 of 1000 states: 8 MiB in and out. The pool is given away, so what comes out lies where it lay and nothing is beside it."""
    if says_what_to_install(capsys):
        return
    row = ["aot", "gla_step", "--target", "v5e", "--workload", "gla-340m-grouped-serve-8", "--contender", "pallas_tpu"]
    assert cli.main([*row, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["rows"]
    states = 2 * 8 * 4 * 128 * 256 * 4
    assert states <= found["figures"]["dma_bytes"] < 1.1 * states
    assert found["figures"]["temp_bytes"] < 1 << 20
