"""The examples do what they say, in small; by hand they take a minute."""

import pytest

from examples import train_gla_lm


def test_a_language_model_trains_and_writes_the_same_either_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train_gla_lm, "LAYERS", 1)  # compiling is what takes time
    monkeypatch.setattr(train_gla_lm, "LENGTH", 64)
    monkeypatch.setattr(train_gla_lm, "WRITTEN", 10)
    assert train_gla_lm.main(["--steps", "8"]) == 0
    assert "prefill and decode against the full pass" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("losses", "error", "status"),
    [([2.0, 1.0], 1e-6, 0), ([1.0, 2.0], 1e-6, 1), ([2.0, 1.0], 1e-4, 1), ([2.0, 1.0], float("nan"), 1)],
)
def test_a_model_that_does_not_learn_or_decodes_otherwise_is_told(
    losses: list[float], error: float, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_gla_lm, "train", lambda params, text, steps: (params, losses))
    monkeypatch.setattr(train_gla_lm, "write", lambda params, prompt, count: (prompt, prompt))
    monkeypatch.setattr(train_gla_lm, "disagreement", lambda *_: error)
    assert train_gla_lm.main(["--steps", "2"]) == status
