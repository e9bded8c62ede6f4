"""Beside the pages: rows are taken from the store into them, and chunks and patches from them into the store."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue

import torch
from torch import Tensor

from emblema.errors import EmblemaError, LoadError
from emblema.kv.chunk import Chunk, Encoded
from emblema.kv.layout import LayerRows
from emblema.kv.patch import form_patch
from emblema.link.assemble import Resources, TakenRows
from emblema.link.forming import deficits_of
from emblema.link.prompt import Segment
from emblema.store import Store
from emblema.store.tenant import TenantStore
from emblema.vllm.messages import Capture, Conditioned, Errand, Load
from emblema.vllm.pages import Pages
from emblema.vllm.shape import Shape

_log = logging.getLogger(__name__)
WAITING_PROMPTS = 16


@dataclass(frozen=True, slots=True)
class _Rows:
    """Conditioned rows of one chunk, read as a table is: rows are counted in the prompt."""

    start: int
    layers: tuple[LayerRows, ...]

    def read(self, layer: int, start: int = 0, stop: int | None = None) -> LayerRows:
        rows = self.layers[layer]
        return rows.slice(start - self.start, rows.tokens if stop is None else stop - self.start)


class Hands:
    """Carries errands out on one rank's pages. Pieces are kept and patches formed by a thread of its own.

    Args:
        shape: of this rank's model.
        store: where chunks are.
        pages: made when they are first needed, as the model's layers are ready only then.
        block_size: rows of a page.
        encoder_output: what the encoder made of a picture, by the engine's digest of it; None where it is not at hand.
    """

    def __init__(
        self,
        shape: Shape,
        store: Store,
        pages: Callable[[], Pages],
        block_size: int,
        encoder_output: Callable[[str], Tensor | None] = lambda identifier: None,
    ) -> None:
        self.shape, self.store, self.block_size = shape, store, block_size
        self._make, self._encoder_output = pages, encoder_output
        self._made: Pages | None = None
        self._failed: set[int] = set()
        self._conditioned: deque[tuple[Conditioned, dict[int, _Rows]]] = deque(maxlen=WAITING_PROMPTS)
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._keep, name="emblema-keep", daemon=True)
        self._thread.start()

    @property
    def pages(self) -> Pages:
        """The pages, measured."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def before(self, errand: Errand) -> None:
        """Write what the forward takes."""
        for load in errand.loads:
            try:
                self._load(load)
            except (EmblemaError, OSError) as error:
                _log.warning("emblema: %s; its rows are computed", error)
                self._give_up(load)
            except Exception:
                # Whatever it is, it must not end the server; vLLM computes what is reported as lost.
                _log.exception("emblema: rows could not be loaded; they are computed")
                self._give_up(load)

    def _give_up(self, load: Load) -> None:
        size = self.block_size
        self._failed.update(load.blocks[load.claim.start // size : -(-load.claim.stop // size)])

    def after(self, errand: Errand) -> None:
        """Read what the forward made; it is kept in the background."""
        try:
            self._read_all(errand)
        except Exception:
            # A server that cannot keep what it sees still serves.
            _log.exception("emblema: rows could not be read")

    def _read_all(self, errand: Errand) -> None:
        for capture in errand.captures:
            alone = self._read(capture.blocks, 0, capture.chunk.tokens)
            chunk = replace(capture.chunk, encoded=self._encoded(capture), rows=alone)
            self._work.put(partial(self._put, capture.salt, chunk))
        for made in errand.conditioned:
            wanted = {key.chunk for key, _, _ in made.needs}
            rows = {
                segment.start: _Rows(segment.start, self._read(made.blocks, segment.start, segment.stop))
                for segment, chunk in made.prompt.chunk_segments
                if chunk.id in wanted
            }
            self._work.put(partial(self._conditioned.append, (made, rows)))
            self._work.put(self._form)

    def failed(self) -> set[int]:
        """Pages whose rows could not be loaded since the last call."""
        failed, self._failed = self._failed, set()
        return failed

    def drain(self) -> None:
        """Return once everything read so far is kept, or has failed to be."""
        done = threading.Event()
        self._work.put(done.set)
        done.wait()

    def close(self) -> None:
        """Keep what is under way and close the store."""
        self._work.put(None)
        self._thread.join()
        self.store.close()

    @torch.inference_mode()
    def _load(self, load: Load) -> None:
        view = TenantStore(self.store, load.salt)
        named = {part.origin.chunk for part in load.plan.ranges}  # type: ignore[union-attr]
        keys = {part.patch.key for part in load.plan.ranges if part.patch is not None}
        with view.lease(named) as lease:
            if lease.missing:
                raise LoadError(lease.missing[0], "it is not in the store any more")
            patches = {}
            for key in keys:
                patch = view.find_artifact(key)
                if patch is None:
                    raise LoadError(key.chunk, f"the {key} is not in the store any more")
                patches[key] = patch
            slots = self.pages.slots(load.blocks, load.prompt.tokens)
            resources = Resources(patches, {}, lease.rows)
            assembly = TakenRows(self.shape, self.pages, slots, load.plan, load.prompt, resources)
            for layer in range(len(self.shape.layouts)):
                assembly.write(layer)

    def _encoded(self, capture: Capture) -> Encoded:
        """The chunk's encoding with what the encoder made of it, in the rows of its media tokens."""
        encoded, output = capture.chunk.encoded, self._encoder_output(capture.identifier)
        media = int(encoded.visual.sum())
        if output is None or output.dim() != 2 or len(output) != media or output.dtype != self.shape.dtype:
            return encoded
        embeds = torch.zeros(encoded.tokens, output.shape[1], dtype=output.dtype, device=output.device)
        embeds[encoded.visual.to(output.device)] = output
        return replace(encoded, embeds=embeds)

    def _read(self, blocks: tuple[int, ...], start: int, stop: int) -> tuple[LayerRows, ...]:
        slots = self.pages.slots(blocks, stop)[start:]
        return tuple(self.pages.read(layer, slots) for layer in range(len(self.shape.layouts)))

    def _keep(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                with torch.inference_mode():
                    work()
            except (EmblemaError, OSError) as error:
                _log.warning("emblema: %s", error)
            except Exception:
                # Whatever it is, the server goes on; the piece is only not kept.
                _log.exception("emblema: a piece could not be kept")

    def _put(self, salt: bytes, chunk: Chunk) -> None:
        TenantStore(self.store, salt).put(chunk)
        self._form()

    def _form(self) -> None:
        """Form the patches of prompts whose chunks are all here by now; the others wait."""
        for _ in range(len(self._conditioned)):
            made, rows = self._conditioned.popleft()
            view = TenantStore(self.store, made.salt)
            if all(chunk.id in view for _, chunk in made.prompt.chunk_segments):
                self._patches(made, rows, view)
            else:
                self._conditioned.append((made, rows))

    def _patches(self, made: Conditioned, rows: dict[int, _Rows], view: TenantStore) -> None:
        places: dict[tuple[str, tuple[str, ...]], Segment] = {}
        for segment, chunk in made.prompt.chunk_segments:
            places.setdefault((chunk.id, made.prompt.antecedents(segment)), segment)
        for key, rank, layers in made.needs:
            place = places.get((key.chunk, key.antecedents))
            if place is None:
                continue
            with view.lease([key.chunk]) as lease:
                canonical = (view.get(key.chunk), lease.rows[key.chunk])
                deficits = deficits_of(self.shape, rows[place.start], made.prompt, place, canonical, set(layers))
                view.put_patch(key, form_patch(deficits, rank, self.shape.dtype))
