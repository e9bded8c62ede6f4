"""Lists of a tenant's things, a page at a time, in the form that OpenAI's clients walk through."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from fastapi import Depends, Query

from emblema.serve.reply_types import ListedPage

MOST = 10_000
Entry = TypeVar("Entry")
Body = TypeVar("Body")


@dataclass(frozen=True, slots=True)
class ListPage:
    """Which part of a list is asked for.

    Attributes:
        after: id of the entry before the first; of one that is not there the list is empty.
        limit: entries, at most.
        order: `desc` from the newest on, `asc` from the oldest; None leaves it to the list.
    """

    after: str | None = None
    limit: Annotated[int, Query(ge=1)] = MOST
    order: Literal["asc", "desc"] | None = None

    def page(
        self, entries: Sequence[Entry], id_of: Callable[[Entry], str], body: Callable[[Entry], Body]
    ) -> ListedPage[Body]:
        """Return the body of the page of entries that stand in the order wanted."""
        start = 0
        if self.after is not None:
            ids = [id_of(entry) for entry in entries]
            start = ids.index(self.after) + 1 if self.after in ids else len(ids)
        limit = min(self.limit, MOST)
        shown, more = entries[start : start + limit], len(entries) > start + limit
        first, last = (id_of(shown[0]), id_of(shown[-1])) if shown else (None, None)
        return {
            "object": "list",
            "data": [body(entry) for entry in shown],
            "has_more": more,
            "first_id": first,
            "last_id": last,
        }


AskedPage = Annotated[ListPage, Depends()]
