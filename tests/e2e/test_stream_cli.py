"""`emblema stream` as a person runs it: with questions given, with questions typed on a terminal, and gone on with."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.videos import write_cut_video
from tests.e2e.commands import SOURCE, emblema

MODEL = os.environ.get("EMBLEMA_TEST_MODEL", "reference")
FEW = ("--budget", "4", "--window", "4", "--block", "4", "--model", MODEL)


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated stream of 48 frames, one every two seconds."""
    from benchmarks.data.streams import item_of, write_streams
    from benchmarks.tasks.streams import generate

    folder = tmp_path_factory.mktemp("walk")
    write_streams((item_of(stream, ()) for stream in generate("ego", 48, 3, 1)), folder)
    return next(folder.rglob("*.mp4"))


def test_questions_given_a_strip_and_going_on(walk: Path, tmp_path: Path) -> None:
    strip, store = tmp_path / "strip.png", tmp_path / "kept"
    asked = ("--ask-at", "0:30:in which land are we now ?", "--ask", "in which land was the moon ?")
    kept = ("--store", str(store), "--save", "walk")
    done = emblema("stream", str(walk), *FEW, *asked, *kept, "--strip", str(strip), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["frames"], told["seconds"], told["cut"]) == (48, 94.0, None)
    early, late = told["answers"]
    # What lay behind its time was not seen, although it was asked in the same run.
    assert (early["at"], early["frames"], late["frames"]) == (30.0, 16, 48)
    assert all(moment["at"] <= 30 for moment in early["moments"])
    assert late["ttft_seconds"] > 0 and late["moments"] and late["retrieved"] == len(late["moments"])
    assert told["clusters"]["visual"] >= 1 and told["bytes"]["device"]["index"] > 0
    assert Image.open(strip).format == "PNG"

    gone_on = emblema(
        "stream", "--resume", "walk", "--store", str(store), "--model", MODEL, "--ask", late["question"], "--json"
    )
    assert gone_on.returncode == 0, gone_on.stderr
    answer = json.loads(gone_on.stdout)["answers"][0]
    assert (answer["answer"], answer["frames"]) == (late["answer"], 48)


def test_a_video_cut_short_is_asked_about_as_far_as_it_goes(tmp_path: Path) -> None:
    write_cut_video(tmp_path / "cut.mp4")
    done = emblema("stream", "cut.mp4", *FEW, "--fps", "5", "--ask", "in which land are we now ?", where=tmp_path)
    assert done.returncode == 1
    assert "truncated" in done.stderr and "Traceback" not in done.stderr
    assert done.stdout.splitlines()[0].endswith("in which land are we now ?")
    assert "first token after" in done.stderr


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no pseudo-terminals here")
def test_questions_typed_on_a_terminal(walk: Path, tmp_path: Path) -> None:
    import termios

    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (50, 120))
    before = termios.tcgetattr(slave)
    environment = os.environ | {"PYTHONPATH": SOURCE, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "emblema.cli", "stream", str(walk), *FEW, "--strip", "strip.png"]
    running = subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=slave, stdout=slave, stderr=slave)
    try:
        screen = _Screen(master, running)
        screen.until("an empty line ends")
        os.write(master, b"in which land are wee\x7f now ?\r")
        screen.until("first token after")
        assert "in which land are we now ?" in screen.text
        os.write(master, b"\x1b[Ahow many times was the moon seen ?\n")
        screen.until("first token after", "of layers")
        assert "how many times was the moon seen ?" in screen.text
        running.send_signal(signal.SIGINT)
        screen.until("strip: ")
        assert running.wait(60) == 0, screen.text
    finally:
        running.kill()
        running.wait()
    assert termios.tcgetattr(slave) == before
    assert "clusters" in screen.text and "48 frames, 1:34" in screen.text and "\u2580" in screen.text
    assert Image.open(tmp_path / "strip.png").width > 1000


class _Screen:
    """What a process writes to a terminal."""

    def __init__(self, master: int, running: subprocess.Popen[bytes]) -> None:
        self.text = ""
        self._master, self._running, self._mark = master, running, 0

    def until(self, *wanted: str, seconds: float = 240) -> None:
        """Read until all of it has come since the last time."""
        last = time.monotonic() + seconds
        while any(one not in self.text[self._mark :] for one in wanted):
            assert time.monotonic() < last, self.text
            if select.select([self._master], [], [], 0.2)[0]:
                self.text += os.read(self._master, 1 << 16).decode(errors="replace")
            else:
                assert self._running.poll() is None, self.text
        self._mark = len(self.text)
