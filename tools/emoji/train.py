"""Train the text encoder and the transformer together by flow matching on a bank of encoded scenes.

    python train.py --bank bank.pt --minutes 13 --out run [--resume run]

The bank may still be in the making when this starts: it compiles meanwhile, then waits for the file.
"""
import argparse
import json
import time
from pathlib import Path

import torch

from data import load_tokenizer
from model import Model
from muon import Muon
from schedule import Clock, average, pick_device, rate, synchronize
from tokenizer import encode

DROPPED = 0.1  # share of captions replaced by the empty one, for guidance


def loss_of(model, x, noise, sigma, ids, counts):
    s = sigma[:, None, None, None]
    velocity = model((1 - s) * x + s * noise, 1 - sigma, ids, counts)
    return (velocity.float() - (x - noise)).pow(2).mean()


def draw_sigma(count, device):
    """Logit-normal, leaning to the noisy side, where it is decided which emoji appears."""
    sigma = torch.sigmoid(torch.randn(count, device=device) + 0.3)
    return torch.where(torch.rand(count, device=device) < 0.1, torch.rand(count, device=device), sigma)


class Trainer:
    """One training step from nothing but device memory, so that it can be captured once and replayed.

    Launching its thousand small kernels one by one takes three times as long as running them."""

    def __init__(self, model, args, device):
        self.model, self.batch, self.device = model, args.batch, device
        # The last text layer and its norm never run, and 64 picture tokens need no padding.
        for part in (model.text_encoder.layers[-1], model.text_encoder.norm):
            part.requires_grad_(False)
        model.transformer.x_pad_token.requires_grad_(False)
        self.trained = [p for p in model.parameters() if p.requires_grad]
        matrices, others = [], []
        for key, p in model.named_parameters():
            if p.requires_grad:
                inside = p.ndim == 2 and ("layers." in key or "refiner." in key) and "adaLN" not in key
                (matrices if inside and args.muon else others).append(p)
        on_device = device.type == "cuda"
        self.lr = torch.zeros((), device=device)
        self.muon, self.muon_ratio = Muon(matrices), args.muon
        self.adam = torch.optim.AdamW(others, lr=self.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=on_device,
                                      capturable=on_device)
        self.smooth, self.decay = [p.detach().clone() for p in model.parameters()], args.ema
        self.total = torch.zeros((), device=device)
        self.empty = [torch.as_tensor(a).to(device).long() for a in encode(load_tokenizer(), [""])]
        self.loss_of = loss_of if args.tiny else torch.compile(loss_of)
        self.graph = None

    def step(self, bank):
        for p in self.trained:
            p.grad = None
        at = torch.randint(len(bank["ids"]), (self.batch,), device=self.device)
        dropped = torch.rand(self.batch, device=self.device) < DROPPED
        ids = torch.where(dropped[:, None], self.empty[0], bank["ids"][at].long())
        counts = torch.where(dropped, self.empty[1], bank["counts"][at].long())
        x = bank["latents"][at].float()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda", cache_enabled=False):
            loss = self.loss_of(self.model, x, torch.randn_like(x), draw_sigma(self.batch, self.device), ids, counts)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0, foreach=True)
        self.adam.step()
        self.muon.step(self.lr * self.muon_ratio)
        average(self.smooth, self.model, self.decay)
        self.total += loss.detach()

    def warm_up(self):
        """Compile on stand-in data. The rate is zero; what the optimizers remember of it is wiped."""
        count = 2 * self.batch
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        bank = {"latents": torch.randn(count, 16, 16, 16, dtype=dtype, device=self.device),
                "ids": torch.randint(0, 2000, (count, 32), dtype=torch.int16, device=self.device),
                "counts": torch.full((count,), 20, dtype=torch.int16, device=self.device)}
        stream = torch.cuda.Stream() if self.device.type == "cuda" else None
        if stream:
            stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(4):
                self.step(bank)
        synchronize(self.device)
        with torch.no_grad():
            memory = [v for state in self.adam.state.values() for v in state.values() if torch.is_tensor(v)]
            for value in [*memory, *self.muon.velocity.values(), self.total]:
                value.zero_()

    def capture(self, bank):
        for p in self.trained:
            p.grad = None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step(bank)
        self.graph = graph

    def run(self, bank, lr):
        self.lr.fill_(lr)
        self.graph.replay() if self.graph else self.step(bank)

    def restart_average(self):
        with torch.no_grad():
            torch._foreach_copy_(self.smooth, [p.detach() for p in self.model.parameters()])

    def save(self, folder, step, seconds):
        names = [n for n, _ in self.model.named_parameters()]
        for name, values in (("ema", self.smooth), ("raw", self.model.parameters())):
            state = {n: v.detach().bfloat16() for n, v in zip(names, values)}
            torch.save({"model": state, "step": step, "seconds": seconds}, folder / f"{name}.part")
            (folder / f"{name}.part").rename(folder / f"{name}.pt")


def main(args):
    args.out.mkdir(parents=True, exist_ok=True)
    device = pick_device()
    torch.manual_seed(args.torch_seed)
    model, first, spent = Model(args.tiny).to(device), 0, 0.0
    if args.resume:
        raw = args.resume / "raw.pt"  # the averaged weights serve as well
        saved = torch.load(raw if raw.exists() else args.resume / "ema.pt", map_location=device, weights_only=True)
        model.load_state_dict({k: v.float() for k, v in saved["model"].items()})
        first, spent = saved["step"], saved["seconds"]
    trainer, start = Trainer(model, args, device), time.time()
    if args.resume:
        averaged = torch.load(args.resume / "ema.pt", map_location=device, weights_only=True)["model"]
        trainer.smooth = [averaged[n].float() for n, _ in model.named_parameters()]
    kept = [s.clone() for s in trainer.smooth]
    trainer.warm_up()
    torch._foreach_copy_(trainer.smooth, kept)
    compiled = time.time() - start
    while not args.bank.exists():
        time.sleep(0.2)
    bank = {k: v.to(device) for k, v in torch.load(args.bank, weights_only=True).items()}
    print(f"compiled {compiled:.0f} s, bank of {len(bank['ids'])} after {time.time() - start:.0f} s", flush=True)
    if device.type == "cuda":
        try:
            trainer.capture(bank)
            print("captured", flush=True)
        except Exception as error:  # slower, but it trains
            print("not captured:", error, flush=True)
    clock, step, saved_at, history = Clock(args.minutes, args.steps), 0, time.time(), []
    every = 10 if args.tiny else 250
    while clock.progress(step) < 1:
        trainer.run(bank, args.lr * rate(clock.progress(step), step, warmup=10 if args.tiny else 500, hold=args.hold))
        step += 1
        if step == 1000 and not args.resume:
            trainer.restart_average()  # forget the start
        if step % 50 == 0:
            synchronize(device)
        if step % every == 0:
            history.append([first + step, round(clock.elapsed(), 1), trainer.total.item() / every])
            trainer.total.zero_()
            if step % (4 * every) == 0 or step == every or args.tiny:
                print("step %d  %.1f s  loss %.5f" % tuple(history[-1]), flush=True)
            if time.time() - saved_at > args.save_every:
                trainer.save(args.out, first + step, spent + clock.elapsed())
                saved_at = time.time()
    synchronize(device)
    trainer.save(args.out, first + step, spent + clock.elapsed())
    summary = {"settings": {k: str(v) for k, v in vars(args).items()}, "steps": step, "seconds": clock.elapsed(),
               "compile": compiled, "captured": trainer.graph is not None, "history": history}
    (args.out / "train.json").write_text(json.dumps(summary))
    print(f"done: {step} steps in {clock.elapsed():.0f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bank", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("run"))
    parser.add_argument("--minutes", type=float, default=13)
    parser.add_argument("--steps", type=int, help="instead of minutes")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--muon", type=float, default=1.5, help="rate of the layers' matrices relative to lr; 0 uses Adam for all")
    parser.add_argument("--hold", type=float, default=0.4, help="share of the time before the rate falls")
    parser.add_argument("--ema", type=float, default=0.9995)
    parser.add_argument("--save-every", type=float, default=120)
    parser.add_argument("--torch-seed", type=int, default=1)
    parser.add_argument("--resume", type=Path, help="folder with ema.pt and, best, raw.pt")
    parser.add_argument("--tiny", action="store_true")
    main(parser.parse_args())
