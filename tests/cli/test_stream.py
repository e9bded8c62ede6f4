"""`emblema stream` with questions given, and gone on with."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.tasks.streams import questions_of
from emblema.errors import PromptError
from emblema.stream.standing import AnswerChange, StandingQuestions
from tests.cli.running import Command, emblema, refused
from tests.cli.videos import write_cut_video, write_walk
from tests.stream.live import camera, clip
from training.demo_media import WALK_FRAMES
from training.demo_media import walk as stream_walk

MODEL = os.environ.get("EMBLEMA_TEST_MODEL", "reference")
FEW = ("--budget", "4", "--model", MODEL)


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_walk(tmp_path_factory.mktemp("walk"))


def test_the_video_of_the_package_is_one_that_the_bundled_model_reads(run: Command) -> None:
    chosen = {question.kind: question for question in questions_of(stream_walk(), (WALK_FRAMES,))}
    assert set(chosen) >= {"recent", "far", "ordered"}
    texts = [argument for question in chosen.values() for argument in ("--ask", question.text)]
    done = run("stream", "--demo", "--budget", "8", *texts, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["frames"] == WALK_FRAMES
    assert [answer["answer"] for answer in told["answers"]] == [question.answer for question in chosen.values()]
    assert "leave it or VIDEO out" in refused("stream", "--demo", "walk.mp4")


@pytest.mark.slow
def test_questions_given_and_going_on(run: Command, walk: Path, tmp_path: Path) -> None:
    store = tmp_path / "kept"
    asked = ("--ask", "in which land was the moon ?", "--ask", "+ in which land are we now ?")
    kept = ("--store", str(store), "--save", "walk")
    done = run("stream", str(walk), *FEW, *asked, *kept, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["frames"], told["seconds"], told["cut"]) == (48, 94.0, None)
    first, following = told["answers"]
    assert (first["at"], first["frames"]) == (94.0, 48)
    assert first["ttft_seconds"] > 0 and first["moments"] and first["retrieved"] == len(first["moments"])
    assert following["question_tokens"] > 2 * first["question_tokens"]
    assert told["bytes"]["host"]["keys"] > 0

    resumed = ("stream", "--resume", "walk", "--store", str(store), "--model", MODEL)
    gone_on = run(*resumed, "--ask", first["question"], "--json")
    assert gone_on.returncode == 0, gone_on.stderr
    answer = json.loads(gone_on.stdout)["answers"][0]
    assert (answer["answer"], answer["frames"]) == (first["answer"], 48)


@pytest.mark.slow
def test_changed_answers_to_standing_questions_are_told(walk: Path) -> None:
    question = "in which land are we now ?"
    standing = ("--standing", question)
    done = emblema("stream", str(walk), *FEW, *standing, "--json")
    assert done.returncode == 0, done.stderr
    changes = json.loads(done.stdout)["changes"]
    assert changes and [change["former"] for change in changes] == [None, *(c["answer"] for c in changes[:-1])]
    plain = emblema("stream", str(walk), *FEW, *standing, "--ask", question)
    told = plain.stdout.splitlines()[: len(changes)]
    assert all(question in line and change["answer"] in line for line, change in zip(told, changes, strict=True))


@pytest.mark.slow
def test_a_standing_question_that_cannot_be_asked_does_not_end_the_run(
    walk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(questions: StandingQuestions) -> list[AnswerChange]:
        raise PromptError("it is too long")

    monkeypatch.setattr(StandingQuestions, "check", failing)
    done = emblema("stream", str(walk), *FEW, "--standing", "who ?", "--ask", "in which land are we now ?")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no more standing questions") == 1 and len(done.stdout.splitlines()) == 2


@pytest.mark.nightly
def test_a_camera_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of two connections, with the time on the wall; then it is gone, and the question is answered."""
    monkeypatch.setattr("emblema.cli.watch.source.GIVE_UP", 5)
    began = time.time()

    def script(number: int) -> Iterator[bytes]:
        # Two seconds come at once: the next connection's are later on the wall only after them.
        server.ended.wait(2.0 * number)
        if number < 2:
            yield clip(range(30, 230, 10), size=(112, 112))

    with camera(script) as server:
        live = ("--live", "--fps", "10", "--ask", "in which land are we now ?", "--json")
        done = emblema("stream", server.url, *FEW, *live)
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert (told["frames"], told["live"]["losses"], told["live"]["dropped"]) == (40, 2, 0)
    assert "gave no frame for 5 s" in told["cut"] and "secret" not in done.stdout + done.stderr
    assert began - 5 < told["seconds"] < time.time()
    assert [answer["frames"] for answer in told["answers"]] == [40]


@pytest.mark.slow
def test_a_video_cut_short_is_asked_about_as_far_as_it_goes(run: Command, tmp_path: Path) -> None:
    write_cut_video(tmp_path / "cut.mp4")
    done = run("stream", "cut.mp4", *FEW, "--fps", "5", "--ask", "in which land are we now ?", where=tmp_path)
    assert done.returncode == 1
    assert "truncated" in done.stderr and "Traceback" not in done.stderr
    assert done.stdout.splitlines()[0].endswith("in which land are we now ?")
    assert "first token after" in done.stderr
