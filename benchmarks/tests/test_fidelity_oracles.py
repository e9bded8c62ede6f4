"""The oracles on every family: what they choose, that their plans run as planned, and that their limit is exact."""

import pytest

from benchmarks.fidelity.oracles import ChosenRows, Oracle
from emblema.errors import StrategyError
from emblema.link.executor import Executor
from emblema.link.forming import conditioned_table
from emblema.link.prompt import Prompt
from emblema.models.adapter import Adapter
from emblema.session.decoding import DecodeStart, Sampler, Sampling, decode
from emblema.session.requests import LinkRequest
from tests.engine.engines import engine, largest_error
from tests.link.linking import assert_ran_as_planned, full, link, linker, prompt_for
from tests.link.test_strategies_families import every_family, settings

KINDS = ("deficit", "query")


def oracle(kind: str, adapter: Adapter, prompt: Prompt, percent: float) -> ChosenRows:
    """The choice of an oracle that runs its own re-prefill."""
    executor, asked = Executor(adapter), Oracle(kind, percent)
    front = prompt.until(prompt.segments[-1].start) if asked.by_question else prompt
    return asked.choose(asked.scores(executor, prompt, conditioned_table(executor, front)), prompt)


@every_family
@settings
def test_what_was_planned_is_what_ran(name: str, setting: str) -> None:
    prompt, adapter = prompt_for(name, setting), engine(name).adapter
    own = linker(name, prompt)
    for kind in KINDS:
        assert_ran_as_planned(own.link(LinkRequest(prompt, oracle(kind, adapter, prompt, 25))), prompt, adapter)


@every_family
@settings
def test_decoding_after_all_rows_follows_re_prefill(name: str, setting: str) -> None:
    prompt, adapter = prompt_for(name, setting), engine(name).adapter
    strategies = ("full", *(oracle(kind, adapter, prompt, 100) for kind in KINDS))
    sampler = Sampler(Sampling(max_new_tokens=4))
    starts = [DecodeStart.after(prompt, link(name, prompt, strategy).linked) for strategy in strategies]
    tokens = [list(decode(adapter, start, sampler, ())) for start in starts]
    assert tokens[1:] == [tokens[0]] * 2 and len(tokens[0]) == 4


@every_family
def test_oracles_choose_by_what_they_say(name: str) -> None:
    adapter, prompt = engine(name).adapter, prompt_for(name, "visible")
    for kind in KINDS:
        few, more = oracle(kind, adapter, prompt, 20), oracle(kind, adapter, prompt, 60)
        assert few.rows < more.rows
        assert not any(start <= row < stop for start, stop in prompt.text_rows for row in more.rows)
        logits = link(name, prompt, oracle(kind, adapter, prompt, 100)).linked.logits
        assert largest_error(logits, full(name, "visible").logits) <= 1e-4
    before = adapter.config._attn_implementation
    oracle("query", adapter, prompt, 20)
    assert adapter.config._attn_implementation == before


@pytest.mark.parametrize("percent", [0, 101])
def test_a_share_out_of_range_is_refused(percent: float) -> None:
    with pytest.raises(StrategyError, match="share"):
        oracle("deficit", engine("llava").adapter, prompt_for("llava", "visible"), percent)
