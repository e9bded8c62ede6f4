"""Several sequences decoded together give what each gives alone, on every family."""

import math

import pytest
import torch

from emblema.errors import ModelError
from emblema.models.batch_table import BatchTable
from emblema.session.decode_batch import DecodeBatch, DecodeSequence, NextToken, probability_of
from emblema.session.decoding import DecodeStart, Sampler, Sampling, decode
from emblema.session.requests import Prefill
from tests.engine.engines import engine, largest_error, pictures
from tests.families import NAMES, words

STEPS = 6


def prefills(name: str) -> list[Prefill]:
    """Prompts of different lengths, linked by different strategies."""
    first, second = pictures(name)
    prompts = [[words(4).tolist(), first, words(3, 1).tolist()], [words(9, 2).tolist()]]
    prompts.append([second, words(2, 3).tolist(), first, words(5, 4).tolist()])
    return [
        engine(name).prefill(prompt, strategy, template=False)
        for prompt, strategy in zip(prompts, ("full", "full", "blind"), strict=True)
    ]


def sequence_of(prefill: Prefill, **knobs: object) -> tuple[DecodeStart, DecodeSequence]:
    start = DecodeStart.after(prefill.prompt, prefill.linked)
    return start, DecodeSequence(start, Sampler(Sampling.of(**knobs)))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_gives_the_tokens_of_each_sequence_alone(name: str) -> None:
    adapter = engine(name).adapter
    alone = []
    for prefill in prefills(name):
        start = DecodeStart.after(prefill.prompt, prefill.linked)
        alone.append(list(decode(adapter, start, Sampler(Sampling(max_new_tokens=STEPS)), ())))
    batch = DecodeBatch(adapter, 10_000)
    made = {}
    for prefill in prefills(name):
        start, sequence = sequence_of(prefill)
        batch.admit(start, sequence)
        made[sequence] = [sequence.first.token]
    for _ in range(STEPS - 1):
        for sequence, token in batch.step():
            made[sequence].append(token.token)
    assert list(made.values()) == alone


@pytest.mark.parametrize("name", ["qwen2_5_vl", "gemma3", "kimi_k25"])
def test_logits_are_those_of_a_sequence_alone(name: str) -> None:
    adapter = engine(name).adapter
    tables, starts = BatchTable(adapter.layouts, adapter.dtype, adapter.device), []
    for prefill in prefills(name):
        starts.append(DecodeStart.after(prefill.prompt, prefill.linked))
        tables.admit(prefill.linked.table)
    tokens = torch.tensor([7, 8, 9])
    positions = torch.tensor([start.position for start in starts])
    rows = torch.tensor([start.row for start in starts])
    together = adapter.decode(tokens, positions, rows, tables)
    for index, start in enumerate(starts):
        single = BatchTable(adapter.layouts, adapter.dtype, adapter.device)
        single.admit(start.table)
        each = slice(index, index + 1)
        assert largest_error(together[each], adapter.decode(tokens[each], positions[each], rows[each], single)) < 1e-5
    assert tables.lengths == [start.table.length + 1 for start in starts]


def test_penalties_are_followed_in_a_batch_and_probabilities_are_the_models() -> None:
    """Beside a greedy sequence of the same prompt, whose first token is banned."""
    adapter = engine("qwen2_5_vl").adapter
    plain = prefills("qwen2_5_vl")[0]
    start = DecodeStart.after(plain.prompt, plain.linked)
    first = Sampler(Sampling())(start.logits)
    knobs = {"logit_bias": {first: -100}, "frequency_penalty": 2.0, "presence_penalty": 2.0}
    alone_from = DecodeStart.after(*(lambda found: (found.prompt, found.linked))(prefills("qwen2_5_vl")[0]))
    alone = list(decode(adapter, alone_from, Sampler(Sampling.of(max_new_tokens=STEPS, **knobs)), ()))
    batch = DecodeBatch(adapter, 10_000)
    greedy = DecodeSequence(start, Sampler(Sampling()))
    shifted = DecodeSequence(start, Sampler(Sampling.of(**knobs)), likeliest=2)
    for sequence in (greedy, shifted):
        batch.admit(start, sequence)
    made = [shifted.first]
    for _ in range(STEPS - 1):
        ((_, other), (_, token)) = batch.step()
        assert isinstance(other, NextToken) and isinstance(token, NextToken)
        made.append(token)
    assert [each.token for each in made] == alone and first not in alone
    told = made[0].probability
    assert told is not None and told == probability_of(start.logits, made[0].token, 2) and told.likeliest[0][0] == first


def test_sequences_come_and_go() -> None:
    """The last sequence takes a gone one's place, and its tokens stay what they were."""
    name = "qwen2_5_vl"
    adapter = engine(name).adapter
    expected = list(decode(adapter, sequence_of(prefills(name)[2])[0], Sampler(Sampling(max_new_tokens=STEPS)), ()))
    batch = DecodeBatch(adapter, 10_000)
    sequences = []
    for prefill in prefills(name):
        start, sequence = sequence_of(prefill)
        batch.admit(start, sequence)
        sequences.append(sequence)
    made = [sequences[2].first.token]
    for step in range(STEPS - 1):
        if step in (1, 3):
            batch.remove(sequences[step // 2])
        made += [token.token for sequence, token in batch.step() if sequence is sequences[2]]
    assert made == expected and len(batch) == 1
    batch.remove(sequences[2])
    assert len(batch) == 0 and batch.bytes == 0 and batch.step() == []


def test_sequences_come_and_go_within_a_forward() -> None:
    """A pause of a forward lies in inference mode, where sequences may come and go and take a step."""
    name = "qwen2_5_vl"
    adapter = engine(name).adapter
    pairs = [sequence_of(prefill) for prefill in prefills(name)]
    expected = list(decode(adapter, sequence_of(prefills(name)[2])[0], Sampler(Sampling(max_new_tokens=STEPS)), ()))
    batch = DecodeBatch(adapter, 10_000)
    made = [pairs[2][1].first.token]
    for step in range(STEPS - 1):
        with torch.inference_mode(step % 2 == 0):
            if step in (0, 2):
                batch.admit(*pairs[2 - step // 2])
            elif step == 4:
                batch.remove(pairs[1][1])
            made += [token.token for sequence, token in batch.step() if sequence is pairs[2][1]]
    assert made == expected


def test_a_batch_says_when_it_is_full() -> None:
    prefill = prefills("llava")[0]
    start, sequence = sequence_of(prefill)
    length = start.table.length
    batch = DecodeBatch(engine("llava").adapter, 2 * length)
    assert batch.has_room(50 * length), "one sequence always fits"
    batch.admit(start, sequence)
    assert batch.has_room(length - 1) and not batch.has_room(length)


def test_a_failed_step_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = engine("llava").adapter
    batch = DecodeBatch(adapter, 10_000)
    start, sequence = sequence_of(prefills("llava")[0])
    batch.admit(start, sequence)
    with monkeypatch.context() as patch:
        patch.setattr(adapter, "logits", lambda hidden: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            batch.step()
    expected = list(decode(adapter, start, Sampler(Sampling(max_new_tokens=2)), ()))
    assert [sequence.first.token, batch.step()[0][1].token] == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_sequence_that_is_not_finite_ends_alone(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    adapter = engine("llava").adapter
    batch = DecodeBatch(adapter, 10_000)
    pairs = [sequence_of(prefill, temperature=temperature, seed=1) for prefill in prefills("llava")]
    for start, sequence in pairs:
        batch.admit(start, sequence)
    plain = adapter.decode

    def poisoned(*given: object) -> torch.Tensor:
        logits = plain(*given).clone()
        logits[1, 5] = math.nan
        return logits

    monkeypatch.setattr(adapter, "decode", poisoned)
    found = dict(batch.step())
    assert isinstance(found[pairs[1][1]], ModelError)
    assert all(isinstance(found[pairs[index][1]], NextToken) for index in (0, 2))


def test_tables_refuse_what_is_not_theirs() -> None:
    adapter = engine("llava").adapter
    table = BatchTable(adapter.layouts, adapter.dtype, adapter.device)
    with pytest.raises(ModelError, match="no sequence 0"):
        table.release(0)
    with pytest.raises(ModelError, match="no step"):
        table.update(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1), 0)
