"""The memory of pairs inside vLLM: learnt from what readings compute, served in new combinations, gone with a chunk."""

from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from emblema import Engine
from emblema.kv.pairs import ChunkPairs, width_of
from emblema.kv.patch import Factors, LayerPatch, Patch
from emblema.link.plan import Recomputation
from emblema.link.policy.policy import Policy
from emblema.plugin.stored_pairs import StoredPairs
from emblema.session.pair_bases import FOLDER, PairBases
from emblema.session.pair_memory import PairSettings
from emblema.session.requests import LinkRequest
from emblema.store import Store
from emblema.store.identity import request_salt
from emblema.store.keys import ArtifactKey, ArtifactKind
from emblema.vllm import readings
from emblema.vllm.packed_rows import PackedForward
from emblema.vllm.pair_learner import NotedShares
from tests.vllm.plans import Read
from tests.vllm.row_meter import RowMeter

FAMILY = "qwen2.5-vl"
PAIR = "pair+query-3%"
TOLERANCE = 1e-5
ORDERS = [(1, 0, 2, 3), (0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2), (2, 0, 3, 1)]
"""After these each picture has come after each other one, twice or more."""
SHOWN = (3, 1, 2, 0)
NEW = [(2, 1, 3), (0, 3, 2), (3, 1, 0, 2)]
EAGER = PairSettings(noted_rows=100_000, basis_rows=(100, 1000, 8000))


@dataclass
class Taught:
    """A served model, its pictures, and where it keeps what it knows.

    Attributes:
        stock: plain answers to the new combinations, before anything was linked.
        lanes: what became of the prompts that it was taught with.
        answers: under `auto` to the new combinations, each asked once: what comes again is computed.
        rows: that the worker computed for each of these.
        choices: what each of these chose rows from.
    """

    served: Any
    given: Any
    folder: Path
    stock: list[Tensor] = field(default_factory=list)
    lanes: list[str] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    choices: list[Recomputation] = field(default_factory=list)

    def ask(self, order: tuple[int, ...], strategy: str = "auto", **more: Any) -> Any:
        self.served.forget_prefixes()
        shown = self.given.only(*order)
        salt = more.pop("salt", None)
        options = {"strategy": strategy, "margin": 0, **more}
        return self.served.ask(shown.token_ids, shown.pictures, options, salt=salt)

    def chunks(self, salt: str | None = None) -> list[str]:
        """Ids of the four pictures."""
        found: list[str] = self.ask(SHOWN, "blind", pieces=True, salt=salt).report["pieces"]["chunks"]
        return [found[SHOWN.index(index)] for index in range(len(SHOWN))]

    def kept(self, salt: bytes = b"") -> dict[str, ChunkPairs]:
        """What the folder has of pairs, as another process reads it."""
        with Store(self.folder) as store:
            tenant = store.tenant(salt)
            return StoredPairs(store, self.served.kv_worker.spec).find(tenant, tenant.ids())


def start(bench: Any, subject: Any, folder: Path, settings: PairSettings = EAGER) -> Taught:
    served = bench.serve(subject.folder, folder, subject.vocabulary)
    learner = served.kv_worker.learner
    learner.settings, learner._policy = settings, Policy(learning_share=None)
    return Taught(served, subject.prompt(4, seed=3), folder)


def teach(taught: Taught, salt: str | None = None, **more: Any) -> None:
    """Show the pictures once, then in several orders, of which each is read."""
    taught.ask(SHOWN, "full", salt=salt)
    taught.served.settle()
    for order in ORDERS:
        # Half of the rows, so that a few prompts teach enough.
        strategy = "auto" if order == ORDERS[0] else "query-50%"
        taught.lanes.append(taught.ask(order, strategy, salt=salt, **more).report["strategy"])
        taught.served.settle()


def error(answer: Any, logits: Tensor) -> float:
    return float((answer.logits - logits).abs().max())


@pytest.fixture(scope="module")
def taught(bench: Any, subjects: Any, tmp_path_factory: pytest.TempPathFactory) -> Taught:
    made = start(bench, subjects(FAMILY), tmp_path_factory.mktemp("store"))
    made.stock = [made.ask(order, "full", salt="another").logits for order in NEW]
    teach(made)
    meter = RowMeter(made.served.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker)
    choose = readings.chosen_rows

    def chosen_rows(again: Recomputation, scores: Tensor) -> Tensor:
        made.choices.append(again)
        return choose(again, scores)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readings, "chosen_rows", chosen_rows)
        for order in NEW:
            meter.forget()
            made.answers.append(made.ask(order, capture=False))
            made.rows.append(sum(step.rows for step in meter.steps))
    meter.detach()
    made.served.settle()
    return made


@pytest.mark.cells
def test_new_combinations_are_served_from_pairs(taught: Taught) -> None:
    """The first picture, which comes after text alone, is read with 12 % of its rows, the others with 3 % of theirs.

    Text is computed once, the question twice, chosen rows once, and the last row once more.
    """
    assert taught.lanes[0] == "auto:query"
    for order, answer, again, rows in zip(NEW, taught.answers, taught.choices, taught.rows, strict=True):
        assert answer.report["strategy"] == "auto:pair+query", answer.report
        first, *others = (stop - begin for begin, stop in again.candidates)
        assert len(others) == len(order) - 1 and again.budget == ceil(0.12 * first + 0.03 * sum(others) - 1e-6)
        chosen = answer.report["media_tokens"] - answer.report["linked_tokens"]
        texts = taught.given.only(*order).texts
        assert rows == sum(map(len, texts[:-1])) + 2 * len(texts[-1]) + chosen + 1


def embedded(taught: Taught, folder: Path, subject: Any) -> tuple[Engine, list[Any]]:
    """An engine with the server's memory, under its own ids, and its chunks."""
    engine = Engine.load(subject.folder, dtype=torch.float32, store=Store(folder), policy=Policy.quiet())
    chunks = [engine.add(picture) for picture in taught.given.pictures]
    ids = dict(zip(taught.chunks(), (chunk.id for chunk in chunks), strict=True))
    spec, owner, model = taught.served.kv_worker.spec, engine.store.owner, engine.adapter.fingerprint
    kept = PairBases(taught.folder / FOLDER).load(
        taught.served.store.tenant().owner, spec.fingerprint, width_of(spec.layouts)
    )
    assert kept is not None and taught.kept()
    PairBases(folder / FOLDER).save(owner, model, kept)
    for chunk, pairs in taught.kept().items():
        own = replace(
            pairs,
            antecedents=tuple(ids[name] for name in pairs.antecedents),
            witnesses=tuple(frozenset(ids[name] for name in names) for names in pairs.witnesses),
        )
        assert engine.store.put_artifact(ArtifactKey(model, ids[chunk], kind=ArtifactKind.PAIR), own)
    engine.store.flush()
    return engine, chunks


@pytest.mark.cells
def test_answers_are_those_of_the_embedded_engine_with_the_same_memory(
    taught: Taught, subjects: Any, tmp_path: Path, record_property: Any
) -> None:
    engine, chunks = embedded(taught, tmp_path / "store", subjects(FAMILY))

    def wanted(order: tuple[int, ...], strategy: Any) -> Tensor:
        given = taught.given.only(*order)
        prompt = engine.prompt(given.parts([chunks[index] for index in order]), template=False)
        linked = engine.session.link(LinkRequest(prompt, strategy)).linked
        return torch.log_softmax(linked.logits, -1)

    read = [wanted(order, Read("auto")) for order in NEW]
    for order, answer, own in zip(NEW, taught.answers, read, strict=True):
        record_property(f"{order} auto", error(answer, own))
    for order, stock, answered, of_auto in zip(NEW, taught.stock, taught.answers, read, strict=True):
        full, blind = wanted(order, "full"), wanted(order, "blind")
        bar = float((stock - full).abs().max()) + TOLERANCE
        for name, strategy in ((PAIR, Read(PAIR)), ("pair", "pair")):
            own = wanted(order, strategy)
            # The memory stays as it is.
            answer = taught.ask(order, name, capture=False)
            record_property(f"{order} {name}", error(answer, own))
            assert error(answer, own) <= bar
            # Otherwise nothing was shown.
            assert min(float((own - other).abs().max()) for other in (full, blind)) > 100 * bar
        assert error(answered, of_auto) <= bar
    engine.close()


@pytest.mark.cells
def test_a_plain_request_is_stock_vllms(taught: Taught) -> None:
    for order, stock in zip(NEW, taught.stock, strict=True):
        taught.ask(order, PAIR)
        assert torch.equal(taught.ask(order, "full").logits, stock)


def test_pairs_of_zero_change_the_answer(taught: Taught, monkeypatch: pytest.MonkeyPatch) -> None:
    own = taught.ask(NEW[0], PAIR)
    compose = StoredPairs.compose

    def zeros(pairs: StoredPairs, *given: Any) -> Any:
        found = compose(pairs, *given)
        return None if found is None else replace(found, patch=Patch(tuple(map(zeroed, found.patch.layers))))

    def zeroed(layer: LayerPatch | None) -> LayerPatch:
        assert layer is not None
        return LayerPatch(*(Factors(slot.left * 0, slot.right) for slot in (layer.keys, layer.values)))

    monkeypatch.setattr(StoredPairs, "compose", zeros)
    assert error(taught.ask(NEW[0], PAIR), own.logits) > 100 * TOLERANCE


def test_a_restarted_server_knows_them(taught: Taught, bench: Any, subjects: Any) -> None:
    again = start(bench, subjects(FAMILY), taught.folder)
    for order in NEW:
        assert again.ask(order).report["strategy"] == "auto:pair+query"


def test_what_was_learnt_goes_with_any_chunk_that_was_there(bench: Any, subjects: Any, tmp_path: Path) -> None:
    """Deleted by another process: the worker writes nothing of it again, and serves nothing."""
    own = start(bench, subjects(FAMILY), tmp_path)
    teach(own)
    own.ask(NEW[0])
    gone = own.chunks()[3]
    with Store(tmp_path) as store:
        assert store.tenant().delete(gone)
    own.served.settle()
    assert own.kept() == {}, "all four were in each prompt"
    order = (2, 0, 1)
    answer = own.ask(order)
    assert answer.report["strategy"] == "auto:query" and answer.report["linked_tokens"] > 0
    assert torch.equal(own.ask(order, "pair").logits, own.ask(order, "blind").logits)
    own.served.settle()
    assert all(gone not in pairs.sources for pairs in own.kept().values())


def test_tenants_have_memories_of_their_own(bench: Any, subjects: Any, tmp_path: Path) -> None:
    own = start(bench, subjects(FAMILY), tmp_path)
    teach(own, salt="one")
    own.ask(SHOWN, "full", salt="two")
    own.served.settle()
    assert own.ask(NEW[0], salt="two").report["strategy"] == "auto:query"
    assert own.ask(NEW[0], salt="one").report["strategy"] == "auto:pair+query"
    first, second = (set(own.kept(request_salt(salt))) for salt in ("one", "two"))
    assert len(first) == 4 and not first & second
    assert not set(own.kept())


@pytest.mark.parametrize("broken", [(PackedForward, "_attend"), (NotedShares, "note")])
def test_without_the_hook_nothing_is_learnt(
    bench: Any, subjects: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: tuple[type, str]
) -> None:
    own = start(bench, subjects(FAMILY), tmp_path)
    plain = own.ask(NEW[0], "full", salt="another")
    monkeypatch.setattr(*broken, lambda *given: None)
    teach(own)
    assert own.kept() == {} and not own.served.kv_worker.learner.waiting.held
    answer = own.ask(NEW[0], "query-50%", margin=1)
    assert torch.equal(answer.logits, plain.logits)
    own.served.settle()
    assert own.kept() == {}
    answer = own.ask(NEW[0], "query-50%")
    if broken[0] is PackedForward:
        assert set(own.lanes) == {"plain"} and torch.equal(answer.logits, plain.logits)
    else:
        assert answer.report["linked_tokens"] > 0, "the reading does not suffer"


@pytest.mark.cells
def test_a_prompt_that_is_computed_after_it_was_read_teaches_too(bench: Any, subjects: Any, tmp_path: Path) -> None:
    """All of its rows, in as many steps as it takes; its answer is stock's."""
    own = start(bench, subjects(FAMILY), tmp_path)
    plain = own.ask(ORDERS[-1], "full", salt="another")
    own.ask(SHOWN, "full")
    own.served.settle()
    for order in ORDERS:
        answer = own.ask(order, "query-12%", margin=1)
        assert answer.report["strategy"] == "plain" and "likeliest first tokens" in answer.report["remark"]
        own.served.settle()
    assert torch.equal(answer.logits, plain.logits)
    ids = own.chunks()
    for chunk, pairs in own.kept().items():
        met = {name: sum(ids.index(name) in order[: order.index(ids.index(chunk))] for order in ORDERS) for name in ids}
        assert dict(zip(pairs.antecedents, pairs.prompts.tolist(), strict=True)) == {
            name: count for name, count in met.items() if count
        }
        assert len(pairs.places) > pairs.rows, "half of the rows' attention is one antecedent's, on average"
    assert own.ask(NEW[0]).report["strategy"] == "auto:pair+query"


def test_a_request_that_is_not_to_be_kept_teaches_nothing(bench: Any, subjects: Any, tmp_path: Path) -> None:
    own = start(bench, subjects(FAMILY), tmp_path)
    teach(own, capture=False)
    assert own.lanes[0] == "auto:query" and own.kept() == {}
