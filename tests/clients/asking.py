"""What every client asks, and what the server answers to it without a client library."""

import base64
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import httpx
from PIL import Image
from pydantic import BaseModel, ConfigDict

MODEL = "writer"
"""What clients call the served model."""
MOST = 16
"""Tokens of a reply: the least that litellm asks OpenAI's Responses for."""
LONG = 400
"""Tokens of a reply that is held to a form, which ends by itself."""
WORDS = "what do you see ?"


class Sight(BaseModel):
    """What a reply has to be: short, whatever the model writes."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["tent", "moon"]


SCHEMA = Sight.model_json_schema()
FUNCTION = {"name": "look", "description": "Looks at a place.", "parameters": SCHEMA}


def picture() -> str:
    """A picture as a data address."""
    return f"data:image/png;base64,{base64.b64encode(png()).decode()}"


def clip() -> str:
    """A clip as a data address."""
    found = Path(str(files("emblema"))) / "assets" / "demo" / "walk.mp4"
    return f"data:video/mp4;base64,{base64.b64encode(found.read_bytes()).decode()}"


def png() -> bytes:
    """A picture as a file."""
    buffer = BytesIO()
    Image.new("RGB", (40, 30), (20, 120, 200)).save(buffer, "PNG")
    return buffer.getvalue()


def shown(text: str = WORDS) -> list[dict[str, Any]]:
    """A conversation with a picture."""
    parts = [{"type": "image_url", "image_url": {"url": picture()}}, {"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]


def ending(http: httpx.Client) -> str:
    """A question whose reply ends by itself: some clients take no other."""
    for number in range(500):
        words = f"{WORDS} {number}"
        if _choice(http, [{"role": "user", "content": words}])["finish_reason"] == "stop":
            return words
    raise AssertionError("the model ends no reply by itself")


def answer(http: httpx.Client, messages: Any = WORDS) -> str:
    """The text that the server answers to a conversation, or to a question."""
    turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    return str(_choice(http, turns)["message"]["content"])


def _choice(http: httpx.Client, turns: Any) -> Any:
    body = {"model": MODEL, "messages": turns, "max_tokens": MOST}
    return http.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]
