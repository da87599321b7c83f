"""What can run on this machine, and why not."""

from __future__ import annotations

from typing import Any

from oracle.arithmetic import PRESETS
from parity.adapters import ADAPTERS, Adapter
from parity.candidates import LIBRARIES, NUMPY

NEEDS = {
    "cuda": ("nvcc", "once nvcc is here (pip install nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl)"),
    "metal": ("xcrun", "on a Mac with its command line tools"),
}
"""What a library for a device is built with, and how that is had."""


def survey() -> list[dict[str, Any]]:
    """One entry per candidate: name, ready, about (where it runs, its arithmetic, or what is missing)."""
    numpy = [
        {"name": name, "ready": True, "about": f"NumPy, {a.order} sums, {'stores ' + a.store[0][1] if a.store else 'stores f32'}"}
        for name, a in PRESETS.items()
        if name in NUMPY
    ]
    oracle = {"name": "f64", "ready": True, "about": "NumPy float64: the oracle itself"}
    return [oracle, *numpy, *(_library(name) for name in LIBRARIES if "+" not in name), *(_adapter(a) for a in ADAPTERS.values())]


def _adapter(adapter: Adapter) -> dict[str, Any]:
    reason = adapter.missing()
    about = reason or f"{adapter.distribution} {adapter.version}, host, judged as {adapter.arithmetic}"
    return {"name": adapter.name, "ready": reason is None, "about": about}


def _library(name: str) -> dict[str, Any]:
    import shutil

    import native
    from native.building import EMULATED, nvcc

    try:
        library = native.open_library(name)
        info = library.info
        if "device" in info.flags:
            library.context().close()  # says why there is no device
    except (native.NativeError, OSError) as e:
        about = str(e)
        if name in EMULATED:
            about = f"not built from the present sources; it is, on first use (a minute), or now by make native-{name}"
        elif name in NEEDS and getattr(e, "status", "") == "LOAD":
            tool, how = NEEDS[name]
            about = f"not built; make native-{name} builds it"
            if not (nvcc() if tool == "nvcc" else shutil.which(tool)):
                about += f", {how}"
        return {"name": name, "ready": name in EMULATED, "about": about}
    where = "emulated" if "emulated" in info.flags else "device" if "device" in info.flags else "host"
    arithmetic = ",".join(f"{k}={v}" for k, v in info.arithmetic.items())
    arithmetic += "".join(f"; also {other}" for other in LIBRARIES if other.startswith(f"{name}+"))
    return {"name": name, "ready": True, "about": f"{info.name} {info.version}, {where}, {', '.join(sorted(info.flags))}; {arithmetic}"}
