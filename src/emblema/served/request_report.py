"""What a reply reports of its prompt."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from emblema.link.miss_log import request_line
from emblema.link.miss_reasons import Cause, MissReason
from emblema.link.misses import Miss, find_misses
from emblema.served.model_spec import ModelSpec
from emblema.served.request_plan import RequestPlan
from emblema.served.requests import ServedRequest

PREFIX_HAS_IT = "the prefix cache has as much of it, exactly"
COMPUTES_ALL = "the strategy computes all its rows"


def report_of(plan: RequestPlan, spec: ModelSpec) -> dict[str, object]:
    """Return the report of a request, by the names that clients read; its chunks where it asks for them."""
    report: dict[str, object] = {}
    if plan.request.options.get("pieces") is True:
        report["pieces"] = {
            "model": spec.fingerprint,
            "chunks": [chunk.id for _, chunk in plan.prompt.chunk_segments],
            "forming": [key.chunk for key, _, _ in plan.needs],
            "shards": spec.shards,
        }
    report |= {
        "strategy": plan.plan.strategy if plan.linked else "plain",
        "prompt_tokens": plan.prompt.tokens,
        "media_tokens": sum(chunk.tokens for _, chunk in plan.prompt.chunk_segments),
        "linked_tokens": plan.linked,
        "kv_bytes": plan.linked * spec.shards * spec.row_bytes,
        "stored": not plan.missing and not plan.lacking,
        "remark": _remark(plan),
        "misses": [miss.data for miss in _misses(plan)],
    }
    return report if plan.margin is None else report | {"margin": plan.margin}


def plain_report(
    request: ServedRequest, reason: str, causes: Mapping[int, Cause] = MappingProxyType({})
) -> dict[str, object]:
    """Return the report of a request with media that was computed without a plan, and why.

    Args:
        request: it.
        reason: why.
        causes: by numbers of media, those that it was computed for.
    """
    refused = Cause(MissReason.REFUSED, reason)
    whys = [causes.get(number, refused) for number in range(len(request.items))]
    misses = [
        Miss(number, item.tokens, why.reason, why.detail)
        for number, (item, why) in enumerate(zip(request.items, whys, strict=True))
    ]
    return {
        "strategy": "plain",
        "prompt_tokens": len(request.token_ids),
        "media_tokens": sum(item.tokens for item in request.items),
        "linked_tokens": 0,
        "kv_bytes": 0,
        "stored": False,
        "remark": reason,
        "misses": [miss.data for miss in misses],
    }


def report_line(request: str, report: Mapping[str, Any]) -> str:
    """Return the line of a log that tells of a request what its report does, without its remark."""
    return request_line(request, report["prompt_tokens"], report["strategy"], report["misses"])


def _misses(plan: RequestPlan) -> tuple[Miss, ...]:
    """Return the media of which no row was taken; none where the prefix cache has as much as linking would take."""
    if plan.linked:
        return find_misses(plan.prompt, plan.plan, known=plan.causes)
    if plan.failed:
        whole = Cause(MissReason.LOST, plan.remark or "")
    elif plan.margin is not None:
        least = plan.plan.least_margin
        whole = Cause(MissReason.UNSURE, f"margin {plan.margin:.4g}" + ("" if least is None else f" of {least:.4g}"))
    elif plan.cached.spans:
        return ()
    else:
        whole = None
    return find_misses(plan.prompt, replace(plan.plan, ranges=()), whole, plan.causes)


def _remark(plan: RequestPlan) -> str | None:
    """Return why a request was not linked as asked; None where it was, or asked for a full prefill."""
    if plan.remark is not None or plan.linked or plan.plan.strategy == "full":
        return plan.remark
    if plan.cached.spans:
        return PREFIX_HAS_IT
    if plan.missing:
        return "some of its pictures are not stored yet"
    return "; ".join(dict.fromkeys(own.reason for own in plan.plan.decisions)) or COMPUTES_ALL
