"""What stands in front of a record in Redis."""

import json
from dataclasses import dataclass

from emblema.errors import LoadError, StoreError
from emblema.store.record import is_id
from emblema.store.remote.parts import Lasting, check_part_bytes


@dataclass(frozen=True, slots=True)
class Head:
    """Whose a record is, how it is cut and how long it is kept.

    Attributes:
        id: of the record.
        owner: of the record.
        length: bytes of its file.
        part_bytes: of every part but the last.
        chunks: what a patch was made from.
        lasting: until when it is kept.
    """

    id: str
    owner: str
    length: int
    part_bytes: int
    chunks: tuple[str, ...]
    lasting: Lasting

    @property
    def parts(self) -> int:
        return -(-self.length // self.part_bytes)

    def dump(self) -> str:
        fields = {
            "id": self.id,
            "owner": self.owner,
            "bytes": self.length,
            "part_bytes": self.part_bytes,
            "chunks": list(self.chunks),
            "expires": self.lasting.expires,
            "idle": self.lasting.idle,
        }
        return json.dumps(fields, allow_nan=False)

    @classmethod
    def parse(cls, id: str, owner: str, text: bytes, largest: int) -> "Head":
        """The head of a record.

        Raises:
            LoadError: it is damaged, another record's, or speaks of more than `largest` bytes.
        """
        try:
            fields = json.loads(text)
            length, part_bytes = fields["bytes"], fields["part_bytes"]
            lasting = Lasting(fields["expires"], fields["idle"])
            sound = (
                (fields["id"], fields["owner"]) == (id, owner)
                and type(length) is int
                and type(part_bytes) is int
                and 0 < length <= largest
                and all(type(value) in (int, float, type(None)) for value in (lasting.expires, lasting.idle))
            )
            if not sound:
                raise ValueError
            chunks = tuple(chunks_of(text))
            return cls(id, owner, length, check_part_bytes(part_bytes), chunks, lasting)
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError, StoreError):
            raise LoadError(id, "its head on the server is damaged or another record's") from None


def chunks_of(text: bytes | None) -> list[str]:
    """What a record that is about to go was made from; where that cannot be read, a note of it stays behind."""
    try:
        chunks = json.loads(text or b"{}").get("chunks", [])
        return [chunk for chunk in chunks if is_id(chunk)]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return []
