"""A sitting for other programs."""

from dataclasses import asdict
from typing import Any

from emblema.cli.view.glance import Answer, Glance
from emblema.cli.view.session import Sitting
from emblema.stream.stream import Stream


def told(video: str | None, model: str, stream: Stream, sitting: Sitting, glance: Glance) -> dict[str, Any]:
    """Plain values that JSON can hold."""
    counts = glance.counts
    return {
        "video": video,
        "model": model,
        "method": stream.method,
        "settings": stream.settings.flat(),
        "frames": glance.frames,
        "seconds": glance.seconds,
        "cut": sitting.cut or None,
        "encoding": {"frames": glance.encoded, "seconds": glance.encoding, "frames_per_second": glance.speed},
        "clusters": {"visual": counts.get("visual_clusters"), "semantic": counts.get("clusters")},
        "bytes": {"device": dict(glance.held.device), "host": dict(glance.held.host)},
        "counts": dict(counts),
        "answers": [_answer(one) for one in sitting.answers],
    }


def _answer(answer: Answer) -> dict[str, Any]:
    reply = answer.reply
    return {
        "at": answer.at,
        "question": answer.question,
        "answer": reply.text,
        "finish_reason": reply.finish_reason,
        **asdict(reply.usage),
        "moments": [asdict(moment) for moment in reply.moments],
    }
