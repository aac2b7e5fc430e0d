"""The report of a replay, looked at in a headless browser: light and dark, narrow and wide."""

from __future__ import annotations

import copy
import json
import math
import re

import browser
import pytest

from prefixcache.replay import document
from prefixcache.replay.cli import main
from prefixcache.replay.page import render

WIDTHS = (400, 1400)
SCHEMES = ("light", "dark")

# Every visible text against what is behind it, and every line of a chart likewise: those
# below WCAG's 4.5 (text) and 3 (graphics).
CONTRAST = """(() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => numbers(colour).slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (let n = node; n instanceof Element; n = n.parentElement) {
      const colour = numbers(getComputedStyle(n).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return getComputedStyle(n).backgroundColor;
    }
    return "rgb(255, 255, 255)";
  };
  const ratio = (a, b) => {
    const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const found = [];
  let seen = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || node.closest("script, style") || !node.getClientRects().length) continue;
    const style = getComputedStyle(node);
    const value = ratio(node instanceof SVGElement ? style.fill : style.color, behind(node));
    seen += 1;
    if (!(value >= 4.5)) found.push(`${walker.currentNode.data.trim().slice(0, 30)}: ${value.toFixed(2)}`);
  }
  for (const node of document.querySelectorAll("svg .line, svg circle")) {
    const value = ratio(getComputedStyle(node).stroke, behind(node));
    seen += 1;
    if (!(value >= 3)) found.push(`line ${node.getAttribute("class")}: ${value.toFixed(2)}`);
  }
  return { seen, found };
})()"""

# What leaves the window or its chart, and labels that lie on each other.
LAYOUT = """(() => {
  const found = [];
  const root = document.documentElement;
  if (root.scrollWidth > innerWidth) found.push(`the page is ${root.scrollWidth} wide in a window of ${innerWidth}`);
  const name = (node) => `${node.tagName} ${node.textContent.trim().slice(0, 30)}`;
  for (const node of document.body.querySelectorAll("*")) {
    const box = node.getBoundingClientRect();
    if (box.width && (box.left < -0.5 || box.right > innerWidth + 0.5)) found.push(`outside the window: ${name(node)}`);
    const frame = node.closest("figure")?.getBoundingClientRect();
    if (frame && box.width && (box.left < frame.left - 0.5 || box.right > frame.right + 0.5)) found.push(`outside its figure: ${name(node)}`);
  }
  for (const svg of document.querySelectorAll("svg[role=img]")) {
    const frame = svg.getBoundingClientRect();
    const boxes = [...svg.querySelectorAll("text")].map((node) => [node, node.getBoundingClientRect()]);
    boxes.forEach(([node, a], i) => {
      if (a.left < frame.left - 0.5 || a.right > frame.right + 0.5 || a.top < frame.top - 0.5 || a.bottom > frame.bottom + 0.5) found.push(`cut off: ${name(node)}`);
      for (const [other, b] of boxes.slice(i + 1)) {
        // The boxes of letters have room above and below.
        if (a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom) found.push(`${name(node)} on ${name(other)}`);
      }
    });
  }
  return found;
})()"""

CHARTS = """[...document.querySelectorAll("[data-chart]")].map((plot) => ({
  title: plot.dataset.title,
  paths: [...plot.querySelectorAll("svg[role=img] path")].map((path) => path.getAttribute("d")),
  labels: [...plot.querySelectorAll("svg[role=img] text")].map((node) => node.textContent),
  key: [...plot.querySelectorAll("li")].map((node) => node.textContent),
  table: plot.closest("figure").querySelectorAll("tbody tr").length,
  name: plot.querySelector("svg[role=img]").getAttribute("aria-label"),
}))"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def tab():
    with browser.Browser() as tab:
        yield tab


@pytest.fixture(scope="module")
def saved(folder):
    """A run of both parts, one of the context part in a smaller pool, and a sweep."""
    runs = {}
    for name, arguments in {
        "whole": ["--blocks", "3000", "--batch", "8"],
        "small": ["--part", "context", "--pages", "600"],
        "sweep": ["--sweep", "pages=500:16000:x2"],
    }.items():
        path = folder / f"{name}.json"
        code = main(
            ["--requests", "60", "--quiet", "--json", str(path), "--report", str(folder / f"{name}.html"), *arguments]
        )
        assert code == 0
        runs[name] = path
    return runs


@pytest.fixture(scope="module")
def pages(folder, saved):
    """Reports: of one run, of two that are compared, of a sweep and of two."""
    path = folder / "compared.html"
    arguments = ["--part", "context", "--requests", "60", "--quiet", "--compare", str(saved["small"])]
    assert main([*arguments, "--report", str(path)]) == 0
    sweeps = folder / "sweeps.html"
    arguments = ["--sweep", "tokens=50k:1M:x3", "--page", "16", "--requests", "60", "--quiet"]
    assert main([*arguments, "--compare", str(saved["sweep"]), "--report", str(sweeps)]) == 0
    return {"whole": folder / "whole.html", "compared": path, "sweep": folder / "sweep.html", "sweeps": sweeps}


@pytest.mark.parametrize("page", ["whole", "compared", "sweep", "sweeps"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_page_is_whole_readable_and_quiet(tab, pages, page, width, scheme):
    tab.open(pages[page], width=width, scheme=scheme)
    assert tab.complaints() == []
    assert tab.run(LAYOUT) == []
    contrast = tab.run(CONTRAST)
    assert contrast["seen"] > 30
    assert contrast["found"] == []
    dark = tab.run("getComputedStyle(document.body).backgroundColor").startswith("rgb(19,")
    assert dark == (scheme == "dark")
    charts = tab.run(CHARTS)
    assert len(charts) == {"whole": 12, "compared": 6, "sweep": 1, "sweeps": 1}[page]
    for chart in charts:
        assert chart["paths"], chart
        assert all(path and "NaN" not in path for path in chart["paths"]), chart
        assert not any("NaN" in label or "undefined" in label for label in chart["labels"]), chart
        assert chart["table"] > 0, "the numbers stand beside the chart"
        assert chart["title"] in chart["name"]


def test_charts_follow_the_window_and_the_pointer(tab, pages):
    tab.open(pages["sweep"], width=1400)
    wide = tab.run("document.querySelector('svg[role=img]').viewBox.baseVal.width")
    tab.tab("Emulation.setDeviceMetricsOverride", width=500, height=900, deviceScaleFactor=1, mobile=False)
    tab.until(lambda: tab.run("document.querySelector('svg[role=img]').viewBox.baseVal.width") != wide)
    assert 300 < tab.run("document.querySelector('svg[role=img]').viewBox.baseVal.width") < wide
    assert tab.run(LAYOUT) == []
    tab.tab("Input.dispatchMouseEvent", type="mouseMoved", x=300, y=tab.run(
        "document.querySelector('svg[role=img]').getBoundingClientRect().top + 80"))  # fmt: skip
    said = tab.run("document.querySelector('.read').textContent")
    assert re.match(r"pages [\d,]+: library [\d.]+ %, least-recent bound [\d.]+ %, optimal bound [\d.]+ %$", said), said


def test_faults_of_a_page_are_seen(tab, folder, pages):
    """The checks above can fail: each is shown a page that has its fault."""
    text, path = pages["sweep"].read_text(), folder / "faulty.html"
    for old, new, check, fault in (
        ("<h2>", "<h2 style='width:900px'>", LAYOUT, "outside the window: H2"),
        ("RIGHT = 12", "RIGHT = -20", LAYOUT, "cut off"),
        ("HEIGHT - 4,", "HEIGHT - 23,", LAYOUT, " on text pages"),
        ("--quiet: #555c65", "--quiet: #999999", CONTRAST, "hit tokens of prompt tokens: 2.8"),
        ("--one: #1d5fc2", "--one: #cfd8e8", CONTRAST, "line line colour1"),
    ):
        assert old in text
        path.write_text(text.replace(old, new))
        tab.open(path, width=400)
        found = tab.run(check)
        assert any(fault in f for f in (found["found"] if check is CONTRAST else found)), (fault, found)
    for script, complaint in (
        ("console.error('x')", "x"),
        ("throw new Error('gone')", "gone"),
        ("new Image().src = 'https://example.org/x.png'", "requested https://example.org"),
        ("document.body.append(Object.assign(document.createElement('script'), {src: 'x.js'}))", "x.js"),
    ):
        path.write_text(text.replace('"use strict";', script + ";", 1))
        tab.open(path, width=400)
        tab.until(lambda text=complaint: any(text in found for found in tab.complaints()))


def test_page_stands_alone(pages):
    for path in pages.values():
        text = path.read_text()
        assert set(re.findall(r"[a-z]+://[^\"' )]+", text)) <= {"http://www.w3.org/2000/svg"}
        assert not re.search(r"<link(?![^>]*data:,)|<script[^>]*src|@import|url\(", text)
        assert text.count("<html") == text.count("</html>") == 1


def test_names_are_text_wherever_they_come_from(tab, folder, saved):
    """A file name, or a saved run from somebody else, cannot put anything into the page."""
    bad = "</script><img src=x onerror=document.title='owned'>\"'&"
    run = document.load(saved["small"])
    run["trace"]["source"] = run["library"] = run["parts"]["context"]["verdict"] = bad
    context = run["parts"]["context"]
    context["pool"]["unit"] = bad
    for name in ("options", "figures", "reasons"):
        context[name] = {bad: 1, **context[name]}
    context["latencies"] = {bad: context["latencies"]["begin"]}
    path = folder / "bad.html"
    path.write_text(render(run, copy.deepcopy(run), bad))
    tab.open(path, width=1400)
    assert tab.complaints() == []
    assert tab.run("document.querySelectorAll('img').length") == 0
    assert tab.run("document.title") == f"Prefix cache replay: {bad}"
    assert tab.run("document.querySelector('header b').nextSibling.data").startswith(f": {bad}")


def test_figures_of_the_page_are_those_of_the_run(saved, pages):
    text = pages["whole"].read_text()
    run = document.load(saved["whole"])
    for part in run["parts"].values():
        assert f"<td>{100 * part['figures']['hit rate']:.2f} %" in text
        last = part["series"]["trace_ms"][-1]
        assert last > 0
        assert f"<td>0:{round(last / 1000) // 60:02}:{round(last / 1000) % 60:02}<td>" in text
        assert f"<td>{part['figures']['prompt tokens']:,}" in text
        assert f"<td>{part['latencies'][next(iter(part['latencies']))]['calls']:,}" in text
    for reason, count in run["parts"]["context"]["reasons"].items():
        assert re.search(rf"{reason.replace('_', ' ')}<span[^>]*></span><td>{count:,}", text)
    text = pages["sweep"].read_text()
    for size in document.load(saved["sweep"])["sweep"]["sizes"]:
        rates = "".join(f"<td>{100 * size[k]:.2f} %" for k in ("hit_rate", "least_recent", "optimal"))
        assert rates in text


def test_rates_of_the_stretches_add_up(saved):
    """What is drawn between two samples, weighted with its prompts, is the rate of the whole."""
    from prefixcache.replay import charts

    for part in document.load(saved["whole"])["parts"].values():
        series = part["series"]
        at, prompt, hit = series["request"], series["prompt_tokens"], series["hit_tokens"]
        stretches = list(charts._rates(at, hit, prompt, 10))
        prompts = dict(zip(at, prompt, strict=True))
        ends = [0, *(prompts[x] for x, _ in stretches)]
        total = sum(rate * (b - a) for (_, rate), a, b in zip(stretches, ends, ends[1:], strict=False))
        assert math.isclose(total, part["figures"]["hit tokens"], rel_tol=1e-9)
        assert series["evicted"] == sorted(series["evicted"])
        capacity = part["pool"]["capacity"]
        assert all(a + b <= capacity for a, b in zip(series["in_use"], series["cached"], strict=True))


def test_two_runs_are_compared_in_words(capsys, saved):
    arguments = ["--part", "context", "--requests", "60", "--quiet", "--pages", "600", "--compare", str(saved["small"])]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert f"compared with {saved['small']}" in text
    assert re.search(r"hit rate +0\.\d{4} +0\.\d{4} +\+0\.00 pt", text)  # the same run
    assert re.search(r"prompt tokens +[\d,]+ +[\d,]+ +same", text)
    assert main([*arguments[:-4], "--pages", "24000", "--compare", str(saved["small"])]) == 0
    assert re.search(r"records evicted +0 +[\d,]+ +-100\.0 %", capsys.readouterr().out)


def test_two_sweeps_are_compared_by_tokens(capsys, saved):
    sweep = ["--requests", "60", "--quiet", "--sweep", "pages=1000,4000", "--compare"]
    assert main([*sweep, str(saved["sweep"]), "--page", "64"]) == 0
    text = capsys.readouterr().out.partition("compared with")[2]
    for tokens in (64_000, 256_000):
        assert re.search(rf"^  {tokens:,} +0\.\d+ +0\.\d+ +[+-]\d+\.\d\d pt$", text, re.MULTILINE), text
    assert re.search(r"^  2,048,000 +- +0\.\d+ +-$", text, re.MULTILINE), text
    with pytest.raises(SystemExit) as stop:  # at once, not after the sweep
        main([*sweep, str(saved["small"])])
    assert stop.value.code == 2
    assert "small.json: has context, expected a run with sweep" in capsys.readouterr().err


def shortened(value):
    """A document with three items in each of its lists."""
    if isinstance(value, dict):
        return {key: shortened(inner) for key, inner in value.items()}
    return [shortened(inner) for inner in value[:3]] if isinstance(value, list) else value


def places(value, path=()):
    """Every place in a document."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


@pytest.mark.parametrize("name", ["whole", "sweep"])
def test_a_damaged_run_is_refused_or_shown_but_never_breaks_the_report(folder, saved, name):
    run = shortened(json.loads(saved[name].read_text()))
    path, refused = folder / "damaged.json", 0
    for place in list(places(run))[1:]:
        for change in (None, "x", "\ud800", 0, -1, [], {}, float("nan"), "gone"):
            damaged = copy.deepcopy(run)
            inner = damaged
            for key in place[:-1]:
                inner = inner[key]
            if change == "gone":
                del inner[place[-1]]
            else:
                inner[place[-1]] = change
            path.write_text(json.dumps(damaged))
            try:
                loaded = document.load(path)
            except document.DocumentError:
                refused += 1
            else:
                assert "</html>" in render(loaded, run, "other")
                document.comparison_lines(loaded, run, "other")
    assert refused > 100


def test_files_that_are_no_runs_are_refused_by_name(folder):
    path = folder / "other.json"
    for text, said in (
        ("", "is no JSON"),
        ("[]", "is no run that --json saved"),
        ('{"format": "prefixcache.replay", "version": 2}', "has version 2, expected 1"),
        ('{"format": "prefixcache.replay", "version": 1}', "is incomplete"),
        ("[" * 200_000, "is no JSON"),
        ('{"format": "prefixcache.replay", "version": 1, "\\ud800": 1}', "surrogates not allowed"),
    ):
        path.write_text(text)
        with pytest.raises(document.DocumentError, match=re.escape(said)):
            document.load(path)


def test_without_a_browser_the_missing_package_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("PREFIXCACHE_BROWSER", raising=False)
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium-headless-shell"):
        browser.find()
    monkeypatch.setenv("PREFIXCACHE_BROWSER", "/no/such/browser")
    with pytest.raises(pytest.fail.Exception, match="looked for /no/such/browser"):
        browser.find()
