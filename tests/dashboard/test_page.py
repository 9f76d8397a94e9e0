"""The page in a real browser: every panel, several queries at once, and nothing in its console."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from icestream.dashboard.query_list import BOARD_ROWS, QueryList
from icestream.dashboard.server import DashboardServer
from icestream.demo.call_centre.display import CallCenterStatus, figure_rows
from icestream.demo.call_centre.kpis import ALL, GROUPINGS, WHOLE, group_name
from icestream.runtime.version.history import NEWER, QueryHistory
from tests.fixtures.histories import PLANS, reports, write_history

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

COMMON = {
    "memory": "Memory against budget",
    "rate": "Events per second",
    "phases": "Where a version's time goes",
    "log": "The log",
    "cleaning": "Written and cleaned",
    "operators": "Hot, cold and on disk",
    "lag": "Watermark and lag",
    "key-groups": "Key groups by shard",
    "shards": "Shards by load",
    "plan": "Plan",
}
OWN = {
    "windows": {"choice": "Panes or tuples"},
    "groups": {
        "cold": "Groups leaving memory and coming back",
        "requests": "Requests to the object store",
    },
    "joins": {
        "spills": "Spills and clean-up",
        "owed": "Results of joins, early and late",
        "owing": "Partitions that owe results",
    },
    "updates": {
        "staleness": "Staleness of answers",
        "waiting": "Updates served and waiting",
    },
}


class Tab:
    """A tab of the browser with all that its console said."""

    def __init__(self, tab: Any) -> None:
        self.tab = tab
        self.said: list[str] = []
        tab.on("console", lambda message: self.said.append(message.text))
        tab.on("pageerror", lambda error: self.said.append(str(error)))
        tab.on("requestfailed", lambda request: self.said.append(f"failed: {request.url}"))

    def open(self, page: DashboardServer, name: str | None = None) -> Any:
        self.tab.goto(page.url)
        self.tab.wait_for_selector("#queries button")
        if name is not None:
            self.tab.click(f"#queries button:has-text('{name}')")
            self.tab.wait_for_selector(f"#name:text-is('{name}')")
        return self.tab

    def panels(self) -> dict[str, str]:
        """Return the titles of the panels on the page by their ids."""
        found = self.tab.eval_on_selector_all(
            ".panel", "all => all.map(each => [each.id, each.querySelector('h3').textContent])"
        )
        return {name.removeprefix("panel-"): title for name, title in found}


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def new_tab(browser: Any) -> Iterator[Callable[..., Tab]]:
    contexts: list[Any] = []

    def make(**options: Any) -> Tab:
        size = {"width": 1366, "height": 768}
        contexts.append(browser.new_context(**{"viewport": size, **options}))
        return Tab(contexts[-1].new_page())

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def tab(new_tab: Callable[..., Tab]) -> Tab:
    return new_tab()


@pytest.mark.parametrize("kind", list(OWN))
def test_each_kind_of_query_shows_its_panels_and_no_others(
    page: DashboardServer, tab: Tab, kind: str
) -> None:
    shown = tab.open(page, kind)
    shown.wait_for_selector("#panel-plan svg")
    assert tab.panels() == {**COMMON, **OWN[kind]}
    assert tab.said == []


@pytest.mark.parametrize("kind", list(OWN))
def test_each_chart_draws_what_it_tells(page: DashboardServer, tab: Tab, kind: str) -> None:
    shown = tab.open(page, kind)
    shown.wait_for_selector("#panel-plan svg")
    charts = shown.eval_on_selector_all(
        ".panel .figure > svg.chart",
        """all => all.map(svg => ({
            label: svg.getAttribute('aria-label'),
            shapes: [...svg.querySelectorAll('.line, .bar, .area')].map(e => e.getAttribute('d')),
            ticks: [...svg.querySelectorAll('.tick')].map(e => e.textContent),
        }))""",
    )
    assert len(charts) >= 6
    for chart in charts:
        assert "Last: " in chart["label"]
        assert any(len(shape) > 60 for shape in chart["shapes"])
        text = " ".join([chart["label"], *chart["shapes"], *chart["ticks"]])
        assert not re.search(r"NaN|undefined|Infinity|null", text), text
        assert len(chart["ticks"]) >= 5


def test_memory_is_shown_against_the_budget(page: DashboardServer, tab: Tab) -> None:
    shown = tab.open(page, "windows")
    shown.wait_for_selector("#panel-memory .limit", state="attached")
    assert shown.text_content("#panel-memory .limit-text") == "budget 64 MB"
    line = shown.eval_on_selector("#panel-memory .limit", "e => +e.getAttribute('y1')")
    assert 10 <= line < 168


def test_operators_show_what_is_hot_cold_and_on_disk(page: DashboardServer, tab: Tab) -> None:
    shown = tab.open(page, "groups")
    shown.wait_for_selector("#panel-operators .lying-row")
    rows = shown.locator("#panel-operators .lying-row")
    assert rows.count() == 2
    assert re.search(r"[\d.]+ MB in memory, [\d.]+ MB on disk", rows.nth(0).inner_text())
    assert "known on disk only" in rows.nth(0).inner_text()
    assert rows.nth(0).locator("rect").count() == 3


def test_the_choice_of_a_plan_is_shown_with_estimate_and_reality(
    page: DashboardServer, tab: Tab
) -> None:
    shown = tab.open(page, "windows")
    shown.wait_for_selector("#panel-choice .lying-row")
    assert "31 MB estimated; chosen" in shown.inner_text("#panel-choice .chosen")
    said = shown.inner_text("#panel-choice .said")
    assert re.search(r"estimated 29 MB, logged [\d.]+ .B, [\d.]+ times the estimate", said)


def test_shards_are_a_heat_map_of_a_measure_with_rings_for_moves(
    page: DashboardServer, tab: Tab
) -> None:
    shown = tab.open(page, "groups")
    shown.wait_for_selector("#panel-shards .cell")
    assert shown.locator("#panel-shards .cell").count() == 16 * 60
    assert shown.locator("#panel-shards .moved").count() > 0
    before = shown.inner_text("#panel-shards .said")
    shown.click("#panel-shards label:has-text('memory')")
    assert shown.inner_text("#panel-shards .said") != before
    assert "MB" in shown.inner_text("#panel-shards .said")
    shown.hover("#panel-shards .cell >> nth=3")
    assert "shard 0" in shown.inner_text("#tip")


def test_key_groups_are_cells_by_shard_and_task_with_frames_for_moves(
    page: DashboardServer, tab: Tab
) -> None:
    shown = tab.open(page, "groups")
    shown.wait_for_selector("#panel-key-groups .key-group")
    assert shown.locator("#panel-key-groups .key-group").count() == 256
    assert shown.locator("#panel-key-groups .shard-begins").count() == 8
    heaviest = shown.eval_on_selector_all(
        "#panel-key-groups .key-group",
        """all => all.findIndex(cell => +cell.getAttribute('fill-opacity') === Math.max(
            ...all.map(each => +each.getAttribute('fill-opacity'))))""",
    )
    label = shown.get_attribute("#panel-key-groups svg", "aria-label")
    assert f"most in key group {heaviest} of shard {heaviest // 32}" in label
    shown.hover("#panel-key-groups .key-group >> nth=40")
    assert re.search(r"key group 40 · version 60", shown.inner_text("#tip"))
    assert re.search(r"shard\s+1", shown.inner_text("#tip"))
    said = shown.inner_text("#panel-key-groups .said")
    assert re.search(r"shard \d from task \d to \d at version 50", said)


def test_the_key_groups_of_a_shard_that_just_moved_are_framed(tmp_path: Path, tab: Tab) -> None:
    history = QueryHistory(str(tmp_path), {"name": "moving", "shards": 4})
    history.start()
    for report in reports("windows", 26):
        history.progress(report)
    with DashboardServer(QueryList([str(tmp_path)])) as page:
        shown = tab.open(page)
        shown.wait_for_selector("#panel-key-groups .moved")
        assert shown.locator("#panel-key-groups .moved").count() == 2 * 64
    assert tab.said == []


def test_the_plan_has_a_box_for_each_component_and_arrows_between(
    page: DashboardServer, tab: Tab
) -> None:
    shown = tab.open(page, "groups")
    shown.wait_for_selector("#panel-plan .box")
    titles = shown.eval_on_selector_all(".box-title", "all => all.map(e => e.textContent)")
    assert titles == ["source 0", "component 0", "component 1", "result 0"]
    assert shown.locator("#panel-plan .arrow").count() == 3
    assert "in memory" in shown.locator("#panel-plan .box-note").first.text_content()


def test_components_that_share_a_task_say_so(tmp_path: Path, tab: Tab) -> None:
    history = QueryHistory(str(tmp_path), {"name": "job", "plan": PLANS["groups"], "shards": 4})
    history.start()
    with DashboardServer(QueryList([str(tmp_path)])) as page:
        for report, together in zip(reports("groups", 2), ([[0], [1]], [[0, 1]]), strict=True):
            report["icestream"]["fusedComponents"] = together
            history.progress(report)
            shown = tab.open(page)
            shown.wait_for_selector("#panel-plan .box")
            notes = shown.eval_on_selector_all(".box-note", "all => all.map(e => e.textContent)")
            reported = [note for note in notes if "one task with" in note]
            assert len(reported) == (2 if len(together) == 1 else 0)
            tab.tab.goto("about:blank")
    assert tab.said == []


def test_values_show_where_the_pointer_is_in_all_charts(page: DashboardServer, tab: Tab) -> None:
    shown = tab.open(page, "windows")
    shown.wait_for_selector("#panel-memory svg .cross", state="attached")
    shown.hover("#panel-memory svg.chart")
    reported = shown.inner_text("#tip")
    assert re.search(r"version [23]\d", reported)
    assert re.search(r"held\s+[\d.]+ MB", reported)
    at = [
        shown.eval_on_selector(f"#panel-{name} .cross", "e => e.getAttribute('visibility')")
        for name in ("memory", "rate", "log")
    ]
    assert at == ["visible"] * 3
    shown.mouse.move(2, 2)
    assert shown.is_hidden("#tip")


def test_everything_is_reached_with_the_keyboard(page: DashboardServer, tab: Tab) -> None:
    shown = tab.open(page, "windows")
    shown.wait_for_selector("#panel-plan svg")
    shown.evaluate("document.activeElement.blur()")
    seen = []
    for _ in range(60):
        shown.keyboard.press("Tab")
        seen.append(
            shown.evaluate(
                """() => { const e = document.activeElement; return e.id || e.name ||
                   e.closest('.panel')?.id || e.closest('nav')?.id || e.tagName; }"""
            )
        )
    assert {"side", "range", "panel-memory", "panel-phases", "measure", "panel-plan"} <= set(seen)
    shown.focus("#panel-memory svg.chart")
    shown.keyboard.press("End")
    assert "version 60" in shown.inner_text("#tip")
    shown.keyboard.press("ArrowLeft")
    assert "version 59" in shown.inner_text("#tip")
    shown.keyboard.press("Escape")
    assert shown.is_hidden("#tip")
    shown.focus("#queries button")
    shown.keyboard.press("ArrowDown")
    shown.keyboard.press("Enter")
    shown.wait_for_selector("#name:text-is('updates')")


def test_a_series_can_be_left_out(page: DashboardServer, tab: Tab) -> None:
    shown = tab.open(page, "updates")
    shown.wait_for_selector("#panel-staleness .line")
    lines = shown.locator("#panel-staleness .line").count()
    shown.click("#panel-staleness .legend button:has-text('longest')")
    assert shown.locator("#panel-staleness .line").count() == lines - 1


def test_three_queries_that_run_are_followed_at_once(tmp_path: Path, tab: Tab) -> None:
    kinds = ("windows", "groups", "updates")
    histories = {
        kind: QueryHistory(str(tmp_path / kind), {"name": kind, "shards": 4}) for kind in kinds
    }
    reported = {kind: reports(kind, 40) for kind in kinds}
    for kind in kinds:
        histories[kind].start()
        for _ in range(3):
            histories[kind].progress(next(reported[kind]))
    with DashboardServer(QueryList([str(tmp_path)])) as page:
        shown = tab.open(page)
        shown.wait_for_selector("#link:text-is('3 running')")
        assert shown.locator("#queries button").count() == 3
        for kind in kinds:
            shown.click(f"#queries button:has-text('{kind}')")
            shown.wait_for_selector(f"#name:text-is('{kind}')")
            shown.wait_for_selector("#about:has-text('3 versions')")
            histories[kind].progress(next(reported[kind]))
            shown.wait_for_selector("#about:has-text('4 versions')", timeout=4000)
        histories["groups"].end(RuntimeError("the disk is full"))
        shown.click("#queries button:has-text('groups')")
        shown.wait_for_selector("#state:text-is('failed')")
        assert shown.inner_text("#error") == "RuntimeError: the disk is full"
        assert len(tab.panels()) > 5
    assert tab.said == []


def test_all_figures_of_the_call_centres_are_a_table_on_the_page(tmp_path: Path, tab: Tab) -> None:
    status = CallCenterStatus(1000, 0, 86_400_000_000, "24 hours", "10 seconds", ALL)
    values = {figure.column: 7_200 for figure in WHOLE}
    status.rows = [
        {**dict.fromkeys(GROUPINGS), **values, key: place + 1, "calls": 5_000 + place}
        for place, key in enumerate(GROUPINGS)
    ]
    checkpoint = str(tmp_path / "calls")
    write_history(checkpoint, "windows", 5, ended=False)
    with DashboardServer(QueryList([checkpoint])) as page:
        page.library.show(checkpoint, figure_rows(status, BOARD_ROWS))
        shown = tab.open(page)
        shown.wait_for_selector("#panel-board table")
        heads = shown.locator("#panel-board thead th").all_inner_texts()
        rows = shown.eval_on_selector_all(
            "#panel-board tbody tr", "all => all.map(row => [...row.cells].map(c => c.textContent))"
        )
        table = shown.locator("#panel-board table").bounding_box()
        panel = shown.locator("#panel-board .figure").bounding_box()
    assert heads == [
        "busiest of each key",
        *(group_name(k, n + 1) for n, k in enumerate(GROUPINGS)),
    ]
    assert rows[0] == ["calls", *(f"5,00{place}" for place in range(8))]
    assert [row[0] for row in rows] == [figure.title for figure in WHOLE]
    assert sum(len(row) - 1 for row in rows) == 104
    assert table["width"] <= panel["width"]
    assert tab.said == []


def test_a_table_of_many_rows_leaves_room_for_charts(
    tmp_path: Path, new_tab: Callable[..., Tab]
) -> None:
    checkpoint = str(tmp_path / "calls")
    write_history(checkpoint, "windows", 5, ended=False)
    tab = new_tab(viewport={"width": 1280, "height": 720})
    with DashboardServer(QueryList([checkpoint])) as page:
        page.library.show(checkpoint, [{"k": f"k{at}", "n": at} for at in range(BOARD_ROWS)])
        shown = tab.open(page)
        shown.wait_for_selector("#panel-board table")
        height = shown.locator("#panel-board").bounding_box()["height"]
        cut = shown.eval_on_selector_all(
            ".tile small", "all => all.filter(e => e.scrollWidth > e.clientWidth).length"
        )
    assert height < 500
    assert cut == 0


def test_the_page_says_so_when_nobody_answers_and_keeps_what_it_knows(
    checkpoints: Path, tab: Tab
) -> None:
    with DashboardServer(QueryList([str(checkpoints)])) as page:
        tab.open(page, "windows").wait_for_selector("#panel-memory")
    tab.tab.wait_for_selector("#link.gone", timeout=20_000)
    assert "memory" in tab.panels()


def test_a_page_without_queries_says_how_to_get_one(tab: Tab, tmp_path: Path) -> None:
    with DashboardServer(QueryList([str(tmp_path)])) as page:
        tab.tab.goto(page.url)
        tab.tab.wait_for_selector("#empty:not([hidden])")
        assert "icestream ui" in tab.tab.inner_text("#empty")
        write_history(str(tmp_path / "one"), "windows", 2, ended=False)
        tab.tab.wait_for_selector("#panel-memory", timeout=5000)
    assert [said for said in tab.said if "ERR_CONNECTION" not in said] == []


def test_names_from_a_checkpoint_are_text_and_nothing_else(tmp_path: Path, tab: Tab) -> None:
    evil = "<img src=x onerror=alert(1)>"
    write_history(str(tmp_path), "groups", 3, ended=False)
    path = tmp_path / "history" / NEWER
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0] |= {"name": evil}
    lines[0]["plan"]["sources"][0]["name"] = evil
    lines[1]["durationMs"][evil] = 50
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with DashboardServer(QueryList([str(tmp_path)])) as page:
        shown = tab.open(page)
        shown.wait_for_selector("#panel-plan .box")
        assert shown.inner_text("#name") == evil
        assert shown.locator("main img").count() == 0
    assert tab.said == []


def test_records_with_anything_missing_are_shown_as_far_as_they_go(
    tmp_path: Path, tab: Tab
) -> None:
    history = QueryHistory(str(tmp_path), {"name": "odd"})
    history.start()
    odd: list[dict[str, Any]] = [
        {},
        {"operators": [], "shards": {}},
        {"shards": None, "joins": [], "updates": {}},
        {"logBytes": None, "stateMemoryBytes": 5, "budgetBytes": 0, "watermark": "soon"},
    ]
    for version, own in enumerate(odd):
        history.progress({"version": version, "timestamp": "?", "icestream": own})
    with DashboardServer(QueryList([str(tmp_path)])) as page:
        shown = tab.open(page)
        shown.wait_for_selector("#about:has-text('4 versions')")
        shown.wait_for_timeout(300)
    assert [said for said in tab.said if "ERR_CONNECTION" not in said] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_light_and_dark(
    page: DashboardServer, new_tab: Callable[..., Tab], scheme: str
) -> None:
    tab = new_tab(color_scheme=scheme)
    shown = tab.open(page, "groups")
    shown.wait_for_selector("#panel-memory .tick")
    colours = shown.evaluate(
        """() => {
            const read = (s, of) => getComputedStyle(document.querySelector(s))[of];
            return [[read('h3', 'color'), read('.panel', 'backgroundColor')],
                    [read('.panel-about', 'color'), read('.panel', 'backgroundColor')],
                    [read('.tick', 'fill'), read('.panel', 'backgroundColor')],
                    [read('#about', 'color'), read('body', 'backgroundColor')],
                    [read('.badge', 'color'), read('body', 'backgroundColor')]];
        }"""
    )
    for front, back in colours:
        assert contrast(front, back) >= 4.5, (front, back)
    dark = luminance(colours[0][1]) < 0.2
    assert dark == (scheme == "dark")


def test_the_page_fits_a_small_laptop_and_a_telephone(
    page: DashboardServer, new_tab: Callable[..., Tab]
) -> None:
    for width in (1280, 420):
        tab = new_tab(viewport={"width": width, "height": 720})
        shown = tab.open(page, "joins")
        shown.wait_for_selector("#panel-plan svg")
        assert shown.evaluate("document.documentElement.scrollWidth") <= width


def test_bounded_the_first_paint_takes_less_than_a_second(
    page: DashboardServer, new_tab: Callable[..., Tab]
) -> None:
    paints = []
    for _ in range(3):
        shown = new_tab().open(page)
        shown.wait_for_selector(".panel")
        paints.append(
            shown.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        )
    assert min(paints) < 1000, paints


def test_nothing_is_asked_of_anyone_else(page: DashboardServer, tab: Tab) -> None:
    asked: list[str] = []
    tab.tab.on("request", lambda request: asked.append(request.url))
    tab.open(page, "windows").wait_for_selector("#panel-plan svg")
    assert asked
    assert all(address.startswith(page.url) for address in asked)


def luminance(colour: str) -> float:
    parts = [int(each) / 255 for each in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(front: str, back: str) -> float:
    lighter, darker = sorted((luminance(front), luminance(back)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)
