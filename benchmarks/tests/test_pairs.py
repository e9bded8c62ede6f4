"""The memory of pairs under measurement: what a memory is shown, arms that are given one, a small run, its page."""

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.fidelity.arms import AtBytes, WithMemory, arm_of
from benchmarks.fidelity.learning import LearningPlan, LibraryRequests, stretches
from benchmarks.fidelity.linking import Linking
from benchmarks.fidelity.memories import DEFAULT, EXACT, SMALL, ItemMemories, ShownPrompts, chunks_of, small_rank
from benchmarks.fidelity.pairs import (
    COMPARED,
    PairPlan,
    bars,
    by_antecedents,
    check_page,
    margins,
    page,
    read,
    run,
    write_page,
)
from benchmarks.tasks import task_of
from benchmarks.tasks.prompts import pieces, question_prompt
from benchmarks.tests.test_fidelity import record
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError, PromptError, StrategyError
from emblema.link.executor import Executor
from emblema.link.policy.fidelity import divergence
from emblema.link.strategies.pair import Pair

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load("reference")


@pytest.fixture(scope="module")
def linking(engine: Engine) -> Linking:
    """An item of three pages, of which a memory knows every pair."""
    item = next(item for item in task_of("maps").items(3, 9) if len(item.media) == 3)
    made = pieces(engine, item)
    prompts = [question_prompt(engine, item, index, made, "visible") for index in range(2)]
    memories = ItemMemories(engine, (EXACT,))
    assert memories.show_pairs(prompts[0]) == 3
    return Linking(Executor(engine.adapter), prompts, {}, {}, memories)


def test_a_memory_that_was_shown_all_pairs_nearly_closes_the_gap(linking: Linking) -> None:
    full, blind, pair = (linking.logits(linking.strategies(arm_of(name))) for name in ("full", "blind", "pair:exact"))
    for exact, without, own in zip(full, blind, pair, strict=True):
        assert float((own - exact).norm()) < 0.3 * float((without - exact).norm())
    assert not linking.logits(linking.strategies(arm_of("pair")))[0].equal(pair[0]), (
        "another memory, which is not there"
    )


def test_rows_are_credited_to_the_legend_that_they_read(engine: Engine) -> None:
    """Two items with two legends each, where the attention of an earlier layer than the middle names the wrong one."""
    found = []
    for item in [item for place, item in enumerate(task_of("maps").items(20261, 12)) if place in (9, 11)]:
        made = pieces(engine, item)
        prompts = [question_prompt(engine, item, index, made, "slid") for index in range(len(item.questions))]
        memories = ItemMemories(engine, (EXACT,))
        memories.show_pairs(question_prompt(engine, item, 0, made, "visible"))
        linking = Linking(Executor(engine.adapter), prompts, {}, {}, memories)
        full, blind, pair = (
            linking.logits(linking.strategies(arm_of(name))) for name in ("full", "blind", "pair:exact")
        )
        lost, had = (
            sum(divergence(exact.numpy(), own.numpy()) for exact, own in zip(full, other, strict=True))
            for other in (pair, blind)
        )
        found.append(1 - lost / had)
    assert min(found) > 0.95


def test_bytes_are_those_of_the_item(linking: Linking) -> None:
    share = linking.memory_share(EXACT)
    # A chunk after one page and a chunk after two, over the KV of both.
    assert 1.5 <= share < 1.6
    assert linking.spent(linking.strategies(arm_of("pair:exact"))).kv_bytes_share == share
    patch = linking.strategies(arm_of("patch@bytes-of-pair:exact"))
    assert linking.spent(patch).kv_bytes_share > 0.9


def test_a_basis_is_made_of_prompts_that_are_shown(engine: Engine) -> None:
    item = next(item for item in task_of("maps").items(4, 9) if len(item.media) == 3)
    chunks = chunks_of(pieces(engine, item))
    shown = ShownPrompts([chunks], 5)
    assert [chunk.id for chunk in shown.draw(3)] == [chunk.id for chunk in shown.draw(3)]
    assert len({tuple(chunk.id for chunk in shown.draw(number)) for number in range(20)}) > 4
    assert {len(shown.draw(number)) for number in range(20)} == {2, 3}
    assert small_rank(engine.adapter.layouts, 4) == 65


def test_arms_are_given_memories_by_name() -> None:
    exact, same = arm_of("pair+query-3%:exact"), arm_of("patch@bytes-of-pair")
    assert exact == WithMemory(EXACT, Pair(0.03)) and isinstance(exact, WithMemory)
    assert exact.name == "pair+query-3%:exact"
    assert same == AtBytes("patch", Pair()) and isinstance(same, AtBytes) and same.name == "patch@bytes-of-pair"
    for wrong in ("pair:unknown", "patch-6%:exact", "pair:"):
        with pytest.raises(StrategyError):
            arm_of(wrong)
    assert DEFAULT != SMALL


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pairs") / "pairs.json"
    plan = PairPlan(5, 1, 1, 1, LearningPlan(5, 1, 3), tasks=("two-page", "album-binding"))
    run(["reference"], plan, lambda name: Engine.load("reference"), place, QUIET)
    return place


def test_a_run_has_rows_at_equal_bytes_by_antecedents_and_while_it_learns(listing: Path) -> None:
    found = read(listing)
    by_task = {(row["task"], row["setting"], row["strategy"]): row for row in found["rows"]}
    assert by_task["pooled", "slid", "pair:exact"]["eta"] > 0.9
    pair = by_task[COMPARED, "slid", "pair"]
    basis = by_task[COMPARED, "slid", "basis@bytes-of-pair"]
    assert 0 < basis["kv_bytes_share"] <= 1.05 * pair["kv_bytes_share"]
    assert basis["eta_below_like"] == pytest.approx(pair["eta"] - basis["eta"], abs=1e-4)
    assert by_task["1 antecedent", "slid", "pair:exact"]["eta"] > 0.99
    assert {row["task"] for row in found["rows"]} >= {"7 to 12 antecedents", "pooled", COMPARED}
    assert [row["n"] for row in found["learning"]] == [3] * 4, "both settings, both policies"
    assert {row["margin"]: row["accepted"] for row in found["margins"] if row["strategy"] == "pair"}[0.0] > 10
    held = bars(found, "reference", "slid")
    assert {"pair, eta", "pair:small, eta below pair:exact", "mpic@2x-pair+query-3%, how far below"} <= {
        bar.name for bar in held
    }


def test_a_page_is_what_its_figures_make(listing: Path) -> None:
    place = write_page(listing)
    check_page(listing)
    text = place.read_text(encoding="utf-8")
    assert "5. Every model" in text and "## While it learns" in text
    assert (listing.parent / "pairs.png").is_file() and (listing.parent / "pairs-learning.png").is_file()
    place.write_text(text.replace("two-page", "three-page"), encoding="utf-8")
    with pytest.raises(EmblemaError, match=r"pairs\.md"):
        check_page(listing)


def test_a_page_before_the_run_is_its_protocol() -> None:
    asked = PairPlan(7, 20, 6, 4, LearningPlan(7)).data()
    text = page({"asked": asked, "rows": [], "learning": [], "margins": []})
    assert "7. Every model" in text and "## Bars" not in text
    with pytest.raises(PromptError, match="compare no more"):
        PairPlan(7, 2, 6, 4, LearningPlan(7))
    with pytest.raises(PromptError, match="choose of"):
        LearningPlan(7, settings=("hidden",))


def test_wrong_answers_are_counted_by_margin() -> None:
    full = record("full", "a", [1, 2], [0.0, 0.0], margins=(0.9, 0.9))
    pair = record("pair", "a", [1, 3], [0.1, 0.1], margins=(0.4, 0.96))
    blind = record("blind", "a", [3, 3], [1.0, 1.0], margins=(0.4, 0.6))
    found = {row["margin"]: (row["accepted"], row["wrong"]) for row in margins([full, pair], [])}
    assert found[0.0] == (2, 1) and found[0.5] == (1, 1) and found[0.99] == (0, 0)
    assert {row["task"] for row in by_antecedents([full, blind, pair], {"a": 3})} == {"2 to 3 antecedents"}


def test_a_stretch_counts_rows_before_the_fallback_and_eta_without_it() -> None:
    own = LibraryRequests(
        "key", "reference", "slid", "pairs", 0, agrees=(1, 1, 0), fell_back=(0, 1, 0), rows=(0.1, 0.2, 0.3),
        kl=(0.0, 0.0, 1.0), blind=(1.0, 5.0, 3.0), pair=(0.5, 0.5, 0.5), pair_margin=(0.9, 0.1, 0.9),
        pair_agrees=(0, 1, 1), known=(0.0, 0.5, 1.0), learnt=(0.1, 0.2, 0.3), lane=("a", "b", "c"),
    )  # fmt: skip
    (row,) = stretches([own])
    assert row["rows"] == pytest.approx(0.2) and row["rows_with_fallbacks"] == pytest.approx(0.2 + 1 / 3)
    assert row["eta"] == pytest.approx(0.75) and row["wrong_accepted"] == pytest.approx(0.5)
    assert row["pair_wrong_accepted"] == pytest.approx(0.5) and row["learnt"] == 0.3
