"""What the code makes of the fixed inputs, in neutral words: lists, numbers and strings that users know."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image
from torch import Tensor

from emblema.kv.keys import ArtifactKey
from emblema.kv.patch import Patch
from emblema.link.lanes import LaneVerdict
from emblema.link.plan import ChunkOrigin, LinkPlan, RowRange
from emblema.link.policy.fidelity import MeasuredLanes
from emblema.link.policy.policy import Policy
from emblema.link.prompt import Prompt
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.base import Knowledge, PrefixMatch
from emblema.link.strategies.registry import parse
from emblema.media import media_bytes
from emblema.media.audio import Audio
from emblema.media.video import Video
from emblema.models.fingerprint import fingerprint
from emblema.store import Store, format
from emblema.store.codec import artifact_record, chunk_kind, chunk_record, read_artifact, read_encoded, read_layers
from emblema.store.disk.entry import with_terms
from emblema.store.identity import SHARED_SALT, artifact_id, canonical, chunk_id, owner_digest, owner_id
from emblema.store.record import Record, Terms
from emblema.store.settings import StoreSettings
from tests.golden.pieces import (
    CREATED,
    LAYERS,
    LAYOUTS,
    LETTERS,
    MODEL,
    SALT,
    STORED_CHUNKS,
    digest,
    named_keys,
    numbers,
    patch_of_rank,
    prompts,
    stored_patches,
)
from tests.store.corpus import open_bytes

Json = Any

STRATEGIES = (
    *("full", "prefix", "blind", "auto", "patch-4", "patch-25%", "patch-100%", "mpic-2", "full-reuse"),
    *("cacheblend-15", "epic-2", "vlcache-30", "query-30%"),
)
"""What users ask for by name: exact ways, ours, and one of each paper's."""


# Identities.


def picture() -> Image.Image:
    """A picture of 40 by 30 with contents everywhere."""
    steps = numpy.arange(30 * 40 * 3, dtype=numpy.int64)
    pixels = (steps * 7_919 // 64 + steps // 240 * 53) % 251
    return Image.fromarray(pixels.astype(numpy.uint8).reshape(30, 40, 3))


def identities() -> Json:
    """Ids of chunks, owners and what is made from chunks, and the digests that they rest on."""
    usual: dict[str, Any] = {
        "options": {"size": [40, 30], "mean": 0.5, "crop": None, "do": True, "raw": b"\x00\xff", "name": "é"},
        "model_fingerprint": MODEL,
        "dtype": torch.float32,
        "adapter_version": "llava/1",
    }
    frame, sound = picture(), Audio(numbers(64).numpy(), 16_000)
    clip = Video([frame, frame.rotate(180)], [0.0, 0.5])
    chunks = {
        "a picture": chunk_id((b"image", media_bytes(frame)), **usual),
        "of a tenant": chunk_id((b"image", media_bytes(frame)), **usual, salt=SALT),
        "of the shared library": chunk_id((b"image", media_bytes(frame)), **usual, salt=SHARED_SALT),
        "in bfloat16": chunk_id((b"image", media_bytes(frame)), **{**usual, "dtype": "bfloat16"}),
        "with a grid and an anchor": chunk_id((b"image", b"1"), **usual, geometry=(1, 2, 3), anchor=(5, 6)),
        "a clip": chunk_id((b"video", media_bytes(clip)), **usual),
        "a recording": chunk_id((b"audio", media_bytes(sound)), **usual),
        "nothing": chunk_id((), options={}, model_fingerprint="", dtype="", adapter_version=""),
    }
    owners = {"none": b"", "a tenant": SALT, "the shared library": SHARED_SALT}
    values = [None, True, 7, -7, 0.1, "é", b"\x00", [1, [2]], {"b": 1, "a": [None]}]
    return {
        "chunks": chunks,
        "owners": {name: owner_digest(salt) for name, salt in owners.items()},
        "owners of prefixes": {
            f"{name}, {dtype}": owner_id(MODEL, dtype, salt)
            for name, salt in owners.items()
            for dtype in (torch.float32, torch.bfloat16)
        },
        "made from chunks": {name: artifact_id(key, owner_digest(SALT)) for name, key in named_keys().items()},
        "made from chunks, shared": {name: artifact_id(key, "shared") for name, key in named_keys().items()},
        "canonical values": [canonical(value).hex() for value in values],
        "media": {
            name: hashlib.sha256(media_bytes(media)).hexdigest()
            for name, media in (("picture", frame), ("clip", clip), ("recording", sound))
        },
        "weights": fingerprint(weights()),
    }


def weights() -> torch.nn.Module:
    """A module of fixed contents, with a configuration as a model has it."""

    class Described:
        def to_dict(self) -> dict[str, object]:
            return {"hidden": 4, "rope": {"theta": 1e4, "type": "default"}, "transformers_version": "any"}

    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    with torch.no_grad():
        for index, parameter in enumerate(module.parameters()):
            parameter.copy_(numbers(*parameter.shape, seed=index))
    module.config = Described()  # type: ignore[assignment]
    return module


# Files.


def shown(tensor: Tensor) -> list[object]:
    """A tensor's dtype, shape and the digest of its bytes."""
    flat = tensor.detach().contiguous().reshape(-1)
    data = b"" if flat.numel() == 0 else flat.view(torch.uint8).numpy().tobytes()
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), hashlib.sha256(data).hexdigest()[:32]]


def records() -> Iterator[tuple[str, Record]]:
    """The records that are held as files, by name."""
    owner = owner_digest(SALT)
    for name, (chunk, compression) in STORED_CHUNKS.items():
        yield name, chunk_record(chunk, owner, compression=compression, created=CREATED)  # type: ignore[arg-type]
    for name, (key, patch) in stored_patches().items():
        yield name, artifact_record(key, artifact_id(key, owner), patch, owner, created=CREATED)
    chunk = STORED_CHUNKS["passage"][0]
    shared = chunk_record(chunk, "shared", created=CREATED)
    yield "shared", shared
    terms = Terms(priority=-3, seconds=86_400.0, idle_seconds=3600.5)
    header = with_terms(shared.header, terms, CREATED + 86_400, CREATED + 1)
    yield "with-terms", replace(shared, header=header)


def file_bytes(record: Record) -> bytes:
    """A record's file."""
    return b"".join(bytes(part) for part in format.buffers(record))


def read_back(data: bytes) -> Json:
    """All that a file says: its header, and its piece as the codec reads it."""
    with open_bytes(data) as reader:
        header = reader.header
        said = {
            "id": header.id,
            "kind": header.kind,
            "owner": header.owner,
            "model": header.model,
            "chunks": list(header.chunks),
            "created": header.created,
            "meta": dict(header.meta),
            "sizes": dict(header.sizes),
        }
        if header.kind == "chunk":
            encoded = read_encoded(reader)
            names = ("token_ids", "embeds", "positions", "visual", "groups")
            fed = {name: shown(getattr(encoded, name)) for name in names}
            rows = [[shown(layer.keys), shown(layer.values)] for layer in read_layers(reader)]
            deep = [shown(features) for features in encoded.deepstack]
            return {**said, "media": chunk_kind(header), "span": encoded.span, **fed, "deepstack": deep, "rows": rows}
        key, patch = read_artifact(reader)
        return {**said, "key": key_words(key), "layers": artifact_words(patch)}


def read_again(data: bytes) -> bytes:
    """A file read and written again, tensor by tensor."""
    with open_bytes(data) as reader:
        return file_bytes(Record(reader.header, {name: reader.read(name) for name in reader.header.sizes}))


def artifact_words(patch: Patch) -> Json:
    """Per layer the factors of keys and values, or null."""
    return [
        None
        if layer is None
        else [shown(side) for slot in (layer.keys, layer.values) for side in (slot.left, slot.right)]
        for layer in patch.layers
    ]


def key_words(key: ArtifactKey) -> Json:
    """What a piece that is made from a chunk is found by: kind, model, chunk, chunks before it, whether orbit."""
    return ["patch", key.model, key.chunk, list(key.antecedents), key.orbit]


# A folder.


def write_folder(folder: Path) -> None:
    """Write a store's folder: chunks and patches of a tenant, one chunk of the shared library, one pinned."""
    with Store(folder, disk_bytes=2**26, settings=StoreSettings(clock=lambda: CREATED, device="cpu")) as store:
        tenant, shared = store.tenant(SALT), store.shared
        shared.put(STORED_CHUNKS["picture-float32"][0])
        for name in ("picture-bfloat16", "picture-to-bf16", "clip-segment", "passage"):
            tenant.put(STORED_CHUNKS[name][0], Terms(priority=1 if name == "passage" else 0))
        for key, patch in stored_patches().values():
            assert tenant.put_artifact(key, patch)
        store.flush()
        tenant.pin(STORED_CHUNKS["passage"][0].id)
        store.flush()


def read_folder(folder: Path) -> Json:
    """All that a store answers on a folder."""
    with Store(folder, disk_bytes=2**26, settings=StoreSettings(clock=lambda: CREATED + 10, device="cpu")) as store:
        tenant, shared = store.tenant(SALT), store.shared
        disk = store.disk
        assert disk is not None
        entries = sorted(
            [entry.id, entry.owner, entry.kind, entry.bytes, entry.created, entry.terms.priority, entry.terms.pinned]
            for entry in disk.entries()
        )
        chunks = {}
        for id in sorted([*tenant.ids(), *shared.ids()]):
            chunk = tenant.get(id)
            with tenant.lease({id: chunk}) as lease:
                assert not lease.missing
                rows = [[shown(layer.keys), shown(layer.values)] for layer in lease.rows[id]]
            chunks[id] = [chunk.kind, chunk.model, chunk.tokens, shown(chunk.encoded.embeds), rows]
        patches = {
            name: artifact_words(found) if (found := tenant.find_patch(key)) is not None else None
            for name, (key, _) in stored_patches().items()
        }
        strange = store.tenant(b"another tenant")
        return {
            "entries": entries,
            "chunks": chunks,
            "patches": patches,
            "keys": sorted(key_words(key) for key in tenant.artifact_keys(digest(1))),
            "of another tenant": [len(strange.ids()), sum(id in strange for id in chunks)],
        }


# Plans.


def everything_open(kind: str, lane: object, policy: Policy) -> LaneVerdict:
    return LaneVerdict(True, "measured")


def looked_up() -> dict[str, Callable[[Prompt], Knowledge]]:
    """What the store may know while a prompt is planned, by name."""

    def nothing(key: ArtifactKey) -> Patch | None:
        return None

    def known(
        prompt: Prompt,
        find: Callable[[ArtifactKey], Patch | None] = nothing,
        prefix: int = 0,
        **more: Any,
    ) -> Knowledge:
        match = PrefixMatch("kept", min(prefix, prompt.tokens)) if prefix else None
        return Knowledge(MODEL, LAYOUTS, find, lambda _: match, **more)

    def stale(prompt: Prompt) -> Knowledge:
        """Each chunk has one patch, for the chunks before it and one more."""
        held = {
            ArtifactKey(MODEL, chunk.id, (digest(77), *prompt.antecedents(segment)))
            for segment, chunk in prompt.chunk_segments
        }
        return known(
            prompt,
            lambda key: patch_of_rank(16) if key in held else None,
            measured=MeasuredLanes(everything_open),
        )

    def related(prompt: Prompt) -> Knowledge:
        """Each chunk has one patch, for the chunks before it in the other order and another."""
        held = {
            ArtifactKey(MODEL, chunk.id, (*prompt.antecedents(segment)[::-1], digest(77)))
            for segment, chunk in prompt.chunk_segments
        }
        return known(
            prompt,
            lambda key: patch_of_rank(16) if key in held else None,
        )

    return {
        "nothing": known,
        "patches": lambda prompt: known(prompt, lambda key: None if key.orbit else patch_of_rank(16)),
        "patches of rank 2": lambda prompt: known(prompt, lambda key: patch_of_rank(2)),
        "orbits": lambda prompt: known(prompt, lambda key: patch_of_rank(16) if key.orbit else None),
        "a prefix of 7": lambda prompt: known(prompt, prefix=7),
        "a prefix of 12 and patches": lambda prompt: known(
            prompt, lambda key: None if key.orbit else patch_of_rank(16), prefix=12
        ),
        "patches for more": stale,
        "patches for others": related,
        "every lane open": lambda prompt: known(prompt, measured=MeasuredLanes(everything_open)),
        "a plateau at rank 3": lambda prompt: known(
            prompt, lambda key: patch_of_rank(3), measured=MeasuredLanes(plateau=3)
        ),
    }


SHORT = {digest(number): letter for letter, number in LETTERS.items()} | {digest(77): "Z"}


def short(id: str) -> str:
    """A chunk's letter."""
    return SHORT.get(id, id)


def key_short(key: ArtifactKey) -> Json:
    """A key in a plan: kind, chunk, chunks before it; an orbit's kind begins with `orbit`."""
    assert key.model == MODEL
    return [str(key.kind), short(key.chunk), "".join(short(before) for before in key.antecedents)]


def range_words(part: RowRange) -> Json:
    """A range: start, stop, source, layers; then what else holds for it."""
    more: dict[str, Json] = {}
    if isinstance(part.origin, ChunkOrigin):
        more["chunk"] = [short(part.origin.chunk), part.origin.offset]
    elif part.origin is not None:
        more["prefix"] = part.origin.entry
    if part.patch is not None:
        more["patch"] = [*key_short(part.patch.key), part.patch.rank]
    if part.hidden:
        more["hidden"] = [list(rows) for rows in part.hidden]
    return [part.start, part.stop, part.source.value, *part.layers, *([more] if more else [])]


def plan_words(plan: LinkPlan) -> Json:
    """A plan: per layer a figure for every row (0 computed, 1 taken, 2 taken and patched, 3 absent), then its data."""
    codes = ["".join(map(str, row)) for row in plan.sources().tolist()]
    cost = plan.cost(LAYOUTS, 4)
    said: dict[str, Json] = {
        "lane": plan.strategy,
        "sources": codes[:1] if len(set(codes)) == 1 else codes,
        "ranges": sorted((range_words(part) for part in plan.ranges), key=lambda words: (words[3], words[0])),
        "cost": [
            round(cost.rows_computed * LAYERS),
            cost.rows_taken,
            cost.rows_patched,
            cost.bytes_read,
            cost.patch_bytes,
        ],
        "selectors": [[[list(rows) for rows in one.candidates], one.layer, one.budget] for one in plan.selectors],
        "forming": [[*key_short(key), *need_words(plan, key)] for key in plan.forming],
        "leaving": [list(rows) for rows in plan.leaving],
        "second pass": second_pass_words(plan),
        "chosen": [
            [
                *(one.start, one.stop, short(one.chunk), str(one.lane)),
                *([key_short(one.key), one.rank] if one.key is not None else []),
                *([[str(lane) for lane in one.closed]] if one.closed else []),
            ]
            for one in plan.decisions
        ],
        "remarked": plan.remark is not None,
        "exact": plan.exact,
    }
    return {name: value for name, value in said.items() if value not in ([], False)}


def second_pass_words(plan: LinkPlan) -> Json:
    again = plan.recomputation
    if again is None:
        return []
    return [[list(rows) for rows in again.candidates], again.budget, list(again.question), plan.least_margin]


def need_words(plan: LinkPlan, key: ArtifactKey) -> Json:
    rank, layers = plan.patch_need(key)
    return [rank, sorted(layers)]


MORE = {"auto", "prefix", "patch-25%"}
"""The strategies that are planned with everything that the store may know; the others with the first three."""


def plans() -> Json:
    """By prompt and strategy the distinct plans, each with the look-ups that lead to it."""
    lookups = looked_up()
    said: dict[str, dict[str, list[Json]]] = {}
    for title, prompt in prompts():
        said[title] = {}
        for name in STRATEGIES:
            said[title][name] = distinct(
                (lookup, plan_words(parse(name).plan(prompt, lookups[lookup](prompt))))
                for lookup in (lookups if name in MORE else list(lookups)[:3])
            )
    said["continued from row 7"] = {
        name: distinct([("nothing", plan_words(continued(name)))]) for name in STRATEGIES if name != "prefix"
    }
    policies = {"exact rows only": Policy(max_kl=0), "rank 2": Policy(rank=2), "a small share": Policy(share=0.03)}
    for title, policy in policies.items():
        said[f"auto, {title}"] = {
            of: distinct(
                (lookup, plan_words(Auto(policy=policy).plan(prompt, lookups[lookup](prompt)))) for lookup in lookups
            )
            for of, prompt in prompts()
            if of in ("neighbours", "a long chunk")
        }
    return said


def continued(name: str) -> LinkPlan:
    """The plan of a prompt whose first 7 rows are in a table under way."""
    prompt = dict(prompts())["neighbours"]
    return parse(name).plan(prompt, looked_up()["nothing"](prompt)).after(7)


def distinct(pairs: Iterable[tuple[str, Json]]) -> list[Json]:
    """Equal plans once, with all the look-ups that lead to them."""
    found: list[Json] = []
    for lookup, words in pairs:
        same = next((one for one in found if one["plan"] == words), None)
        if same is None:
            found.append({"known": [lookup], "plan": words})
        else:
            same["known"].append(lookup)
    return found
