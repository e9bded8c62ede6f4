"""The demo: its media, its arrangements, and that what it reports is what was measured."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from emblema.errors import MediaError
from emblema.eval.demo import STRATEGIES, DemoResult, report, run_demo
from emblema.eval.demo_media import SITUATIONS, DemoMedia, demo_media
from emblema.eval.demo_picture import draw
from emblema.eval.demo_report import exactness, show, verdict

pytestmark = pytest.mark.slow
MODEL = os.environ.get("EMBLEMA_TEST_MODEL", "reference")


@pytest.fixture(scope="module")
def media() -> DemoMedia:
    """The bundled media with two maps only."""
    whole = demo_media()
    names = whole.sample(maps=2)
    kept = replace(whole, maps=names[1:], all_questions=whole.about((*whole.legends, *names)))
    assert [one.kind for one in kept.all_questions].count("land") == 2
    return kept


@pytest.fixture(scope="module")
def result(media: DemoMedia) -> DemoResult:
    """A demo of one round over few pages."""
    chosen = (SITUATIONS[0], SITUATIONS[1], SITUATIONS[4], SITUATIONS[5])
    return run_demo(Console(quiet=True), MODEL, rounds=1, media=media, situations=chosen)


@pytest.fixture
def screen() -> Iterator[Console]:
    with open(os.devnull, "w") as nowhere:
        yield Console(record=True, width=110, file=nowhere)


def test_every_file_and_every_page_of_a_question_is_there() -> None:
    media = demo_media()
    names = {*media.pictures, media.clip}
    for name in names:
        assert (media.folder / name).stat().st_size > 0
    for one in (*media.all_questions, *media.clip_questions):
        assert set(one.pages) <= names
    assert len(media.openings) >= 3


def test_a_listing_that_cannot_be_read_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="install the package again"):
        demo_media(tmp_path)
    (tmp_path / "demo.json").write_text('{"legends": 3}')
    with pytest.raises(MediaError, match=str(tmp_path)):
        demo_media(tmp_path)


def test_questions_are_the_same_in_every_arrangement_of_pictures() -> None:
    media = demo_media()
    asked = {media.questions(one) for one in SITUATIONS if not one.clip}
    assert len(asked) == 1
    assert sorted(one.multi_hop for one in asked.pop()) == [False, True, True]


def test_every_request_is_there_once_for_each_strategy(result: DemoResult) -> None:
    assert len(result.outcomes) == 4 * 3 * len(STRATEGIES)
    for one in result.outcomes:
        assert len(one.seconds) == result.rounds
        assert one.ttft > 0
        assert one.usage.prompt_tokens == one.usage.cached_tokens + one.usage.computed_tokens


def test_full_computes_everything_and_prefix_hits_only_what_went_before(result: DemoResult) -> None:
    assert all(one.usage.cached_tokens == 0 for one in result.of("full"))
    first, second, third = (one for one in result.of("prefix") if one.situation == 0)
    assert first.usage.cached_tokens == 0
    assert min(second.usage.cached_tokens, third.usage.cached_tokens) > 300
    assert min(second.usage.computed_tokens, third.usage.computed_tokens) > 1
    other_opening = next(one for one in result.of("prefix") if one.situation == 1)
    assert other_opening.usage.cached_tokens < 10
    clip = next(one for one in result.of("prefix", "clip added"))
    assert clip.usage.cached_tokens > 300
    assert not result.broken


def test_patches_are_formed_for_a_new_order_and_found_behind_another_opening(result: DemoResult) -> None:
    firsts = [one for one in result.of("patch-25%") if one.place == 0]
    assert [one.forming_tokens > 0 for one in firsts] == [True, True, False, True]
    # Behind another opening the first page alone needs a patch: in front it is exact without one.
    assert firsts[1].forming_tokens < firsts[1].usage.prompt_tokens / 3
    for one in result.of("patch-25%"):
        assert one.usage.forming_tokens == 0
        exact = 66 if one.situation == 0 else 0
        assert one.usage.patched_tokens == one.usage.cached_tokens - exact
        assert (one.formed != 0) == (one.forming_tokens > 0)


def test_the_report_is_plain_data_and_agrees_with_the_table(result: DemoResult, screen: Console) -> None:
    found = json.loads(json.dumps(report(result)))
    assert len(found["requests"]) == len(result.outcomes)
    show(screen, result)
    text = screen.export_text()
    for situation in result.situations:
        assert situation.title in text
    right = sum(one["right"] for one in found["requests"] if one["strategy"] == "patch-25%")
    assert f"was right on {right} " in verdict(result)
    assert "prefix, exact by construction" in text


def test_an_answer_of_prefix_that_differs_is_said_loudly(result: DemoResult) -> None:
    spoilt = [
        replace(one, replies=[replace(one.reply, token_ids=(0, 0))])
        if one.strategy == "prefix" and one.place == 1
        else one
        for one in result.outcomes
    ]
    broken = replace(result, outcomes=tuple(spoilt))
    assert len(broken.broken) == 4
    assert "BROKEN" in exactness(broken).plain
    assert not report(broken)["exact"]


@pytest.mark.slow
def test_the_picture_is_drawn(result: DemoResult, tmp_path: Path) -> None:
    with Image.open(draw(result, tmp_path / "deep" / "demo.png")) as picture:
        assert min(picture.size) > 600
