"""The doors by which media come: a file, an address, an item of a message, a live source. What comes is whole, or
refused by name; right is what each generated file was made of, and what FFmpeg, Pillow and curl make of it."""

import base64
import gzip
import io
import random
import shutil
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import av
import numpy as np
import pillow_heif
import pytest
from PIL import Image, ImageOps, ImageSequence

from emblema.errors import EmblemaError, MediaError
from emblema.media import MediaLimits
from emblema.media.download import fetch
from emblema.media.given import read_item
from emblema.media.live import live_frames
from emblema.media.load import DocumentPages, LoadedMedia, load_media
from emblema.media.video import Video
from tests.media import doors, making
from tests.stream.live import camera

SOME, ALL = 8, 500
AMOUNTS = [pytest.param(SOME, id="some"), pytest.param(ALL, id="all", marks=pytest.mark.nightly)]
LOCAL = MediaLimits(allowed_hosts=frozenset({"127.0.0.1"}))


def pictures_of(media: LoadedMedia) -> list[Image.Image]:
    if isinstance(media, Image.Image):
        return [media]
    assert isinstance(media, DocumentPages | Video)
    return list(media.pictures if isinstance(media, DocumentPages) else media.frames)


def assert_whole(media: LoadedMedia, handed: doors.Handed) -> None:
    """Check that media, a clip with a frame for each that it has, are all that was handed in."""
    found = pictures_of(media)
    assert len(found) == len(handed.pictures), f"{handed.said}: {len(found)} of {len(handed.pictures)}"
    assert all(doors.close(picture, right) for picture, right in zip(found, handed.pictures, strict=True)), handed.said
    kinds = {"picture": Image.Image, "pages": DocumentPages, "clip": Video}
    assert isinstance(media, kinds[handed.kind]), handed.said


@pytest.mark.parametrize("amount", AMOUNTS)
def test_files(amount: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    for seed in range(amount):
        chance = random.Random(f"file {seed}")
        if chance.random() < 0.2:
            name = chance.choice(list(doors.UNREAD))
            path.write_bytes(doors.UNREAD[name](chance))
            with pytest.raises(MediaError, match=name):
                load_media(path, chance.choice([None, "image", "video"]))
            continue
        handed = doors.any_media(chance)
        path.write_bytes(handed.data)
        assert_whole(load_media(path, fps=1 / handed.seconds if handed.seconds else 1.0), handed)
        if handed.said.startswith("GIF"):
            continue  # One frame is a clip too, if a clip is asked for.
        wrong = {"picture": "video", "pages": "image", "clip": "image"}[handed.kind]
        with pytest.raises(MediaError, match="no clip|pages|animation|not a picture"):
            load_media(path, wrong)


class Packing(BaseHTTPRequestHandler):
    """Answers as servers do: packed or plain, at once or after redirects that are spelled in many ways."""

    server: Any

    def do_GET(self) -> None:
        places, encoding, body = self.server.script
        if places:
            place, self.server.script = places[0], (places[1:], encoding, body)
            self.wfile.write(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n" + place + b"\r\n\r\n")
            return
        self.send_response(200)
        if encoding:
            self.send_header(*encoding)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Packing) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "identity": bytes,
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "Deflate": lambda data: zlib.compress(data)[2:-4],
}


def answer_of(chance: random.Random, port: int, body: bytes) -> tuple[list[bytes], tuple[str, str] | None, bytes]:
    """Return an answer of chance: redirects, a header for what packs the body, and the body."""
    places = [
        chance.choice([b"Location", b"location", b"LOCATION"]) + chance.choice([b":", b": ", b":  "]) + place
        for place in chance.sample(
            [b"/other", b"other?a=b", f"//127.0.0.1:{port}/x".encode(), f"HTTP://127.0.0.1:{port}/y".encode(),
             b"./a/../b", b"/with space", "/naïve".encode(), b"/part#fragment", b"?query=only"],
            chance.randrange(4),
        )
    ]  # fmt: skip
    name = chance.choice(list(PACKED))
    return places, ("Content-Encoding", name) if name else None, PACKED[name](body)


@pytest.mark.parametrize("amount", AMOUNTS)
def test_addresses(amount: int, server: ThreadingHTTPServer, tmp_path: Path) -> None:
    port = server.server_port
    curl = shutil.which("curl")
    for seed in range(amount):
        chance = random.Random(f"address {seed}")
        handed = doors.any_picture(chance)
        places, encoding, body = answer_of(chance, port, handed.data)
        refused = ""
        if chance.random() < 0.15:
            encoding, refused = ("Content-Encoding", chance.choice(["br", "zstd", "compress"])), "came packed with"
        elif chance.random() < 0.1 and encoding and body != handed.data:
            body, refused = body[: len(body) // 2], "cannot be unpacked"
        url = f"http://127.0.0.1:{port}/first"
        server.script = (places, encoding, body)  # type: ignore[attr-defined]
        if refused:
            with pytest.raises(MediaError, match=refused):
                fetch(url, LOCAL)
            continue
        assert fetch(url, LOCAL) == handed.data, (places, encoding)
        server.script = (places, encoding, body)  # type: ignore[attr-defined]
        assert_whole(load_media(url, limits=LOCAL), handed)
        if curl is not None and seed % 10 == 0 and encoding != ("Content-Encoding", "Deflate"):
            server.script = (places, encoding, body)  # type: ignore[attr-defined]
            command = [curl, "-sL", "--compressed", "--noproxy", "*", "--max-redirs", "4", url]
            assert subprocess.run(command, capture_output=True, timeout=60).stdout == handed.data


def item_of(chance: random.Random, data: bytes, kind: str, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a content item with media in any form, and the mapping in it where settings may stand."""
    word = {"picture": "image", "clip": "video", "pages": "file"}[kind]
    address = f"data:;base64,{base64.b64encode(data).decode()}"
    path.write_bytes(data)
    forms: list[dict[str, Any]] = [
        {"type": word, word: data},
        {"type": word, word: str(path)},
        {"type": word, word: path},
        {"type": word, word: path.as_uri()},
        {"type": word, word: io.BytesIO(data)},
        {"type": word, "url": address},
        {"type": word, "path": str(path)},
        {"type": word, "base64": base64.b64encode(data).decode()},
        {"type": "file", "file": {"file_data": address, "filename": "a"}},
    ]
    if word != "file":
        forms += [{word: data}, {"type": f"{word}_url", f"{word}_url": {"url": address}}]
        forms += [{"type": f"{word}_url", f"{word}_url": address}]
    item = chance.choice(forms)
    inner = [value for value in item.values() if isinstance(value, dict)]
    return item, chance.choice([item, *inner])


def expected(handed: doors.Handed, settings: dict[str, Any]) -> tuple[int, tuple[int, int]]:
    """Return how many pictures come by the settings, and their sides."""
    count, size = len(handed.pictures), handed.pictures[0].shape[1::-1]
    if "num_frames" in settings:
        count = settings["num_frames"]
    if "resized_width" in settings:
        size = settings["resized_width"], settings["resized_height"]
    return count, size


@pytest.mark.parametrize("amount", AMOUNTS)
def test_items_of_messages(amount: int, tmp_path: Path) -> None:
    """Every setting is followed or refused by name; what was given is all used."""
    for seed in range(amount):
        chance = random.Random(f"item {seed}")
        handed = doors.any_media(chance)
        item, place = item_of(chance, handed.data, handed.kind, tmp_path / "a file")
        followed: dict[str, Any] = {"fps": 1 / handed.seconds} if handed.kind == "clip" else {}
        if handed.kind == "clip" and chance.random() < 0.4:
            followed = {chance.choice(["num_frames", "nframes"]): chance.randrange(1, len(handed.pictures) + 1)}
        if chance.random() < 0.4:
            followed |= {"resized_height": 16 * chance.randrange(1, 9), "resized_width": 16 * chance.randrange(1, 9)}
        if chance.random() < 0.3:
            followed |= {"detail": chance.choice(["auto", "high", None]), "uuid": "x", "max_frames": None}
        refused: dict[str, Any] = {}
        if chance.random() < 0.3:
            name, value = chance.choice(
                [("total_pixels", 9), ("frames", 3), ("Fps", 2), ("detail", "most"), ("min_pixels", "9"),
                 ("max_pixels", 0), ("video_start", -1), ("do_resize", False), ("zoom", {"by": 2})]
            )  # fmt: skip
            refused = {name: value}
        elif handed.kind != "clip" and chance.random() < 0.2:
            refused = {chance.choice(["fps", "num_frames", "video_end"]): 1}
        place |= followed | refused
        if refused:
            with pytest.raises(EmblemaError, match=next(iter(refused))):
                load_media(item)
            continue
        found = read_item(item)
        assert found is not None
        pictures = pictures_of(load_media(item))
        named = {{"nframes": "num_frames"}.get(key, key): value for key, value in followed.items()}
        count, size = expected(handed, named)
        assert (len(pictures), {picture.size for picture in pictures}) == (count, {size}), (handed.said, followed)


@pytest.mark.parametrize("amount", AMOUNTS)
def test_live_sources(amount: int) -> None:
    """A live source gives what a file of the same frames gives."""
    for seed in range(amount):
        chance = random.Random(f"live {seed}")
        width, height = 16 * chance.randrange(3, 7), 16 * chance.randrange(3, 7)
        if chance.random() < 0.5:
            orientation, pixels = chance.randrange(1, 9), doors.scene(chance, width, height)
            made = making.recording([pixels] * 4, kind="mp4", movflags="frag_keyframe+empty_moov")
            data, right = making.with_matrix(made, orientation), [making.shown(pixels, orientation)] * 4
        else:
            other = (16 * chance.randrange(3, 7), 16 * chance.randrange(3, 7))
            first = [np.full((height, width, 3), 30 + 20 * index, np.uint8) for index in range(10)]
            second = [np.full((other[1], other[0], 3), 30 + 20 * index, np.uint8) for index in range(5, 10)]
            starts = chance.choice([(1, 1.5), (1, 200), (300, 1)])
            data, right = making.recording(first[:5], starts[0]) + making.recording(second, starts[1]), first
        with camera(lambda number, data=data: iter([data])) as source:
            frames = list(live_frames(source.url, 1000.0))
        times = [frame.seconds for frame in frames]
        assert times == sorted(times) and times[-1] < 20, seed
        # A frame that comes less than a thousandth after the one before is not kept: the first after a jump.
        assert len(right) - 1 <= len(frames) <= len(right), seed
        left = iter(right)
        assert all(any(doors.close(frame.picture, pixels) for pixels in left) for frame in frames), seed


def filtered(data: bytes) -> list[np.ndarray]:
    """Return a clip's frames as FFmpeg's own filters turn them, from the matrix of the first."""
    turns = {
        2: "hflip",
        3: "hflip,vflip",
        4: "vflip",
        5: "transpose=0",
        6: "transpose=1",
        7: "transpose=3",
        8: "transpose=2",
    }
    from emblema.media.orientation import frame_orientation

    with av.open(io.BytesIO(data)) as container:
        track = container.streams.video[0]
        frames = list(container.decode(track))
        names = turns.get(frame_orientation(frames[0]), "null").split(",")
        graph = av.filter.Graph()
        steps = [graph.add_buffer(template=track, time_base=track.time_base or Fraction(1, 10))]
        steps += [graph.add(*name.split("=")) for name in names] + [graph.add("buffersink")]
        for before, after in zip(steps, steps[1:], strict=False):
            before.link_to(after)
        graph.configure()
        found = []
        for frame in frames:
            graph.push(frame)
            found.append(graph.pull().to_ndarray(format="rgb24"))
        return found


@pytest.mark.parametrize("orientation", making.MATRICES)
def test_what_files_are_made_of_is_what_ffmpeg_shows(orientation: int) -> None:
    """The generator's own measure is held to FFmpeg's filters."""
    chance = random.Random(orientation)
    pixels = doors.scene(chance, 96, 64)
    clip = making.with_matrix(making.recording([pixels] * 3, kind="mp4"), orientation)
    assert all(doors.close(frame, making.shown(pixels, orientation)) for frame in filtered(clip))


def stock_pictures(handed: doors.Handed) -> list[Image.Image]:
    """Return what Pillow, or libheif, makes of a file."""
    if handed.said.startswith("HEIF"):
        return [pillow_heif.open_heif(handed.data).to_pillow().convert("RGB")]
    with Image.open(io.BytesIO(handed.data)) as image:
        if handed.kind == "picture":
            return [ImageOps.exif_transpose(image).convert("RGB")]
        return [frame.convert("RGB") for frame in ImageSequence.Iterator(image)]


@pytest.mark.parametrize("amount", AMOUNTS)
def test_pictures_are_those_of_pillow(amount: int) -> None:
    """Where Pillow takes a file, its picture is ours: upright, or frame by frame."""
    taken = 0
    for seed in range(amount):
        handed = doors.any_media(random.Random(f"Pillow {seed}"))
        if handed.kind == "clip" and "animation" not in handed.said:
            continue
        try:
            stock = stock_pictures(handed)
        except Exception:
            continue  # What Pillow refuses for its other data is in the doors' own test.
        taken += 1
        ours = pictures_of(load_media(handed.data, fps=1 / handed.seconds if handed.seconds else 1.0))
        assert [picture.size for picture in ours] == [picture.size for picture in stock]
        assert all(doors.close(picture, np.asarray(right)) for picture, right in zip(ours, stock, strict=True))
    assert taken > amount // 4
