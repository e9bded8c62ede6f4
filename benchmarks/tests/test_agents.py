"""Agents: sessions follow from a seed, rules keep what they say, what is sent again is the same, figures add up."""

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from benchmarks.agents.arms import KEEP
from benchmarks.agents.figures import (
    PRICES,
    PictureRows,
    SessionAnswers,
    new_rows,
    put,
    read_agents,
    rule_bars,
    rule_figures,
    write_agents,
)
from benchmarks.agents.page import blocks, pictures
from benchmarks.agents.rules import RULES, Kept, KeptPicture, RuleLimits, left
from benchmarks.agents.run import throughput_bars
from benchmarks.agents.sessions import AgentSession, SessionSettings, session_of
from benchmarks.agents.worlds import TaskWorld
from benchmarks.load.server_arm import picture_bytes
from benchmarks.load.stages import AUTO, FULL, PREFIX, LoadAnswer
from benchmarks.tests.running import benchmarks, refused
from emblema.errors import EmblemaError

RESULTS = Path(__file__).parents[2] / "docs" / "results"
LIMITS = RuleLimits(pictures=3, cap=4, budget=300)
LITTLE = SessionSettings("tasks", requests=14, size=224, length=2_000, limits=LIMITS)


def kept_after(rule: str, turns: int) -> Kept:
    """What a rule keeps of so many pictures that came one after another."""
    kept = Kept()
    for turn in range(turns):
        kept = RULES[rule]((*kept, KeptPicture(turn)), LIMITS, LITTLE.tokens)
    return kept


def shown(kept: Kept) -> list[int]:
    """The turns of some pictures."""
    return [picture.turn for picture in kept]


@pytest.mark.parametrize("turns", range(1, 12))
def test_a_rule_keeps_what_it_says(turns: int) -> None:
    newest = turns - 1
    for rule in RULES:
        kept = kept_after(rule, turns)
        assert kept[-1] == KeptPicture(newest) and shown(kept) == sorted(set(shown(kept)))
    assert shown(kept_after("keep", turns)) == list(range(max(0, turns - 3), turns))
    assert shown(kept_after("none", turns)) == list(range(turns))
    assert len(kept_after("cap", turns)) <= 4 and len(kept_after("every-other", turns)) <= 4
    assert sum(map(LITTLE.tokens, kept_after("budget", turns))) <= 300
    crop = kept_after("crop", turns)
    assert shown(crop) == list(range(turns)) and [picture.cropped for picture in crop[-3:]] == [False] * min(3, turns)
    assert all(picture.cropped for picture in crop[:-3])


def test_a_cap_drops_the_older_half_and_every_other_leaves_old_ones() -> None:
    assert shown(kept_after("cap", 5)) == [3, 4] and shown(kept_after("every-other", 5)) == [1, 3, 4]
    assert left(kept_after("crop", 3), kept_after("crop", 4)) == (KeptPicture(0),)


def part_of(session: AgentSession) -> Any:
    """What writes a picture into a message, to the byte."""
    return lambda picture: picture_bytes(session.world.image(picture)).hex()


@pytest.mark.parametrize("world", ["tasks", "desktop"])
@pytest.mark.parametrize("rule", RULES)
def test_a_session_follows_from_its_seed_and_sends_the_same_bytes_again(world: str, rule: str) -> None:
    settings = SessionSettings(world, requests=9, size=224, length=900, limits=LIMITS)
    session, again = session_of(settings, rule, 7), session_of(settings, rule, 7)
    assert session.turns == again.turns and session.requests == again.requests
    before = list[Any]()
    for request, same in zip(session.requests, again.requests, strict=True):
        messages = session.messages(request, part_of(session))
        assert messages == again.messages(same, part_of(again))
        assert [message["role"] for message in messages[:2]] == ["system", "user"]
        if not request.anew:
            changed = [old != new for old, new in zip(before, messages, strict=False)]
            assert len(messages) == len(before) + 2 and sum(changed) == len(request.gone)
        before = messages
    fewer = session_of(SessionSettings(world, 4, 224, 900, LIMITS), rule, 7)
    assert fewer.turns == session.turns[:4] and session_of(settings, rule, 8).turns != session.turns


def test_a_conversation_that_would_be_too_long_begins_anew() -> None:
    requests = session_of(SessionSettings("tasks", 20, 224, 400, LIMITS), "none", 1).requests
    begins = [request.turn for request in requests if request.anew]
    assert begins[0] == 0 and len(begins) > 2
    assert all(request.start == max(place for place in begins if place <= request.turn) for request in requests)
    assert all(shown(request.kept) == list(range(request.start, request.turn + 1)) for request in requests)


def test_questions_follow_from_what_is_kept_and_dropped_facts_from_what_is_not() -> None:
    session = session_of(SessionSettings("tasks", 60, 224, 4_000, LIMITS), "keep", 5)
    world = session.world
    assert isinstance(world, TaskWorld)
    dropped = [turn.question.dropped for turn in session.turns]
    assert 4 < sum(dropped) < 40
    for turn, request in zip(session.turns, session.requests, strict=True):
        known = world._clear([world.page(picture) for picture in request.kept])
        answers = {answer for (_, subject), (answer, _) in known.items() if subject in turn.question.text.split()}
        if turn.question.dropped:
            assert turn.question.answer not in answers
        else:
            assert turn.question.answer in answers and turn.question.said == turn.question.answer


def test_a_desktop_changes_by_a_little() -> None:
    session = session_of(SessionSettings("desktop", 30, 448, 100_000), "none", 3)
    screens = [numpy.asarray(session.world.image(KeptPicture(turn))) for turn in range(30)]
    shares = [float((now != before).any(-1).mean()) for before, now in zip(screens, screens[1:], strict=False)]
    assert 0 < numpy.median(shares) < 0.35 and screens[0].shape == (448, 448, 3)
    assert session.world.image(KeptPicture(2, cropped=True)).size == (224, 224)


def answered(session: AgentSession, text: str, computed: int, seconds: float) -> list[LoadAnswer]:
    """Answers of one text, whose prompts have ten rows of text a turn and forty a picture, a quarter of it cropped."""
    return [
        LoadAnswer(
            text or session.turns[request.turn].question.answer,
            seconds,
            seconds,
            10 * (request.turn - request.start + 1) + sum(10 if each.cropped else 40 for each in request.kept),
            computed,
        )
        for request in session.requests
    ]


@pytest.mark.parametrize("rule", RULES)
def test_new_rows_are_those_that_no_request_had(rule: str) -> None:
    session = session_of(LITTLE, rule, 2)
    own = answered(session, "a", 50, 1.0)
    found = new_rows(session, own, PictureRows(40, 10))
    for request, count in zip(session.requests, found, strict=True):
        assert count == 50 + 10 * sum(picture.cropped for picture in request.kept if picture.turn == request.turn - 3)


def test_figures_are_right_on_made_up_answers() -> None:
    session = session_of(SessionSettings("tasks", 60, 224, 100_000, LIMITS), "keep", 5)
    own, exact = answered(session, "", 55, 0.1), answered(session, "a", 100, 1.0)
    row = rule_figures(session, SessionAnswers("vllm", AUTO, own, exact, exact), PictureRows(40, 10))
    assert row["new"] == 50 * 60 and row["rows"] == pytest.approx(1.1) and row["drops"] == 57
    assert row["ttft_after"] == pytest.approx(0.1) and row["ttft_ms"] == pytest.approx(100)
    assert row["agrees"] == 0 and row["right"] == 1.0
    assert (row["remembered"], row["remembered_full"]) == (1.0, 0.0)
    assert row["read"] == row["prompt"] - 55 * 60
    assert row["dollars"] == pytest.approx(1_000 / 60 * PRICES.dollars(55 * 60, row["read"]))
    assert [bar.holds for bar in rule_bars(row)] == [True, True, False, False]
    same = rule_figures(session, SessionAnswers("vllm", AUTO, exact, exact, exact), PictureRows(40, 10))
    assert [bar.holds for bar in rule_bars(same)] == [False, False, True, True]
    assert [bar.holds for bar in throughput_bars({"throughput": 1.9, "requests": 4})] == [False]


def test_figures_of_a_run_take_the_place_of_the_same_arms(tmp_path: Path) -> None:
    session = session_of(LITTLE, "keep", 5)
    own = answered(session, "a", 55, 0.1)
    arms = [SessionAnswers("vllm", name, own, own, own) for name in (FULL, AUTO)]
    rows = [{"model": "m", "world": "tasks", **rule_figures(session, arm, PictureRows(40, 10))} for arm in arms]
    found: dict[str, list[dict[str, Any]]] = {"runs": [], "rules": [], "saturation": [], "bars": []}
    put(found, {"rules": rows})
    put(found, {"rules": [{**rows[1], "rows": 3.0}]})
    assert [row["rows"] for row in found["rules"]] == [rows[0]["rows"], 3.0]
    assert read_agents(write_agents(found, tmp_path / "agents.json"))["rules"][1]["rows"] == 3.0
    (tmp_path / "agents.json").write_text("[]")
    with pytest.raises(EmblemaError, match="no file of `benchmarks agents`"):
        read_agents(tmp_path / "agents.json")


def test_sessions_at_once_have_a_line_for_each_rule() -> None:
    about = {"model": "m", "rule": "cap", "sessions": 3}
    rows = [
        {**about, "engine": engine, "method": method, "answers_s": speed, "throughput": speed / 0.5}
        for engine, method, speed in (("vllm", AUTO, 0.25), ("vllm", KEEP, 1.0), ("vllm-stock", "stock", 0.5))
    ]
    told = blocks({"rules": [], "runs": [], "bars": [], "saturation": rows})["saturation"]
    assert "over plain vllm | over plain vllm-kept |\n" in told
    assert told.splitlines()[-1] == "| m | cap | 3 | 0.250 | 1.000 | 0.500 | 0.500 | 2.000 |"


def test_a_little_run_on_the_embedded_engine(tmp_path: Path) -> None:
    asked = ("--requests", "6", "--size", "112", "--pictures", "2", "--rules", "keep,crop", "--seed", "3", "--plain")
    done = benchmarks("agents", *asked, "--report", str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = read_agents(tmp_path / "agents.json")
    by = {(row["rule"], row["method"]): row for row in found["rules"]}
    assert set(by) == {(rule, method) for rule in ("keep", "crop") for method in (FULL, PREFIX, AUTO, KEEP)}
    for (_, method), row in by.items():
        assert row["requests"] == 6 and 0 < row["new"] <= row["prompt"]
        assert row["agrees"] == 1.0 or method in (AUTO, KEEP)
    assert by["keep", FULL]["read"] == 0 < by["keep", PREFIX]["read"]
    assert {bar["method"] for bar in found["bars"]} == {AUTO}
    page = (tmp_path / "agents.md").read_text()
    assert "<!-- reference tasks -->" in page and "agrees engine | agrees engine-kept |" in page
    assert len(json.loads((tmp_path / "agents.json").read_text())["runs"]) == 2


def test_wrong_shapes_are_refused() -> None:
    assert "choose one of tasks, desktop" in refused("agents", "--world", "moon")
    assert "holds no two pictures" in refused("agents", "--length", "100")
    assert "sessions are of servers" in refused("agents", "--sessions", "2")


def test_the_page_has_every_block_of_its_figures() -> None:
    found, page = read_agents(RESULTS / "agents.json"), (RESULTS / "agents.md").read_text(encoding="utf-8")
    assert all(f"<!-- {name} -->" in page for name in blocks(found)) and list(pictures(found))
