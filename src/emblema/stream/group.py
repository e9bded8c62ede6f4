"""Several streams on one engine: they are encoded in turns, a block each, and asked one after another."""

from collections.abc import Mapping
from typing import Any

from emblema.errors import EmblemaError, StreamError
from emblema.stream.feed import LiveFeed
from emblema.stream.reply import StreamReply
from emblema.stream.stream import Stream
from emblema.stream.visible import NothingSeenError


class StreamGroup:
    """Streams that one thread owns, by name.

    Args:
        streams: in the order of their turns. Other threads push their frames.
        feeds: of those whose frames are taken from a live source instead.

    Attributes:
        failed: why a feed, or the stream that takes its frames, ended before its time, by the stream's name; the
            others go on.

    Raises:
        StreamError: there is no stream, or a feed has none.
    """

    def __init__(self, streams: Mapping[str, Stream], feeds: Mapping[str, LiveFeed] | None = None) -> None:
        self._streams, self._feeds = dict(streams), dict(feeds or {})
        if not self._streams or not self._feeds.keys() <= self._streams.keys():
            raise StreamError("a group needs a stream or more, and each feed a stream of its name")
        self._waiting = list(self._streams)
        self.failed: dict[str, EmblemaError] = {}

    def turn(self) -> str | None:
        """Encode one block of the stream whose turn it is; return its name, None if no stream has anything to encode.

        A stream without a complete block gives its turn to the next one, and nothing is waited for.
        """
        for name in tuple(self._waiting):
            self._waiting.remove(name)
            self._waiting.append(name)
            if self._encode(name):
                return name
        return None

    def ask_each(self, text: Any, **asked: Any) -> dict[str, StreamReply]:
        """Ask every stream the same question; return the answers by name.

        Each stream answers from its own frames alone: no answer compares two of them. Streams that had seen nothing
        then are left out.

        Args:
            text: the question.
            asked: `at`, `window`, `between` and knobs, as for `Stream.ask`.

        Raises:
            StreamError: no stream had seen anything then, or an argument is not right.
            PromptError: as for `Stream.ask`.
        """
        seen = {name: stream for name, stream in self._streams.items() if stream.frames + stream.waiting}
        if not seen:
            raise StreamError("no stream has seen anything yet: push frames before the question")
        replies: dict[str, StreamReply] = {}
        for name, stream in seen.items():
            try:
                replies[name] = stream.ask(text, **asked)
            except NothingSeenError:
                continue
        if not replies:
            raise StreamError("no stream had seen anything then: ask about another time")
        return replies

    def _encode(self, name: str) -> int:
        """Encode a block of a stream at most; return how many frames were encoded, or taken from its feed."""
        stream, feed = self._streams[name], self._feeds.get(name)
        if feed is None:
            return stream.advance(blocks=1)
        try:
            if name in self.failed:
                return stream.advance(blocks=1)
            frames = feed.take(0.0, stream.settings.block)
            for frame in frames:
                stream.push(frame.picture, at=frame.at)
        except EmblemaError as error:
            self.failed.setdefault(name, error)
            return 0
        return len(frames)
