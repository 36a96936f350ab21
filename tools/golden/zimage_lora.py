#!/usr/bin/env python3
"""Fixtures of low-rank adapters on a tiny Z-Image transformer. lora: each way of naming them, what
diffusers and PEFT compute with each alone and with all at once. lora_peft: settings of PEFT, in a folder
that PEFT saved and in the metadata of diffusers' file. The C++ test writes the same files.

    VENV/bin/pip install torch diffusers transformers peft safetensors
    VENV/bin/python tools/golden/zimage_lora.py tests/data/zimage
"""
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import torch
from diffusers import ZImagePipeline, ZImageTransformer2DModel
from peft import PeftModel
from safetensors.torch import save_file

from procedural import fill, uniform, weight
from zimage_transformer import CASES

DIM, HIDDEN = 96, 256
# file -> (prefix, separator, suffixes of A and B, rank, alpha, {module: (out, in)})
SPLIT = {f"layers.0.attention.{m}": (DIM, DIM) for m in ("to_q", "to_k", "to_v", "to_out.0")}
FILES = {
    "peft": dict(prefix="transformer.", separator=".", suffixes=("lora_A.weight", "lora_B.weight"), rank=4, alpha=6.0,
                 modules={**SPLIT, "layers.1.feed_forward.w1": (HIDDEN, DIM),
                          "noise_refiner.0.attention.to_q": (DIM, DIM)}),
    "kohya": dict(prefix="lora_unet_", separator="_", suffixes=("lora_down.weight", "lora_up.weight"), rank=3, alpha=2.0,
                  modules={**SPLIT, "layers.1.feed_forward.w2": (DIM, HIDDEN),
                           "context_refiner.0.attention.to_out.0": (DIM, DIM)}),
    "comfy": dict(prefix="diffusion_model.", separator=".", suffixes=("lora_down.weight", "lora_up.weight"), rank=5,
                  alpha=5.0, modules={"layers.1.attention.qkv": (3 * DIM, DIM), "layers.1.attention.out": (DIM, DIM),
                                      "layers.0.feed_forward.w3": (HIDDEN, DIM)}),
}
# Settings of PEFT: patterns are regular expressions on the ends of names, and give ranks and alphas of
# their own. Modules: (out, in, rank).
PEFT = {
    "folder": dict(prefix="base_model.model.", config=dict(
        peft_type="LORA", r=4, lora_alpha=6, use_rslora=True, bias="none", target_modules=["to_q", "to_k", "w1", "w2"],
        rank_pattern={r"layers\.\d+\.feed_forward\.w[12]": 3},
        alpha_pattern={"to_q": 2, r"^layers\.0\..*to_k": 9.5, r"layers\.(0|1)\.feed_forward\.w1": 5, r"^to_k": 77}),
        modules={"layers.0.attention.to_q": (DIM, DIM, 4), "layers.0.attention.to_k": (DIM, DIM, 4),
                 "layers.1.attention.to_k": (DIM, DIM, 4), "layers.1.feed_forward.w1": (HIDDEN, DIM, 3),
                 "layers.0.feed_forward.w2": (DIM, HIDDEN, 3)}),
    "metadata": dict(prefix="transformer.", config=dict(
        r=2, lora_alpha=3, target_modules=r".*\.attention\.to_[qv]", rank_pattern={"layers.1.attention.to_q": 5},
        alpha_pattern={r"(noise|context)_refiner\.0\..*": 1.25}),
        modules={"layers.1.attention.to_q": (DIM, DIM, 5), "layers.1.attention.to_v": (DIM, DIM, 2),
                 "noise_refiner.0.attention.to_q": (DIM, DIM, 2)}),
}
TOGETHER = {"peft": 0.7, "kohya": -0.4, "comfy": 1.3}


def write(folder, name, f):
    tensors, metadata = {}, {"format": "pt"}
    for module, (out, inner) in f["modules"].items():
        base = f["prefix"] + module.replace(".", f["separator"])
        for suffix, shape in zip(f["suffixes"], ((f["rank"], inner), (out, f["rank"]))):
            key = f"{base}.{suffix}"
            # diffusers multiplies by alpha / rank in the dtype of the file.
            dtype = torch.float32 if name == "kohya" else torch.bfloat16
            tensors[key] = torch.from_numpy(weight(key, shape)).to(dtype)
        if name == "kohya":
            tensors[f"{base}.alpha"] = torch.tensor(f["alpha"])
    if name == "peft":
        metadata["lora_adapter_metadata"] = json.dumps({"transformer.r": f["rank"], "transformer.lora_alpha": f["alpha"],
                                                        "transformer.target_modules": sorted(f["modules"])})
    path = folder / f"{name}.safetensors"
    save_file(tensors, path, metadata)
    return path


def write_peft(folder, name, f):
    tensors = {}
    for module, (out, inner, rank) in f["modules"].items():
        for suffix, shape in (("lora_A.weight", (rank, inner)), ("lora_B.weight", (out, rank))):
            key = f"{f['prefix']}{module}.{suffix}"
            tensors[key] = torch.from_numpy(weight(key, shape))
    if name == "folder":
        save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
        (folder / "adapter_config.json").write_text(json.dumps(f["config"]))
        return folder
    metadata = json.dumps({f["prefix"] + key: value for key, value in f["config"].items()})
    save_file(tensors, folder / f"{name}.safetensors", {"format": "pt", "lora_adapter_metadata": metadata})
    return folder / f"{name}.safetensors"


def split_fused(state):
    """diffusers takes no adapter of a fused q/k/v here: A serves all three, B is cut in three."""
    out = {}
    for key, value in state.items():
        if ".attention.qkv." not in key:
            out[key] = value
            continue
        parts = value.chunk(3) if "lora_B" in key else (value,) * 3
        for name, part in zip(("to_q", "to_k", "to_v"), parts):
            out[key.replace(".qkv.", f".{name}.")] = part.contiguous()
    return out


if __name__ == "__main__":
    case = CASES["ragged"]
    config = dict(in_channels=16, n_kv_heads=case["config"]["n_heads"], axes_lens=[256, 64, 64], **case["config"])
    model = fill(ZImageTransformer2DModel(**config))
    height, width = case["size"]
    latents = torch.from_numpy(uniform("ragged.latents", (2, 16, height, width))) * 3**0.5
    captions = [torch.from_numpy(uniform(f"ragged.caption.{i}", (n, config["cap_feat_dim"]))) * 3**0.5
                for i, n in enumerate(case["captions"])]

    def sample():
        with torch.no_grad():
            out = model(list(latents.unsqueeze(2).unbind(0)), torch.tensor(case["t"]), captions, return_dict=False)[0]
        return torch.stack(out).squeeze(2).contiguous()

    results = {"none": sample()}
    with tempfile.TemporaryDirectory() as folder:
        for name, f in FILES.items():
            path = write(Path(folder), name, f)
            state, metadata = ZImagePipeline.lora_state_dict(str(path), return_lora_metadata=True)
            model.load_lora_adapter(split_fused(state), adapter_name=name, prefix="transformer", metadata=metadata)
    for name in FILES:
        model.set_adapters([name], [1.0])
        results[name] = sample()
        print(name, ((results[name] - results["none"]).norm() / results["none"].norm()).item())
    model.set_adapters(list(TOGETHER), list(TOGETHER.values()))
    results["together"] = sample()
    model.unload_lora()
    peft_results = {}
    with tempfile.TemporaryDirectory() as folder:
        path = write_peft(Path(folder), "metadata", PEFT["metadata"])
        state, metadata = ZImagePipeline.lora_state_dict(str(path), return_lora_metadata=True)
        model.load_lora_adapter(state, adapter_name="metadata", prefix="transformer", metadata=metadata)
        peft_results["metadata"] = sample()
        model.unload_lora()
        PeftModel.from_pretrained(model, write_peft(Path(folder), "folder", PEFT["folder"]))
        peft_results["folder"] = sample()  # PEFT puts its layers into the model itself
    for name, result in peft_results.items():
        print(name, ((result - results["none"]).norm() / results["none"].norm()).item())
    save_file(peft_results, Path(sys.argv[1]) / "lora_peft.safetensors", {"case": json.dumps(PEFT)})
    description = dict(files=FILES, together=TOGETHER)
    save_file(results, Path(sys.argv[1]) / "lora.safetensors", {"case": json.dumps(description)})
