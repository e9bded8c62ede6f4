"""Ways to damage a file."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path, random.Random], None]


def flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chance.randint(1, 8)):
        if data:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    overwrite(path, data)


def cut(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(max(1, path.stat().st_size)))


def grow(path: Path, chance: random.Random) -> None:
    with path.open("ab") as file:
        file.write(chance.randbytes(chance.randint(1, 5000)))


def swap(path: Path, chance: random.Random) -> None:
    """Two blocks of the file change places."""
    data = bytearray(path.read_bytes())
    length = chance.choice([1, 16, 512, 4096])
    first, second = (chance.randrange(max(1, len(data) - length)) for _ in range(2))
    if abs(first - second) >= length:
        data[first : first + length], data[second : second + length] = (
            data[second : second + length],
            data[first : first + length],
        )
    overwrite(path, data)


def zero(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    start = chance.randrange(max(1, len(data)))
    stop = min(len(data), start + chance.choice([1, 64, 4096, len(data)]))
    data[start:stop] = bytes(stop - start)
    overwrite(path, data)


def noise(path: Path, chance: random.Random) -> None:
    overwrite(path, chance.randbytes(path.stat().st_size))


def empty(path: Path, chance: random.Random) -> None:
    os.truncate(path, 0)


def delete(path: Path, chance: random.Random) -> None:
    path.unlink()


def replace_by_folder(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def replace_by_link(path: Path, chance: random.Random) -> None:
    """The file moves out of the store, and a link to it takes its place."""
    away = Path(str(path.resolve().parent) + "-away")
    away.mkdir(exist_ok=True)
    shutil.move(path, away / path.name)
    path.symlink_to(away / path.name)


def replace_by_pipe(path: Path, chance: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


CONTENTS: dict[str, Damage] = {
    "flip": flip, "cut": cut, "grow": grow, "swap": swap, "zero": zero, "noise": noise, "empty": empty,
}  # fmt: skip
KINDS: dict[str, Damage] = {
    "delete": delete, "folder": replace_by_folder, "link": replace_by_link, "pipe": replace_by_pipe,
}  # fmt: skip


def overwrite(path: Path, data: bytes | bytearray) -> None:
    """In place: the file stays the same one."""
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()
