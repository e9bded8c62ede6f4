"""Questions typed on a terminal, and Ctrl-C while a block runs."""

import os
import signal
import sys
import time

import pytest

from emblema.cli.view.session import finishing

termios = pytest.importorskip("termios", reason="no terminals here")


def typed(monkeypatch: pytest.MonkeyPatch, *pieces: bytes) -> list[str | None]:
    """The lines that come of some keys, and the one that is not complete."""
    from emblema.cli.view.keyboard import Keyboard

    master, slave = os.openpty()
    with os.fdopen(slave, "r") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        before = termios.tcgetattr(slave)
        with Keyboard() as keyboard:
            for piece in pieces:
                os.write(master, piece)
                time.sleep(0.02)
            os.write(master, b"\r\x04")
            lines: list[str | None] = []
            while (line := keyboard.next(wait=True)) is not None:
                lines.append(line)
            assert keyboard.next(wait=False) is None
        assert termios.tcgetattr(slave) == before
        monkeypatch.undo()
    os.close(master)
    return lines


def test_lines_are_edited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert typed(monkeypatch, b"where is itt\x7f ?\nwho ?") == ["where is it ?", "who ?"]
    assert typed(monkeypatch, b"nothing\x15where") == ["where"]
    assert typed(monkeypatch, b"where is the moon\x17sun") == ["where is the sun"]
    assert typed(monkeypatch, b"\x1b[A\x1b[1;5Dwh\x1bOCere") == ["where"]
    assert typed(monkeypatch, "h\u00f6her".encode()[:2], "h\u00f6her".encode()[2:]) == ["h\u00f6her"]
    assert typed(monkeypatch, b"\n\n") == ["", "", ""]


def test_an_interruption_waits_for_the_block_and_a_second_one_does_not() -> None:
    done, before = False, signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), finishing():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        done = True
    assert done
    with pytest.raises(KeyboardInterrupt), finishing():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        raise AssertionError("the second one waited")
    assert signal.getsignal(signal.SIGINT) is before
