"""Bodies of requests: any messages for the prompt reader."""

import json
from collections.abc import Iterator
from contextlib import suppress

from emblema.errors import PromptError
from emblema.session.prompt_reader import turns_of
from tests.fuzz.targets import FuzzTarget


def read_messages(data: bytes) -> None:
    """Read messages of any JSON, with media that are read as nothing; all else is the error for a wrong prompt."""
    try:
        messages = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
        with suppress(PromptError):
            for turn in turns_of(messages, lambda given: ()):
                assert isinstance(turn.role, str)


def messages() -> Iterator[bytes]:
    for content in ("text", ["text"], [{"type": "text", "text": "a"}], [{"type": "video_url", "video_url": "data:,a"}]):
        yield json.dumps([{"role": "system", "content": "be brief"}, {"role": "user", "content": content}]).encode()
    yield b'[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/"}}, [1, 2], null]}]'


TARGETS = {"messages": FuzzTarget(read_messages, messages)}
