"""The page in a browser: an atlas is opened, moved and asked about in three ways, at two widths in two schemes."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="no playwright: pip install playwright")

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

from emblema.serve.service import Service
from tests.serve.servers import Running, serving, started

DEMO = Path(str(files("emblema"))) / "assets" / "demo"
BROWSER = os.environ.get("EMBLEMA_TEST_BROWSER") or shutil.which("chromium") or shutil.which("google-chrome")
expect.set_options(timeout=60_000)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="no Chromium: apt-get install chromium")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def atlas_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that takes as many pictures as the atlas has."""
    with serving(tmp_path_factory.mktemp("atlas")) as running:
        yield running


class Shown:
    """The page at one width, and everything that went wrong or elsewhere."""

    def __init__(self, browser: Any, server: Running, width: int = 1280, scheme: str = "light", link: str = "") -> None:
        self.faults: list[str] = []
        self.elsewhere: list[str] = []
        self.context = browser.new_context(
            viewport={"width": width, "height": 844}, color_scheme=scheme, reduced_motion="reduce",
            permissions=["clipboard-read", "clipboard-write"],
        )  # fmt: skip
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda line: self.faults.append(line.text) if line.type == "error" else None)
        self.page.on("request", lambda request: self._requested(request.url, server.address))
        self.page.goto(f"{server.address}/{link}")
        self.page.wait_for_selector("h1")

    def _requested(self, url: str, address: str) -> None:
        if not url.startswith((address, "blob:", "data:")):
            self.elsewhere.append(url)

    def __enter__(self) -> "Shown":
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()

    @property
    def ask(self) -> Any:
        return self.page.get_by_role("button", name="Ask three ways")

    @property
    def texts(self) -> list[str]:
        """The three answers with what is said of them, once all are there."""
        expect(self.page.locator(".answer .key")).to_have_count(3)
        expect(self.ask).to_be_enabled()
        return list(self.page.locator(".answer .text").all_inner_texts())

    @property
    def names(self) -> list[str]:
        """The pictures in their order."""
        labels = self.page.locator(".block").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
        return [label.partition(": ")[2].partition(",")[0] for label in labels]

    def add(self, *names: str) -> None:
        """Choose files, and wait until they are kept."""
        self.page.set_input_files("input[type=file]", [DEMO / name for name in names])
        expect(self.page.locator(".block[aria-label$=' kept']")).to_have_count(len(names))
        expect(self.ask).to_be_enabled()

    def open_atlas(self) -> None:
        """Open the demo, and wait until it is there."""
        self.page.get_by_role("button", name="Open an atlas").click()
        expect(self.page.locator(".block")).to_have_count(23)
        expect(self.ask).to_be_enabled()

    def violations(self) -> list[str]:
        """Return what axe finds, whatever its impact."""
        found = Axe().run(self.page).response["violations"]
        return [f"{fault['id']}: {[node['html'] for node in fault['nodes']]}" for fault in found]

    def fits(self) -> bool:
        """Whether the page is no wider than its window."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_atlas_is_answered_rightly_and_blind_reuse_is_wrong(
    browser: Any, atlas_server: Running, width: int, scheme: str
) -> None:
    with Shown(browser, atlas_server, width, scheme) as shown:
        assert not shown.violations() and shown.fits()
        shown.open_atlas()
        shown.ask.click()
        full, emblema, blind = shown.texts
        assert (full, emblema) == ("desert ✓", "desert ✓")
        assert blind.endswith("✗") and "desert" not in blind
        headline = shown.page.locator(".headline").inner_text()
        taken, shown_rows = (int(word.replace(",", "")) for word in headline.split(" rows ")[0].split(" of "))
        assert 20 * 64 < taken < shown_rows and headline.endswith("same answer")
        expect(shown.page.locator(".block.patched")).to_have_count(20)
        expect(shown.page.locator(".block.slid")).to_have_count(3)
        bottom = shown.page.locator(".answer.auto .text").bounding_box()
        assert bottom is not None and bottom["y"] + bottom["height"] < 844, "the answers are below the fold"
        dark = shown.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
        assert dark == (scheme == "dark")
        shown.page.get_by_role("button", name="Picture 22 of 23").click()
        expect(shown.page.locator(".facts")).to_contain_text("desert, joined with legend-1.png")
        assert not shown.violations() and shown.fits()
        assert not shown.faults and not shown.elsewhere


def test_an_order_is_changed_and_a_link_restores_it(browser: Any, atlas_server: Running) -> None:
    with Shown(browser, atlas_server) as shown:
        page = shown.page
        shown.add("legend-1.png", "map-19.png", "map-01.png")
        page.get_by_role("button", name="Picture 1 of 3").focus()
        page.keyboard.press("Alt+ArrowRight")
        assert shown.names == ["map-19.png", "legend-1.png", "map-01.png"]
        page.locator(".block").nth(1).drag_to(page.locator(".block").nth(0))
        assert shown.names == ["legend-1.png", "map-19.png", "map-01.png"]
        page.locator(".block").nth(0).click()
        page.get_by_role("button", name="Let it leave the context").click()
        page.get_by_role("button", name="New opening").click()
        assert shown.texts[:2] == ["desert ✓", "desert ✓"]
        page.get_by_role("button", name="Slide the window").click()
        assert len(shown.texts) == 3
        expect(page.locator(".block.slid")).to_have_count(2)
        page.get_by_role("button", name="a link").click()
        link = page.evaluate("navigator.clipboard.readText()")
        page.get_by_role("button", name="Python", exact=True).click()
        code = page.evaluate("navigator.clipboard.readText()")
        page.get_by_role("button", name="curl").click()
        command = page.evaluate("navigator.clipboard.readText()")
        assert not shown.faults
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    reply = json.loads(subprocess.run(command, shell=True, capture_output=True, check=True).stdout)
    assert said.strip() == reply["choices"][0]["message"]["content"]
    with Shown(browser, atlas_server, link=link.partition("/#")[2] and "#" + link.partition("/#")[2]) as again:
        expect(again.page.locator(".block")).to_have_count(3)
        assert again.names == ["legend-1.png", "map-19.png", "map-01.png"]
        expect(again.page.locator(".block.slid")).to_have_count(2)
        expect(again.page.locator(".opening")).to_contain_text("more pages , number")


def test_it_says_which_pictures_were_computed_and_why(browser: Any, atlas_server: Running) -> None:
    with Shown(browser, atlas_server) as shown:
        shown.add("map-19.png", "map-01.png")
        shown.page.get_by_label("make a new order ready").uncheck()
        shown.ask.click()
        assert len(shown.texts) == 3
        expect(shown.page.locator(".answer.full .misses")).to_have_count(0)
        told = shown.page.locator(".answer.auto .misses")
        expect(told).to_contain_text("1 picture computed: costs")
        told.locator("summary").click()
        expect(told).to_contain_text("Picture 2, 66 rows: costs, messages[0].content[1]: a second pass would cost")
        assert not shown.violations() and shown.fits() and not shown.faults


def test_the_keyboard_alone_asks_a_question(browser: Any, atlas_server: Running) -> None:
    with Shown(browser, atlas_server) as shown:

        def reach(start: str) -> None:
            for _ in range(120):
                shown.page.keyboard.press("Tab")
                focused = "[focused.ariaLabel, focused.textContent, focused.name].find((words) => words)"
                if str(shown.page.evaluate(f"{{const focused = document.activeElement; {focused}}}")).startswith(start):
                    return
            raise AssertionError(f"no Tab leads to {start}")

        reach("Open an atlas")
        shown.page.keyboard.press("Enter")
        expect(shown.page.locator(".block")).to_have_count(23)
        expect(shown.ask).to_be_enabled()
        reach("Picture 23 of 23")
        shown.page.keyboard.press("Delete")
        expect(shown.page.locator(".block")).to_have_count(22)
        reach("question")
        shown.page.keyboard.press("Control+A")
        shown.page.keyboard.type("on which land does the moon stand ?")
        shown.page.keyboard.press("Enter")
        assert shown.texts[:2] == ["meadow ✓", "meadow ✓"]
        reach("Dark")
        shown.page.keyboard.press("Space")
        expect(shown.page.locator("html")).to_have_attribute("data-scheme", "dark")


def test_what_fails_is_said(browser: Any, atlas_server: Running, tmp_path: Path) -> None:
    broken = tmp_path / "<b>broken.png"
    broken.write_bytes(b"PK\x03\x04 no picture")
    with Shown(browser, atlas_server, 390) as shown:
        page = shown.page
        page.set_input_files("input[type=file]", [broken])
        expect(page.locator(".shelf .error")).to_contain_text("<b>broken.png: ")
        page.locator(".block.broken").click()
        expect(page.locator(".chosen .error")).not_to_be_empty()
        assert shown.ask.is_disabled()
        page.get_by_role("button", name="Remove").click()
        shown.add("map-01.png")
        page.get_by_role("textbox", name="Question").fill("quux ?")
        shown.ask.click()
        expect(page.locator(".answer .warning", has_text="1 of 1 words are unknown")).to_have_count(3)
        refusal = '{"error": {"message": "7 wait"}}'
        page.route("**/v1/chat/completions", lambda route: route.fulfill(status=429, body=refusal))
        shown.ask.click()
        expect(page.locator(".answer .error", has_text="7 wait")).to_have_count(3)
        assert not shown.violations()
        page.unroute("**/v1/chat/completions")
        page.route("**/v1/**", lambda route: route.abort())
        shown.ask.click()
        expect(page.locator(".fault")).to_contain_text("the server is gone")
        assert not shown.violations() and shown.fits()
        page.unroute("**/v1/**")
        page.get_by_role("button", name="Try again").click()
        expect(page.locator(".fault")).to_have_count(0)
        page.get_by_role("button", name="Delete <b>broken.png").click()
        expect(page.locator(".shelf .error")).to_have_count(0)


def test_a_key_that_is_not_known_is_said(browser: Any, atlas_server: Running) -> None:
    with Shown(browser, atlas_server) as shown:
        asked = lambda route: (  # noqa: E731
            route.continue_() if route.request.headers.get("authorization") == "Bearer right"
            else route.fulfill(status=401, body='{"error": {"message": "give a key of this server"}}')
        )  # fmt: skip
        shown.page.route("**/v1/**", asked)
        shown.page.reload()
        expect(shown.page.get_by_label("This server needs a key")).to_be_visible()
        shown.page.get_by_label("This server needs a key").fill("wrong")
        shown.page.get_by_role("button", name="Use it").click()
        expect(shown.page.locator(".fault .error")).to_have_text("that key is not known")
        assert not shown.violations()
        shown.page.get_by_label("This server needs a key").fill("right")
        shown.page.get_by_role("button", name="Use it").click()
        expect(shown.page.locator(".fault")).to_have_count(0)


def test_a_page_opened_while_the_model_loads_becomes_ready(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, end = Service.open, threading.Event()

    async def later(settings: Any) -> Service:
        while not end.is_set():
            await asyncio.sleep(0.01)
        return await load(settings)

    monkeypatch.setattr(Service, "open", later)
    with started(tmp_path) as server, Shown(browser, server) as shown:
        expect(shown.page.locator(".fault")).to_contain_text("the model is being loaded")
        end.set()
        expect(shown.page.locator(".fault")).to_have_count(0)
        expect(shown.page.get_by_role("button", name="Open an atlas")).to_be_enabled()


def test_a_slow_answer_is_seen_to_run(browser: Any, atlas_server: Running) -> None:
    with Shown(browser, atlas_server) as shown:
        shown.add("map-01.png")
        waiting: list[Any] = []
        shown.page.route("**/v1/chat/completions", lambda route: waiting.append(route))
        shown.ask.click()
        expect(shown.page.locator(".answer.auto .time")).to_have_text("running …")
        assert shown.ask.is_disabled()
        for count in (1, 2, 3):
            waiting.pop().continue_()
            expect(shown.page.locator(".answer .key")).to_have_count(count)


def test_what_is_kept_can_be_used_and_deleted(browser: Any, atlas_server: Running) -> None:
    with Shown(browser, atlas_server) as shown:
        shown.page.set_input_files("input[type=file]", [DEMO / "clip.mp4"])
        expect(shown.page.get_by_role("button", name="Use clip.mp4")).to_be_enabled()
        shown.page.get_by_role("button", name="Clear the prompt").click()
        shown.page.get_by_role("button", name="Use clip.mp4").click()
        assert shown.names == ["clip.mp4"]
        shown.page.get_by_role("button", name="Delete clip.mp4").click()
        expect(shown.page.locator(".block")).to_have_count(0)
        assert not shown.faults
