"""Where tensors live. The one place that knows which devices are supported.

Rows on a CUDA device need the producer's stream, a copy that is ordered behind it
and memory that outlives the call. The C interface carries the stream already
(``pc_omni_save_args.stream``); until the library takes device rows, a device tensor
is refused here, before anything was changed, rather than read as host memory.
"""

from __future__ import annotations

import torch


def require_host(name: str, tensor: torch.Tensor) -> None:
    """Raises NotImplementedError (a RuntimeError) for a tensor that is not on the CPU."""
    if not tensor.is_cpu:
        raise NotImplementedError(
            f"{name} is on {tensor.device}: this version caches rows in host memory only; "
            "move the outputs to the CPU before save_outputs"
        )


def default_eager() -> bool:
    """Without CUDA nothing runs beside the forward, so rows are written on the spot."""
    return not torch.cuda.is_available()
