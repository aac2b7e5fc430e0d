"""Where outputs live, and on which stream they were produced.

Rows on a CUDA device cross as a device address and a stream. The library enqueues its
copy on that stream before ``save_outputs`` returns, as a torch operation on the current
stream would: what the caller enqueues there afterwards may overwrite or free the rows,
and no ``record_stream`` is needed. Rows that another stream produced have to be ordered
behind the current one first (``wait_stream``), as for any operation, or by an event that
``save_outputs`` is given. Then their memory belongs to the other stream, whose next kernel
gets it once they are dropped: :func:`keep_until_read` tells torch's allocator to wait.

Besides torch tensors, objects with ``__cuda_array_interface__`` or ``__dlpack__`` on a
CUDA device are taken where rows are, without a copy and without a torch that has CUDA.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Mapping
from operator import index
from typing import Any

import torch

from prefixcache._errors import DEVICE, WRONG_STATE, PrefixCacheArgumentError, PrefixCacheError, error_of
from prefixcache._ffi import cuda_driver

LEGACY_STREAM = 0  # torch's default stream
PER_THREAD_STREAM = 2


def require_host(name: str, tensor: torch.Tensor) -> None:
    """Raises NotImplementedError (a RuntimeError) for a tensor on neither CPU nor CUDA."""
    if not tensor.is_cpu:
        raise NotImplementedError(
            f"{name} is on {tensor.device}: rows are cached from host memory and CUDA devices only; "
            "move the outputs there before save_outputs"
        )


def default_eager() -> bool:
    """Without CUDA nothing runs beside the forward, so rows are written on the spot."""
    return not torch.cuda.is_available()


def current_stream(device: torch.device | None = None) -> int:
    """The cudaStream_t that torch enqueues on; the legacy stream when torch has no CUDA."""
    if not torch.cuda.is_available():
        return LEGACY_STREAM
    stream: int = torch.cuda.current_stream(device).cuda_stream
    return stream


def event_number(event: Any) -> int:
    """The cudaEvent_t of an event: torch's, any object with ``cuda_event``, or the number itself.

    The current stream waits for one of torch, too, because copies that torch makes for a
    save read the outputs as well. Raises PrefixCacheArgumentError for one that was never recorded.
    """
    number = getattr(event, "cuda_event", event)
    if type(number) is not int or not 0 <= number < 1 << 64:
        raise PrefixCacheArgumentError(f"event is {event!r}, expected a CUDA event: torch.cuda.Event, or a number")
    if number == 0:
        raise PrefixCacheArgumentError("event is 0: it was never recorded, expected one recorded behind the outputs")
    if isinstance(event, torch.cuda.Event):
        refuse_capture()
        # Waiting for one that a capture recorded would draw the current stream into that capture.
        if _query(number) in (_INVALID_VALUE, _CAPTURED_EVENT):
            raise error_of(
                WRONG_STATE, f"event {number:#x} was recorded into a CUDA graph, expected one that a stream reaches"
            )
        event.wait()
    return number


_RELAXED, _INVALID_VALUE, _CAPTURED_EVENT = 2, 1, 907  # CUstreamCaptureMode, CUresult


def _query(event: int) -> int:
    """cuEventQuery, which in the thread's usual mode would end a capture of another thread; 0 without the driver."""
    driver = _driver()
    if driver is None:  # the library has none either, and says so
        return 0
    mode = ctypes.c_int(_RELAXED)
    try:
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        result: int = driver.cuEventQuery(ctypes.c_void_p(event))
    finally:
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    return result


@functools.cache
def _driver() -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL(cuda_driver())
    except OSError:
        return None
    known = hasattr(driver, "cuThreadExchangeStreamCaptureMode") and hasattr(driver, "cuEventQuery")
    return driver if known else None


def refuse_capture() -> None:
    """Before torch enqueues anything for a save: raises what the library does for a stream that is captured.

    The library would say so too late: a copy on a side stream would be part of the graph
    by then, and the wait for an event of no graph the end of the capture.
    """
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise error_of(
            WRONG_STATE,
            f"check: stream {current_stream():#x} is being captured into a CUDA graph,"
            " expected a stream that runs its work",
        )


def keep_until_read(tensor: torch.Tensor) -> None:
    """Memory of a tensor of another stream is not given away before the current one has read it."""
    tensor.record_stream(torch.cuda.current_stream(tensor.device))


def may_try_again(error: PrefixCacheError) -> bool:
    """Whether a save failed for want of device memory, and torch has given back what it kept for later.

    Frozen rows are not torch's memory, and nobody else can ask it for what it has cached.
    """
    if error.status != DEVICE or "CUDA_ERROR_OUT_OF_MEMORY" not in str(error):
        return False
    if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
        return False
    try:
        torch.cuda.empty_cache()
    except RuntimeError:  # another thread captures
        return False
    return True


class DeviceRows:
    """An array in device memory that is not a torch tensor; looks like one where rows are sorted.

    shape: in elements; strides: in bytes, None: no gaps. stream: the producer's, or None where it does not matter.
    owner: whatever keeps the memory alive.
    """

    __slots__ = ("_strides", "address", "dtype", "owner", "shape", "source", "stream")

    layout = torch.strided
    is_cpu = False
    is_cuda = True

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        dtype: torch.dtype,
        stream: int | None,
        owner: object,
        source: object,
    ) -> None:
        self.address = address
        self.shape = torch.Size(shape)
        self.dtype = dtype
        size = self.element_size()
        self._strides = strides or tuple(size * math.prod(shape[i + 1 :]) for i in range(len(shape)))
        self.stream = stream
        self.owner = owner
        self.source = source

    def dim(self) -> int:
        return len(self.shape)

    def element_size(self) -> int:
        return torch.empty(0, dtype=self.dtype, device="cpu").element_size()

    def locate(self, name: str, row_bytes: int) -> tuple[int, int]:
        """(address, bytes between rows). Raises PrefixCacheArgumentError when a row has gaps."""
        expected = self.element_size()
        for size, stride in zip(reversed(self.shape[1:]), reversed(self._strides[1:]), strict=True):
            if size != 1 and stride != expected:
                raise PrefixCacheArgumentError(
                    f"{name} has strides of {self._strides} bytes for shape {tuple(self.shape)}, expected rows without gaps"
                )
            expected *= size
        stride = self._strides[0]
        if self.shape[0] > 1 and stride < row_bytes:
            raise PrefixCacheArgumentError(f"{name} has rows {stride} bytes apart, expected {row_bytes} or more")
        return self.address, stride if self.shape[0] > 1 else row_bytes

    def tensor(self, name: str) -> torch.Tensor:
        """The same memory as a torch tensor, for an output that is not rows."""
        if not torch.cuda.is_available():
            raise NotImplementedError(
                f"{name} is on a CUDA device and not rows of the step, and this torch has no CUDA"
            )
        if hasattr(self.source, "__cuda_array_interface__"):
            return torch.as_tensor(self.source, device="cuda")
        return torch.from_dlpack(self.source)


def device_rows(name: str, value: Any) -> DeviceRows | None:
    """An output that is an array on a CUDA device but no torch tensor; else None.

    Raises PrefixCacheArgumentError for an element type that torch does not have, and for
    an interface that is not as its standard has it.
    """
    if isinstance(value, (dict, list, tuple, type, Mapping)):
        return None  # not even asked: the attributes of a dict may be its items, or made up
    device = None
    try:
        interface = getattr(value, "__cuda_array_interface__", None)
        if interface is None and (where := getattr(value, "__dlpack_device__", None)) is not None:
            device = int(where()[0])
    except Exception:  # whoever cannot say where it is is no array there
        return None
    if interface is not None:
        return _from_interface(name, value, interface)
    return _from_dlpack(name, value) if device in (_DL_CUDA, _DL_CUDA_MANAGED) else None


def stream_of(value: torch.Tensor | DeviceRows) -> int | None:
    """The stream that the rows of an output were produced on; None: any will do."""
    return value.stream if isinstance(value, DeviceRows) else current_stream(value.device)


# ------------------------------------------------------ __cuda_array_interface__

_TYPES = {
    ("b", 1): torch.bool,
    ("u", 1): torch.uint8,
    ("i", 1): torch.int8,
    ("i", 2): torch.int16,
    ("i", 4): torch.int32,
    ("i", 8): torch.int64,
    ("f", 2): torch.float16,
    ("f", 4): torch.float32,
    ("f", 8): torch.float64,
    ("c", 8): torch.complex64,
    ("c", 16): torch.complex128,
}


def _from_interface(name: str, value: Any, interface: dict[str, Any]) -> DeviceRows:
    try:
        typestr, address = interface["typestr"], index(interface["data"][0])
        shape = tuple(index(n) for n in interface["shape"])
        strides, stream = interface.get("strides"), interface.get("stream")
        if strides is not None:
            strides = tuple(index(n) for n in strides)
        stream = None if stream is None else index(stream)
        if min((address, stream or 0, *shape)) < 0 or len(shape if strides is None else strides) != len(shape):
            raise ValueError("a number is out of range")
        if not isinstance(typestr, str):
            raise TypeError(f"typestr is {typestr!r}")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as e:
        raise PrefixCacheArgumentError(
            f"{name} has a __cuda_array_interface__ of {interface!r}, expected typestr, data, shape, strides"
            f" and stream as its standard has them ({type(e).__name__}: {e})"
        ) from None
    if interface.get("mask") is not None:
        raise PrefixCacheArgumentError(f"{name} is an array with a mask, expected one without: rows have all elements")
    number = typestr[2:]
    dtype = _TYPES.get((typestr[1:2], int(number))) if number.isdecimal() and typestr[0] != ">" else None
    if dtype is None:
        raise PrefixCacheArgumentError(f"{name} has element type {typestr}, which torch does not have")
    # 1 is the legacy stream there.
    return DeviceRows(address, shape, strides, dtype, LEGACY_STREAM if stream == 1 else stream, value, value)


# ------------------------------------------------------------------------ DLPack

_DL_CUDA, _DL_CUDA_MANAGED = 2, 13
_DL_TYPES = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
_DL_BFLOAT = 4


class _DLTensor(ctypes.Structure):
    """DLTensor of dlpack.h, the first member of DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_capsule_pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def _from_dlpack(name: str, value: Any) -> DeviceRows:
    refuse_capture()  # the producer may enqueue a wait
    stream = current_stream()
    try:
        # The producer makes its data ready for this stream; 1 stands for the legacy one.
        capsule = value.__dlpack__(stream=stream or 1)
        # Looked at and not consumed: the capsule, which is kept, gives the memory back.
        t = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    except Exception as e:
        raise PrefixCacheArgumentError(
            f"{name} is {type(value).__name__}, which does not hand its memory out through DLPack: {type(e).__name__}: {e}"
        ) from e
    size = t.bits // 8
    dtype = torch.bfloat16 if t.code == _DL_BFLOAT else _TYPES.get((_DL_TYPES.get(t.code, ""), size))
    if dtype is None or t.lanes != 1:
        raise PrefixCacheArgumentError(
            f"{name} has DLPack type (code {t.code}, {t.bits} bits, {t.lanes} lanes), which torch does not have"
        )
    shape = tuple(t.shape[i] for i in range(t.ndim))
    strides = tuple(t.strides[i] * size for i in range(t.ndim)) if t.strides else None
    return DeviceRows((t.data or 0) + t.byte_offset, shape, strides, dtype, stream, capsule, value)
