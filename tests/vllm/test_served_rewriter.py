"""Steps rewritten: what the runner is given for each row of a step, for either runner, without an engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

from emblema.served.captures import ChunkCapture
from emblema.vllm.internals import placed_feature, virtual_request
from emblema.vllm.side_rows import CaptureRuns
from emblema.vllm.step_metadata import RowLoad, SidePrompt, StepMetadata
from emblema.vllm.step_rewriter import StepRewriter


def picture(name: str, offset: int, length: int) -> Any:
    return MultiModalFeatureSpec(
        data=None, modality="image", identifier=name, mm_position=PlaceholderRange(offset=offset, length=length)
    )


def new(name: str, rows: int, *features: Any, start: int = 0) -> NewRequestData:
    return NewRequestData(
        req_id=name, prompt_token_ids=list(range(rows)), mm_features=list(features), sampling_params=SamplingParams(),
        pooling_params=None, block_ids=([7, 8],), num_computed_tokens=start, lora_request=None,
        prefill_token_ids=list(range(rows)),
    )  # fmt: skip


def cached(*requests: tuple[str, int, list[int] | None], resumed: frozenset[str] = frozenset()) -> CachedRequestData:
    return CachedRequestData(
        req_ids=[name for name, _, _ in requests], resumed_req_ids=set(resumed), new_token_ids=[], all_token_ids={},
        new_block_ids=[None if blocks is None else (blocks,) for _, _, blocks in requests],
        num_computed_tokens=[row for _, row, _ in requests], num_output_tokens=[0] * len(requests),
    )  # fmt: skip


def step(
    counts: Mapping[str, int], requests: Sequence[NewRequestData] = (), running: CachedRequestData | None = None,
    encode: Mapping[str, list[int]] | None = None, **more: Any,
) -> SchedulerOutput:  # fmt: skip
    return SchedulerOutput(
        scheduled_new_reqs=list(requests), scheduled_cached_reqs=running or cached(),
        num_scheduled_tokens=dict(counts), total_num_scheduled_tokens=sum(counts.values()),
        scheduled_spec_decode_tokens={}, scheduled_encoder_inputs=dict(encode or {}),
        finished_req_ids=more.pop("finished", set()), free_encoder_mm_hashes=more.pop("freed", []), **more,
    )  # fmt: skip


@dataclass
class Worker:
    """What the rewriter asks for: writes succeed unless told otherwise, and some encodings are staged."""

    writes: bool = True
    staged: dict[str, dict[str, Any]] = field(default_factory=dict)
    written: list[tuple[str, tuple[Any, ...], list[int]]] = field(default_factory=list)
    handed: list[str] = field(default_factory=list)

    def write(self, loads: Sequence[RowLoad], blocks: Mapping[str, Sequence[int]]) -> bool:
        self.written += [(load.request_id, load.taken, list(blocks[load.request_id])) for load in loads]
        return self.writes

    def rewriter(self, second: bool = False, side: Sequence[Any] = ()) -> StepRewriter:
        return StepRewriter(
            second,
            self.write,
            lambda name: self.staged.get(name, {}),
            lambda name, output: self.handed.append(name),
            side,
        )


def rows_of(output: SchedulerOutput) -> dict[str, tuple[int, int]]:
    """The rows that each request of a step computes."""
    running = output.scheduled_cached_reqs
    starts = {data.req_id: data.num_computed_tokens for data in output.scheduled_new_reqs}
    starts |= dict(zip(running.req_ids, running.num_computed_tokens, strict=True))
    assert starts.keys() == output.num_scheduled_tokens.keys()
    assert output.total_num_scheduled_tokens == sum(output.num_scheduled_tokens.values())
    return {name: (starts[name], starts[name] + count) for name, count in output.num_scheduled_tokens.items()}


LOAD = RowLoad("a", ((2, 10), (12, 20)), ((0, 2), (10, 12), (20, 24)))


@pytest.mark.parametrize("second", [False, True])
def test_taken_rows_leave_a_new_request_s_step(second: bool) -> None:
    worker = Worker()
    rewriter = worker.rewriter(second)
    given = step({"a": 24, "b": 5}, [new("a", 24, picture("p", 2, 8), picture("q", 12, 8)), new("b", 5)],
                 encode={"a": [0, 1]})  # fmt: skip
    made = rewriter.rewrite(given, StepMetadata(loads=(LOAD,)))
    assert rows_of(made) == {"a": (20, 24), "b": (0, 5), "a\0gap-0": (0, 2), "a\0gap-1": (10, 12)}
    assert worker.written == [("a", LOAD.taken, [7, 8])]
    assert made.scheduled_encoder_inputs == {} and worker.handed == []
    virtual = made.scheduled_new_reqs[-1]
    assert virtual.block_ids == ([7, 8],) and virtual.prefill_token_ids == list(range(24))
    assert given.num_scheduled_tokens == {"a": 24, "b": 5} and len(given.scheduled_new_reqs) == 2, "the scheduler's own"
    # They end with the step.
    after = rewriter.rewrite(step({"a": 1}, running=cached(("a", 24, None))), StepMetadata())
    assert after.finished_req_ids == {"a\0gap-0", "a\0gap-1"} and rows_of(after) == {"a": (24, 25)}


@pytest.mark.parametrize("second", [False, True])
def test_a_running_request_goes_on_where_its_own_rows_begin(second: bool) -> None:
    worker = Worker()
    rewriter = worker.rewriter(second)
    rewriter.rewrite(step({"a": 4}, [new("a", 24, picture("p", 12, 8))]), StepMetadata())
    load = RowLoad("a", ((12, 20),), ((4, 12), (20, 24)))
    given = step({"a": 20, "b": 1}, [new("b", 1)], cached(("a", 4, [9])), {"a": [0]})
    made = rewriter.rewrite(given, StepMetadata(loads=(load,)))
    assert rows_of(made) == {"a": (20, 24), "b": (0, 1), "a\0gap-0": (4, 12)}
    shown = {data.req_id: data for data in made.scheduled_new_reqs}
    assert shown["a\0gap-0"].block_ids == ([7, 8, 9],) and worker.written == [("a", ((12, 20),), [7, 8, 9])]
    # The second runner keeps its own count, so the request is new to it.
    assert ("a" in shown) == second and made.scheduled_cached_reqs.req_ids == ([] if second else ["a"])
    if second:
        assert shown["a"].block_ids == ([7, 8, 9],)


def test_a_request_that_comes_back_has_its_new_pages() -> None:
    worker = Worker()
    rewriter = worker.rewriter()
    rewriter.rewrite(step({"a": 24}, [new("a", 24, picture("p", 2, 8))]), StepMetadata())
    rewriter.rewrite(step({}, preempted_req_ids={"a"}), StepMetadata())
    back = step({"a": 24}, running=cached(("a", 0, [3, 4]), resumed=frozenset("a")))
    made = rewriter.rewrite(back, StepMetadata(loads=(LOAD,)))
    assert worker.written == [("a", LOAD.taken, [3, 4])] and rows_of(made)["a"] == (20, 24)


@pytest.mark.parametrize("copies", [False, True])
def test_what_cannot_be_written_is_computed(copies: bool) -> None:
    worker = Worker(writes=copies)
    given = step({"a": 24}, [new("a", 24, picture("p", 2, 8))], encode={"a": [0]})
    if copies:
        given = replace(given, kv_cache_block_copies=[(1, 2)])
    made = worker.rewriter().rewrite(given, StepMetadata(loads=(LOAD,)))
    assert rows_of(made) == {"a": (0, 24)} and made.scheduled_encoder_inputs == {"a": [0]}


def test_a_picture_that_was_left_out_is_encoded_when_a_row_needs_it() -> None:
    worker = Worker()
    rewriter = worker.rewriter()
    whole = RowLoad("a", ((2, 10),), ((0, 2), (10, 24)))
    known = [new("a", 24, picture("p", 2, 8))]
    assert rewriter.rewrite(step({"a": 24}, known, encode={"a": [0]}), StepMetadata(loads=(whole,))) \
        .scheduled_encoder_inputs == {}  # fmt: skip
    # The scheduler takes it to be encoded, and asks no more.
    other = [new("b", 12, picture("p", 1, 8)), new("c", 12, picture("p", 1, 8))]
    made = rewriter.rewrite(step({"b": 12, "c": 12}, other), StepMetadata())
    assert made.scheduled_encoder_inputs == {"b": [0]}, "once"
    again = rewriter.rewrite(step({"d": 12}, [new("d", 12, picture("p", 1, 8))]), StepMetadata())
    assert again.scheduled_encoder_inputs == {}
    # Left out once more, and freed by the scheduler: it will schedule it again itself.
    rewriter.rewrite(step({"e": 24}, [new("e", 24, picture("q", 2, 8))], encode={"e": [0]}),
                     StepMetadata(loads=(replace(whole, request_id="e"),)))  # fmt: skip
    freed = step({"f": 12}, [new("f", 12, picture("q", 1, 8))], encode={"f": [0]}, freed=["q"])
    assert rewriter.rewrite(freed, StepMetadata()).scheduled_encoder_inputs == {"f": [0]}


def test_a_staged_encoding_is_handed_over_in_place_of_a_run() -> None:
    worker = Worker(staged={"a": {"p": torch.zeros(8, 4)}})
    rewriter = worker.rewriter()
    load = RowLoad("a", ((6, 10),), ((0, 6), (10, 24)))
    given = step({"a": 24}, [new("a", 24, picture("p", 2, 8), picture("p", 12, 8), picture("r", 20, 2))],
                 encode={"a": [0, 2]})  # fmt: skip
    made = rewriter.rewrite(given, StepMetadata(loads=(load,)))
    assert worker.handed == ["p"] and made.scheduled_encoder_inputs == {"a": [2]}


def capture(name: str, tokens: int) -> ChunkCapture:
    encoded = SimpleNamespace(token_ids=torch.arange(tokens))
    chunk: Any = SimpleNamespace(id=name, tokens=tokens, encoded=encoded)
    return ChunkCapture(b"", chunk, name, placed_feature(picture(name, 1, tokens - 2), name), blocks=(5, 6))


def test_captures_take_what_room_a_step_has() -> None:
    captures = CaptureRuns()
    rewriter = Worker().rewriter(side=[captures])
    captures.add([capture("p", 20), capture("q", 6)])
    seen: list[dict[str, tuple[int, int]]] = []
    encoded: list[list[int]] = []
    freed: list[str] = []
    for rows, slots in ((12, 3), (0, 3), (12, 1), (12, 3), (12, 3)):
        made = rewriter.rewrite(step({}), StepMetadata(side_rows=rows, side_slots=slots))
        seen.append({name.partition("-")[0][-7:]: rows for name, rows in rows_of(made).items()})
        encoded += made.scheduled_encoder_inputs.values()
        freed += made.free_encoder_mm_hashes
        done = [each.identifier for each in captures.finished]
        rewriter.finish_step()
        assert all(data.block_ids == ([5, 6],) for data in made.scheduled_new_reqs), done
        assert all(len(data.prompt_token_ids) > sum(rows_of(made)[data.req_id][1:]) for data in made.scheduled_new_reqs)
    assert [list(each.values()) for each in seen] == [[(0, 12)], [], [(12, 20)], [(0, 6)], []]
    assert encoded == [[0], [0]] and freed == ["p", "q"], "each is encoded once, and forgotten when it is finished"


def test_both_runners_find_positions_by_the_prompts_own_list() -> None:
    prompt = SidePrompt([7, 8, 9, 0], (), (5, 6))
    data = virtual_request(prompt, "n", 2)
    assert data.prompt_token_ids is data.prefill_token_ids is prompt.token_ids
    assert (data.req_id, data.num_computed_tokens, data.block_ids) == ("n", 2, ([5, 6],))


def test_the_anchor_is_prefilled_before_its_chunk() -> None:
    captures = CaptureRuns()
    captures.add([replace(capture("p", 20), anchor=(7, 8, 9)), capture("q", 6)])
    runs = [run for _ in range(3) for run in captures.runs(12, 3, ())]
    assert [(run.start, run.rows) for run in runs] == [(0, 12), (12, 11), (0, 1), (1, 5)]
    assert runs[0].prompt.token_ids == [7, 8, 9, *range(20), 0]


def test_captures_that_are_given_up_leave_nothing() -> None:
    captures = CaptureRuns()
    captures.add([capture("p", 20), capture("q", 6)])
    assert [run.rows for run in captures.runs(12, 3, ())] == [12]
    assert [each.identifier for each in captures.drop()] == ["p", "q"] and captures.drop() == []
    assert captures.runs(12, 3, ()) == []
    captures.add([capture("q", 6)])
    assert [(run.start, run.rows) for run in captures.runs(12, 3, ())] == [(0, 6)]


@given(st.data())
def test_every_row_of_a_step_is_written_or_computed_once(data: st.DataObject) -> None:
    """Whatever is taken of a request, in whatever steps, and however many requests there are."""
    from emblema.served.spans import CachedSpans

    second = data.draw(st.booleans())
    worker = Worker()
    rewriter = worker.rewriter(second)
    prompts = {}
    for name in "abc":
        cuts = sorted(data.draw(st.sets(st.integers(1, 38), max_size=6)))
        spans = tuple((low, high) for low, high in zip(cuts[::2], cuts[1::2], strict=False))
        prompts[name] = CachedSpans(spans)
    done = dict.fromkeys(prompts, 0)
    stand_in = dict.fromkeys(prompts, False)
    while any(row < 40 for row in done.values()):
        counts = {name: data.draw(st.integers(1, 40 - row)) for name, row in done.items() if row < 40}
        loads, first = [], []
        for name, count in counts.items():
            found = prompts[name].step_rows(done[name], done[name] + count, stand_in[name])
            stand_in[name] = found.stand_in
            if found.taken:
                loads.append(RowLoad(name, found.taken, found.computed))
            if done[name] == 0:
                first.append(new(name, 40, picture(name, 0, 1)))
        running = cached(*((name, done[name], None) for name in counts if done[name]))
        worker.written.clear()
        made = rewriter.rewrite(step(counts, first, running), StepMetadata(loads=tuple(loads)))
        computed: dict[str, list[int]] = {name: [] for name in counts}
        for name, (start, stop) in rows_of(made).items():
            computed[name.partition("\0")[0]] += range(start, stop)
        taken = {name: [row for low, high in parts for row in range(low, high)] for name, parts, _ in worker.written}
        for name, count in counts.items():
            scheduled = set(range(done[name], done[name] + count))
            assert len(computed[name]) == len(set(computed[name])) and set(computed[name]) <= scheduled
            assert scheduled <= set(computed[name]) | set(taken.get(name, ()))
            assert max(computed[name]) == done[name] + count - 1 and name in made.num_scheduled_tokens
            done[name] += count
