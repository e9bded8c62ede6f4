"""Every row that a model's decoder runs, whoever asked for it: prompts, pieces alone, forming, a canary."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from emblema.models.adapter import Adapter


class RowCounter:
    """Rows that entered a decoder layer, summed over layers."""

    def __init__(self, layers: int) -> None:
        self.layers, self.row_layers = layers, 0

    @property
    def rows(self) -> float:
        """Rows computed, a row that ran in some layers alone as that share of one."""
        return self.row_layers / self.layers

    def see(self, module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """What stands before a layer's forward."""
        hidden = args[0] if args else named["hidden_states"]
        self.row_layers += hidden.shape[0] * hidden.shape[1]


@contextmanager
def counted(adapter: Adapter) -> Iterator[RowCounter]:
    """Count what an adapter's decoder runs; the model is left as it was."""
    counter = RowCounter(len(adapter.layers))
    hooks = [layer.register_forward_pre_hook(counter.see, with_kwargs=True) for layer in adapter.layers]
    try:
        yield counter
    finally:
        for hook in hooks:
            hook.remove()
