"""Streams over workers answer as one engine does, wherever they are and after they moved."""

import numpy as np
import pytest
from PIL import Image

from emblema.engine.engine import Engine
from emblema.errors import StreamError
from emblema.scale.stream_partition import LocalWorker, ProcessWorker, StreamPartition, partition

MODEL = "reference-stream"
QUESTION = "what is shown ?"
NAMES = ("north", "south", "east", "west")


def frames(seed, count=8):
    rng = np.random.default_rng(seed)
    return [Image.fromarray(rng.integers(0, 255, (56, 56, 3), dtype=np.uint8)) for _ in range(count)]


def alone(tmp_path, names=NAMES):
    """Answers of one engine with all streams."""
    with Engine.load(MODEL, store=tmp_path / "alone") as engine:
        answers = {}
        for number, name in enumerate(names):
            with engine.stream() as stream:
                for at, frame in enumerate(frames(number)):
                    stream.push(frame, at=float(at))
                answers[name] = stream.ask(QUESTION).text
    return answers


def filled(workers, names=NAMES):
    own = StreamPartition(workers)
    for name in names:
        own.open(name)
    pushed = [own.push(name, frames(number), [float(at) for at in range(8)]) for number, name in enumerate(names)]
    assert [future.result() for future in pushed] == [8] * len(names)
    return own


def texts(own, names=None):
    return {name: answer.text for name, answer in own.ask(QUESTION, names).items()}


@pytest.fixture
def workers(tmp_path):
    return {name: LocalWorker(MODEL, tmp_path / "shared") for name in ("a", "b")}


def test_a_question_over_streams_is_gathered_and_survives_moves(workers, tmp_path):
    expected = alone(tmp_path)
    own = filled(workers)
    assert set(own.homes.values()) == {"a", "b"}
    assert texts(own) == expected
    for name, home in own.homes.items():
        own.move(name, "b" if home == "a" else "a")
    assert texts(own) == expected
    # It goes on after the move.
    assert own.push("north", frames(9, 4), [10.0, 11.0, 12.0, 13.0]).result() == 12
    on_a = {name for name, home in own.homes.items() if home == "a"}
    assert set(own.remove("a")) == on_a
    assert set(own.homes.values()) == {"b"}
    assert {name: text for name, text in texts(own).items() if name != "north"} == {
        name: text for name, text in expected.items() if name != "north"
    }
    own.add("c", LocalWorker(MODEL, tmp_path / "shared"))
    assert {name: text for name, text in texts(own).items() if name != "north"} == {
        name: text for name, text in expected.items() if name != "north"
    }
    own.close()


def test_what_is_not_there_is_an_error(workers):
    own = StreamPartition(workers)
    with pytest.raises(StreamError, match="no stream"):
        own.ask(QUESTION)
    own.open("north")
    with pytest.raises(StreamError):
        own.ask(QUESTION)
    for call in (lambda: own.open("north"), lambda: own.push("up", [], []), lambda: own.move("north", "nowhere")):
        with pytest.raises(StreamError):
            call()
    with pytest.raises(StreamError, match="a worker or more"):
        StreamPartition({})
    own.close()


@pytest.mark.slow
def test_workers_in_processes_answer_the_same(tmp_path):
    expected = alone(tmp_path)
    own = partition(lambda: ProcessWorker(MODEL, tmp_path / "shared"), 2)
    try:
        for number, name in enumerate(NAMES):
            own.open(name)
            own.push(name, frames(number), [float(at) for at in range(8)])
        assert texts(own) == expected
        home = own.homes["north"]
        own.move("north", next(worker for worker in ("worker-0", "worker-1") if worker != home))
        assert texts(own, ["north"]) == {"north": expected["north"]}
    finally:
        own.close()
