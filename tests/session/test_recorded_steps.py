"""Steps that are recorded once and replayed make the tokens that steps make which are run."""

import logging
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn

from emblema.engine.engine import Engine
from emblema.models.batch_table import padded_count, padded_length
from emblema.models.decode_steps import MOST_RECORDED, RecordedStep
from emblema.session.decode_batch import DecodeBatch, DecodeSequence
from emblema.session.decoding import DecodeStart, Sampler, Sampling, decode
from emblema.session.solo_decoding import SoloDecoding
from tests.engine.engines import engine, first_layer_of, pictures
from tests.families import CASES, NAMES, words
from tests.models.operation_recorder import OperationRecorder

STEPS = 7


def starts(name: str) -> list[DecodeStart]:
    """Prompts of different lengths; one is longer than the rows that a table begins with."""
    first, _ = pictures(name)
    prompts = [[words(4).tolist(), first, words(3, 1).tolist()], [words(253, 2).tolist()], [words(9, 2).tolist()]]
    return [
        DecodeStart.after(made.prompt, made.linked)
        for made in (engine(name).prefill(prompt, "full", template=False) for prompt in prompts)
    ]


def alone(name: str, **knobs: object) -> list[list[int]]:
    """What each prompt's reply is where steps are run, one sequence at a time."""
    sampling = Sampling.of(max_new_tokens=STEPS, **knobs)
    return [list(decode(engine(name).adapter, start, Sampler(sampling), ())) for start in starts(name)]


def dense(name: str) -> bool:
    """Whether a family's steps do not depend on what experts their rows are sent to."""
    return "moe" not in name and name != "kimi_k25"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_replayed_steps_make_the_same_tokens(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Sequences come and go meanwhile, one passes 256 rows, and the table's memory moves."""
    expected, recorder = alone(name), OperationRecorder()
    batch = DecodeBatch(engine(name).adapter, 100_000, recorder)
    made: dict[DecodeSequence, list[int]] = {}
    waiting = starts(name)
    with caplog.at_level(logging.WARNING, "emblema.models.decode_steps"):
        for step in range(STEPS + 3):
            if step in (0, 1, 3):
                start = waiting.pop(0)
                sequence = DecodeSequence(start, Sampler(Sampling()))
                batch.admit(start, sequence)
                made[sequence] = [sequence.first.token]
            for sequence, token in batch.step():
                made[sequence].append(token.token)
                if len(made[sequence]) == STEPS:
                    batch.remove(sequence)
    assert [tokens[:STEPS] for tokens in made.values()] == expected
    assert len(batch) == 0
    if engine(name).adapter.keeps_states:
        assert recorder.recorded == 0, "recording a step would change its states"
    elif dense(name):
        assert 3 <= recorder.recorded < STEPS and not caplog.records


def test_a_shape_is_recorded_once() -> None:
    recorder = OperationRecorder()
    solo = SoloDecoding(engine("qwen2_5_vl").adapter, recorder)
    for _ in range(3):
        for start, expected in zip(starts("qwen2_5_vl"), alone("qwen2_5_vl"), strict=True):
            assert list(solo.tokens(start, Sampler(Sampling(max_new_tokens=STEPS)), ())) == expected
    # Memory moves when the longest prompt comes first; then its two lengths and the short prompts' one are known.
    assert recorder.recorded <= 4


def test_a_second_reply_beside_the_first_is_run() -> None:
    name = "qwen2_5_vl"
    recorder, expected = OperationRecorder(), alone(name)
    solo = SoloDecoding(engine(name).adapter, recorder)
    replies = [solo.tokens(start, Sampler(Sampling(max_new_tokens=STEPS)), ()) for start in starts(name)]
    assert [list(each) for each in zip(*replies, strict=True)] == [list(each) for each in zip(*expected, strict=True)]
    assert recorder.recorded > 0


def test_a_reply_that_is_given_up_leaves_room_for_the_next() -> None:
    name = "qwen2_5_vl"
    recorder, expected = OperationRecorder(), alone(name, temperature=0.8, seed=3)
    solo = SoloDecoding(engine(name).adapter, recorder)
    for _ in range(2):
        for start, tokens in zip(starts(name), expected, strict=True):
            sampling = Sampling.of(max_new_tokens=STEPS, temperature=0.8, seed=3)
            reply = solo.tokens(start, Sampler(sampling), ())
            assert [next(reply), next(reply)] == tokens[:2]
            reply.close()
    assert recorder.recorded <= 4


def test_end_tokens_end_a_reply() -> None:
    tokens = alone("qwen2_5_vl")[0]
    solo = SoloDecoding(engine("qwen2_5_vl").adapter, OperationRecorder())
    found = solo.tokens(starts("qwen2_5_vl")[0], Sampler(Sampling(max_new_tokens=STEPS)), {tokens[2]})
    assert list(found) == tokens[: tokens.index(tokens[2]) + 1]


def replace(layer: nn.Linear) -> None:
    layer.weight = nn.Parameter(layer.weight.detach() * -2, requires_grad=False)


def write_in_place(layer: nn.Linear) -> None:
    with torch.no_grad():
        layer.weight.mul_(-2)


@pytest.mark.parametrize("change", [replace, write_in_place])
def test_steps_follow_weights_that_change_between_replies(change: Callable[[nn.Linear], None]) -> None:
    model, bundle = CASES["qwen2_5_vl"].build(0)
    own, recorder = Engine(model, bundle), OperationRecorder()
    solo, sampler = SoloDecoding(own.adapter, recorder), Sampler(Sampling(max_new_tokens=STEPS))

    def reply(decoded: Callable[[DecodeStart], Iterable[int]]) -> list[int]:
        made = own.prefill([words(9, 2).tolist()], "full", template=False)
        return list(decoded(DecodeStart.after(made.prompt, made.linked)))

    def run(start: DecodeStart) -> Iterable[int]:
        return decode(own.adapter, start, sampler, ())

    def recorded(start: DecodeStart) -> Iterable[int]:
        return solo.tokens(start, sampler, ())

    before = reply(run)
    assert reply(recorded) == before and recorder.recorded == 1
    change(first_layer_of(own).mlp.down_proj)
    after = reply(run)
    assert after[1:] != before[1:]
    assert reply(recorded) == after


class Refusing:
    """A recorder on which every step fails."""

    def record(self, step: Callable[[], Tensor]) -> tuple[RecordedStep, Tensor]:
        raise RuntimeError("operation not permitted when stream is capturing")


def test_what_cannot_be_recorded_is_run_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    name = "qwen2_5_vl"
    solo = SoloDecoding(engine(name).adapter, Refusing())
    with caplog.at_level(logging.WARNING, "emblema.models.decode_steps"):
        for start, expected in zip(starts(name), alone(name), strict=True):
            assert list(solo.tokens(start, Sampler(Sampling(max_new_tokens=STEPS)), ())) == expected
    assert [record.getMessage() for record in caplog.records] == [
        "a step of decoding cannot be recorded, so steps are run one by one: "
        "operation not permitted when stream is capturing"
    ]


def test_a_step_that_looks_at_a_number_cannot_be_recorded() -> None:
    with pytest.raises(RuntimeError, match="waits for the device"):
        OperationRecorder().record(lambda: torch.ones(3) * torch.ones(3).sum().item())


def test_steps_are_padded_to_few_shapes() -> None:
    assert [padded_count(count) for count in (1, 2, 3, 4, 5, 9)] == [1, 2, 4, 4, 8, 16]
    assert [padded_length(rows) for rows in (1, 256, 257, 2048, 2049, 4100, 9000)] == [
        256, 256, 512, 2048, 2560, 5120, 10_240,
    ]  # fmt: skip
    lengths = {padded_length(rows) for rows in range(1, 32_769)}
    assert all(padded_length(rows) < rows * 1.25 for rows in range(2049, 32_769)) and len(lengths) < 3 * MOST_RECORDED
