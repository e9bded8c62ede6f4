"""What deficits are summed up by, on matrices whose answer is known."""

import numpy as np
import pytest
import torch

from benchmarks.deficit.answerlog import BLIND, FULL, MULTI, AnswerLog
from benchmarks.deficit.findings import Finding, findings
from benchmarks.deficit.measure import DeficitOptions, DeficitResult, Examples, ModelFacts
from benchmarks.deficit.negatives import apart, both
from benchmarks.deficit.rank import directions, singular
from benchmarks.deficit.recorder import Recording
from benchmarks.deficit.rows import THRESHOLDS, in_ulp
from benchmarks.deficit.tokens import chosen, needed
from emblema.kv.layout import LayerRows


@pytest.mark.parametrize("rank", [1, 3, 7, 9])
def test_a_deficit_of_equal_directions_has_their_number(rank: int) -> None:
    generator = torch.Generator().manual_seed(rank)
    left, _ = torch.linalg.qr(torch.randn(40, rank, generator=generator))
    right, _ = torch.linalg.qr(torch.randn(64, rank, generator=generator))
    assert directions(singular(left @ right.T)) == rank


def test_energy_is_what_counts_not_the_number_of_directions() -> None:
    assert directions(torch.tensor([10.0, 1.0, 1.0])) == 1
    assert directions(torch.tensor([1.0, 1.0, 1.0, 1.0])) == 4
    assert directions(torch.zeros(5)) == 0


def test_the_share_of_places_that_is_needed() -> None:
    assert needed(torch.ones(10)) == 0.9
    assert needed(torch.tensor([0.0, 0.0, 5.0, 0.0])) == 0.25
    assert np.isnan(needed(torch.zeros(3)))


def test_a_share_of_an_order_is_rounded_up() -> None:
    order = torch.tensor([3, 0, 1, 2])
    assert chosen(order, 25).tolist() == [False, False, False, True]
    assert chosen(order, 26).tolist() == [True, False, False, True]
    assert bool(chosen(order, 100).all())


def test_keys_and_values_come_apart_as_they_were() -> None:
    rows = LayerRows(torch.randn(2, 5, 8), torch.randn(3, 5, 4))
    again = apart(both(rows), rows)
    assert torch.equal(again.keys, rows.keys)
    assert torch.equal(again.values, rows.values)


def test_one_step_of_bf16_is_one_unit() -> None:
    rows = torch.ones(1, 1, 8).bfloat16()
    above = rows.clone()
    above[..., 0] = torch.nextafter(above[..., 0].clone(), torch.tensor(2.0).bfloat16())
    assert float(in_ulp(rows, rows).max()) == 0
    assert float(in_ulp(above, rows).max()) == 1
    assert float(in_ulp(rows * 2, rows).max()) == 2**7


def test_blocks_are_recorded_in_the_order_they_run() -> None:
    found = Recording(3, 7)
    weights = torch.arange(8 * 8, dtype=torch.float32).reshape(8, 8)
    found.attended(0, weights[None, :5, :5])
    found.attended(0, weights[None, 5:, :])
    assert found.attention[0].shape == (4, 8)
    assert torch.equal(found.attention[0][2:], weights[5:7])
    assert torch.equal(found.attention[0][0, :5], weights[3, :5])
    assert float(found.attention[0][0, 5:].abs().max()) == 0
    stream = torch.arange(8.0)[:, None]
    found.entered(1, stream[:5])
    found.entered(1, stream[5:])
    assert found.streams[1][:, 0].tolist() == [3, 4, 5, 6]


def ledger_of(losses: dict[str, list[float]], items: int) -> AnswerLog:
    """A log whose answers have the given KL, by two-token distributions; the same for every episode."""
    log = AnswerLog()
    for item in range(items):
        log.noted.append(
            type_of_noted()(
                f"item-{item}",
                "slid",
                MULTI,
                0,
                {name: own[item % len(own)] for name, own in losses.items()},
                {name: int(own[item % len(own)] > 0.5) for name, own in losses.items()},
            )  # fmt: skip
        )
    return log


def type_of_noted() -> type:
    from benchmarks.deficit import answerlog

    return answerlog._QuestionLosses


def test_rows_of_the_ledger_are_set_against_blind_reuse() -> None:
    log = ledger_of({FULL: [0.0], BLIND: [2.0, 1.0], "rank/1": [1.0, 0.5], "harm": [4.0, 2.0]}, 10)
    row = log.row("rank/1", "slid", MULTI)
    harm = log.row("harm", "slid", MULTI)
    assert row is not None and harm is not None
    assert row.n == 10
    assert row.eta.value == pytest.approx(0.5)
    assert row.eta.low == pytest.approx(0.5) == row.eta.high
    assert harm.eta.value == pytest.approx(-1)
    assert row.flips.count == 10
    assert row.flips.value == 0.5
    assert log.row("rank/2", "slid", MULTI) is None
    assert log.row("rank/1", "visible", MULTI) is None


def test_figures_that_say_nothing_are_left_out() -> None:
    log = AnswerLog()
    log.value("a", {"one": 1.0, "two": float("nan")})
    log.value("b", {"one": 3.0})
    found = log.estimate("one")
    assert found is not None
    assert (found.value, found.n) == (2, 2)
    assert found.low <= found.value <= found.high
    assert log.estimate("two") is None


def test_logits_become_losses_and_answers() -> None:
    log = AnswerLog()
    logits = {FULL: np.array([4.0, 0.0]), BLIND: np.array([0.0, 4.0]), "same": np.array([4.0, 0.0])}
    log.answers("a", "slid", MULTI, 0, logits)
    row, blind = log.row("same", "slid", MULTI), log.row(BLIND, "slid", MULTI)
    assert row is not None and blind is not None
    assert row.kl.value == 0 and blind.kl.value > 1
    assert row.accuracy is not None and blind.accuracy is not None
    assert (row.accuracy.value, blind.accuracy.value) == (1, 0)
    assert row.flips.value == 1


def result_of(losses: dict[str, list[float]], items: int = 12) -> DeficitResult:
    model = ModelFacts("tiny", "tiny", "heads", 3, (8, 8), 2, 0, "none")
    return DeficitResult(model, DeficitOptions(items=items), ledger_of(losses, items), Examples(), [])


def by_name(result: DeficitResult) -> dict[str, Finding]:
    return {one.name: one for one in findings(result, "slid")}


def test_plateau_and_budgets_are_the_first_that_reach_their_bound() -> None:
    losses = {FULL: [0.0], BLIND: [1.0], "rank/1": [0.5], "rank/2": [0.05], "rank/4": [0.01], "rank/full": [0.0]}
    losses |= {"deepest/1": [0.2], "deepest/2": [0.04]}
    losses |= {"reprefill/1": [1.0], "reprefill/2": [0.02], "reprefill/3": [0.0], "rank/16": [0.01]}
    chosen = by_name(result_of(losses))
    assert (chosen["plateau"].value, chosen["plateau"].low, chosen["plateau"].high) == ("2", "2", "2")
    assert chosen["plateau"].n == chosen["plateau, other half"].n == 6
    assert chosen["depth budget"].value == "2"
    assert chosen["re-prefill to match rank/16"].value == "3"


def test_what_is_never_reached_is_said() -> None:
    losses = {FULL: [0.0], BLIND: [1.0], "rank/full": [0.0]} | {f"first tokens/{one}": [0.8] for one in (5, 50, 90)}
    assert by_name(result_of(losses))["tokens, first"].value == "none"


def test_a_choice_that_hangs_on_a_few_items_has_a_wide_interval() -> None:
    losses = {FULL: [0.0], BLIND: [1.0], "rank/1": [0.0] * 9 + [0.6], "rank/2": [0.0], "rank/full": [0.0]}
    log = ledger_of(losses, 20)

    def reached(means: np.ndarray, beside: np.ndarray) -> np.ndarray:
        return np.asarray(means <= 0.06 * beside[..., 1:])

    choice = log.first(["rank/1", "rank/2"], "slid", MULTI, reached)
    assert choice is not None
    assert (choice.low, choice.high) == (0, 1)


def test_the_halves_share_no_episode() -> None:
    log = ledger_of({FULL: [0.0], BLIND: [1.0]}, 9)
    halves = [{one.episode for one in log.noted if log.half(one.episode) == half} for half in (0, 1)]
    assert not halves[0] & halves[1]
    assert len(halves[0]) == 5 and len(halves[1]) == 4
    assert tuple(sorted(THRESHOLDS)) == THRESHOLDS
