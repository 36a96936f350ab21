#!/usr/bin/env python3
"""Fixtures of tiny FLUX.2 transformers: what diffusers computes, block by block, and gradients.

    VENV/bin/pip install torch diffusers transformers safetensors
    VENV/bin/python tools/golden/flux2_transformer.py tests/data/flux2
"""
import json
import os
import sys
from pathlib import Path

# Some virtual machines advertise AMX and then trap on it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import torch
from diffusers import Flux2KleinPipeline, Flux2Transformer2DModel
from safetensors.torch import save_file

from procedural import fill, uniform

SMALL = dict(in_channels=16, num_layers=2, num_single_layers=2, num_attention_heads=2, attention_head_dim=16,
             joint_attention_dim=24, timestep_guidance_channels=16, axes_dims_rope=[4, 4, 4, 4],
             guidance_embeds=False)
# H != W, prompts and sigmas of their own in a batch; references of unlike sizes; dimensions that the
# low-precision kernels take, with heads as large as the real ones.
CASES = {
    "small": dict(config=SMALL, size=(3, 5), text=7, sigmas=[0.25, 0.9], references=[]),
    "reference": dict(config=SMALL, size=(4, 3), text=5, sigmas=[0.6, 1.0], references=[(2, 3), (3, 2)]),
    "aligned": dict(config=dict(SMALL, in_channels=128, num_layers=1, num_single_layers=1, attention_head_dim=128,
                                joint_attention_dim=128, timestep_guidance_channels=256,
                                axes_dims_rope=[32, 32, 32, 32]),
                    size=(4, 6), text=16, sigmas=[0.4, 0.97], references=[]),
}


def unit(name, shape):
    """Gaussian-like, of unit variance."""
    return torch.from_numpy(uniform(name, shape)) * 3**0.5


def pack(x):
    return Flux2KleinPipeline._pack_latents(x)


def inputs_of(name, case):
    batch, (height, width) = len(case["sigmas"]), case["size"]
    channels, joint = case["config"]["in_channels"], case["config"]["joint_attention_dim"]
    latents = unit(f"{name}.latents", (batch, channels, height, width))
    texts = [unit(f"{name}.text.{i}", (case["text"], joint)) for i in range(batch)]
    references = [unit(f"{name}.reference.{i}", (batch, channels, *size)) for i, size in enumerate(case["references"])]
    return latents, texts, references


def velocity(model, case, latents, texts, references):
    """[B, C, h, w]"""
    batch, channels, height, width = latents.shape
    ids = [Flux2KleinPipeline._prepare_latent_ids(latents)]
    tokens = [pack(latents)]
    if references:
        ids.append(Flux2KleinPipeline._prepare_image_ids([r[:1] for r in references]).expand(batch, -1, -1))
        tokens += [pack(r) for r in references]
    text = torch.stack(texts)
    out = model(hidden_states=torch.cat(tokens, 1), encoder_hidden_states=text,
                timestep=torch.tensor(case["sigmas"], dtype=latents.dtype), img_ids=torch.cat(ids, 1),
                txt_ids=Flux2KleinPipeline._prepare_text_ids(text), return_dict=False)[0]
    return out[:, :height * width].permute(0, 2, 1).reshape(batch, channels, height, width)


def gradients(model):
    """Small ones whole, large ones multiplied from both sides by vectors."""
    out = {}
    for key, parameter in model.named_parameters():
        g = parameter.grad
        if g.numel() <= 2048:
            out[f"grad.{key}"] = g.reshape(-1)
        else:
            out[f"grad_left.{key}"] = torch.from_numpy(uniform(f"left.{g.shape[0]}", (g.shape[0],))) @ g
            out[f"grad_right.{key}"] = g @ torch.from_numpy(uniform(f"right.{g.shape[1]}", (g.shape[1],)))
    return out


def run(name, case):
    model = fill(Flux2Transformer2DModel(**case["config"]))
    config = json.loads(model.to_json_string())
    latents, texts, references = inputs_of(name, case)
    target = unit(f"{name}.target", tuple(latents.shape))
    for x in (latents, *texts, *references):
        x.requires_grad_(True)
    out = {}

    def keep(key):
        def hook(_, __, result):
            if isinstance(result, tuple):
                out[f"{key}.text"], out[key] = (x.detach().clone() for x in result)
            else:
                out[key] = result.detach().clone()
        return hook

    for kind in ("transformer_blocks", "single_transformer_blocks"):
        for i, block in enumerate(getattr(model, kind)):
            block.register_forward_hook(keep(f"{kind}.{i}"))
    model.time_guidance_embed.register_forward_hook(keep("time_guidance_embed"))

    sample = velocity(model, case, latents, texts, references)
    out["sample"] = sample.detach()
    loss = ((sample - target) ** 2).mean()
    loss.backward()
    out["loss"] = loss.detach().reshape(1)
    out["grad.latents"] = latents.grad
    out["grad.text"] = torch.stack([t.grad for t in texts])
    if references:
        out["grad.references"] = torch.cat([pack(r.grad) for r in references], 1)
    out.update(gradients(model))

    # What diffusers itself loses in bf16: the yardstick for ours. Its rounding of the time, 970 to 968, is
    # another point of the schedule rather than an error, and left out.
    for module in model.modules():
        module._forward_hooks.clear()
    model.time_guidance_embed.register_forward_hook(lambda *_: out["time_guidance_embed"].bfloat16())
    with torch.no_grad():
        rough = velocity(model.to(torch.bfloat16), case, latents.detach().bfloat16(),
                         [t.detach().bfloat16() for t in texts], [r.detach().bfloat16() for r in references]).float()
    bf16_error = ((rough - out["sample"]).norm() / out["sample"].norm()).item()
    description = dict(bf16_error=bf16_error, name=name, config=config, size=case["size"], text=case["text"],
                       sigmas=case["sigmas"], references=case["references"])
    return {k: v.contiguous().to(torch.float32) for k, v in out.items()}, {"case": json.dumps(description)}


if __name__ == "__main__":
    for name, case in CASES.items():
        tensors, metadata = run(name, case)
        save_file(tensors, Path(sys.argv[1]) / f"transformer_{name}.safetensors", metadata)
        print(name, len(tensors), "tensors", json.loads(metadata["case"])["bf16_error"])
