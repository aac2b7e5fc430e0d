"""A strict reader of the Prometheus text format, version 0.0.4.

Refuses what a scraper would forgive: a metric without HELP and TYPE, or with two of
them; samples of a metric that are not together; a series twice; an escape that is none;
a counter whose name does not end in _total; units that are not base units.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
NOT_BASE = re.compile(r"_(ns|us|ms|nanoseconds|milliseconds|kib|mib|gib|kilobytes|megabytes|percent|perc|count)(_|$)")

Series = tuple[str, frozenset[tuple[str, str]]]


@dataclass
class Page:
    types: dict[str, str] = field(default_factory=dict)
    help: dict[str, str] = field(default_factory=dict)
    samples: dict[Series, float] = field(default_factory=dict)

    def value(self, name: str, **labels: str) -> float:
        return self.samples[f"prefixcache_{name}", frozenset(labels.items())]


def unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: {"n": "\n", "\\": "\\", '"': '"'}[m[1]], text)


def labels_of(text: str) -> frozenset[tuple[str, str]]:
    found, at = {}, 0
    while at < len(text):
        m = LABEL.match(text, at)
        assert m, f"not a label: {text[at:]!r}"
        assert m[1] not in found, f"label {m[1]} twice in {text!r}"
        assert not (m[3] == "," and m.end() == len(text)), f"a comma at the end of {text!r}"
        found[m[1]] = unescape(m[2])
        at = m.end()
    return frozenset(found.items())


def read(text: str) -> Page:
    """The page, or AssertionError."""
    page, current = Page(), ""
    assert text == "" or text.endswith("\n"), "the last line does not end"
    for line in text.split("\n")[:-1]:
        assert line == line.strip() and line, f"an empty line or spaces around {line!r}"
        if line.startswith("#"):
            m = re.fullmatch(rf"# (HELP|TYPE) ({NAME}) (.+)", line)
            assert m, line
            kind, name, rest = m[1], m[2], m[3]
            if kind == "HELP":
                assert name not in page.help, f"{name} is explained twice"
                assert re.fullmatch(r"(?:[^\\]|\\[\\n])+", rest), f"an escape that is none in {line!r}"
                page.help[name] = rest
                current = name
            else:
                assert name == current and name not in page.types, f"TYPE {name} does not follow its HELP"
                assert rest in ("counter", "gauge"), line
                page.types[name] = rest
                assert (rest == "counter") == name.endswith("_total"), f"{name} is a {rest}"
                assert not NOT_BASE.search(name), f"{name}: not a base unit"
            continue
        m = SAMPLE.fullmatch(line)
        assert m, line
        name, value = m[1], float(m[3])
        assert name == current and name in page.types, f"{name} is not below its HELP and TYPE"
        assert math.isfinite(value) and (value >= 0), line
        series = name, labels_of(m[2] or "")
        assert series not in page.samples, f"twice: {line}"
        page.samples[series] = value
    assert page.help.keys() == page.types.keys() == {name for name, _ in page.samples}, "a metric without samples"
    return page
