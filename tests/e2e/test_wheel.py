"""The built wheel, installed elsewhere, runs the demo from an empty folder."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from emblema.models.names import BUNDLED

REPOSITORY = Path(__file__).resolve().parents[2]
WEIGHTS_LIMIT = 5 * 2**20
WHEEL_LIMIT = 15 * 10**6
"""Bytes of each bundled model."""

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Installed:
    """A wheel and an environment that holds it."""

    wheel: Path
    folder: Path

    def run(self, command: Sequence[str], where: Path) -> str:
        """What a program of the environment prints; fails with all of it if the program does."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment = kept | {"HF_HUB_OFFLINE": "1", "MPLBACKEND": "Agg", "COLUMNS": "120"}
        program = self.folder / "bin" / command[0]
        done = subprocess.run(
            [str(program), *command[1:]],
            cwd=where,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(REPOSITORY)]
    subprocess.run([*pip, *build], check=True, stdin=subprocess.DEVNULL)
    (wheel,) = folder.glob("emblema-*.whl")
    environment = folder / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    install = ["--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, *install], check=True, stdin=subprocess.DEVNULL)
    # The other packages are those of this environment: added as a plain path, so that its own links to the
    # repository (an editable install) are not followed.
    place = subprocess.check_output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True)
    shared = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(place.strip()) / "shared.pth").write_text("\n".join(sorted(shared)) + "\n")
    return Installed(wheel, environment)


def test_the_wheel_holds_what_it_should(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
    assert "emblema/py.typed" in sizes
    assert installed.wheel.stat().st_size <= WHEEL_LIMIT
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in sizes)
    weights = {Path(name).parent.name: size for name, size in sizes.items() if name.endswith(".safetensors")}
    assert weights.keys() == {*BUNDLED, "pages"} and all(0 < size <= WEIGHTS_LIMIT for size in weights.values())
    tops = {name.split("/")[0] for name in sizes}
    assert tops == {"emblema", next(name for name in tops if name.endswith(".dist-info"))}
    assert not [name for name in sizes if "__pycache__" in name]


def test_the_installed_package_is_not_the_repository(installed: Installed, tmp_path: Path) -> None:
    said = installed.run(
        ["python", "-c", "import emblema, sys; print(emblema.__file__, *sys.path, sep='\\n')"], tmp_path
    )
    assert Path(said.splitlines()[0]).is_relative_to(installed.folder)
    assert str(REPOSITORY / "src") not in said.splitlines()


def test_the_demo_runs_and_draws_its_picture(installed: Installed, tmp_path: Path) -> None:
    said = installed.run(["emblema", "demo", "--out", "result"], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["result"], said
    pictures = list((tmp_path / "result").rglob("*.png"))
    assert pictures, said
    for path in pictures:
        with Image.open(path) as picture:
            picture.load()
            assert min(picture.size) >= 200
