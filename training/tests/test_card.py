"""The card of a trained model: its tables say what the figures say."""

from benchmarks.bars import BarsResult, report
from training.card import bars_table

ROW = {
    "setting": "slid",
    "kind": "multi-hop",
    "strategy": "patch-25%",
    "n": 40,
    "accuracy": 0.975,
    "accuracy_lost": 0.025,
    "intervals": {"accuracy": (0.9, 1.0), "accuracy_lost": (0.0, 0.05)},
    "eta": 0.98765,
    "flip_recovery": 0.9,
    "flips": 20,
}


def test_a_line_for_each_row_of_the_figures() -> None:
    text = bars_table(report(BarsResult("reference", "atlas", 3, 4, (ROW,), 0.0, 0)))
    assert "4 fresh episodes of atlas, seed 3" in text
    line = "| slid | multi-hop | patch-25% | 40 | 0.975 [0.900, 1.000] | 0.025 [0.000, 0.050] | 0.988 | 0.90 of 20 |"
    assert line in text.splitlines()
