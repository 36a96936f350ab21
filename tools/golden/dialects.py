#!/usr/bin/env python3
"""Fixtures of quantized files as each tool writes them, with what the tool says they stand for.

    python -m venv VENV && VENV/bin/pip install torch safetensors torchao compressed-tensors \\
        comfy-kitchen nvidia-modelopt
    VENV/bin/python tools/golden/dialects.py make tests/data/dialects
    VENV/bin/python tools/golden/dialects.py verify FOLDER     # files that 'halftone convert' wrote

`make` writes TOOL.safetensors with codes and scales from the tool's own package, and
TOOL_expected.safetensors with what the package dequantizes them to. Weights are chosen so that global
scales are powers of two, except in layers called general*: then every product is exact in float32.
`verify` reads torchao.safetensors and compressed-tensors.safetensors with those packages, and holds what
they make of them to halftone.safetensors, from which they were converted.
"""
import json
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent))
from procedural import uniform  # noqa: E402

E4M3 = torch.float8_e4m3fn


def weight(name, shape, amax=None):
    """bf16 values of about unit size; `amax` sets the largest one."""
    x = torch.from_numpy(uniform(name, shape).copy()).bfloat16()
    if amax is not None:
        x = (x * (amax / 2)).bfloat16()
        x[0, 0] = amax
    return x


POWER_OF_TWO = 2688 * 2.0**-11  # as amax it makes NVFP4's global scale 2^-11
SMALL = (16, 64)
TALL, TALL_MX = (136, 80), (136, 32)  # more than one tile of scales


def save(folder, tool, tensors, expected, metadata=None):
    tensors = {name: t.contiguous().clone() for name, t in tensors.items()}
    save_file(tensors, folder / f"{tool}.safetensors", metadata)
    exact = {}
    for name, t in expected.items():
        narrow = t.bfloat16()
        exact[name] = narrow if torch.equal(narrow.float(), t.float()) else t.float()
    save_file(exact, folder / f"{tool}_expected.safetensors")


def make_torchao(folder):
    from torchao.prototype.mx_formats.mx_tensor import MXTensor, QuantizeTensorToMXKwargs
    from torchao.prototype.mx_formats.nvfp4_tensor import (NVFP4Tensor, QuantizeTensorToNVFP4Kwargs,
                                                           per_tensor_amax_to_scale)
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import Float8Tensor, PerRow, PerTensor

    def global_scale(x):
        return per_tensor_amax_to_scale(x.abs().max().float())

    x, tall = weight("torchao", SMALL, POWER_OF_TWO), weight("torchao.tall", TALL, POWER_OF_TWO)
    general = weight("torchao.general", SMALL)
    layers = {
        "row.weight": Float8Tensor.from_hp(x, granularity=PerRow()),
        "tensor.weight": Float8Tensor.from_hp(x, granularity=PerTensor()),
        "mx.weight": MXTensor.to_mx(x, E4M3, 32, act_quant_kwargs=QuantizeTensorToMXKwargs()),
        "mx_swizzled.weight": MXTensor.to_mx(weight("torchao.mx", TALL_MX), E4M3, 32, is_swizzled_scales=True),
        "nvfp4.weight": NVFP4Tensor.to_nvfp4(x, per_tensor_scale=global_scale(x),
                                             act_per_tensor_scale=torch.tensor(0.25),
                                             act_quant_kwargs=QuantizeTensorToNVFP4Kwargs()),
        "nvfp4_swizzled.weight": NVFP4Tensor.to_nvfp4(tall, per_tensor_scale=global_scale(tall),
                                                      is_swizzled_scales=True),
        "nvfp4_alone.weight": NVFP4Tensor.to_nvfp4(x * 64),
        "general.weight": NVFP4Tensor.to_nvfp4(general, per_tensor_scale=global_scale(general)),
    }
    expected = {name: t.dequantize(torch.float32) for name, t in layers.items()}
    tensors, metadata = flatten_tensor_state_dict({**layers, "row.bias": torch.zeros(SMALL[0])})
    save(folder, "torchao", tensors, expected, metadata)


def compressed_schemes():
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    def scheme(**args):
        inputs = QuantizationArgs(num_bits=8, type="float", strategy="tensor", dynamic=False)
        return QuantizationScheme(targets=["Linear"], input_activations=inputs,
                                  weights=QuantizationArgs(type="float", symmetric=True, **args))

    return {"channel": scheme(num_bits=8, strategy="channel"),
            "tensor": scheme(num_bits=8, strategy="tensor"),
            "mx": scheme(num_bits=8, strategy="group", group_size=32, scale_dtype=torch.uint8),
            "nvfp4": scheme(num_bits=4, strategy="tensor_group", group_size=16, scale_dtype=E4M3)}


def compressors():
    from compressed_tensors.compressors.mxfp8 import MXFP8QuantizationCompressor
    from compressed_tensors.compressors.naive_quantized import FloatQuantizationCompressor
    from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor

    return {"channel": FloatQuantizationCompressor, "tensor": FloatQuantizationCompressor,
            "mx": MXFP8QuantizationCompressor, "nvfp4": NVFP4PackedCompressor}


def decompress(kind, parts):
    if kind == "nvfp4":  # the compressor's own steps, in float32 instead of bf16
        from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
        from compressed_tensors.quantization.lifecycle.forward import dequantize
        packed = parts["weight_packed"]
        codes = unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2, dtype=torch.float32)
        return dequantize(x_q=codes, scale=parts["weight_scale"].float(), dtype=torch.float32,
                          global_scale=parts["weight_global_scale"],
                          args=compressed_schemes()[kind].weights)
    state = compressors()[kind].decompress(dict(parts), compressed_schemes()[kind])
    return state["weight"]


def make_compressed_tensors(folder):
    from compressed_tensors.quantization.utils import generate_gparam

    tensors, expected = {}, {}

    def add(layer, kind, x, scale, **parts):
        state = compressors()[kind].compress({"weight": x.float(), "weight_scale": scale, **parts},
                                             compressed_schemes()[kind])
        for name, t in state.items():
            tensors[f"{layer}.{name}"] = t.detach().clone()
        kept = {name: t for name, t in state.items() if not name.startswith("input")}
        expected[f"{layer}.weight"] = decompress(kind, kept).float()

    x = weight("compressed", SMALL, POWER_OF_TWO)
    f = x.float()
    add("channel", "channel", x, f.abs().amax(1, keepdim=True) / 448, input_scale=torch.tensor([0.5]))
    add("tensor", "tensor", x, f.abs().max().reshape(1) / 448)
    blocks = f.reshape(SMALL[0], 2, 32).abs().amax(2)
    add("mx", "mx", x, 2.0 ** torch.ceil(torch.log2(blocks / 448)))

    def nvfp4(layer, x, **parts):
        f = x.float()
        inverse = generate_gparam(f.min(), f.max())
        blocks = f.reshape(f.shape[0], -1, 16).abs().amax(2)
        scale = (inverse * blocks / 6).to(E4M3).float()
        add(layer, "nvfp4", x, scale, weight_global_scale=inverse, **parts)

    nvfp4("nvfp4", x, input_global_scale=torch.tensor([4.0]))
    nvfp4("general", weight("compressed.general", SMALL))
    save(folder, "compressed-tensors", tensors, expected)


def make_comfyui(folder):
    import comfy_kitchen as ck
    from comfy_kitchen.tensor import TensorCoreMXFP8Layout, TensorCoreNVFP4Layout

    tensors, expected = {}, {}

    def mark(layer, **marker):
        text = json.dumps(marker).encode()
        tensors[f"{layer}.comfy_quant"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def add(layer, layout, name, x):
        qdata, params = layout.quantize(x)
        for suffix, t in layout.state_dict_tensors(qdata, params).items():
            tensors[f"{layer}.weight{suffix}"] = t
        rows, cols = x.shape
        expected[f"{layer}.weight"] = layout.dequantize(qdata, params)[:rows, :cols].float()
        mark(layer, format=name)

    x, tall = weight("comfy", SMALL, POWER_OF_TWO), weight("comfy.tall", TALL, POWER_OF_TWO)
    scale = x.float().abs().max() / 448
    codes = ck.quantize_per_tensor_fp8(x, scale, E4M3)
    tensors |= {"fp8.weight": codes, "fp8.weight_scale": scale, "fp8.input_scale": torch.tensor(0.5)}
    expected["fp8.weight"] = codes.float() * scale
    mark("fp8", format="float8_e4m3fn", full_precision_matrix_mult=True)
    add("mx", TensorCoreMXFP8Layout, "mxfp8", weight("comfy.mx", TALL_MX))  # padded to 160 rows
    add("nvfp4", TensorCoreNVFP4Layout, "nvfp4", tall)  # padded to 144 rows
    tensors["nvfp4.bias"] = torch.zeros(TALL[0])
    # Older files: FP8 with scales of other names, and a marker for all layers.
    save(folder, "comfyui", tensors, expected)
    save(folder, "comfyui_legacy",
         {"scaled_fp8": torch.zeros(2, dtype=E4M3), "a.weight": codes, "a.scale_weight": scale.reshape(1),
          "a.scale_input": torch.tensor([0.5]), "b.weight": codes}, {"a.weight": codes.float() * scale,
                                                                     "b.weight": codes.float()})


def make_modelopt(folder):
    from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP8QTensor, NVFP4QTensor

    x, general = weight("modelopt", SMALL, POWER_OF_TWO), weight("modelopt.general", SMALL)
    tensors, expected = {}, {}
    q, scale = FP8QTensor.quantize(x.float(), scales=x.float().abs().max() / 448)
    tensors |= {"fp8.weight": q._quantized_data, "fp8.weight_scale": scale.reshape(()),
                "fp8.input_scale": torch.tensor(0.5)}
    expected["fp8.weight"] = q.dequantize(torch.float32, scale=scale, block_sizes=None)
    q, scale = MXFP8QTensor.quantize(x)
    tensors |= {"mx.weight": q._quantized_data, "mx.weight_scale": scale}
    expected["mx.weight"] = q.dequantize(torch.float32, scale=scale)
    for layer, w in (("nvfp4", x), ("general", general)):
        q, scale, double = NVFP4QTensor.quantize(w, 16)
        tensors |= {f"{layer}.weight": q._quantized_data, f"{layer}.weight_scale": scale,
                    f"{layer}.weight_scale_2": double.reshape(())}
        expected[f"{layer}.weight"] = q.dequantize(torch.float32, scale=scale, double_scale=double,
                                                   block_sizes={-1: 16})
    tensors["nvfp4.input_scale"] = torch.tensor(0.25)
    save(folder, "modelopt", tensors, expected)


def make(folder):
    folder.mkdir(parents=True, exist_ok=True)
    make_torchao(folder)
    make_compressed_tensors(folder)
    make_comfyui(folder)
    make_modelopt(folder)
    print(sum(f.stat().st_size for f in folder.iterdir()), "bytes")


def verify(folder):
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

    own = load_file(folder / "halftone.safetensors")

    def values(name):
        codes, scale = own[name], own[name + "_scale"].float()
        if codes.dtype == torch.uint8:
            table = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6])
            table = torch.cat([table, -table])
            codes = torch.stack([codes & 15, codes >> 4], -1).flatten(1)
            codes, scale = table[codes.long()], scale * own[name + "_scale_2"]
        block = 1 if scale.numel() == 1 else codes.shape[1] // scale.shape[1]
        return codes.float() * (scale if block == 1 else scale.repeat_interleave(block, 1))

    with safe_open(folder / "torchao.safetensors", "pt") as f:
        read, left = unflatten_tensor_state_dict({k: f.get_tensor(k) for k in f.keys()}, f.metadata())
    assert not [name for name in left if "_weight_" in name], left.keys()
    weights = [name for name, t in read.items() if type(t) is not torch.Tensor]
    assert weights
    for name in weights:
        torch.testing.assert_close(read[name].dequantize(torch.float32), values(name), rtol=1e-6, atol=0)
    state = load_file(folder / "compressed-tensors.safetensors")
    for name in weights:
        layer = name.removesuffix("weight")
        parts = {k.removeprefix(layer): t for k, t in state.items()
                 if k.startswith(layer) and not k.endswith("bias")}
        scale = parts["weight_scale"]
        kind = ("nvfp4" if "weight_packed" in parts else "mx" if scale.dtype == torch.uint8
                else "tensor" if scale.numel() == 1 else "channel")
        torch.testing.assert_close(decompress(kind, parts).float(), values(name), rtol=1e-6, atol=0)
    config = folder / "compressed-tensors.quantization_config.json"
    from compressed_tensors.quantization import QuantizationConfig
    QuantizationConfig.model_validate(json.loads(config.read_text()))
    print(f"{len(weights)} weights: torchao and compressed-tensors read what halftone holds")


if __name__ == "__main__":
    {"make": make, "verify": verify}[sys.argv[1]](Path(sys.argv[2]))
