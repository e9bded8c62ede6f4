"""The page at `/`: its files, and the headers that keep it to itself."""

import base64
import hashlib
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.staticfiles import StaticFiles

WEB = Path(str(files("emblema"))) / "serve" / "web"
DEMO = Path(str(files("emblema"))) / "assets" / "demo"


def add_page(app: FastAPI) -> None:
    """Serve the page, its scripts and the demo's pictures."""
    text = (WEB / "index.html").read_text()
    # The import map is the one script within the page: it is allowed by its digest.
    [inline] = re.findall(r'<script type="importmap">(.*?)</script>', text)
    digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
    policy = (
        "default-src 'self'",
        "img-src 'self' blob: data:",
        f"script-src 'self' 'sha256-{digest}'",
        "style-src 'self' 'unsafe-inline'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'self'",
    )
    headers = {
        "Content-Security-Policy": "; ".join(policy),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }

    async def page() -> Response:
        return Response(text, media_type="text/html; charset=utf-8", headers=headers)

    app.get("/", include_in_schema=False)(page)
    app.mount("/page/demo", _Pictures(directory=DEMO))
    app.mount("/page", _Scripts(directory=WEB))


class _Scripts(StaticFiles):
    """Files of the page; `.mjs` is JavaScript, whatever the machine's table of types says."""

    def file_response(self, full_path: Any, *given: Any, **options: Any) -> Response:
        response = super().file_response(full_path, *given, **options)
        if str(full_path).endswith(".mjs"):
            response.headers["content-type"] = "text/javascript; charset=utf-8"
        return response


class _Pictures(StaticFiles):
    """Pictures, and what is asked about them."""

    def lookup_path(self, path: str) -> Any:
        return super().lookup_path(path) if path.endswith((".png", "demo.json")) else ("", None)
