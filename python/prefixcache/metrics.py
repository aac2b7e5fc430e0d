"""Metrics of caches in the Prometheus text format, which the library writes.

docs/metrics.md explains each metric. Nothing has to be installed; a server that has
``prometheus_client`` registers a :class:`PrometheusCollector` instead.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prefixcache import _ffi
from prefixcache._errors import PrefixCacheArgumentError
from prefixcache._staying import closed

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def prometheus_text(*caches: Any, labels: Mapping[str, str] | None = None) -> str:
    """One page with the metrics of ``caches`` and of the library.

    caches: omni managers, coordinators and context managers, or pairs of one of them
    and its own labels. Two caches of one kind must differ in a label.
    labels: for all of them, for example ``{"engine": "0"}``.

    Raises PrefixCacheArgumentError for labels that cannot be, PrefixCacheError for a
    cache that is closed. Any thread.
    """
    common = _labels({} if labels is None else labels)
    sources = (_ffi.MetricsSource * len(caches))()
    keep = []
    for source, cache in zip(sources, caches, strict=True):
        own: Mapping[str, str] = {}
        if isinstance(cache, tuple) and len(cache) == 2:
            cache, own = cache
        merged = common | _labels(own)
        packed = (_ffi.Label * len(merged))(*((_text(k), _text(v)) for k, v in merged.items()))
        keep.append(packed)
        handle = getattr(cache, "handle", None)
        if not isinstance(handle, int):
            raise PrefixCacheArgumentError(f"caches: {cache!r}, expected an omni manager, a coordinator or a manager")
        if not handle:
            raise closed(cache, "caches")
        source.cache, source.labels, source.num_labels = handle, packed, len(packed)
    library, size = _ffi.load(), ctypes.c_uint64(1 << 14)
    while True:
        room = size.value + 256  # a counter may have grown by a digit
        text = ctypes.create_string_buffer(room)
        library.check(library.metrics_text(ctypes.addressof(sources) if caches else 0, len(caches), text, room, size))
        if size.value < room:
            return text.raw[: size.value].decode()


def _labels(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise PrefixCacheArgumentError(f"labels: {value!r}, expected a mapping")
    return dict(value)


def _text(value: object) -> bytes:
    if not isinstance(value, str):
        raise PrefixCacheArgumentError(f"labels: {value!r}, expected a string")
    if "\0" in value:
        raise PrefixCacheArgumentError(f"labels: {value!r} has a zero byte, expected text")
    return value.encode("utf-8", "replace")


class PrometheusCollector:
    """For ``prometheus_client``: ``REGISTRY.register(PrometheusCollector(cache))``.

    Takes what :func:`prometheus_text` takes, raises what it raises, and keeps the caches
    alive; unregister it before they are closed.
    """

    def __init__(self, *caches: Any, labels: Mapping[str, str] | None = None) -> None:
        prometheus_text(*caches, labels=labels)  # raises now, rather than in every scrape of the whole server
        self._caches = caches
        self._labels = labels

    def collect(self) -> Iterator[Any]:
        """The metrics as families of ``prometheus_client``."""
        from prometheus_client.parser import text_string_to_metric_families

        yield from text_string_to_metric_families(prometheus_text(*self._caches, labels=self._labels))

    def describe(self) -> Iterable[Any]:
        """Nothing: registering does not scrape."""
        return ()
