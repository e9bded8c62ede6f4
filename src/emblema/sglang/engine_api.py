"""How requests to SGLang's server are written, and its replies read."""

from collections.abc import Mapping
from typing import Any

from emblema.serve.beside.body_media import FORMS
from emblema.serve.beside.engine_api import EngineApi


def _named(part: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    # SGLang verifies names: they would have to be the bytes' digest, whoever sent them.
    return part


def _report(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    for choice in reply.get("choices") or ():
        for report in (choice.get("meta_info") or {}).get("emblema") or ():
            if report:
                found: Mapping[str, Any] = report
                return found
    return {}


def _remark(told: dict[str, Any], remark: str) -> None:
    block = told.get("emblema") or {}
    told["emblema"] = {**block, "remark": "; ".join(filter(None, [remark, block.get("remark")]))}


SGLANG = EngineApi(
    engine="SGLang",
    key_option="--api-key",
    open=("/health", "/ready", "/ping", "/metrics", "/openapi.json", "/docs", "/redoc"),
    forms=FORMS,
    # SGLang gives requests of this form no salt.
    unsalted=("/v1/messages", "/v1/messages/count_tokens"),
    chosen=("cache_salt", "salt", "extra_key"),
    operator=(
        "rid", "request_id", "session_id", "session_params", "input_ids", "custom_logit_processor", "bootstrap_host",
        "bootstrap_port", "bootstrap_room", "routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank",
    ),
    media_name=_named,
    options_in="custom_params",
    wants_report={"return_meta_info": True},
    report=_report,
    remark=_remark,
)  # fmt: skip
