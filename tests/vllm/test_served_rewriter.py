"""Rows beside a step: what the runner is given, and what the scheduler is told, without an engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

from emblema.errors import LoadError
from emblema.served.captures import ChunkCapture
from emblema.vllm.internals import placed_feature, virtual_request
from emblema.vllm.link_runs import LinkRuns
from emblema.vllm.side_rows import CaptureRuns
from emblema.vllm.step_metadata import LinkOrder, SidePrompt, StepMetadata
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
    """What the rewriter asks for: some encodings are staged."""

    staged: dict[str, dict[str, Any]] = field(default_factory=dict)
    handed: list[str] = field(default_factory=list)

    def hand_over(self, name: str, output: Any) -> None:
        self.handed.append(name)

    def rewriter(self, loads: Sequence[Any] = (), side: Sequence[Any] = ()) -> StepRewriter:
        return StepRewriter(lambda name: self.staged.get(name, {}), self.hand_over, loads, side)


class Staged:
    """What linked prompts take: all is there unless told otherwise, and some encodings."""

    def __init__(self, lost: Sequence[str] = (), encodings: Sequence[str] = ()) -> None:
        self.lost, self.encodings = lost, encodings
        self.written: list[tuple[str, Any]] = []

    def take(self, name: str, prompt: SidePrompt, taken: Any) -> dict[str, Any]:
        if name in self.lost:
            raise LoadError(name, "it is not there")
        self.written.append((name, taken))
        return {own: torch.zeros(1) for own in self.encodings}


def rows_of(output: SchedulerOutput) -> dict[str, tuple[int, int]]:
    """The rows that each request of a step computes."""
    running = output.scheduled_cached_reqs
    starts = {data.req_id: data.num_computed_tokens for data in output.scheduled_new_reqs}
    starts |= dict(zip(running.req_ids, running.num_computed_tokens, strict=True))
    assert starts.keys() == output.num_scheduled_tokens.keys()
    assert output.total_num_scheduled_tokens == sum(output.num_scheduled_tokens.values())
    return {name: (starts[name], starts[name] + count) for name, count in output.num_scheduled_tokens.items()}


def link(name: str, *features: Any, rows: int = 24) -> LinkOrder:
    """A prompt of two pictures, some rows of the second computed."""
    prompt = SidePrompt(list(range(rows)), features, (7, 8))
    return LinkOrder(name, prompt, ((2, 10), (14, 20)), ((0, 2), (10, 14)))


def links(staged: Any, worker: Worker) -> LinkRuns:
    return LinkRuns(staged, worker.hand_over, list)


def test_rows_between_taken_ones_are_computed_beside_a_step() -> None:
    worker, staged = Worker(), Staged()
    side = links(staged, worker)
    rewriter = worker.rewriter([side])
    given = step({"b": 5}, [new("b", 5)])
    told = StepMetadata(links=(link("a"),), load_rows=100, load_slots=3)
    side.begin_step(told)
    made = rewriter.rewrite(given, told)
    assert rows_of(made) == {"b": (0, 5), "a\0gap-1": (0, 2), "a\0gap-2": (10, 14)}
    assert staged.written == [("a", ((2, 10), (14, 20)))]
    virtual = made.scheduled_new_reqs[-1]
    assert virtual.block_ids == ([7, 8],) and virtual.prefill_token_ids == list(range(24))
    assert given.num_scheduled_tokens == {"b": 5} and len(given.scheduled_new_reqs) == 1, "the scheduler's own"
    side.settle()
    assert side.take_results() == ({"a"}, set()) and side.take_results() == (set(), set())
    # They end with the step.
    after = rewriter.rewrite(step({"b": 1}, running=cached(("b", 5, None))), StepMetadata())
    assert after.finished_req_ids == {"a\0gap-1", "a\0gap-2"} and rows_of(after) == {"b": (5, 6)}


def test_a_prompt_is_linked_in_as_many_steps_as_it_takes() -> None:
    worker = Worker()
    side = links(Staged(), worker)
    rewriter, seen = worker.rewriter([side]), []
    for told in (
        StepMetadata(links=(link("a"), link("b")), load_rows=3, load_slots=9),
        StepMetadata(),
        StepMetadata(load_rows=9, load_slots=2),
        StepMetadata(load_rows=9, load_slots=2),
    ):
        side.begin_step(told)
        seen.append(
            [name.split("\0")[0] + str(rows) for name, rows in rows_of(rewriter.rewrite(step({}), told)).items()]
        )
        side.settle()
        rewriter.finish_step()
    assert seen == [["a(0, 2)", "a(10, 11)"], [], ["a(11, 14)", "b(0, 2)"], ["b(10, 14)"]]
    assert side.take_results() == ({"a", "b"}, set())


def test_what_cannot_be_written_or_has_ended_is_said() -> None:
    worker, staged = Worker(), Staged(lost=["a"])
    side = links(staged, worker)
    told = StepMetadata(links=(link("a"), link("b"), replace(link("c"), computed=())))
    side.begin_step(told)
    assert side.take_results() == ({"c"}, set()), "nothing of it is computed"
    side.leave(["b", "other"])
    assert side.take_results() == ({"b"}, set())
    assert [run.start for run in side.runs(99, 9, ())] == [0, 10], "as on the other workers"
    side.settle()
    assert side.take_results() == ({"a"}, {"a"})


def test_pictures_of_computed_rows_are_encoded_once_unless_that_is_staged() -> None:
    worker = Worker()
    shown = [placed_feature(picture(name, start, 8), name) for name, start in (("p", 2), ("q", 12))]
    side = links(Staged(encodings=["p"]), worker)
    rewriter = worker.rewriter([side])
    told = StepMetadata(links=(replace(link("a", *shown), computed=((0, 4), (10, 12), (13, 14))),))
    side.begin_step(told)
    first = rewriter.rewrite(step({}), StepMetadata(load_rows=7, load_slots=9))
    assert worker.handed == ["p"] and list(rows_of(first).values()) == [(0, 4), (10, 12), (13, 14)]
    assert first.scheduled_encoder_inputs == {"a\0gap-3": [1]}
    side.settle()
    rewriter.finish_step()
    after = rewriter.rewrite(step({}), StepMetadata())
    assert after.free_encoder_mm_hashes == ["p", "q"]


def test_a_picture_is_encoded_again_where_the_cache_was_emptied() -> None:
    worker = Worker()
    side = links(Staged(), worker)
    rewriter = worker.rewriter([side])
    order = replace(link("a", placed_feature(picture("p", 2, 8), "p")), computed=((0, 10),))
    side.begin_step(StepMetadata(links=(order,)))
    encoded = []
    for _ in range(3):
        encoded += rewriter.rewrite(step({}), StepMetadata(load_rows=3, load_slots=1)).scheduled_encoder_inputs.values()
        if len(encoded) == 1:
            rewriter.forget_encodings()
    assert encoded == [[0], [0]]


def test_a_staged_encoding_is_handed_over_in_place_of_a_run() -> None:
    worker = Worker(staged={"a": {"p": torch.zeros(8, 4)}})
    given = step({"a": 24, "b": 9}, [new("a", 24, picture("p", 2, 8), picture("r", 12, 8)), new("b", 9)],
                 encode={"a": [0, 1], "b": [0]})  # fmt: skip
    told = StepMetadata(encodings={"a": ((0, "p"), (1, "r"))})
    made = worker.rewriter().rewrite(given, told)
    assert worker.handed == ["p"] and made.scheduled_encoder_inputs == {"a": [1], "b": [0]}
    assert given.scheduled_encoder_inputs == {"a": [0, 1], "b": [0]}, "the scheduler's own"


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


def test_captures_and_linked_prompts_together_keep_to_the_room_of_a_step() -> None:
    """The scheduler's side offers each of them all that is left; more rows than vLLM has buffers for end its worker."""
    worker, captures = Worker(), CaptureRuns()
    side = links(Staged(), worker)
    rewriter = worker.rewriter([side], [captures])
    captures.add([capture("p", 20)])
    told = StepMetadata(links=(link("a"),), load_rows=12, load_slots=9, room=12, side_rows=12, side_slots=9)
    side.begin_step(told)
    made = rewriter.rewrite(step({}), told)
    assert list(rows_of(made).values()) == [(0, 2), (10, 14), (0, 6)]


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
