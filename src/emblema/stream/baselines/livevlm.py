"""LiveVLM (arXiv 2505.15269): ReKV's retrieval over frames whose rows are thinned as they leave the window.

The attention that the newest frames' queries give a frame's rows, positions left out, says which of them are kept; each
other row is merged into the kept one of its frame whose key is most like its own.
"""

import torch
from torch import Tensor

from emblema.kv.layout import LayerRows
from emblema.kv.rotation import place, unplace
from emblema.models.queries import matched
from emblema.stream.baselines.rekv import Rekv
from emblema.stream.baselines.saliency import saliency
from emblema.stream.method import Bytes, Departed, Found, Query, Scene, Sight, StreamRows


class LiveVlm(Rekv):
    """Half of a frame's rows are kept."""

    name = "livevlm"
    share = 0.5

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        # Per layer, those of the frames that came since others left.
        self._queries: dict[int, list[Tensor]] = {}
        # Per layer, which rows of each frame were kept: [frames, kept].
        self._chosen = [torch.zeros(0, self.kept, dtype=torch.int64, device=self.adapter.device) for _ in self._hosts]

    @property
    def kept(self) -> int:
        return max(1, round(self.places.tokens * self.share))

    def read(self, layer: int, query: Query, sight: Sight) -> Found:
        if query.purpose == "frames":
            self._queries.setdefault(layer, []).append(query.states)
        return super().read(layer, query, sight)

    def _thinned(self, layer: int, rows: LayerRows, departed: Departed) -> LayerRows:
        layout, tokens = self.adapter.layouts[layer], departed.tokens
        free = unplace(rows, layout, self.scene.phases.book(departed.positions))
        mass = saliency(torch.cat(self._queries.pop(layer), dim=1), matched(free, layout)).reshape(-1, tokens)
        chosen = mass.topk(self.kept, dim=1).indices.sort(dim=1).values
        self._chosen[layer] = torch.cat((self._chosen[layer], chosen))
        keys, values = (part.unflatten(1, (-1, tokens)).transpose(0, 1) for part in (free.keys, free.values))
        flat = torch.nn.functional.normalize(keys.transpose(1, 2).flatten(2), dim=-1)
        likeness = flat @ flat.gather(1, chosen[:, :, None].expand(-1, -1, flat.shape[2])).transpose(1, 2)
        # A kept row stays with itself, whatever else it is like.
        nearest = likeness.argmax(2).scatter_(1, chosen, torch.arange(self.kept).to(chosen).expand_as(chosen))
        home = torch.nn.functional.one_hot(nearest, self.kept).to(keys.dtype)
        weights = (home / home.sum(1, keepdim=True)).transpose(1, 2)[:, None]
        merged = [(weights @ part).transpose(0, 1).flatten(1, 2) for part in (keys, values)]
        book = self.scene.phases.book(self._positions(layer, departed.frames))
        return place(LayerRows(merged[0], merged[1]), layout, book, self.adapter.dtype)

    def _positions(self, layer: int, frames: range | Tensor) -> Tensor:
        numbers = torch.as_tensor(list(frames), device=self.adapter.device)
        offsets = self.places.offsets[:, self._chosen[layer][numbers - self._first]]
        return (self.places.corners(numbers)[None, :, None] + offsets).flatten(1)

    def _placed(self, layer: int, rows: LayerRows, frames: Tensor) -> StreamRows:
        return StreamRows(rows, self._positions(layer, frames), frames.repeat_interleave(self.kept))

    def bytes(self) -> Bytes:
        held = super().bytes()
        return Bytes({**held.device, "chosen": sum(chosen.nbytes for chosen in self._chosen)}, held.host)
