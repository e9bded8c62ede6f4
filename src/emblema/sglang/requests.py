"""SGLang's requests as the plugin needs them, by private names of SGLang's."""

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor

from emblema.served.captures import ChunkCapture
from emblema.served.media_digest import add_to_digest
from emblema.served.request_options import read_options
from emblema.served.requests import MediaItem, ServedRequest

_SHOWN = "emblema 2026-11 sglang shown media 1"
OPTIONS = "emblema"
_MARK = "\0emblema-"


def describe_request(request: Any) -> ServedRequest:
    """Return what the plugin needs to know of SGLang's request (`Req`)."""
    media = request.multimodal_inputs
    shown = [] if media is None else list(media.mm_items)
    refusal = _refusal(request, shown)
    items = tuple(_described(index, item) for index, item in enumerate(shown))
    salt = "\0".join(part for part in (request.cache_salt, _own_key(request)) if part)
    return ServedRequest(
        tuple(request.origin_input_ids_unpadded),
        items,
        salt or None,
        options_of(request),
        refusal,
        request,
        partial(_digests, shown) if refusal is None else None,
    )


def options_of(request: Any) -> Mapping[str, Any]:
    """Return a request's options; EmblemaError where they are not right."""
    return read_options((request.sampling_params.custom_params or {}).get(OPTIONS))


def marked_key(request: Any, mark: str) -> str:
    """Return a request's `extra_key` with a mark in the place of one that an earlier plan left there."""
    return f"{_own_key(request)}{_MARK}{mark}"


def _own_key(request: Any) -> str:
    return str(request.extra_key or "").partition(_MARK)[0]


def _described(index: int, item: Any) -> MediaItem:
    places = item.offsets or []
    start = places[0][0] if places else 0
    tokens = sum(last - first + 1 for first, last in places)
    return MediaItem(index, "image", str(item.hash), start, tokens, _grid(item))


def _grid(item: Any) -> tuple[int, int, int] | None:
    size = item.model_specific_data.get("image_grid_thw")
    if size is None:
        return None
    frames, height, width = torch.as_tensor(size).reshape(-1).tolist()
    return int(frames), int(height), int(width)


def _digests(items: Sequence[Any]) -> list[str]:
    """Return digests of what the encoder is given; SGLang's own hash of it has 64 bits, and may be a client's."""
    return [_digest(item) for item in items]


def _digest(item: Any) -> str:
    if not isinstance(item.feature, Tensor):
        return ""
    hasher = blake3(derive_key_context=_SHOWN)
    add_to_digest(hasher, item.feature)
    for name in sorted(item.model_specific_data):
        add_to_digest(hasher, name)
        add_to_digest(hasher, item.model_specific_data[name])
    return str(hasher.hexdigest())


def _refusal(request: Any, items: Sequence[Any]) -> str | None:
    if request.input_embeds is not None or request.positional_embed_overrides is not None:
        return "its prompt is given as embeddings"
    if request.lora_id is not None:
        return "it uses a low-rank adapter, under which chunks would be others"
    if request.session is not None:
        return "it belongs to a session, whose turns share rows"
    if request.return_logprob and 0 <= request.logprob_start_len < len(request.origin_input_ids):
        return "log-probabilities of its prompt need every row computed"
    if request.return_hidden_states:
        return "hidden states of its prompt need every row computed"
    if not all(item.is_image() for item in items):
        return "media of another kind than pictures are not linked"
    if not all(item.offsets is not None and len(item.offsets) == 1 for item in items):
        return "a picture of it stands at several places"
    return None


def count_cached(request: Any, rows: int) -> None:
    """Have a reply report rows that were taken as cached, beside those that the radix tree had."""
    request.cached_tokens += rows


def refuse(request: Any, error: str) -> None:
    """Have a request answered by an error of the client's (400), before it is queued."""
    request.set_finish_with_abort(error)


def solo_media(request: ServedRequest, item: MediaItem, capture: ChunkCapture) -> Any:
    """Return one picture of a request as SGLang's model takes it alone: at its place in its capture.

    It goes by a hash of its own digest: what SGLang's cache holds under a name that a client gave is not kept.
    """
    shown = copy.copy(request.source.multimodal_inputs.mm_items[item.index])
    shown.set_hash(int(item.digest[:16], 16))
    start = len(capture.anchor) + int(capture.chunk.encoded.visual.to(torch.uint8).argmax())
    shown.offsets = [(start, start + item.tokens - 1)]
    media = copy.copy(request.source.multimodal_inputs)
    media.mm_items = [shown]
    media.mrope_positions = media.mrope_position_delta = media.mrope_position_delta_repeated_cache = None
    return media
