"""What the scheduler's side tells the side of the pages, once a step. Plain data that pickles."""

from dataclasses import dataclass

from emblema.kv.chunk import Chunk
from emblema.link.plan import LinkPlan
from emblema.link.prompt import Prompt
from emblema.store.keys import PatchKey
from emblema.vllm.holes import Claim


@dataclass(frozen=True, slots=True)
class Load:
    """Taken rows to write into a request's pages before the forward.

    Attributes:
        request: whose they are.
        salt: of the tenant's view.
        prompt, plan: the plan holds taken ranges only, those of the claim.
        claim: the rows that count as there afterwards.
        blocks: the request's pages in order.
    """

    request: str
    salt: bytes
    prompt: Prompt
    plan: LinkPlan
    claim: Claim
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Capture:
    """A chunk that was prefilled alone: its rows are read after the forward and kept.

    Attributes:
        identifier: vLLM's digest of the picture, by which its encoder output is found.
    """

    salt: bytes
    chunk: Chunk
    identifier: str
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Conditioned:
    """A prompt that was computed plainly: patches are formed of what its chunks became.

    Attributes:
        needs: for each patch its rank and its layers.
    """

    salt: bytes
    prompt: Prompt
    needs: tuple[tuple[PatchKey, int, tuple[int, ...]], ...]
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Errand:
    """Everything that one step asks for."""

    loads: tuple[Load, ...] = ()
    captures: tuple[Capture, ...] = ()
    conditioned: tuple[Conditioned, ...] = ()
