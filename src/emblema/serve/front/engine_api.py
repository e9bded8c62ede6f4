"""What differs between engines: the fields of their requests and replies that the service writes and reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from emblema.served.request_options import read_options


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineApi:
    """How one engine is spoken to.

    Attributes:
        name: of the engine, in errors.
        salted: whether it takes a tenant's `cache_salt`.
        unsalted: paths whose requests know no salt nevertheless, so that tenants are not offered them.
        named: whether its caches of media in memory go by a part's `uuid`.
        options_in: field of a body that has the plugin's options, as `emblema`; None where there is no plugin.
        wants_report: fields of a chat request whose reply has the plugin's report.
        remarks_in: field of a reply whose `emblema` says what was not done as asked; None for the reply itself.
    """

    name: str
    salted: bool = True
    unsalted: tuple[str, ...] = ()
    named: bool = False
    options_in: str | None = None
    wants_report: Mapping[str, Any] = field(default_factory=dict)
    remarks_in: str | None = None


VLLM = EngineApi(name="vLLM", named=True, options_in="kv_transfer_params", remarks_in="kv_transfer_params")
SGLANG = EngineApi(
    name="SGLang",
    unsalted=("/v1/messages", "/v1/messages/count_tokens"),
    options_in="custom_params",
    wants_report={"return_meta_info": True},
)
OTHER = EngineApi(name="this engine", salted=False)
"""An engine that is neither: it would refuse fields that OpenAI's interface has not."""


def api_of(owner: str) -> EngineApi:
    """Return what an engine is, by what its models are owned by."""
    return {"vllm": VLLM, "sglang": SGLANG}.get(owner, OTHER)


def give_options(body: dict[str, Any], api: EngineApi, options: Mapping[str, Any]) -> None:
    """Write the plugin's options into a body; what the client gave stays.

    Raises:
        EmblemaError: what the client gave is not right.
    """
    if api.options_in is None:
        return
    parameters = body.get(api.options_in)
    if not isinstance(parameters, dict | None):
        # The engine refuses it, in its own words.
        return
    given = read_options((parameters or {}).get("emblema"))
    if given or options:
        body[api.options_in] = {**(parameters or {}), "emblema": {**options, **given}}


def report_of(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the plugin's report in a reply; empty without."""
    found = (reply.get("kv_transfer_params") or {}).get("emblema")
    told = [report for choice in reply.get("choices") or () for report in _told(choice)]
    return found or next(filter(None, told), {})


def _told(choice: Mapping[str, Any]) -> Any:
    return (choice.get("meta_info") or {}).get("emblema") or ()


def add_remark(told: dict[str, Any], remark: str, api: EngineApi) -> None:
    """Write what was not done as asked into the last choice of a reply or of an event."""
    holder = told if api.remarks_in is None else dict(told.get(api.remarks_in) or {})
    block = holder.get("emblema") or {}
    holder["emblema"] = {**block, "remark": "; ".join(filter(None, [remark, block.get("remark")]))}
    if api.remarks_in is not None:
        told[api.remarks_in] = holder
