"""What is decided of 2,000 random requests to vLLM, as recorded; `python -m tests.vllm.test_decisions` records anew.

Requests come one after another to servers with random thresholds, bounds and stores: each is planned, and weighed once
it is known which of its rows the prefix cache has.
"""

import json
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import torch

from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey
from emblema.kv.patch import form_patch
from emblema.link.lanes import Lane
from emblema.link.policy.policy import Policy
from emblema.link.policy.samples import Sample
from emblema.served.chunk_stubs import ChunkStubs, build_prompt
from emblema.served.request_plan import RequestPlan
from emblema.served.requests import MediaItem, ServedRequest
from emblema.session.fidelity_logs import FidelityLogs
from emblema.store import Store
from emblema.vllm.plan_maker import PendingPlan
from emblema.vllm.planner import RequestPlanner
from tests.link.pieces import LAYERS, LAYOUTS
from tests.link.test_decisions import RECORDED, digests, words
from tests.vllm.requests import SPEC, zeros

SEED, SERVERS, REQUESTS = 20_261_129, 200, 10
SIZES = {"a": 40, "b": 90, "c": 160, "d": 300, "e": 300, "f": 420}
RANKS = (2, 16)
OPTIONS: tuple[dict[str, Any], ...] = (
    *({"strategy": "full"}, {"strategy": "blind"}, {"strategy": "patch-4"}, {"strategy": "query-30%"}),
    *({"capture": False}, {"strategy": "query-30%", "margin": 0.2}, {"strategy": "mpic-2"}, {"strategy": "prefix"}),
)


def shown(draws: random.Random, names: str) -> ServedRequest:
    """A request for some pictures: a random one goes on from those before it."""
    tokens = [1, 2] if draws.random() < 0.7 else [4]
    items = []
    for index, name in enumerate(names):
        items.append(MediaItem(index, "image", name, len(tokens), SIZES[name], digest=f"shown {name}"))
        tokens += [9] * SIZES[name] + [3] * draws.choice((0, 0, 1, 5))
    tokens += [5] * draws.choice((0, 1, 20))
    options = draws.choice(OPTIONS) if draws.random() < 0.25 else {}
    return ServedRequest(tokens, tuple(items), None, options)


def put_pictures(store: Store, spec_of: ChunkStubs) -> dict[str, str]:
    """Store every picture; return their ids by name."""
    found = {}
    for name in SIZES:
        item = MediaItem(0, "image", name, 0, SIZES[name], digest=f"shown {name}")
        stub = build_prompt(ServedRequest([9] * SIZES[name] + [3], (item,)), spec_of).chunk_segments[0][1]
        rows = tuple(zeros(layout, stub.tokens) for layout in LAYOUTS)
        store.tenant().put(Chunk(stub.id, stub.kind, stub.model, stub.encoded, rows))
        found[name] = stub.id
    return found


def server(draws: random.Random, store: Store) -> RequestPlanner:
    least_rows = draws.choice((40, 130, 350)) if draws.random() < 0.8 else 0
    second_pass = None if draws.random() < 0.7 else "it may not"
    policy = Policy(
        max_kl=draws.choices((0.05, 0), (9, 1))[0],
        rank=draws.choice((None, 4)),
        query_share=draws.choices((0.25, 0.5, 0), (6, 1, 1))[0],
        sightings=draws.choice((1, 2)),
        margin=draws.choice((None, 0.3)),
    )
    spec = replace(SPEC, anchor=draws.choice(((), (1, 2))))
    made = RequestPlanner(
        spec, store, "auto", draws.random() < 0.9, 2048, 8, 1, draws.random() < 0.5, None, second_pass, policy
    )
    made.least_rows = least_rows
    made.readings._outcomes.extend(draws.random() < 0.9 for _ in range(draws.choice((0, 20))))
    return made


def measure(draws: random.Random, store: Store) -> None:
    """Close some lanes, and certify others."""
    log = FidelityLogs.of_store(store).of(store.tenant().owner)
    for lane in (Lane.PATCH, Lane.QUERY):
        kind = draws.choices(("none", "good", "bad"), (6, 1, 1))[0]
        for _ in range({"none": 0, "good": 250, "bad": 6}[kind]):
            sample = Sample(0.0, True, draws.random()) if kind == "good" else Sample(3.0, False, 0.9)
            log.record(SPEC.fingerprint, "image", lane, sample, Policy())


def plan_words(plan: RequestPlan) -> Any:
    needs = sorted((str(key), rank, len(layers)) for key, rank, layers in plan.needs)
    missing = sorted(chunk.id[:4] for chunk in plan.missing)
    taken = (plan.cached.spans, plan.cached.exact) if plan.cached.spans else ()
    lanes = [(one.start, str(one.lane)) for one in plan.plan.decisions] if taken else []
    return plan.awaits, missing, needs, plan.remark, plan.lacking, taken, lanes, words(plan.plan)[1:5] if taken else ()


def decided() -> dict[str, object]:
    draws = random.Random(SEED)
    counts: Counter[str] = Counter()
    said: list[object] = []
    patches = {
        (size, rank): form_patch([zeros(LAYOUTS[0], size)] * LAYERS, rank, torch.float32)
        for size in SIZES.values()
        for rank in RANKS
    }
    for _ in range(SERVERS):
        with Store() as store:
            measure(draws, store)
            planner = server(draws, store)
            maker = planner.maker
            assert maker is not None
            ids = put_pictures(store, maker._planning.stubs)
            lost = draws.choice((0.1, 0.4))
            names = "".join(draws.sample(list(SIZES), 3))
            for _ in range(REQUESTS):
                if draws.random() < 0.6:
                    names = "".join(draws.choices(list(SIZES), k=draws.randint(1, 6)))
                request = shown(draws, names)
                prompt = build_prompt(request, maker._planning.stubs)
                for segment, chunk in prompt.chunk_segments:
                    if draws.random() < 0.2:
                        key = ArtifactKey(SPEC.fingerprint, chunk.id, prompt.antecedents(segment))
                        store.tenant().put_artifact(key, patches[chunk.tokens, draws.choice(RANKS)])
                maker.memory.regain(ids.values())
                maker.memory.lose(id for id in sorted(ids.values()) if draws.random() < lost)
                pending = PendingPlan(request)
                pending.final = draws.random() < 0.2
                ready = draws.choice((0, 0, draws.randrange(len(request.token_ids))))
                plan = maker._make_plan(pending)
                assert plan is not None
                before = plan_words(plan)
                planner._weigh(plan, ready)
                counts.update(
                    {
                        "plans": 1,
                        "awaiting": plan.awaits,
                        "taking": bool(plan.cached.spans),
                        "second pass": plan.plan.recomputation is not None and bool(plan.cached.spans),
                        "forming": len(plan.needs),
                        "declined": plan.remark is not None,
                    }
                )
                said.append((before, plan.cached.spans, plan.remark, plan.reads(ready)))
            planner.close()
    return {"counts": dict(sorted(counts.items())), "plans": digests(said)}


def test_requests_are_planned_as_recorded() -> None:
    assert decided() == json.loads(RECORDED.read_text())["engine"]


if __name__ == "__main__":
    held = json.loads(RECORDED.read_text())
    RECORDED.write_text(json.dumps({**held, "engine": decided()}, indent=1) + "\n")
