"""The package itself: what a person imports, and that importing it costs nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import emblema


@pytest.mark.parametrize("name", emblema.__all__)
def test_the_names_are_there(name: str) -> None:
    assert getattr(emblema, name).__name__ == name


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = emblema.nothing


@pytest.mark.parametrize("module", ["emblema", "emblema.cli"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    heavy = ("torch", "transformers", "matplotlib", "emblema.engine", "benchmarks")
    script = f"import {module}, sys; print([name for name in {heavy} if name in sys.modules])"
    places = {**os.environ, "PYTHONPATH": str(Path(emblema.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=places)
    assert done.stdout.strip() == "[]"


WITHOUT_EXTRAS = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy
from emblema import Engine, EmblemaError
with Engine.load("reference") as engine:
    page = engine.add(numpy.full((56, 56, 3), 200, numpy.uint8))
    assert engine.generate([page, "what colour is under the tent ?"], max_new_tokens=1).text
    for source in (b"%PDF-1.7", b"RIFF0000WAVE", b"\\0\\0\\0\\x18ftypheic\\0\\0\\0\\0mif1heic"):
        try:
            engine.add(source)
        except EmblemaError as error:
            print(error)
"""


@pytest.mark.slow
def test_pictures_and_text_need_no_extra(tmp_path: Path) -> None:
    """Modules that cannot be imported come first on the path, which the processes that decode are given too."""
    for name in ("av", "pypdfium2", "pillow_heif", "faiss", "matplotlib"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('it is not installed')")
    places = {**os.environ, "PYTHONPATH": str(Path(emblema.__file__).parents[1]), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, str(tmp_path)], capture_output=True, text=True, env=places
    )
    assert done.returncode == 0, done.stderr
    document, sound, photo = done.stdout.strip().splitlines()
    assert "pip install 'emblema[documents]'" in document
    assert "pip install 'emblema[video]'" in sound
    assert "pip install 'emblema[heic]'" in photo
