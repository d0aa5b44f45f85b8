#!/usr/bin/env python3
"""Makes the samples of this folder with a real torch: lists of two CPU tensors each, as an engine
sends them in `commit_store`. Byte i of tensor k is (i * 31 + k * 101 + 7) % 256.

    python make.py FOLDER            write the samples
    python make.py FOLDER --check    load `ours-*.pickle`, which kvtide wrote, and compare
"""

import pathlib
import pickle
import sys

import torch


def tensor(k, dtype, shape):
    size = torch.Size(shape).numel() * torch.empty(0, dtype=dtype).element_size()
    raw = bytearray((i * 31 + k * 101 + 7) % 256 for i in range(size))
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(shape)


def write(folder, name, value, protocol=4):
    (folder / f"{name}.pickle").write_bytes(pickle.dumps(value, protocol=protocol))


def samples(folder):
    for name in ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int64",
                 "uint16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "complex64"):
        dtype = getattr(torch, name)
        write(folder, f"{name}-2x2x3x5", [tensor(k, dtype, [2, 2, 3, 5]) for k in range(2)])
    half = [tensor(k, torch.float16, [3, 4, 5]) for k in range(2)]
    for protocol in (2, 3, 5):
        write(folder, f"float16-3x4x5-protocol{protocol}", half, protocol)
    # Larger than one frame of the pickle protocol (64 KiB).
    large = [tensor(k, torch.bfloat16, [2, 1, 64, 300]) for k in range(2)]
    write(folder, "bfloat16-2x1x64x300", large)
    write(folder, "one-shared-storage", list(tensor(0, torch.float16, [2, 3, 4, 5])))
    turned = [tensor(k, torch.float16, [4, 3, 5]).transpose(0, 1) for k in range(2)]
    write(folder, "not-contiguous", turned)
    write(folder, "same-tensor-twice", [half[0], half[0]])
    write(folder, "tuple", tuple(half))
    write(folder, "other-objects", [{"a": 1}, half[0], "text"])


def check(folder):
    for path in sorted(folder.glob("ours-*.pickle")):
        _, name, dims = path.stem.split("-")
        dtype, shape = getattr(torch, name), [int(d) for d in dims.split("x")]
        got = pickle.loads(path.read_bytes())
        assert isinstance(got, list) and len(got) == 2, path
        for k, have in enumerate(got):
            want = tensor(k, torch.uint8, [have.numel() * have.element_size()])
            assert have.dtype == dtype and list(have.shape) == shape and have.is_contiguous(), path
            assert torch.equal(have.reshape(-1).view(torch.uint8), want), path
        print("ok", path.name)


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    (check if "--check" in sys.argv else samples)(target)
