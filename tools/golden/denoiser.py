"""What fixtures of all denoisers have in common: inputs by name, every block's result, the gradients of a loss, and
what bf16 costs PyTorch. Read by tests/models/denoiser_golden_test.cpp."""
import json
import os

# Some virtual machines advertise AMX and then trap on it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import torch

from procedural import fill, uniform


def unit(name, shape):
    """Gaussian-like, of unit variance."""
    return torch.from_numpy(uniform(name, shape)) * 3**0.5


def inputs_of(name, case):
    """latents [B, C, h, w], text [B, T, joint], pooled [B, P], each row with a name of its own."""
    rows = range(len(case["sigmas"]))
    latents = unit(f"{name}.latents", (len(rows), case["channels"], *case["size"]))
    text = torch.stack([unit(f"{name}.text.{i}", (case["text"], case["joint"])) for i in rows])
    pooled = torch.stack([unit(f"{name}.pooled.{i}", (case["pooled"],)) for i in rows])
    return latents, text, pooled


def gradients(model, small=2048):
    """Small ones whole, large ones multiplied from both sides by vectors. Kernels of convolutions are matrices."""
    out = {}
    for key, parameter in model.named_parameters():
        g = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        g = g.flatten(1) if g.dim() > 2 else g
        if g.dim() < 2 or g.numel() <= small:
            out[f"grad.{key}"] = g.reshape(-1)
        else:
            out[f"grad_left.{key}"] = torch.from_numpy(uniform(f"left.{g.shape[0]}", (g.shape[0],))) @ g
            out[f"grad_right.{key}"] = g @ torch.from_numpy(uniform(f"right.{g.shape[1]}", (g.shape[1],)))
    return out


def run(name, case, model, velocity, blocks, embedder, joined=(), small=2048):
    """velocity(model, case, latents, text, pooled) -> [B, C, h, w]. `blocks`: lists of blocks, by name; of a pair that
    one returns the first is the text's, or, in those of `joined`, the first part of one sequence. Returns tensors and
    metadata."""
    fill(model)
    config = json.loads(model.to_json_string())
    given = [x.requires_grad_(True) for x in inputs_of(name, case)]
    target = unit(f"{name}.target", tuple(given[0].shape))
    out = {}

    def keep(key):
        def hook(_, __, result):
            if isinstance(result, tuple) and key.rpartition(".")[0] in joined:
                result = torch.cat(result, 1)
            results = result if isinstance(result, tuple) else (None, result)
            for suffix, x in zip((".text", ""), results):
                if x is not None:
                    out[key + suffix] = x.detach().clone()
        return hook

    for kind in blocks:
        for i, block in enumerate(model.get_submodule(kind)):
            block.register_forward_hook(keep(f"{kind}.{i}"))
    getattr(model, embedder).register_forward_hook(keep(embedder))
    sample = velocity(model, case, *given)
    out["sample"] = sample.detach()
    loss = ((sample - target) ** 2).mean()
    loss.backward()
    out["loss"] = loss.detach().reshape(1)
    for key, x in zip(("latents", "text", "pooled"), given):
        out[f"grad.{key}"] = x.grad
    out.update(gradients(model, small))

    # What diffusers itself loses in bf16: the yardstick for ours. Its rounding of the time, 970 to 968, is another
    # point of the schedule rather than an error, and left out.
    for module in model.modules():
        module._forward_hooks.clear()
    getattr(model, embedder).register_forward_hook(lambda *_: out[embedder].bfloat16())
    with torch.no_grad():
        rough = velocity(model.to(torch.bfloat16), case, *(x.detach().bfloat16() for x in given)).float()
    bf16_error = ((rough - out["sample"]).norm() / out["sample"].norm()).item()
    print(name, len(out), "tensors; bf16 costs", bf16_error)
    description = dict(case, name=name, config=config, bf16_error=bf16_error)
    return {k: v.contiguous().to(torch.float32) for k, v in out.items()}, {"case": json.dumps(description)}
