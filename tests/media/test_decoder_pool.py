"""Processes that decode: they end when they are late, too large, or broken, and hold nobody else up."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from emblema.errors import EmblemaError, MediaError
from emblema.media import DEFAULT_LIMITS, load_image, load_pages, load_video, media_bytes, sample_frames
from emblema.media import decoder_pool as pools
from emblema.media.decoder_pool import DecoderPool, DecodeTask
from emblema.media.source import open_source
from tests.media.attacks import png, scan_bomb

Encode = Callable[..., bytes]
SCANS = replace(DEFAULT_LIMITS, jpeg_scans=3000, picture_seconds=300)
HURRIED = replace(SCANS, picture_seconds=0.5)


@pytest.fixture(scope="module")
def slow() -> bytes:
    """A JPEG that takes half a minute or more where so many scans are allowed."""
    return scan_bomb(3000, 3000)


@pytest.fixture
def pool() -> Iterator[DecoderPool]:
    """A pool with one place for pictures and one for long media."""
    made = DecoderPool(os.getpid(), 1)
    yield made
    made.close()


def size_of(pool: DecoderPool, data: bytes, limits: pools.MediaLimits = SCANS) -> tuple[int, int]:
    with open_source(data, limits) as file:
        items = list(pool.decode(DecodeTask("picture", file, "it", limits, 3 * limits.image_pixels)))
    return items[0].fields["width"], items[0].fields["height"]


def processes(pool: DecoderPool) -> set[int]:
    return {process._process.pid for process in pool._all}


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


@pytest.mark.slow
def test_a_slow_picture_is_cut_at_its_time_limit(pool: DecoderPool, slow: bytes) -> None:
    assert size_of(pool, png(8, 8)) == (8, 8)
    before = processes(pool)
    began = time.monotonic()
    with pytest.raises(MediaError, match=r"longer than 0\.5 s .*picture_seconds"):
        size_of(pool, slow, HURRIED)
    assert time.monotonic() - began < 10
    assert not any(is_running(process) for process in before)
    assert size_of(pool, png(8, 8)) == (8, 8)


@pytest.mark.slow
def test_a_slow_picture_delays_another_by_its_time_limit_at_most(pool: DecoderPool, slow: bytes) -> None:
    """Even where there is one place: the other comes through when the first is cut."""
    assert size_of(pool, png(8, 8)) == (8, 8)
    failures: list[MediaError] = []

    def bad() -> None:
        with pytest.raises(MediaError) as caught:
            size_of(pool, slow, replace(SCANS, picture_seconds=1.0))
        failures.append(caught.value)

    thread = threading.Thread(target=bad)
    began = time.monotonic()
    thread.start()
    assert wait_until(lambda: not pool._idle), "the slow one has the place"
    assert size_of(pool, png(8, 8)) == (8, 8)
    waited = time.monotonic() - began
    thread.join()
    assert failures and 0.9 < waited < 10


def test_where_there_are_two_places_nobody_waits_for_a_slow_picture(slow: bytes) -> None:
    pool = DecoderPool(os.getpid(), 2)
    thread = threading.Thread(target=lambda: pytest.raises(MediaError, size_of, pool, slow))
    try:
        assert size_of(pool, png(8, 8)) == (8, 8)
        thread.start()
        assert wait_until(lambda: len(processes(pool)) == 1)
        time.sleep(0.5)
        assert size_of(pool, png(9, 9)) == (9, 9)
        assert thread.is_alive()
    finally:
        pool.close()
        thread.join()


@pytest.mark.slow
def test_long_media_and_lazy_frames_leave_the_places_of_pictures_free(clip: Callable[..., bytes]) -> None:
    streams = [sample_frames(clip(frames=30), 10) for _ in range(6)]
    assert [next(frames)[0] for frames in streams] == [0.0] * 6
    assert load_image(png(8, 8)).size == (8, 8)
    assert len(load_video(clip(), 1).frames) == 2
    for frames in streams:
        frames.close()


@pytest.mark.slow
def test_a_video_and_a_document_have_a_time_limit_too(clip: Callable[..., bytes]) -> None:
    limits = replace(DEFAULT_LIMITS, media_seconds=1e-4, picture_seconds=1e-4)
    with pytest.raises(MediaError, match="media_seconds"):
        load_video(clip(), 1, limits)
    with pytest.raises(MediaError, match="media_seconds"):
        next(sample_frames(clip(), 1, limits))
    with pytest.raises(MediaError, match="picture_seconds"):
        load_pages(b"%PDF-1.7", limits=limits)


def test_time_counts_only_while_an_item_is_waited_for(
    clip: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    later = 0.0
    monkeypatch.setattr(pools, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + later))
    frames = sample_frames(clip(frames=30), 10, replace(DEFAULT_LIMITS, media_seconds=60))
    next(frames)
    later = 100.0
    assert len(list(frames)) == 29


def test_memory_is_limited() -> None:
    """256 MB do not fit beside the libraries; the limits of size alone let them pass."""
    tight = replace(SCANS, decoder_bytes=400 * 2**20)
    with pytest.raises(MediaError, match="decoder_bytes"):
        load_image(png(8000, 8000), tight)
    assert load_image(png(8, 8), tight).size == (8, 8)


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGSEGV])
def test_a_process_that_dies_costs_one_picture(pool: DecoderPool, slow: bytes, ending: signal.Signals) -> None:
    assert size_of(pool, png(8, 8)) == (8, 8)
    (process,) = processes(pool)
    threading.Timer(0.3, os.kill, (process, ending)).start()
    with pytest.raises(MediaError, match=f"exit status -{int(ending)}"):
        size_of(pool, slow)
    assert size_of(pool, png(8, 8)) == (8, 8)


def test_a_process_that_died_while_it_rested_costs_nothing(pool: DecoderPool) -> None:
    assert size_of(pool, png(8, 8)) == (8, 8)
    (process,) = processes(pool)
    os.kill(process, signal.SIGKILL)
    assert wait_until(lambda: not is_running(process))
    assert size_of(pool, png(8, 8)) == (8, 8)


def test_a_process_is_used_again_and_replaced_in_time(pool: DecoderPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "TASKS_A_PROCESS", 3)
    seen = []
    for _ in range(6):
        size_of(pool, png(8, 8))
        seen.append(processes(pool))
    first, second = seen[0], seen[3]
    assert len(first) == len(second) == 1
    assert seen == [first, first, set(), second, second, set()]
    assert first != second


def test_a_refused_picture_does_not_cost_a_process(pool: DecoderPool) -> None:
    size_of(pool, png(8, 8))
    before = processes(pool)
    for _ in range(3):
        with pytest.raises(MediaError, match="not a picture"):
            size_of(pool, b"no picture at all")
    assert processes(pool) == before


ROGUES = {
    "a header without an end": "send(struct.pack('<IQ', 2**31, 0))",
    "pixels without an end": "send(struct.pack('<IQ', 2, 2**60) + b'{}')",
    "no JSON": "send(struct.pack('<IQ', 4, 0) + b'{{{{')",
    "deep JSON": "send(struct.pack('<IQ', 60000, 0) + b'[' * 60000)",
    "no object": "send(struct.pack('<IQ', 2, 0) + b'[]')",
    "half a message": "send(b'ab')",
    "another size": "item({'outcome': 'item', 'width': 4000, 'height': 4000}, bytes(30))",
    "a negative size": "item({'outcome': 'item', 'width': -5, 'height': -2}, bytes(30))",
    "a size that is no number": "item({'outcome': 'item', 'width': '5', 'height': [2]}, bytes(30))",
    "a size outside the limits": "item({'outcome': 'item', 'width': 1, 'height': 1}, bytes(3))",
    "no picture": "item({'outcome': 'end'}, b'')",
    "pixels that were not asked for": "[item({'outcome': 'item', 'width': 5, 'height': 5}, bytes(75)) for _ in '12']",
}


@pytest.mark.parametrize("rogue", ROGUES)
def test_what_a_process_sends_is_not_trusted(rogue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that was taken over by what it decoded sends what it likes; it gets an error, not a picture."""
    script = f"""
import json, socket, struct, sys
peer = socket.socket(fileno=int(sys.argv[1]))
send = peer.sendall
def item(fields, data):
    header = json.dumps(fields).encode()
    send(struct.pack("<IQ", len(header), len(data)) + header + data)
send(b"\\0")
peer.recv(10000)
{ROGUES[rogue]}
item({{"outcome": "end"}}, b"")
"""
    monkeypatch.setattr(pools, "_SCRIPT", script)
    made = DecoderPool(os.getpid(), 1)
    monkeypatch.setattr(pools, "_decoder_pool", lambda owner: made)
    try:
        with pytest.raises(MediaError):
            load_image(png(8, 8))
    finally:
        made.close()


def test_a_process_that_does_not_start_says_so(pool: DecoderPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_SCRIPT", "raise SystemExit(7)")
    with pytest.raises(EmblemaError, match="did not start .*exit status 7"):
        size_of(pool, png(8, 8))
    monkeypatch.setattr(pools.multiprocessing.spawn, "get_executable", lambda: "/usr/sbin/uwsgi")
    monkeypatch.setattr(sys, "exec_prefix", "/nowhere")
    monkeypatch.setattr(sys, "base_exec_prefix", "/nowhere")
    with pytest.raises(EmblemaError, match="set_executable"):
        size_of(pool, png(8, 8))


def test_an_embedding_program_is_not_taken_for_python(pool: DecoderPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools.multiprocessing.spawn, "get_executable", lambda: "/bin/ls")
    assert size_of(pool, png(8, 8)) == (8, 8)


def test_the_process_knows_little() -> None:
    """Neither torch nor the caller's secrets, and no file can be written."""
    probe = """
import json, os, resource, sys
from emblema.media import decoder
print(json.dumps({"torch": "torch" in sys.modules, "transformers": "transformers" in sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, env=environment(), check=True)
    assert json.loads(done.stdout) == {"torch": False, "transformers": False}
    os.environ["EMBLEMA_TEST_SECRET"] = "hush"
    pool = DecoderPool(os.getpid(), 1)
    try:
        size_of(pool, png(8, 8))
        (process,) = processes(pool)
        assert b"hush" not in Path(f"/proc/{process}/environ").read_bytes()
        limits = Path(f"/proc/{process}/limits").read_text()
        assert any(line.startswith("Max file size") and line.split()[3] == "0" for line in limits.splitlines())
    finally:
        del os.environ["EMBLEMA_TEST_SECRET"]
        pool.close()


def test_given_pictures_are_not_sent_to_a_process(picture: Image.Image, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_decoder_pool", lambda owner: pytest.fail("a process was asked for"))
    assert media_bytes(load_image(picture)) == media_bytes(picture)


PLAIN = "from emblema.media import load_image; import sys, os; print(load_image(sys.argv[1]).size, os.getpid())"
THREADS = """
import sys, threading
from emblema.media import load_image
print("the script runs")
found = []
threads = [threading.Thread(target=lambda: found.append(load_image(sys.argv[1]).size)) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert found == [(8, 8)] * 8
print(found[0])
"""
FORKED = """
import os, sys
from emblema.media import load_image
from emblema.media.decoder_pool import _decoder_pool
load_image(sys.argv[1])
(before,) = {process._process.pid for process in _decoder_pool(os.getpid())._all}
child = os.fork()
if child == 0:
    load_image(sys.argv[1])
    (other,) = {process._process.pid for process in _decoder_pool(os.getpid())._all}
    sys.exit(other == before)
assert os.waitpid(child, 0)[1] == 0
print(load_image(sys.argv[1]).size)
(after,) = {process._process.pid for process in _decoder_pool(os.getpid())._all}
assert before == after, "the child ended its parent's process"
"""
LEFT = """
import os, sys
from emblema.media import load_image, sample_frames
from emblema.media.decoder_pool import _decoder_pool
print(load_image(sys.argv[1]).size)
print(*(process._process.pid for process in _decoder_pool(os.getpid())._all), flush=True)
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    ["command", "command of a folder", "script without a guard", "standard input", "module", "threads", "fork"],
)
def test_whatever_the_caller_is(how: str, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(png(8, 8))
    code = {"threads": THREADS, "fork": FORKED}.get(how, PLAIN)
    script = tmp_path / "script.py"
    script.write_text(f"print('once', flush=True)\n{code}")
    if how.startswith("command"):
        command, given = ["-c", f"print('once')\n{code}", str(picture)], None
    elif how == "standard input":
        command, given = ["-", str(picture)], script.read_text()
    elif how == "module":
        command, given = ["-m", "script", str(picture)], None
    else:
        command, given = [str(script), str(picture)], None
    done = subprocess.run(
        [sys.executable, "-W", "ignore" if how == "fork" else "error::ResourceWarning", *command],
        capture_output=True, text=True, input=given, env=environment(), cwd=tmp_path, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("once") == 1
    assert "(8, 8)" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["exit", "killed"])
def test_processes_end_with_their_caller(ending: str, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(png(8, 8))
    code = LEFT + ("os.kill(os.getpid(), 9)" if ending == "killed" else "")
    done = subprocess.run(
        [sys.executable, "-c", code, str(picture)], capture_output=True, text=True, env=environment(), timeout=60
    )
    process = int(done.stdout.splitlines()[1])
    assert wait_until(lambda: not is_running(process))


@pytest.mark.slow
def test_a_process_that_decodes_ends_though_nobody_is_left_to_kill_it(pool: DecoderPool, slow: bytes) -> None:
    """The system's limit of processor time, with the killing taken away."""
    size_of(pool, png(8, 8))
    (process,) = pool._all
    process.kill = lambda: None  # type: ignore[method-assign]
    with pytest.raises(MediaError, match="longer"):
        size_of(pool, slow, replace(SCANS, picture_seconds=0.1))
    assert wait_until(lambda: process._process.poll() is not None)
    assert process._process.returncode == -signal.SIGXCPU
