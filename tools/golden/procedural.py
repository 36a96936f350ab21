"""Weights and inputs that are a pure function of their name, the same here and in the C++ tests
(tests/support/procedural.h), so that fixtures hold only results. Philox4x32-10 keyed by the FNV-1a
hash of the name, then bf16-rounded: norms 1 +- 0.3, biases +- 0.2, matrices of unit gain."""
import numpy as np


def fnv1a(name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return h


def philox(seed, count):
    """Words 0 .. count-1 of stream 0."""
    blocks = (count + 3) // 4
    index = np.arange(blocks, dtype=np.uint64)
    mask = np.uint64(0xFFFFFFFF)
    c = [index & mask, index >> np.uint64(32), np.zeros(blocks, np.uint64), np.zeros(blocks, np.uint64)]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), p1 & mask,
             (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1), p0 & mask]
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return np.stack(c, 1).reshape(-1)[:count].astype(np.uint32)


def uniform(name, shape):
    """float32 in [-1, 1)."""
    count = int(np.prod(shape)) if len(shape) else 1
    words = philox(fnv1a(name), count)
    return ((words >> 8).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)).reshape(shape)


def to_bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32)


def weight(name, shape):
    u = uniform(name, shape)
    if "pad_token" in name or "embed_tokens" in name:
        return to_bf16(u)
    if len(shape) == 1:
        is_norm = name.endswith("weight")
        return to_bf16(np.float32(1) + np.float32(0.3) * u if is_norm else np.float32(0.2) * u)
    fan_in = np.float32(np.prod(shape[1:]))
    return to_bf16(u * np.sqrt(np.float32(3) / fan_in))


def fill(module, prefix=""):
    """Every parameter of a torch module, by its name."""
    import torch
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(weight(prefix + name, tuple(parameter.shape))))
    return module.eval()
