"""Live sources: served on this machine, vanishing, coming back, never coming, with clocks that jump."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from PIL import Image

from emblema.errors import MediaError
from emblema.media import MediaLimits, live
from emblema.media.decoder_pool import DecodedItem
from emblema.media.live import FrameClock, is_live, live_frames, live_name
from emblema.stream.feed import LiveFeed
from emblema.stream.frames import TimedFrame
from emblema.stream.settings import StreamSettings
from emblema.stream.sources import LiveSource
from tests.media.making import moving, recording
from tests.stream.live import camera, clip


def brightness(picture: Image.Image) -> int:
    return round(float(np.asarray(picture).mean()) / 10) * 10


def taken(source: LiveSource, most: int) -> list[TimedFrame]:
    """Return the first frames of a source, and close it."""
    found = []
    with closing(source):
        for frame in source.frames():
            found.append(frame)
            if len(found) == most:
                break
    return found


def test_frames_come_at_the_rate_that_was_asked_for() -> None:
    with camera(lambda number: iter([clip(range(30, 230, 10))])) as server:
        frames = list(live_frames(server.url, 5.0))
        assert [frame.seconds for frame in frames] == pytest.approx([0.2 * index for index in range(10)])
        assert [brightness(frame.picture) for frame in frames] == list(range(30, 230, 20))
        assert {frame.jumps for frame in frames} == {0} and {frame.picture.size for frame in frames} == {(64, 48)}


def test_a_transport_stream_over_plain_tcp() -> None:
    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(clip(range(30, 230, 10)))

    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        frames = list(live_frames(f"tcp://127.0.0.1:{server.getsockname()[1]}", 10.0))
        thread.join()
    assert [brightness(frame.picture) for frame in frames] == list(range(30, 230, 10))


def test_a_source_that_vanishes_and_comes_back() -> None:
    """Connection 0 breaks off in the middle, 1 and 2 give nothing, 3 goes on."""

    def script(number: int) -> Iterator[bytes]:
        if number in (0, 3):
            yield clip(range(30, 130, 10) if number == 0 else range(130, 230, 10))
        raise ConnectionResetError

    wall = [1e9]
    with camera(script) as server:
        source = LiveSource(server.url, 10.0, pause=0.02, give_up=20.0, now=lambda: wall[0])
        found = []
        with closing(source):
            for frame in source.frames():
                found.append(frame)
                if len(found) == 10:
                    wall[0] += 60
                if len(found) == 18:
                    break
        assert [brightness(frame.picture) for frame in found] == list(range(30, 210, 10))
        times = [frame.at - 1e9 for frame in found]
        assert times == pytest.approx([0.1 * index for index in range(10)] + [60 + 0.1 * index for index in range(8)])
        assert (source.losses, source.jumps, server.connections) == (1, 0, 4)


def test_a_source_that_comes_back_with_another_size_keeps_the_first() -> None:
    parts = [recording(moving(5)), recording(moving(5, 64, 96))]
    with camera(lambda number: iter([parts[min(number, 1)]])) as server:
        found = taken(LiveSource(server.url, 10.0, pause=0.02, give_up=20.0), 8)
    assert {frame.picture.size for frame in found} == {(96, 64)}


def test_a_clock_on_the_wall_that_goes_back_does_not_turn_time_round() -> None:
    walls = iter([1e9, 1e9 - 500])
    with camera(lambda number: iter([clip(range(30, 80, 10))])) as server:
        found = taken(LiveSource(server.url, 10.0, pause=0.02, give_up=20.0, now=lambda: next(walls)), 8)
    times = [frame.at for frame in found]
    assert times == sorted(times) and times[-1] == times[4] == pytest.approx(1e9 + 0.4)


@pytest.mark.slow
@pytest.mark.parametrize("begin", [0.0, 2_000.0], ids=["back", "ahead"])
def test_a_clock_that_jumps_is_mended_and_counted(begin: float) -> None:
    pieces = [clip(range(30, 130, 10), 500.0), clip(range(130, 230, 10), begin)]
    with camera(lambda number: iter(pieces)) as server:
        source = LiveSource(server.url, 10.0, pause=0.02, give_up=20.0)
        found = taken(source, 18)
    times = [frame.at - found[0].at for frame in found]
    assert times == sorted(times) and 1.5 < times[-1] < 20
    assert source.jumps == 1 and source.losses == 0


def test_a_source_that_never_comes_is_given_up_after_its_time() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    began = time.monotonic()
    source = LiveSource(f"http://user:word@127.0.0.1:{port}/x?key=secret", give_up=0.6, pause=0.05)
    with pytest.raises(MediaError, match="gave no frame for 0.6 s: ") as error:
        list(source.frames())
    assert 0.5 < time.monotonic() - began < 20
    assert "word" not in str(error.value) and "secret" not in str(error.value) and "\n" not in str(error.value)


@pytest.mark.nightly
def test_a_source_that_falls_silent_is_given_up_too() -> None:
    """It accepts, sends a part of a clip and then nothing, without closing."""

    def script(number: int) -> Iterator[bytes]:
        yield clip(range(30, 130, 10)) if number == 0 else b""
        server.ended.wait(30)

    with camera(script) as server:
        source = LiveSource(server.url, 10.0, patience=2.0, give_up=3.0, pause=0.05)
        found = []
        with pytest.raises(MediaError, match="gave no frame for 3 s"):
            for frame in source.frames():
                found.append(frame)
        # The last frames of a stream that is never closed may stay in the decoder.
        assert len(found) >= 5 and source.losses == 1


@pytest.mark.parametrize(
    "address",
    ["camera:", "camera:x", "camera:/dev/sda", "file:///etc/passwd", "/etc/passwd", "concat:a", "hls+http://a/b",
     "pipe:0", "http://", "rtsp:", "http://a b/", "ftp://a/b", "data:,x", ""],
)  # fmt: skip
def test_what_is_no_live_source_is_refused(address: str) -> None:
    with pytest.raises(MediaError):
        LiveSource(address)


def test_what_is_live_by_its_address() -> None:
    assert [is_live(text) for text in ("camera:0", "rtsp://a/b", "tcp://a:1", "http://a/b", "a.mp4", 3)] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    assert live_name("rtsp://me:word@host:554/one?key=1") == "rtsp://host:554/one"


def test_a_playlist_does_not_open_other_files() -> None:
    text = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"
    with camera(lambda number: iter([text])) as server, pytest.raises(MediaError, match="cannot be read"):
        list(live_frames(server.url, 1.0))


def test_limits_hold_for_what_comes_from_a_camera() -> None:
    small = clip(range(30, 80, 10))
    with camera(lambda number: iter([small])) as server, pytest.raises(MediaError, match="a frame of http"):
        list(live_frames(server.url, 1.0, MediaLimits(image_pixels=64 * 47)))


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -float("inf"), "1", None])
def test_a_time_that_is_none_is_refused(seconds: object, monkeypatch: pytest.MonkeyPatch) -> None:
    item = DecodedItem({"time": seconds, "jumps": 0}, bytearray(3))
    monkeypatch.setattr(live, "decode", lambda task: iter([item]))
    with pytest.raises(MediaError, match="was not decoded to frames"):
        list(live_frames("camera:0", 1.0))


def test_time_stamps_as_seconds() -> None:
    clock = FrameClock()
    # Delays of the network do not count, a burst after them neither; a pause of source and network does.
    stamps = [(7.0, 0.0), (7.1, 3.0), (7.2, 3.0), (17.2, 13.0), (17.2, 13.1)]
    assert [clock.seconds(*stamp) for stamp in stamps] == pytest.approx([0, 0.1, 0.2, 10.2, 10.2])
    assert clock.jumps == 0
    assert clock.seconds(3.0, 13.5) == pytest.approx(10.6)
    assert clock.seconds(3.1, 13.6) == pytest.approx(10.7)
    assert clock.seconds(None, 14.6) == pytest.approx(11.7)
    assert clock.seconds(900.0, 15.6) == pytest.approx(12.7)
    assert clock.seconds(1900.0, 15.7) == pytest.approx(12.8)
    assert clock.jumps == 2


class Pictures:
    """A source of plain frames, as many as wanted, as fast as they are taken."""

    def __init__(self, count: int, pause: float = 0.0) -> None:
        self.count, self.pause, self.closed = count, pause, False

    def frames(self) -> Iterator[TimedFrame]:
        for index in range(self.count):
            if self.closed:
                return
            time.sleep(self.pause)
            yield TimedFrame(Image.new("RGB", (8, 8), (index % 256, 0, 0)), float(index))

    def close(self) -> None:
        self.closed = True


def drained(feed: LiveFeed) -> list[float]:
    found = []
    while not feed.ended:
        found += [frame.at for frame in feed.take(1.0, most=3)]
    return found


@pytest.mark.parametrize("drop", ["block", "oldest", "newest"])
def test_a_full_queue_does_as_the_stream_says(drop: str) -> None:
    with LiveFeed(Pictures(20), StreamSettings(queue=4, drop=drop)) as feed:  # type: ignore[arg-type]
        assert feed.take(5.0, most=0) == []
        began = time.monotonic()
        while feed.waiting + feed.dropped < (4 if drop == "block" else 20) and time.monotonic() < began + 60:
            time.sleep(0.005)
        kept = {"block": list(range(20)), "oldest": [16, 17, 18, 19], "newest": [0, 1, 2, 3]}[drop]
        assert drained(feed) == kept and feed.dropped == 20 - len(kept)


def test_what_shows_nothing_new_is_left_to_the_stream() -> None:
    with LiveFeed(Pictures(20), StreamSettings(skip=0.5)) as feed:
        assert drained(feed) == list(range(20))


def test_what_ends_a_source_is_told_after_its_frames() -> None:
    class Breaking(Pictures):
        def frames(self) -> Iterator[TimedFrame]:
            yield from super().frames()
            raise MediaError("it broke")

    with LiveFeed(Breaking(3), StreamSettings()) as feed:
        found: list[float] = []
        with pytest.raises(MediaError, match="it broke"):
            while not feed.ended:
                found += [frame.at for frame in feed.take(5.0)]
        assert found == [0, 1, 2]


def test_the_rate_halves_while_the_queue_is_full_and_comes_back() -> None:
    with LiveFeed(Pictures(10**6, 0.001), StreamSettings(queue=4, drop="oldest"), adaptive=0.05) as feed:
        began = time.monotonic()
        while feed.every < 4 and time.monotonic() < began + 20:
            feed.take(0.0, most=0)
            time.sleep(0.005)
        assert feed.every >= 4 and feed.thinned > 0
        while feed.every > 1 and time.monotonic() < began + 40:
            feed.take(0.01, most=4)
        assert feed.every == 1
