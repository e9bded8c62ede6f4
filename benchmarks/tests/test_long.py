"""Long answers: what a method is held to entry by entry, a small run with its page, and the committed page."""

from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks.long.answers import (
    NO_END,
    AnswerForm,
    AnswerRun,
    FormSampler,
    Link,
    LongMethod,
    linker_of,
    run_tokens,
)
from benchmarks.long.measure import BLIND, FULL, SURVIVORS, LongOptions, LongRecord, LongRun, form_of
from benchmarks.long.report import check_page, figures, page, read, write_run
from benchmarks.models.delta import load_lists
from benchmarks.recordfile import RecordFile
from benchmarks.tasks import task_of
from benchmarks.tasks.prompts import Piece, pieces, question_prompt
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError, StrategyError
from emblema.link.policy.policy import Policy
from emblema.link.prompt import Prompt, TextPart
from emblema.session.decoding import DecodeStart, decode

QUIET = Console(quiet=True)
Made = tuple[Piece, ...]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(*load_lists(), policy=Policy.quiet())


@pytest.fixture(scope="module")
def made(engine: Engine) -> Made:
    (item,) = task_of("lists").items(11, 1)
    return pieces(engine, item)


@pytest.fixture(scope="module")
def form(engine: Engine) -> AnswerForm:
    (item,) = task_of("lists").items(11, 1)
    return form_of(engine, item.questions[0].answer)[0]


def prompt_of(engine: Engine, made: Made) -> Prompt:
    (item,) = task_of("lists").items(11, 1)
    return question_prompt(engine, item, 0, made, "slid")


def link_of(engine: Engine, name: str) -> Link:
    return linker_of(engine.adapter, LongMethod.of(name).strategy, lambda key: None)


def run_of(engine: Engine, made: Made, name: str, form: AnswerForm) -> AnswerRun:
    return AnswerRun(engine.adapter, prompt_of(engine, made), link_of(engine, name), form, LongMethod.of(name).every)


def greedy(engine: Engine, made: Made, name: str, form: AnswerForm, every: int = 0) -> tuple[int, ...]:
    """The answer of a method, a token at a time, the prompt read again with the answer so far after each `every`."""
    prompt, link, answer = prompt_of(engine, made), link_of(engine, name), ()
    while len(answer) < form.length:
        parts = [segment.part for segment in prompt.segments]
        longer = Prompt.of([*parts, TextPart(answer)], prompt.axes) if answer else prompt
        sampler, count = FormSampler(form, len(answer)), min(every or form.length, form.length - len(answer))
        start = DecodeStart.after(longer, link(longer))
        answer += tuple(decode(engine.adapter, start, sampler, NO_END, count))
    return answer


def test_re_prefill_is_itself(engine: Engine, made: Made, form: AnswerForm) -> None:
    tokens, logits = run_of(engine, made, FULL, form).first()
    assert tokens == greedy(engine, made, FULL, form) and len(tokens) == len(logits) == form.length >= 32
    answer = run_of(engine, made, FULL, form).beside(tokens, logits)
    assert set(answer.agrees) == set(answer.same) == {1} and len(answer.agrees) == form.length // 2
    assert max(answer.divergences) < 1e-6 and answer.tokens == tokens and answer.computed == 1
    assert len({tokens[place] for place in form.own}) > 2


def test_linking_again_is_re_prefill_again(engine: Engine, made: Made, form: AnswerForm) -> None:
    tokens, logits = run_of(engine, made, FULL, form).first()
    answer = run_of(engine, made, f"{FULL}, again every 12", form).beside(tokens, logits)
    assert set(answer.same) == {1} and max(answer.divergences) < 1e-6
    assert 3 <= answer.computed < 4.5


def test_a_method_is_teacher_forced_on_re_prefills_answer_and_then_free(
    engine: Engine, made: Made, form: AnswerForm
) -> None:
    tokens, logits = run_of(engine, made, FULL, form).first()
    answer = run_of(engine, made, BLIND, form).beside(tokens, logits)
    own = greedy(engine, made, BLIND, form)
    assert answer.tokens == own != tokens
    assert answer.same == tuple(int(own[place] == tokens[place]) for place in form.own)
    first = answer.same.index(0)
    assert answer.agrees.index(0) == first and answer.divergences[first] > 1e-3 and answer.computed < 0.2


def test_what_a_form_dictates_is_written_and_not_compared(engine: Engine, made: Made) -> None:
    dictated = {place: 20 + place for place in range(0, 12, 2)}
    form = AnswerForm(12, dictated)
    tokens, logits = run_of(engine, made, FULL, form).first()
    assert [tokens[place] for place in dictated] == list(dictated.values()) and len(tokens) == 12
    answer = run_of(engine, made, BLIND, form).beside(tokens, logits)
    assert len(answer.agrees) == len(answer.divergences) == len(answer.same) == 6
    assert [answer.tokens[place] for place in dictated] == list(dictated.values())


def test_rows_are_chosen_again_where_an_answer_is_linked_again(engine: Engine, made: Made, form: AnswerForm) -> None:
    tokens, logits = run_of(engine, made, FULL, form).first()
    again = run_of(engine, made, "query-3%, again every 6", form).beside(tokens, logits)
    assert again.tokens == greedy(engine, made, "query-3%", form, 6) != greedy(engine, made, "query-3%", form)


def test_rows_of_tokens_in_one_forward_are_those_of_one_after_another(engine: Engine, made: Made) -> None:
    prompt = prompt_of(engine, made)
    link = linker_of(engine.adapter, LongMethod.of(FULL).strategy, lambda key: None)
    whole, single = DecodeStart.after(prompt, link(prompt)), DecodeStart.after(prompt, link(prompt))
    logits = run_tokens(engine.adapter, whole, (9, 10, 11))
    for place, token in enumerate((9, 10, 11)):
        step = DecodeStart(single.table, single.logits, single.row + place, single.position + place, single.axes)
        assert torch.allclose(run_tokens(engine.adapter, step, (token,))[0], logits[place], atol=1e-4)


def test_a_form_dictates_the_icons_of_a_list(engine: Engine) -> None:
    form, tokens = form_of(engine, "bell lake car snow")
    assert engine.tokenizer.decode(tokens) == "bell lake car snow"
    assert form.length == 4 and form.own == [1, 3] and form.dictated == {0: tokens[0], 2: tokens[2]}


def test_a_run_has_figures_and_a_page_and_is_not_made_again(engine: Engine, tmp_path: Path) -> None:
    options = LongOptions(5, 1, 1, (FULL, BLIND, "pair", SURVIVORS))
    with RecordFile(tmp_path / "long.records.jsonl", LongRecord) as file:
        records = LongRun(engine, options, file).run(QUIET)
    # Two settings, two lists, four methods.
    assert len(records) == 16
    with RecordFile(tmp_path / "long.records.jsonl", LongRecord) as file:
        assert LongRun(engine, options, file).run(QUIET) == records
    rows = {(row["setting"], row["kind"], row["method"]): row for row in figures(records)}
    assert rows["slid", "lands", FULL]["agrees_all"][0] == 1 and rows["slid", "lands", BLIND]["computed"] < 0.2
    listing = tmp_path / "long.json"
    text = write_run(options, records, listing).read_text(encoding="utf-8")
    assert "seed 5" in text and "## lands, slid" in text and (tmp_path / "long.png").is_file()
    check_page(listing)
    listing.with_suffix(".md").write_text(text.replace("seed 5", "seed 6"), encoding="utf-8")
    with pytest.raises(EmblemaError, match=r"long\.md"):
        check_page(listing)


def test_the_page_before_the_run_is_its_protocol(tmp_path: Path) -> None:
    write_run(LongOptions(7, 20), (), tmp_path / "long.json")
    text = page(read(tmp_path / "long.json"))
    assert "20 fresh items, seed 7" in text and "## What fades" not in text


def test_an_unknown_method_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(StrategyError, match="nonsense"):
        LongOptions(1, 1, 0, ("nonsense",))
