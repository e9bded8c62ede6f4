"""The oracles on every family: what they choose, that their plans run as planned, and that their limit is exact."""

from benchmarks.fidelity.oracles import ChosenRows, Oracle
from emblema.link.executor import Executor, LinkedTable
from emblema.link.forming import conditioned_table
from emblema.link.prompt import Prompt
from emblema.models.adapter import Adapter
from emblema.session.decoding import DecodeStart, Sampler, Sampling, decode
from emblema.session.requests import LinkRequest
from tests.engine.engines import engine, largest_error
from tests.link.linking import assert_ran_as_planned, link, linker, prompt_for
from tests.link.test_strategies_families import every_family, settings

KINDS = ("deficit", "query")


def oracle(kind: str, adapter: Adapter, prompt: Prompt, percent: float) -> ChosenRows:
    """The choice of an oracle that runs its own re-prefill."""
    executor, asked = Executor(adapter), Oracle(kind, percent)
    front = prompt.until(prompt.segments[-1].start) if asked.by_question else prompt
    return asked.choose(asked.scores(executor, prompt, conditioned_table(executor, front)), prompt, adapter.anchor)


@every_family
@settings
def test_oracles_choose_and_run_as_they_say_and_all_rows_are_re_prefill(name: str, setting: str) -> None:
    prompt, adapter = prompt_for(name, setting), engine(name).adapter
    before = adapter.config._attn_implementation
    exact = link(name, prompt, "full").linked
    expected = decoded(name, prompt, exact)
    assert len(expected) == 4
    for kind in KINDS:
        few, more = oracle(kind, adapter, prompt, 20), oracle(kind, adapter, prompt, 60)
        assert few.rows < more.rows
        assert not any(start <= row < stop for start, stop in prompt.text_rows for row in more.rows)
        assert_ran_as_planned(linker(name, prompt).link(LinkRequest(prompt, few)), prompt, adapter)
        every = link(name, prompt, oracle(kind, adapter, prompt, 100)).linked
        assert largest_error(every.logits, exact.logits) <= 1e-4 and decoded(name, prompt, every) == expected
    assert adapter.config._attn_implementation == before


def decoded(name: str, prompt: Prompt, linked: LinkedTable) -> list[int]:
    return list(
        decode(engine(name).adapter, DecodeStart.after(prompt, linked), Sampler(Sampling(max_new_tokens=4)), ())
    )
