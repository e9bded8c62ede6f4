"""What decoders that embed ids of tokens for every layer take beside the embeddings of their rows."""

import inspect
from typing import Any

from torch import Tensor

from emblema.errors import ModelError

_ARGUMENT = "per_layer_inputs"


def takes_token_ids(decoder: Any) -> bool:
    """Return whether every layer of a decoder adds an embedding of each row's token id."""
    return bool(getattr(decoder.config, "hidden_size_per_layer_input", None))


def is_given_token_inputs(decoder: Any) -> bool:
    """Return whether a decoder's forward can be given these embeddings, in place of the ids."""
    return hasattr(decoder, "get_per_layer_inputs") and _ARGUMENT in inspect.signature(decoder.forward).parameters


def token_inputs(decoder: Any, token_ids: Tensor | None, visual: Tensor | None = None) -> dict[str, Tensor]:
    """Return what a decoder takes beside rows: nothing for most.

    Args:
        decoder: the decoder.
        token_ids: [sequences, rows] int64.
        visual: [sequences, rows] bool, rows that carry media features: the stock model embeds padding there.

    Raises:
        ModelError: the decoder embeds ids, and none are given.
    """
    if not takes_token_ids(decoder):
        return {}
    if token_ids is None:
        raise ModelError("The decoder embeds ids of tokens in every layer; give the batch of rows its token_ids.")
    if visual is not None:
        token_ids = token_ids.to(visual.device).masked_fill(visual, int(decoder.config.pad_token_id))
    return {_ARGUMENT: decoder.get_per_layer_inputs(token_ids, None)}
