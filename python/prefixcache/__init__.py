"""Prefix caches for model servers, backed by the native library libprefixcache.

Modules are imported one by one, so that a host pays for what it uses:

``prefixcache.omni``
    drop-in for vLLM-Omni's ``OmniPrefixCacheManager`` (needs torch).
``prefixcache.context``
    prefix reuse for paged KV caches and recurrent state: coordinator and manager.
``prefixcache.metrics``
    what both caches count, as Prometheus text.
``prefixcache.vllm_omni``
    the plug-in that puts the drop-in into a vLLM-Omni server (needs vllm-omni).
``prefixcache.replay``, ``prefixcache.doctor``
    the commands: replay a trace and check every row; look at a machine.

Importing this package loads neither the native library nor torch. The library is
loaded by the first cache that is created; see :mod:`prefixcache._ffi`.
"""

from prefixcache._errors import (
    PrefixCacheArgumentError,
    PrefixCacheError,
    PrefixCacheForkError,
    PrefixCacheLibraryError,
    PrefixCacheMemoryError,
)

__version__ = "0.1.0"

__all__ = [
    "PrefixCacheArgumentError",
    "PrefixCacheError",
    "PrefixCacheForkError",
    "PrefixCacheLibraryError",
    "PrefixCacheMemoryError",
    "__version__",
]
