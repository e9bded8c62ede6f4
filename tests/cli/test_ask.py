"""`emblema ask`."""

import json
import os
from importlib.resources import files
from pathlib import Path

from PIL import Image

from tests.cli.running import Command

MODEL = os.environ.get("EMBLEMA_TEST_MODEL", "reference")
DEMO = Path(str(files("emblema"))) / "assets" / "demo"


def test_ask_streams_an_answer_and_then_what_it_cost(run: Command) -> None:
    media = json.loads((DEMO / "demo.json").read_text())
    asked = next(one for one in media["questions"] if one["kind"] == "colour")
    pictures = ["--image", str(DEMO / "legend-1.png"), "--image", str(DEMO / asked["pages"][0])]
    done = run("ask", *pictures, asked["text"], "--model", MODEL, "--strategy", "patch-25%", "--show-plan")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == asked["answer"]
    assert "tokens of prompt" in done.stderr
    assert "taken and patched" in done.stderr
    slid = run("ask", *pictures[1::2], asked["text"], "--model", MODEL, "--slide", "1", "--strategy", "full")
    assert slid.stdout.strip() == asked["answer"], "pictures are arguments too"


def test_what_the_model_does_not_know_is_said(run: Command) -> None:
    done = run("ask", "--image", str(DEMO / "map-01.png"), "quux ?", "--model", "reference", "--plain")
    assert done.returncode == 0 and not done.stdout.strip()
    assert "1 of 1 words are unknown to this model: quux; the answer is empty" in done.stderr
    assert "794 words" in " ".join(run("ask", "--help").stdout.split())


def test_ask_takes_videos_and_documents(run: Command, tmp_path: Path) -> None:
    page = Image.open(DEMO / "map-01.png").convert("RGB")
    page.save(tmp_path / "pages.pdf")
    clip, pages = str(DEMO / "clip.mp4"), str(tmp_path / "pages.pdf")
    rest = ("what colour is under the tent ?", "--model", MODEL, "--fps", "1")
    done = run("ask", "--video", clip, "--pdf", pages, *rest)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    again = run("ask", clip, pages, *rest)
    assert again.stdout == done.stdout
    said = [one.stderr.partition("first token")[0] for one in (done, again)]
    assert said[0] == said[1] and "tokens of prompt" in said[0]


def test_a_question_asked_twice_is_linked_the_second_time(run: Command, tmp_path: Path) -> None:
    """What the first run computed, the second takes."""
    asked = (
        *("ask", "on which land does the moon stand ?", "--store", str(tmp_path / "kept"), "--plain"),
        *("--image", str(DEMO / "legend-3.png"), "--image", str(DEMO / "map-01.png")),
    )
    first, second = run(*asked), run(*asked)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert first.stdout == second.stdout
    assert "auto:leading+full" in first.stderr and "auto:leading+patch" in second.stderr
