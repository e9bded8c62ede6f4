"""The page in a browser: pictures come in, are moved in three ways, and two answers stand beside each other."""

import os
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="no playwright: pip install playwright")

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

from tests.serve.servers import Running

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


class Shown:
    """The page at one width, and everything that went wrong or elsewhere."""

    def __init__(self, browser: Any, server: Running, width: int) -> None:
        self.faults: list[str] = []
        self.elsewhere: list[str] = []
        self.page = browser.new_page(viewport={"width": width, "height": 900})
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda line: self.faults.append(line.text) if line.type == "error" else None)
        self.page.on("request", lambda request: self._requested(request.url, server.address))
        self.page.goto(server.address)
        self.page.wait_for_selector("h1")

    def _requested(self, url: str, address: str) -> None:
        if not url.startswith((address, "blob:", "data:")):
            self.elsewhere.append(url)

    def names(self) -> list[str]:
        """Return the pictures in their order."""
        labels = self.page.locator(".strip li").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
        return [label.rpartition(": ")[2] for label in labels]

    def add(self, *names: str) -> None:
        """Choose files, and wait until they are kept."""
        self.page.set_input_files("input[type=file]", [DEMO / name for name in names])
        expect(self.page.locator(".strip .state", has_text="kept")).to_have_count(len(names))


@pytest.mark.parametrize("width", [1280, 360])
def test_pictures_are_moved_and_asked_about(browser: Any, server: Running, width: int, tmp_path: Path) -> None:
    shown = Shown(browser, server, width)
    page = shown.page
    shown.add("legend-3.png", "map-01.png", "legend-1.png")
    first, second, third = shown.names()
    page.get_by_role("button", name=f"Move {first} right").click()
    assert shown.names() == [second, first, third]
    page.locator(".strip li").nth(1).focus()
    page.keyboard.press("Alt+ArrowLeft")
    assert shown.names() == [first, second, third]
    if width > 1000:
        page.locator(".strip li").nth(0).drag_to(page.locator(".strip li").nth(2))
        assert shown.names() == [second, third, first]
        page.get_by_role("button", name=f"Move {first} left").click()
        page.get_by_role("button", name=f"Move {first} left").click()
    page.get_by_role("button", name="Ask both ways").click()
    expect(page.locator(".answer .text")).to_have_count(2)
    assert page.locator(".answer .text").all_inner_texts() == ["meadow", "meadow"]
    # Only the last of these makes a prompt that no earlier one may begin with.
    for preset in ("Swap two", "New combination", "Slide the window", "New opening"):
        # The last of the two answers is that of `full`.
        with page.expect_response(lambda answer: '"full"' in (answer.request.post_data or "")):
            page.get_by_role("button", name=preset).click()
        expect(page.locator(".answer .text")).to_have_count(2)
    assert len(shown.names()) == 2
    assert page.locator(".answer").nth(0).locator(".lane").inner_text() == "lane full"
    assert page.locator(".answer").nth(1).locator(".lane").inner_text() != "lane auto:prefix", (
        "it took the other's prompt"
    )
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (
        "the page is wider than its window"
    )
    page.screenshot(path=tmp_path / f"page-{width}.png", full_page=True)
    assert not shown.faults and not shown.elsewhere
    page.close()


def test_what_fails_is_said(browser: Any, server: Running, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"PK\x03\x04 no picture")
    shown = Shown(browser, server, 1280)
    shown.page.set_input_files("input[type=file]", [broken])
    shown.page.wait_for_selector("li.broken")
    assert "broken.png" in shown.names()[0]
    assert shown.page.get_by_role("button", name="Ask both ways").is_disabled()
    shown.page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(status=429, body='{"error": {"message": "7 wait"}}')
    )
    shown.add("map-01.png")
    shown.page.get_by_role("button", name="Ask both ways").click()
    shown.page.wait_for_selector(".answer .error")
    assert shown.page.locator(".answer .error").first.inner_text() == "7 wait"
    shown.page.close()


def test_a_slow_answer_is_seen_to_run(browser: Any, server: Running) -> None:
    shown = Shown(browser, server, 1280)
    shown.add("map-01.png")
    waiting: list[Any] = []
    shown.page.route("**/v1/chat/completions", lambda route: waiting.append(route))
    shown.page.get_by_role("button", name="Ask both ways").click()
    expect(shown.page.locator(".answer .time").last).to_have_text("running …")
    assert shown.page.get_by_role("button", name="Ask both ways").is_disabled()
    waiting.pop().continue_()
    expect(shown.page.locator(".answer .text")).to_have_count(1)
    waiting.pop().continue_()
    expect(shown.page.locator(".answer .text")).to_have_count(2)
    shown.page.close()


def test_what_is_kept_can_be_used_and_deleted(browser: Any, server: Running) -> None:
    shown = Shown(browser, server, 1280)
    shown.add("map-05.png")
    shown.page.reload()
    shown.page.get_by_role("button", name="map-05.png", exact=True).click()
    shown.page.wait_for_selector(".strip li img")
    assert shown.names() == ["map-05.png"]
    shown.page.get_by_role("button", name="Delete map-05.png").click()
    expect(shown.page.locator(".strip li")).to_have_count(0)
    assert not shown.faults
    shown.page.close()


@pytest.mark.parametrize("width", [1280, 360])
def test_everyone_can_use_the_page(browser: Any, server: Running, width: int) -> None:
    """axe finds no serious fault: before anything was done, and with pictures, answers and an error on the page."""
    shown = Shown(browser, server, width)

    def faults() -> list[str]:
        found = Axe().run(shown.page).response["violations"]
        return [
            f"{fault['id']}: {fault['help']}: {[node['html'] for node in fault['nodes']]}"
            for fault in found if fault["impact"] in ("serious", "critical")
        ]  # fmt: skip

    assert not faults()
    shown.add("legend-3.png", "map-01.png")
    shown.page.get_by_role("button", name="Ask both ways").click()
    expect(shown.page.locator(".answer .text")).to_have_count(2)
    assert not faults()
    shown.page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(status=429, body='{"error": {"message": "7 wait"}}')
    )
    shown.page.get_by_role("button", name="Ask both ways").click()
    shown.page.wait_for_selector(".answer .error")
    assert not faults()
    shown.page.close()
