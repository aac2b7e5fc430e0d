"""The context part and the sweep: right figures, bounds that bound, sizes that are understood."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from wheel_host import REPOSITORY, environment, run

from prefixcache.context import CacheRequestLease
from prefixcache.replay import bounds, document
from prefixcache.replay.bounds import LeastRecent, Optimal, Unlimited
from prefixcache.replay.cli import main
from prefixcache.replay.context import ContextPart
from prefixcache.replay.generator import generate_trace
from prefixcache.replay.histogram import Histogram
from prefixcache.replay.progress import Interrupt, ProgressBar
from prefixcache.replay.series import Series
from prefixcache.replay.sweep import Sweep, parse_sizes
from prefixcache.replay.tokens import Tokenizer
from prefixcache.replay.traces import TOKENS_PER_ID, TraceRequest, read_trace, write_trace

SHARED_TRACE = Path(__file__).resolve().parents[3] / "shared" / "traces" / "mooncake_conversation.jsonl"
BAR = ProgressBar(1, False)


def sweep_of(requests, sizes, page=128):
    sweep = Sweep(requests, *parse_sizes(sizes), page)
    sweep.run(BAR, Interrupt())
    return sweep.document()


def bound(kind, requests, tokens):
    """Hit tokens of a bound over a whole trace."""
    cache = kind(tokens)
    for request, uses in zip(requests, bounds.next_uses(requests), strict=True):
        cache.request(*((request, uses) if kind is Optimal else (request,)))
    return cache.hit_tokens


def chains(rng, count):
    """Requests of whole blocks over a small tree of prefixes: a block's parent is its number / 2."""
    requests = []
    for _ in range(count):
        node, ids = rng.randint(1, 9), []
        while node:
            ids.insert(0, node)
            node //= 2
        requests.append(TraceRequest(0, len(ids) * TOKENS_PER_ID, 1, tuple(ids)))
    return requests


# ------------------------------------------------------------------ bounds


def best_by_search(requests, capacity):
    """Every set of blocks that could be kept after each request is tried."""
    best = {frozenset(): 0}
    for request in requests:
        after = {}
        for kept, hits in best.items():
            leading = len(list(itertools.takewhile(kept.__contains__, request.hash_ids)))
            candidates = kept | set(request.hash_ids)
            for size in range(min(capacity, len(candidates)) + 1):
                for chosen in map(frozenset, itertools.combinations(sorted(candidates), size)):
                    after[chosen] = max(after.get(chosen, 0), hits + leading)
        best = after
    return max(best.values())


@pytest.mark.parametrize("seed", range(25))
def test_optimal_bound_is_what_an_exhaustive_search_finds(seed):
    rng = random.Random(seed)
    requests, capacity = chains(rng, 6), rng.randint(1, 4)
    found = bound(Optimal, requests, capacity * TOKENS_PER_ID)
    assert found == best_by_search(requests, capacity) * TOKENS_PER_ID


@pytest.mark.parametrize("seed", range(25))
def test_least_recent_bound_is_what_time_stamps_give(seed):
    rng = random.Random(seed)
    requests, capacity = chains(rng, 40), rng.randint(1, 8)
    used, hits = {}, 0
    for now, request in enumerate(requests):
        hits += len(list(itertools.takewhile(used.__contains__, request.hash_ids)))
        used |= {value: (now, -depth) for depth, value in enumerate(request.hash_ids)}
        used = dict(sorted(used.items(), key=lambda item: item[1])[-capacity:])
    assert bound(LeastRecent, requests, capacity * TOKENS_PER_ID) == hits * TOKENS_PER_ID


def test_the_rest_of_a_prompt_counts_with_its_own_length():
    once = TraceRequest(0, TOKENS_PER_ID + 100, 1, (1, 2, 3))  # an id that the length does not reach
    cache = Unlimited()
    for _ in range(2):
        cache.request(once)
    assert cache.hit_tokens == TOKENS_PER_ID + 100
    assert bounds.blocks_of(once) == (1, 2)


# ------------------------------------------------------------------- sweep


def test_published_figures_of_the_conversation_trace():
    if not SHARED_TRACE.exists():
        pytest.skip("the conversation trace is not here (../shared)")
    requests = read_trace(SHARED_TRACE)
    for count, pages, library, least_recent, optimal in (
        (4_000, 24_000, 0.1362, 0.137, 0.330),
        (12_031, 100_000, 0.3157, 0.316, 0.374),
    ):
        (size,) = sweep_of(requests[:count], f"pages={pages}")["sizes"]
        assert size["hit_rate"] == pytest.approx(library, abs=5e-5)
        assert size["least_recent"] == pytest.approx(least_recent, abs=1e-3)
        assert size["optimal"] == pytest.approx(optimal, abs=1e-3)
        assert size["refused"] == 0


def test_sweep_finds_what_the_context_part_finds_and_stays_below_the_bounds():
    requests = generate_trace(300, 3, mean_prompt=2000, mean_output=50)
    found = sweep_of(requests, "pages=600:4800:x2")
    assert [s["pages"] for s in found["sizes"]] == [600, 1200, 2400, 4800]
    for size in found["sizes"]:
        part = ContextPart(requests, pages=size["pages"], page=128, time_limit=0)
        part.run(BAR, Interrupt())
        assert part.right, part.lines()
        assert part.too_long == 0
        assert size["hit_rate"] == part.hit_rate
        assert 0 < size["hit_rate"] <= size["optimal"] <= found["unlimited"]
        assert size["least_recent"] <= size["optimal"]
    rates = [s["hit_rate"] for s in found["sizes"]]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


def test_a_request_that_does_not_fit_is_refused_and_the_rest_goes_on():
    small, large = TraceRequest(0, 512, 1, (1,)), TraceRequest(0, 5120, 1, tuple(range(10, 20)))
    found = sweep_of([small, large, small], "pages=8,100")
    assert [s["refused"] for s in found["sizes"]] == [1, 0]
    assert [s["hit_rate"] for s in found["sizes"]] == [384 / 6144] * 2  # one token is always computed


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("pages=7", ("pages", [7])),
        ("pages=30,10,20,10", ("pages", [10, 20, 30])),
        ("pages=1000:64000:x2", ("pages", [1000, 2000, 4000, 8000, 16000, 32000, 64000])),
        ("pages=1000:3000:x2", ("pages", [1000, 2000])),
        ("pages=100:200:+50,7", ("pages", [7, 100, 150, 200])),
        ("pages=1:4:x1.1", ("pages", [1, 2, 3, 4])),
        ("tokens=1M:4M:x2,12.8M", ("tokens", [1_000_000, 2_000_000, 4_000_000, 12_800_000])),
        ("tokens=3k,2G", ("tokens", [3_000, 2_000_000_000])),
    ],
)
def test_sizes_are_understood(text, sizes):
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1000", "expected pages=LIST or tokens=LIST"),
        ("bytes=5", "expected pages=LIST or tokens=LIST"),
        ("pages=", "'': expected a number"),
        ("pages=1,,2", "'': expected a number"),
        ("pages=0", "'0': expected a number from 1 on"),
        ("pages=-5", "'-5': expected a number"),
        ("pages=5T", "'5T': expected a number"),
        ("pages=1:2", "'1:2': expected a number, FROM:TO:xFACTOR or FROM:TO:+STEP"),
        ("pages=1:2:2", "expected a number, FROM:TO:xFACTOR or FROM:TO:+STEP"),
        ("pages=1:2:x2:x3", "FROM:TO:xFACTOR"),
        ("pages=9:3:x2", "'9:3:x2': the range ends before it begins"),
        ("pages=1:9:x1", "factor '1', expected a number above 1"),
        ("pages=1:9:xnan", "factor 'nan', expected a number above 1"),
        ("pages=1:9:xinf", "factor 'inf', expected a number above 1"),
        ("pages=1:9:+0", "'0': expected a number"),
        ("pages=1:1000000:+1", "more than 64 sizes"),
    ],
)
def test_sizes_that_make_no_sense_are_named(text, said):
    with pytest.raises(ValueError, match=r"expected|ends|more") as e:
        parse_sizes(text)
    assert said in str(e.value)


def test_sizes_in_tokens_are_whole_pages(capsys):
    requests = generate_trace(20, 1, mean_prompt=500)
    assert [s["pages"] for s in sweep_of(requests, "tokens=100k,200k,200100", 16)["sizes"]] == [6250, 12500, 12506]
    with pytest.raises(SystemExit) as stop:
        main(["--sweep", "tokens=100", "--requests", "5", "--quiet"])
    assert stop.value.code == 2
    assert "--sweep: tokens=100..100: expected 1 to 1073741823 pages of 128 tokens" in capsys.readouterr().err


def test_tokens_agree_exactly_where_hash_ids_do():
    tokenizer = Tokenizer()
    one = tokenizer.prompt(TraceRequest(0, 1200, 3, (1 << 40, 5, 6)))
    two = tokenizer.prompt(TraceRequest(0, 1100, 3, (1 << 40, 7, 6)))
    assert one.itemsize == 4 and (len(one), len(two)) == (1200, 1100)
    assert one[:512] == two[:512]
    assert not any(a == b for a, b in zip(one[512:1024], two[512:1024], strict=True))
    assert one[1024:1100] == two[1024:]
    answers = [tokenizer.answer(TraceRequest(0, 1, 3, (1,))) for _ in range(2)]
    assert len(answers[0]) == 2 and not set(answers[0]) & {*answers[1], *one, *two}


# ------------------------------------------------------------ context part


@pytest.mark.parametrize("page", [16, 48, 128, 700])
def test_context_part_is_right_whatever_the_page(page):
    requests = generate_trace(150, page, mean_prompt=1500, mean_output=40)
    part = ContextPart(requests, pages=60_000 // page, page=page, time_limit=0)
    part.run(BAR, Interrupt())
    assert part.right, part.lines()
    figures = part.document()["figures"]
    assert figures["requests"] == 150
    assert figures["pages checked"] == figures["hit tokens"] // page > 0
    assert figures["pages taken back by evictions"] > 0
    assert sum(part.reasons.values()) == 150
    assert all(h.count for h in part.latencies.values())


def swapped(self):
    pages = self.manager._lease_pages(self, 0)
    return [pages[1], pages[0], *pages[2:]] if len(pages) > 1 and len(self.manager.records()) > 40 else pages


def test_a_page_of_another_prefix_is_found_and_named(monkeypatch, capsys):
    monkeypatch.setattr(CacheRequestLease, "base_pages", swapped)
    assert main(["--part", "context", "--requests", "60", "--quiet"]) == 1
    text = capsys.readouterr().out
    assert text.rstrip().endswith("FAILED")
    assert "reused as block" in text


def test_an_error_of_the_library_fails_the_part(monkeypatch, capsys):
    def fail(self):
        raise RuntimeError("the pool is on fire")

    monkeypatch.setattr(CacheRequestLease, "release", fail)
    assert main(["--part", "context", "--requests", "5", "--quiet"]) == 1
    assert "the pool is on fire" in capsys.readouterr().out


# ------------------------------------------------------- a process of its own


RUNG = """
import os, signal, sys
from prefixcache.replay.cli import main
from prefixcache.replay.progress import ProgressBar

update, rung = ProgressBar.update, []

def ring(bar, done, *rest):
    update(bar, done, *rest)
    if done >= 30 and not rung:
        rung.append(done)
        os.kill(os.getpid(), signal.SIGINT)

ProgressBar.update = ring
sys.exit(main(sys.argv[1:]))
"""


def interrupted(arguments, tmp_path):
    """A replay that gets SIGINT as soon as its progress bar is told of 30 requests, at whatever pace."""
    saved = tmp_path / "run.json"
    command = [sys.executable, "-c", RUNG, *arguments, "--progress", "--json", str(saved)]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "python")}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 130, done.stdout + done.stderr
    assert " requests" in done.stderr and "Traceback" not in done.stderr
    assert "interrupted after" in done.stdout
    return done.stdout, document.load(saved)


@pytest.mark.parametrize("part", ["omni", "context"])
def test_ctrl_c_ends_a_part_with_its_summary(part, tmp_path):
    text, saved = interrupted(["--part", part, "--requests", "4000"], tmp_path)
    done = saved["parts"][part]
    assert done["right"] and done["verdict"].startswith("interrupted after")
    assert 30 <= done["figures"]["requests"] < 100  # some more have begun
    assert "hit rate" in text


def test_ctrl_c_ends_a_sweep_with_the_figures_so_far(tmp_path):
    text, saved = interrupted(["--sweep", "pages=2000:5000:+100", "--requests", "6000"], tmp_path)
    assert saved["sweep"]["requests"] == 30
    assert {s["optimal"] for s in saved["sweep"]["sizes"]} == {None}  # it would need the rest of the trace
    assert "the optimal bound needs all of them" in text


def test_ctrl_c_ends_the_replay_of_the_coordinator_too(tmp_path):
    """`make run` ends with it, and the shell hands the interrupt on."""
    made = run("make", "build/replay_context", cwd=REPOSITORY)
    assert made.returncode == 0, made.stderr
    env = {**os.environ, "PREFIXCACHE_LIBRARY": str(REPOSITORY / "build" / "libprefixcache.so")}
    # Once it has told of the first 30 it is at it for half a minute, and for many seconds on any machine.
    trace = tmp_path / "trace.jsonl"
    write_trace(trace, [TraceRequest(0, 512, 1 if i < 30 else 200_000, (i,)) for i in range(300)])
    command = [str(REPOSITORY / "build" / "replay_context"), "--page", "16", "--pages", "100000", "--trace", str(trace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as process:
        assert b"10 %" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert re.search(rb"context cache: \d+ of 300 requests", out)
    assert out.endswith(b"interrupted; so far every page was right\n")


@pytest.mark.parametrize(
    "arguments", [["--pages", "x"], ["--pages"], ["--what"], ["--trace"], ["--trace", "/none.jsonl"]]
)
def test_the_replay_of_the_coordinator_tells_bad_arguments_from_wrong_pages(arguments):
    made = run("make", "build/replay_context", cwd=REPOSITORY)
    assert made.returncode == 0, made.stderr
    done = run(REPOSITORY / "build" / "replay_context", *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("replay_context: ") and "expected" in done.stderr


def test_without_torch_the_context_part_runs_and_the_omni_part_says_what_to_install(tmp_path):
    command = environment() / "prefixcache"  # the wheel and nothing else
    report = tmp_path / "out.html"
    done = run(command, "replay", "--requests", "30", "--quiet", "--report", report)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the omni part is left out: it needs torch and numpy (pip install torch numpy)" in done.stderr
    assert done.stdout.rstrip().endswith("every page was right")
    assert "</html>" in report.read_text()
    done = run(command, "replay", "--requests", "30", "--part", "omni")
    assert done.returncode == 2
    assert done.stderr == "prefixcache replay: error: --part omni needs torch and numpy: pip install torch numpy\n"


def test_help_says_what_every_option_does(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for word in ("TRACE", "--report", "--json", "--compare", "--sweep", "FROM:TO:xFACTOR", "130"):
        assert word in text


# ------------------------------------------------------------------- parts


def test_histogram_percentiles_are_close_and_its_buckets_hold_every_call():
    rng = random.Random(1)
    values = [int(rng.lognormvariate(9, 3)) for _ in range(5000)] + [0, 1, 15, 16, 17, 1 << 40]
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    values.sort()
    for quantile in (0.0, 0.01, 0.5, 0.9, 0.99, 1.0):
        exact = values[int(quantile * (len(values) - 1))]
        assert histogram.percentile(quantile) == pytest.approx(exact, rel=1 / 14)
    shown = histogram.document()
    assert sum(calls for _, calls in shown["buckets_us"]) == shown["calls"] == len(values)
    assert shown["max_us"] == (1 << 40) / 1000
    assert [start for start, _ in shown["buckets_us"]] == sorted(start for start, _ in shown["buckets_us"])
    assert Histogram().percentile(0.5) == 0


@pytest.mark.parametrize("requests", [1, 7, 200, 12_031])
def test_series_have_few_samples_however_long_the_run(requests):
    series = Series(requests)
    for request in range(1, requests + 1):
        if series.due(request):
            series.add(request, hits=request)
    series.add(requests, hits=requests)
    assert len(series.at) == len(set(series.at)) <= 401
    assert len(series.at) >= min(requests, 200)
    assert series.document() == {"request": series.at, "hits": series.at}
    json.dumps(series.document())
