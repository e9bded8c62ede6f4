"""What the scheduler's side tells the worker's side once a step. Plain data that pickles."""

from dataclasses import dataclass

from emblema.kv.chunk import Chunk
from emblema.link.plan import LinkPlan
from emblema.link.prompt import Prompt
from emblema.store.keys import ArtifactKey
from emblema.vllm.spans import Claim

PatchNeed = tuple[ArtifactKey, int, tuple[int, ...]]
"""A patch to be formed: its key, its rank and its layers."""


@dataclass(frozen=True, slots=True)
class RowLoad:
    """Cached rows to write into a request's pages before the forward.

    Attributes:
        salt: of the tenant's store.
        prompt, plan: the plan holds taken ranges only, those of the claim.
        claim: the rows that are ready afterwards.
        blocks: the request's pages in order.
    """

    salt: bytes
    prompt: Prompt
    plan: LinkPlan
    claim: Claim
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChunkCapture:
    """A chunk that was prefilled alone: its rows are read after the forward and stored.

    Attributes:
        salt: of the tenant's store.
        chunk: ids and geometry, without rows.
        identifier: the picture's name while it is prefilled alone, by which its encoder output is found.
        blocks: the pages of the request that prefilled it, in order.
    """

    salt: bytes
    chunk: Chunk
    identifier: str
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PatchCapture:
    """A prompt that was computed plainly: patches are formed from its chunks' rows.

    Attributes:
        salt: of the tenant's store.
        prompt: whose rows the pages hold.
        needs: the patches to form.
        blocks: the request's pages in order.
        alone: whether no other request is in the step, and none comes soon, so that reading its rows holds none up.
    """

    salt: bytes
    prompt: Prompt
    needs: tuple[PatchNeed, ...]
    blocks: tuple[int, ...]
    alone: bool = True


@dataclass(frozen=True, slots=True)
class StepMetadata:
    """All work of one step on the pages.

    Attributes:
        loads: rows to write before its forward.
        chunks, patches: what to read after it.
        computes: whether it has any rows.
        pressed: whether requests come so densely that nothing is to be kept beside them.
    """

    loads: tuple[RowLoad, ...] = ()
    chunks: tuple[ChunkCapture, ...] = ()
    patches: tuple[PatchCapture, ...] = ()
    computes: bool = True
    pressed: bool = False
