#!/usr/bin/env python3
"""Fixtures that tie Halftone's safetensors files and codecs to independent packages.

    python -m venv VENV && VENV/bin/pip install numpy safetensors ml_dtypes
    VENV/bin/python tools/golden/safetensors_fixtures.py make tests/data/safetensors
    VENV/bin/python tools/golden/safetensors_fixtures.py verify tests/data/safetensors

`make` writes files with the reference package; `verify` reads with it the file that Halftone wrote
(written_by_halftone.safetensors, which a unit test reproduces byte for byte).
"""
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors

# Every dtype of the format, with its bits and the package's name for it when writing (None: the
# package reads but does not write it).
DTYPES = {
    "BOOL": (8, "bool"), "F4": (4, "float4_e2m1fn_x2"), "F6_E2M3": (6, None), "F6_E3M2": (6, None),
    "U8": (8, "uint8"), "I8": (8, "int8"), "F8_E5M2": (8, "float8_e5m2"),
    "F8_E4M3": (8, "float8_e4m3fn"), "F8_E8M0": (8, "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (8, "float8_e4m3fnuz"), "F8_E5M2FNUZ": (8, "float8_e5m2fnuz"),
    "I16": (16, "int16"), "U16": (16, "uint16"), "F16": (16, "float16"), "BF16": (16, "bfloat16"),
    "I32": (32, "int32"), "U32": (32, "uint32"), "F32": (32, "float32"), "C64": (64, "complex64"),
    "F64": (64, "float64"), "I64": (64, "int64"), "U64": (64, "uint64"),
}
METADATA = {"format": "pt", "note": "größe 🍎 \"quoted\"\n"}


def pattern(salt, size, dtype):
    data = bytes((i * 7 + salt * 13) % 251 for i in range(size))
    return bytes(b & 1 for b in data) if dtype == "BOOL" else data


def tensors():
    out = {}
    for salt, (dtype, (bits, _)) in enumerate(DTYPES.items()):
        out[f"matrix.{dtype}"] = (dtype, [3, 8], pattern(salt, 3 * 8 * bits // 8, dtype))
        out[f"empty.{dtype}"] = (dtype, [0, 6], b"")
        if bits % 8 == 0:
            out[f"scalar.{dtype}"] = (dtype, [], pattern(salt + 100, bits // 8, dtype))
    return out


def save(path, data, metadata):
    """data: name -> (dtype as the package calls it, logical shape, bytes)"""
    buffers = {name: np.frombuffer(raw + b"\0", np.uint8) for name, (_, _, raw) in data.items()}
    specs = {}
    for name, (dtype, shape, raw) in data.items():
        if dtype == "float4_e2m1fn_x2":
            shape = shape[:-1] + [shape[-1] // 2]  # the package doubles it
        specs[name] = safetensors.TensorSpec(dtype=dtype, shape=shape, data_ptr=buffers[name].ctypes.data,
                                             data_len=len(raw))
    safetensors.serialize_file(specs, path, metadata)


def make(folder):
    save(folder / "reference.safetensors",
         {n: (DTYPES[d][1], s, b) for n, (d, s, b) in tensors().items() if DTYPES[d][1]}, METADATA)

    # Codes that ml_dtypes gives to every bf16 value, for E4M3, E5M2 and E2M1.
    every = np.arange(65536, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    codes = {
        "e4m3": every.astype(ml_dtypes.float8_e4m3fn).view(np.uint8),
        "e5m2": every.astype(ml_dtypes.float8_e5m2).view(np.uint8),
        "e2m1": every.astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 0xF,
    }
    save(folder / "ml_dtypes_codes.safetensors",
         {n: ("uint8", [65536], c.tobytes()) for n, c in codes.items()},
         {"ml_dtypes": ml_dtypes.__version__})


def verify(folder):
    data = (folder / "written_by_halftone.safetensors").read_bytes()
    found = {name: (t["dtype"], t["shape"], bytes(t["data"])) for name, t in safetensors.deserialize(data)}
    expected = tensors()
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for name, value in expected.items():
        assert found[name] == value, f"{name}: {found[name]} instead of {value}"
    with safetensors.safe_open(folder / "written_by_halftone.safetensors", framework="np") as f:
        assert f.metadata() == METADATA, f.metadata()
    print(f"ok: {len(found)} tensors read by safetensors {safetensors.__version__}")


if __name__ == "__main__":
    {"make": make, "verify": verify}[sys.argv[1]](Path(sys.argv[2]))
