"""Linking in bulk gives what the engine gives prompt by prompt, on every family of layouts, and spends what it says."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from benchmarks.fidelity.arms import MAKERS, Arm, Budget, arm_of, names_of
from benchmarks.fidelity.linking import Linking
from benchmarks.fidelity.measure import learned_rank, merged
from benchmarks.fidelity.oracles import Oracle
from benchmarks.tasks import task_of
from benchmarks.tasks.prompts import messages, pieces
from benchmarks.tests.test_fidelity_oracles import oracle
from emblema import slid
from emblema.engine.engine import Engine
from emblema.errors import StrategyError
from emblema.kv.layout import LayerRows
from emblema.kv.patch import Patch, form_patch
from emblema.link.executor import Executor
from emblema.link.forming import pooled_directions
from emblema.link.prompt import Prompt
from emblema.session.requests import LinkRequest
from emblema.store.keys import ArtifactKey
from tests.families import loaded, picture

EXACT = 1e-4
STRATEGIES = (
    "full", "blind", "patch-6%", "patch-25%-deep", "orbit-4", "mpic-8", "mpic-8-raw", "full-reuse", "cacheblend-15",
    "cacheblend2-15", "vlcache-15", "sink", "lowrank-k-8", "reprefill-deep-50", "reprefill-shallow-50",
    "patch@25%", "cacheblend@25%", "query@25%", "mpic@2x-query-12%", "oracle-deficit-15", "oracle-query-15",
)  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load("reference")


@pytest.fixture(scope="module", params=["visible", "slid"])
def linking(engine: Engine, request: pytest.FixtureRequest) -> Linking:
    item = next(one for one in task_of("maps").items(0, 9) if len(one.media) == 3)
    made = pieces(engine, item)
    prompts = [engine.prompt(messages(item, index, made, request.param)) for index in range(4)]
    return prepared(engine, prompts)


def prepared(engine: Engine, prompts: Sequence[Prompt], names: Sequence[str] = STRATEGIES) -> Linking:
    linking = Linking(Executor(engine.adapter), prompts, {}, {})
    linking.prepare([arm_of(name) for name in names])
    return linking


def apart(linking: Linking, engine: Engine, arm: Arm) -> list[Tensor]:
    """The same, by the engine's own linker, one prompt after another."""
    strategies = linking.strategies(arm)
    return [
        engine.session.link(LinkRequest(prompt, strategy)).linked.logits
        for prompt, strategy in zip(linking.prompts, strategies, strict=True)
    ]


@pytest.mark.parametrize("name", STRATEGIES)
def test_questions_run_together_get_the_engines_logits(linking: Linking, engine: Engine, name: str) -> None:
    assert linking.shared
    arm = arm_of(name)
    together = linking.logits(linking.strategies(arm))
    for one, other in zip(together, apart(linking, engine, arm), strict=True):
        assert float((one - other).abs().max()) < EXACT


@pytest.mark.parametrize("name", ["llava_next", "qwen3_vl", "kimi_k25", "gemma3"])
def test_every_family_of_layouts_runs_together(name: str) -> None:
    item = loaded(name)
    engine = Engine(item.model, item.bundle)
    first, second = (engine.add(picture(*size, seed=seed)) for seed, size in enumerate(item.case.sizes[:2]))
    asked = ("which land ?", "which land does the tent stand on ?", "on which image ?")
    prompts = [engine.prompt([slid(first), "and", second, text], template=False) for text in asked]
    names = [one for one in STRATEGIES if "cacheblend" not in one or engine.adapter.supports_layerwise]
    linking = prepared(engine, prompts, names)
    assert linking.shared
    for one in names:
        arm = arm_of(one)
        for together, alone in zip(linking.logits(linking.strategies(arm)), apart(linking, engine, arm), strict=True):
            assert float((together - alone).abs().max()) < EXACT, one


def test_prompts_that_differ_in_front_are_linked_one_by_one(engine: Engine) -> None:
    item = next(task_of("dialogue-word").items(3, 1))
    made = pieces(engine, item)
    prompts = [engine.prompt(messages(item, index, made, "visible")) for index in range(len(item.questions))]
    linking = prepared(engine, prompts, ["patch-25%"])
    assert not linking.shared
    arm = arm_of("patch-25%")
    for one, other in zip(linking.logits(linking.strategies(arm)), apart(linking, engine, arm), strict=True):
        assert float((one - other).abs().max()) < EXACT


def test_a_piece_is_formed_once_and_as_large_as_the_largest_asks(linking: Linking, engine: Engine) -> None:
    kept: list[tuple[ArtifactKey, Patch]] = []
    fresh = Linking(linking.executor, linking.prompts, Watched(kept), {})
    arms = [arm_of(name) for name in ("patch-2", "patch-25%", "orbit-3", "orbit-9", "patch-8", "lowrank-k-4")]
    fresh.prepare(arms)
    keys = [key for key, _ in kept]
    assert len(keys) == len(set(keys))
    for arm in arms:
        fresh.logits(fresh.strategies(arm))
    assert len(kept) == len(keys)
    assert {patch.rank for key, patch in kept if key.orbit} == {9}


class Watched(dict[ArtifactKey, Patch]):
    """Keeps what is written to it, in order."""

    def __init__(self, log: list[tuple[ArtifactKey, Patch]]) -> None:
        super().__init__()
        self.log = log

    def __setitem__(self, key: ArtifactKey, patch: Patch) -> None:
        self.log.append((key, patch))
        super().__setitem__(key, patch)


def test_oracles_choose_as_the_links_own_do(linking: Linking, engine: Engine) -> None:
    for index, prompt in enumerate(linking.prompts[:2]):
        for percent in (6, 25):
            deficit = linking.strategies(Oracle("deficit", percent))[index]
            query = linking.strategies(Oracle("query", percent))[index]
            assert deficit.rows == oracle("deficit", engine.adapter, prompt, percent).rows
            assert query.rows == oracle("query", engine.adapter, prompt, percent).rows


@pytest.mark.parametrize("share", [6, 25, 50])
@pytest.mark.parametrize("method", [name for name in MAKERS if name != "basis"])
def test_a_method_at_a_share_stays_within_it_and_uses_it(linking: Linking, method: str, share: int) -> None:
    arm = arm_of(f"{method}@{share}%")
    strategies = linking.strategies(arm)
    spent = linking.spent(strategies).kv_bytes_share
    chunks = [chunk.tokens for _, chunk in linking.prompts[0].chunk_segments]
    # One row a chunk by rounding where the knob is a percentage.
    slack = 0.5 / min(chunks) + 1e-9 if method.startswith("vlcache") else 1e-9
    assert spent <= share / 100 + slack
    if not method.startswith("reprefill"):
        assert spent > 0.6 * share / 100


def test_patches_beyond_a_share_would_not_fit(linking: Linking, engine: Engine) -> None:
    adapter = engine.adapter
    budget = Budget.of(0.25, linking.prompts[0], adapter.layouts, adapter.hidden_size)
    rank = MAKERS["orbit"](budget).rank
    more = arm_of(f"orbit-{rank + 1}")
    assert linking.spent(linking.strategies(more)).kv_bytes_share > 0.25


def test_full_computes_everything_and_blind_only_text(linking: Linking) -> None:
    full, blind = (linking.spent(linking.strategies(arm_of(name))) for name in ("full", "blind"))
    prompt = linking.prompts[0]
    assert (full.kv_bytes_share, full.rows_computed_share) == (1, 1)
    assert blind.kv_bytes_share == 0
    text = sum(stop - start for start, stop in prompt.text_rows)
    assert blind.rows_computed_share == pytest.approx(text / prompt.tokens)


def test_names_and_groups() -> None:
    assert names_of(["patch-8", "blind"]) == ("full", "blind", "patch-8")
    assert set(names_of(["matched"])) >= {"patch@6%", "oracle-query@25%"}
    for wrong in ("nothing", "oracle-deficit-0", "oracle-query-101", "patch@0%", "mpic@200%", "zebra@6%", "oracle-x-5",
                  "mpic@..%", ""):  # fmt: skip
        with pytest.raises(StrategyError, match="."):
            names_of([wrong])


def test_a_merged_pool_has_the_directions_of_all_its_patches() -> None:
    torch.manual_seed(0)
    patches = {
        ArtifactKey("m", f"{index}", ()): form_patch(
            [LayerRows(torch.randn(2, 9, 8), torch.randn(2, 9, 8))], 9, torch.float32
        )
        for index in range(3)
    }
    for rank in (3, 8):
        one = pooled_directions(list(merged(patches, 8).values()), rank)
        every = pooled_directions(list(patches.values()), rank)
        for layer, other in zip(one, every, strict=True):
            assert layer is not None and other is not None
            for mine, theirs in zip(layer, other, strict=True):
                assert float((mine.T @ mine - theirs.T @ theirs).abs().max()) < 1e-4
    assert merged({}, 3) == {}


def test_only_what_learns_from_others_needs_a_pool(engine: Engine) -> None:
    layouts = engine.adapter.layouts
    width = layouts[0].keys[0] * layouts[0].keys[1]
    assert learned_rank([arm_of("patch-64"), arm_of("orbit@25%")], layouts) == 0
    assert learned_rank([arm_of("basis-5"), arm_of("basis@25%")], layouts) == width // 4
