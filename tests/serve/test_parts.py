"""Parts of messages: where their media are, and who can take them."""

import asyncio
import base64
import io
import wave
from pathlib import Path
from typing import Any

from openai import OpenAI

from emblema.media.limits import MediaLimits
from emblema.serve.held_bytes import ByteBounds, HeldBytes
from emblema.serve.keys import LOCAL
from emblema.serve.media_reading import MediaReader
from emblema.serve.messages import ChatRequest
from emblema.serve.parts import SoundContent
from emblema.serve.work_pools import WorkPools
from tests.serve.conftest import QUESTION, data_url
from tests.serve.servers import Running

CHAT = "/v1/chat/completions"


def sound() -> bytes:
    """A second of silence."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes(bytes(32_000))
    return buffer.getvalue()


def asking(part: dict[str, Any]) -> dict[str, Any]:
    content = [part, {"type": "text", "text": QUESTION}]
    return {"model": "reference", "messages": [{"role": "user", "content": content}], "max_tokens": 4}


def test_a_picture_is_named_in_any_form(server: Running, client: OpenAI, pngs: list[bytes]) -> None:
    id = client.files.create(file=("page.png", pngs[0]), purpose="user_data").id
    forms: list[Any] = [
        data_url(pngs[0]),
        {"url": data_url(pngs[0])},
        {"file_id": id},
        {"file_id": id, "detail": "high"},
    ]
    with server.http() as http:
        replies = [http.post(CHAT, json=asking({"type": "image_url", "image_url": form})).json() for form in forms]
        empty = http.post(CHAT, json=asking({"type": "image_url", "image_url": {}}))
    said = {reply["choices"][0]["message"]["content"] for reply in replies}
    assert len(said) == 1 and {reply["usage"]["prompt_tokens"] for reply in replies} == {
        replies[0]["usage"]["prompt_tokens"]
    }
    assert empty.status_code == 400 and "file_id" in empty.json()["error"]["message"]


def test_sound_is_read_as_sound(tmp_path: Path) -> None:
    data = base64.b64encode(sound()).decode()
    body = ChatRequest.model_validate(asking({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}))
    [part] = body.media
    assert isinstance(part, SoundContent)
    reader = MediaReader(MediaLimits(), WorkPools(), HeldBytes(ByteBounds(2**26, 2**27, 2**28)))

    async def read() -> Any:
        kind, found = part.kind, await reader.fetch(LOCAL, part.named.address)
        assert (kind, found) == ("audio", sound())
        with reader.held.open(LOCAL.owner) as holding:
            return await reader.load(LOCAL, found, kind, holding, part.settings)

    media = asyncio.run(read())
    assert media.rate == 16_000 and len(media.samples) == 16_000
    reader.pools.close()
