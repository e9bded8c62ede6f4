"""What a collection holds, as an administrator writes it and as each engine tells it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from emblema.library.items import NAME_LENGTH
from emblema.serve.keys import Tenant


def _readable(name: str) -> str:
    if not name.strip() or not name.isprintable():
        raise ValueError("give printable characters")
    return name


Name = Annotated[str, Field(max_length=NAME_LENGTH), AfterValidator(_readable)]


class CollectionItem(BaseModel):
    """A file of the administrator's, or a text, under a name."""

    name: Name
    file_id: str | None = Field(None, max_length=200)
    text: str | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.file_id is None) == (self.text is None):
            raise ValueError("give a file_id or a text, one of the two")
        return self


@dataclass(frozen=True, slots=True)
class ItemEntry:
    """An item as it is told: its rows, None where only a request that shows it makes them."""

    name: str
    kind: str
    tokens: int | None


@dataclass(frozen=True, slots=True)
class CollectionEntry:
    """A collection as it is now; `bytes` are those of its rows, or of its media where it has no rows yet."""

    name: str
    version: int
    bytes: int
    items: tuple[ItemEntry, ...]

    @property
    def tokens(self) -> int | None:
        """Rows of all items; None where they are not known."""
        known = [item.tokens for item in self.items if item.tokens is not None]
        return sum(known) if len(known) == len(self.items) else None


class Collections(Protocol):
    """The collections of a server, of whichever engine."""

    def entries(self) -> Sequence[CollectionEntry]:
        """Return all collections, by name."""

    def entry(self, name: str) -> CollectionEntry:
        """Return a collection; `ServeError` where there is none."""

    async def write(self, tenant: Tenant, name: str, items: Sequence[CollectionItem]) -> CollectionEntry:
        """Put a version of a tenant's files and texts in place of the present one, all at once.

        Raises:
            ServeError: there is no such file, or it cannot be read.
        """

    async def delete(self, name: str) -> None:
        """Delete a collection; `ServeError` where there is none."""
