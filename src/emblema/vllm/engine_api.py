"""How requests to vLLM's server are written, and its replies read."""

from collections.abc import Mapping
from typing import Any

from emblema.serve.beside.body_media import FORMS
from emblema.serve.beside.engine_api import EngineApi

_FIELD = "kv_transfer_params"


def _named(part: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    return {**part, "uuid": name}


def _report(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    report: Mapping[str, Any] = (reply.get(_FIELD) or {}).get("emblema") or {}
    return report


def _remark(told: dict[str, Any], remark: str) -> None:
    parameters = told.get(_FIELD) or {}
    block = parameters.get("emblema") or {}
    whole = "; ".join(filter(None, [remark, block.get("remark")]))
    told[_FIELD] = {**parameters, "emblema": {**block, "remark": whole}}


VLLM = EngineApi(
    engine="vLLM",
    key_option="--api-key",
    open=("/health", "/ping", "/version", "/load", "/metrics", "/openapi.json", "/docs", "/redoc"),
    forms=FORMS,
    media_name=_named,
    options_in=_FIELD,
    wants_report={},
    report=_report,
    remark=_remark,
)
