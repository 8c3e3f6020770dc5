"""The devices and dtypes of PyTorch that a command can be given."""

from __future__ import annotations

import importlib.util

DTYPES = ("float64", "float32", "bfloat16", "float16")


def unusable(device: str | None, dtype: str | None) -> str | None:
    """Return why tensors of the dtype cannot be on the device; None if they can."""
    if device is None and dtype is None:
        return None
    asked = f"--dtype {dtype}"
    if device is not None:
        asked = f"--device {device or repr(device)}"
    if importlib.util.find_spec("torch") is None:
        return f"{asked}: PyTorch is not installed; it comes with backpass[torch]"
    import torch

    try:
        if torch.device("cpu" if device is None else device).type == "meta":
            return f"{asked}: expected a device whose tensors hold numbers"
        torch.zeros(1, device=device).item()
    except (NotImplementedError, ImportError):  # their text is about PyTorch's inside
        return f"{asked}: the installed PyTorch has no such device"
    except (RuntimeError, AssertionError) as error:
        return f"{asked}: {str(error).splitlines()[0].partition('. ')[0].rstrip('.')}"
    return None
