"""One record of a data set's file: its fields, checked as they are read, and the place that errors name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.data.limits import DataError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Record:
    """The fields of one object, and where it begins: a line of a text file, a row of a table.

    name: how messages call the object, for one inside another: `questions[2]`.
    """

    path: Path
    place: int
    fields: Mapping[str, Any]
    unit: str = "line"
    name: str = ""

    def wrong(self, message: str) -> DataError:
        """The error to raise about this record."""
        return DataError(self.path, f"{self.name}: {message}" if self.name else message, self.place, self.unit)

    def has(self, field: str) -> bool:
        """Whether a field is there and not null."""
        return self.fields.get(field) is not None

    def need(self, *fields: str) -> None:
        """Raise one error that names every field that is missing."""
        missing = [field for field in fields if field not in self.fields]
        if missing:
            raise self.wrong(f"missing {', '.join(repr(field) for field in missing)}")

    def text(self, field: str, default: str | None = None) -> str:
        """A string; a number is taken as its digits, as ids are written both ways."""
        value = self.fields.get(field)
        if value is None and default is not None:
            return default
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return self._of(field, value, str, "a string")

    def number(self, field: str) -> int:
        """A whole number of 0 or more."""
        value = self.fields.get(field)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._not(field, value, "a whole number of 0 or more")
        return value

    def flag(self, field: str, default: bool) -> bool:
        """True or false."""
        value = self.fields.get(field, default)
        return self._of(field, value, bool, "true or false")

    def texts(self, field: str) -> list[str]:
        """A list of strings."""
        values = self._of(field, self.fields.get(field), list, "a list of strings")
        for value in values:
            if not isinstance(value, str):
                raise self._not(field, values, "a list of strings")
        return list(values)

    def values(self, field: str) -> list[Any]:
        """A list of anything."""
        return list(self._of(field, self.fields.get(field), list, "a list"))

    def object(self, field: str) -> Record:
        """An object inside this one."""
        return self._inside(field, self.fields.get(field))

    def objects(self, field: str) -> list[Record]:
        """A list of objects inside this one."""
        return [self._inside(f"{field}[{place}]", value) for place, value in enumerate(self.values(field))]

    def _inside(self, field: str, value: Any) -> Record:
        found = self._of(field, value, dict, "an object")
        return Record(self.path, self.place, found, self.unit, f"{self.name}.{field}" if self.name else field)

    def _of(self, field: str, value: Any, kind: type[T], what: str) -> T:
        if not isinstance(value, kind):
            raise self._not(field, value, what)
        return value

    def _not(self, field: str, value: Any, what: str) -> DataError:
        if field not in self.fields and "[" not in field:
            return self.wrong(f"missing {field!r}")
        return self.wrong(f"{field!r} is {repr(value)[:60]}, not {what}")
