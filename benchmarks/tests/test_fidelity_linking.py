"""Linking with pieces formed for all strategies at once gives what the engine gives, and spends what it says."""

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.fidelity.arms import MAKERS, arm_of, names_of
from benchmarks.fidelity.linking import Linking, as_published
from benchmarks.tasks import task_of
from benchmarks.tasks.prompts import messages, pieces
from emblema.engine.engine import Engine
from emblema.errors import StrategyError
from emblema.link.executor import Executor
from emblema.link.strategies.base import Strategy
from emblema.session.requests import LinkRequest

EXACT = 1e-4
STRATEGIES = (
    "full", "blind", "patch-6%", "patch-25%-deep", "orbit-4", "mpic-8", "full-reuse", "cacheblend-15",
    "cacheblend2-15", "vlcache-15", "sink", "reprefill-shallow-50",
    "patch@25%", "cacheblend@25%", "query@25%", "oracle-deficit-15", "oracle-query-15",
)  # fmt: skip


@pytest.fixture(scope="module", params=["visible", "slid"])
def linking(engine: Engine, request: pytest.FixtureRequest) -> Linking:
    item = next(one for one in task_of("maps").items(0, 9) if len(one.media) == 3)
    made = pieces(engine, item)
    prompts = [engine.prompt(messages(item, index, made, request.param)) for index in range(4)]
    linking = Linking(Executor(engine.adapter), prompts, {})
    linking.prepare([arm_of(name) for name in STRATEGIES])
    return linking


def published(strategy: Strategy) -> Any:
    """The strategy with patches of one rank in all layers, as those of `Linking`."""
    return SimpleNamespace(name=strategy.name, plan=lambda *given: as_published(strategy.plan(*given)))


@pytest.mark.parametrize("name", STRATEGIES)
def test_pieces_formed_for_all_give_the_engines_logits(linking: Linking, engine: Engine, name: str) -> None:
    strategies = linking.strategies(arm_of(name))
    for own, prompt, strategy in zip(linking.logits(strategies), linking.prompts, strategies, strict=True):
        alone = engine.session.link(LinkRequest(prompt, published(strategy))).linked.logits
        assert float((own - alone).abs().max()) < EXACT, name


def test_a_piece_is_formed_once_and_as_large_as_the_largest_asks(linking: Linking) -> None:
    fresh = Linking(linking.executor, linking.prompts, {})
    arms = [arm_of(name) for name in ("patch-2", "patch-25%", "orbit-3", "orbit-9", "patch-8")]
    fresh.prepare(arms)
    formed = dict(fresh.patches)
    for arm in arms:
        fresh.logits(fresh.strategies(arm))
    assert fresh.patches.keys() == formed.keys()
    assert all(fresh.patches[key] is piece for key, piece in formed.items())
    assert {piece.rank for key, piece in formed.items() if key.orbit} == {9}


@pytest.mark.parametrize("share", [6, 25, 50])
@pytest.mark.parametrize("method", [name for name in MAKERS if name != "basis"])
def test_a_method_at_a_share_stays_within_it_and_uses_it(linking: Linking, method: str, share: int) -> None:
    spent = linking.spent(linking.strategies(arm_of(f"{method}@{share}%"))).kv_bytes_share
    # One row a chunk by rounding where the knob is a percentage.
    rounding = 0.5 / min(chunk.tokens for _, chunk in linking.prompts[0].chunk_segments)
    assert spent <= share / 100 + 1e-9 + (rounding if method.startswith("vlcache") else 0)
    assert spent > 0.6 * share / 100 or method.startswith("reprefill")


def test_full_computes_everything_and_blind_only_text(linking: Linking) -> None:
    full, blind = (linking.spent(linking.strategies(arm_of(name))) for name in ("full", "blind"))
    shares = [sum(stop - start for start, stop in each.text_rows) / each.tokens for each in linking.prompts]
    assert (full.kv_bytes_share, full.rows_computed_share, blind.kv_bytes_share) == (1, 1, 0)
    assert blind.rows_computed_share == pytest.approx(sum(shares) / len(shares))


def test_names_and_groups() -> None:
    assert names_of(["patch-8", "blind"]) == ("full", "blind", "patch-8")
    assert set(names_of(["matched"])) >= {"patch@6%", "oracle-query@25%"}
    for wrong in ("nothing", "oracle-deficit-0", "oracle-query-101", "patch@0%", "mpic@200%", "zebra@6%", "oracle-x-5",
                  "mpic@..%", ""):  # fmt: skip
        with pytest.raises(StrategyError, match="."):
            names_of([wrong])
