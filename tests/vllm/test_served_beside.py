"""Beside another connector, inside vLLM's `MultiConnector`; and an idle server, alone or so, does nothing."""

from typing import Any

import pytest
import torch

from emblema.session.requests import LinkRequest
from tests.vllm.host_offloading import OFFLOADING
from tests.vllm.plans import Read
from tests.vllm.serving import plugin_options
from tests.vllm.test_served_safety import TOLERANCE, error, learn, wanted

IDLE_SECONDS = 10


def beside_options(store: Any, *others: dict[str, Any]) -> dict[str, Any]:
    """What `vllm serve` is given beside the model, with our connector first among several."""
    options = plugin_options(store)
    own = options["kv_transfer_config"]
    return options | {
        "kv_transfer_config": {
            "kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"connectors": [own, *others]},
        }
    }  # fmt: skip


@pytest.fixture(scope="module", params=["beside", "inside", "alone"])
def served(bench, subject, tmp_path_factory, request) -> Any:
    """A server with our connector beside vLLM's offloading one, as the only one inside `MultiConnector`, or alone."""
    store = tmp_path_factory.mktemp("store")
    others = {"beside": [OFFLOADING], "inside": [], "alone": None}[request.param]
    options = {} if others is None else beside_options(store, *others)
    return bench.serve(subject.folder, store, subject.vocabulary, **options)


def test_an_idle_server_makes_no_step(served, subject) -> None:
    """Neither before anything was asked nor after pictures were captured, whose pages come back."""
    assert served.step_while_asked(IDLE_SECONDS / 2, idle=True) == 0
    pool = served.scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    learn(served, subject.prompt(3, seed=81))
    assert len(served.store.tenant()) >= 3 and not served.captures.running
    assert served.step_while_asked(IDLE_SECONDS, idle=True) == 0
    assert pool.get_num_free_blocks() == free


@pytest.mark.cells
@pytest.mark.parametrize("strategy", ["blind", "mpic-4", "query-25%"])
def test_answers_are_linked_or_plain_as_without_the_other(served, subject, engine, strategy) -> None:
    given = subject.prompt(3, seed=82)
    plain = served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    assert plain.report["linked_tokens"] == 0 and error(plain, wanted(engine, given, "full")) <= TOLERANCE
    learn(served, given)
    again = given.only(2, 0, 1)
    answer = served.ask(again.token_ids, again.pictures, {"strategy": strategy, "margin": 0})
    assert answer.report["strategy"] == strategy and answer.report["linked_tokens"] > 0
    read = Read(strategy, 0) if strategy.startswith("query") else strategy
    prompt = engine.prompt(again.parts([engine.add(picture) for picture in again.pictures]), template=False)
    made = torch.log_softmax(engine.session.link(LinkRequest(prompt, read)).linked.logits, -1)
    assert error(answer, made) <= TOLERANCE
    served.settle()
    assert served.scheduler.kv_cache_manager.usage == 0 and served.connector._private == set()


def test_the_other_gives_exact_rows_alone(bench, subject, engine, tmp_path) -> None:
    """What it keeps of a linked prompt nobody else finds; what it keeps of a plain one is given."""
    served = bench.serve(subject.folder, None, subject.vocabulary, **beside_options(tmp_path, OFFLOADING))
    given = subject.prompt(3, seed=83)
    learn(served, given)
    linked = served.ask(given.token_ids, given.pictures, {"strategy": "blind"})
    assert linked.report["linked_tokens"] > 0
    served.settle()
    served.forget_prefixes()
    plain = served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    assert error(plain, wanted(engine, given, "full")) <= TOLERANCE
    served.settle()
    served.forget_prefixes()
    again = served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    assert again.cached > 0 and again.report["linked_tokens"] == 0, "the other connector gives what it kept"
    assert error(again, wanted(engine, given, "full")) <= TOLERANCE


def test_a_linked_prompt_takes_nothing_of_the_other(bench, subject, engine, tmp_path) -> None:
    """vLLM takes a prompt's rows from one connector: two pages of text that the other has are computed."""
    served = bench.serve(subject.folder, None, subject.vocabulary, **beside_options(tmp_path, OFFLOADING))
    given = subject.prompt(3, seed=84, lead=70)
    learn(served, given)
    again = given.only(1, 2, 0)
    answer = served.ask(again.token_ids, again.pictures, {"strategy": "blind"})
    assert answer.report["linked_tokens"] == answer.cached > 0
    assert error(answer, wanted(engine, again, "blind")) <= TOLERANCE
