"""Requests as vLLM describes them, of a model that is not there, and a store that has their pictures."""

import time
from dataclasses import replace

import torch

from emblema.kv.layout import LayerLayout, LayerRows
from emblema.served.chunk_stubs import ChunkStubs, build_prompt
from emblema.served.model_spec import ModelSpec
from emblema.served.request_plan import NOT_READY, RequestPlan
from emblema.served.requests import MediaItem, ServedRequest
from emblema.store import Store
from emblema.vllm.planner import RequestPlanner
from tests.link.pieces import LAYOUTS

SPEC = ModelSpec("test", "f" * 64, LAYOUTS, {}, 1, ((), ()), 1, torch.float32, torch.device("cpu"))
TOKENS = 300
"""Rows of a picture: long enough for a second pass to pay, were there one."""


def request(*pictures: str, salt: str | None = None, **options: object) -> ServedRequest:
    items, tokens = [], [1, 2]
    for index, name in enumerate(pictures):
        items.append(MediaItem(index, "image", name, len(tokens), TOKENS, digest=f"shown {name}"))
        tokens += [9] * TOKENS + [3]
    return ServedRequest(tokens, tuple(items), salt, options)


def put(store: Store, shown: ServedRequest) -> None:
    """Store the request's pictures, as their capture would."""
    for _, stub in build_prompt(shown, ChunkStubs(SPEC)).chunk_segments:
        rows = tuple(zeros(layout, stub.tokens) for layout in LAYOUTS)
        store.tenant(shown.store_salt).put(type(stub)(stub.id, stub.kind, stub.model, stub.encoded, rows))


def with_encoding(store: Store, shown: ServedRequest) -> None:
    """Store the request's pictures with what the encoder made of them: ones, times the picture's place."""
    for place, (_, stub) in enumerate(build_prompt(shown, ChunkStubs(SPEC)).chunk_segments):
        rows = tuple(zeros(layout, stub.tokens) for layout in LAYOUTS)
        encoded = replace(stub.encoded, embeds=torch.full((stub.tokens, 4), place + 1.0))
        store.tenant(shown.store_salt).put(replace(stub, encoded=encoded, rows=rows))


def zeros(layout: LayerLayout, tokens: int) -> LayerRows:
    return LayerRows(*(torch.zeros(heads, tokens, width) for heads, width in (layout.keys, layout.values)))


def planner_of(
    store: Store, strategy: str, workers: int = 1, least_rows: int = 0, second_pass: str | None = NOT_READY
) -> RequestPlanner:
    """Return the planner of a server whose batch has eight places; it links whatever it may."""
    planner = RequestPlanner(SPEC, store, strategy, True, 2048, 8, workers, second_pass=second_pass)
    planner.least_rows = least_rows
    return planner


def planned(planner: RequestPlanner, name: str, shown: ServedRequest) -> RequestPlan:
    plan = unplanned(planner, name, shown)
    assert plan is not None
    return plan


def unplanned(planner: RequestPlanner, name: str, shown: ServedRequest) -> RequestPlan | None:
    """Return the plan of a request, None where it is computed plainly."""
    until = time.monotonic() + 30
    while not planner.prepare(name, lambda: shown):
        assert time.monotonic() < until
        time.sleep(0.001)
    return planner.get(name)
