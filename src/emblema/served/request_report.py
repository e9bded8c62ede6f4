"""What a reply reports of its prompt."""

from emblema.served.model_spec import ModelSpec
from emblema.served.request_plan import RequestPlan


def report_of(plan: RequestPlan, spec: ModelSpec) -> dict[str, object]:
    """Return the report of a request, by the names that clients read; its chunks where it asks for them."""
    report: dict[str, object] = {}
    if plan.request.options.get("pieces") is True:
        report["pieces"] = {
            "model": spec.fingerprint,
            "chunks": [chunk.id for _, chunk in plan.prompt.chunk_segments],
            "forming": [key.chunk for key, _, _ in plan.needs],
        }
    report |= {
        "strategy": plan.plan.strategy if plan.linked else "plain",
        "prompt_tokens": plan.prompt.tokens,
        "media_tokens": sum(chunk.tokens for _, chunk in plan.prompt.chunk_segments),
        "linked_tokens": plan.linked,
        "kv_bytes": plan.linked * spec.shards * spec.row_bytes,
        "stored": not plan.missing and not plan.lacking,
        "remark": plan.remark,
    }
    return report if plan.margin is None else report | {"margin": plan.margin}
