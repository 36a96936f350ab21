"""What a user would pick instead: PyTorch bf16 / FP8, eager and compiled, on a Z-Image-shaped DiT
(dim 3840, 30 heads, SwiGLU 10240), measured on one CUDA GPU. Prints a line per case and writes torch_anchor.json.

    torch_anchor.py [--sections gemms,attn,infer,train] [--tokens 4224] [--batches 1,4]
"""
import time, math, json, os, sys, argparse
parser = argparse.ArgumentParser()
parser.add_argument("--sections", default="gemms,attn,infer,train")
parser.add_argument("--tokens", type=int, default=4224)
parser.add_argument("--batches", default="1,4")
parser.add_argument("--family", default="z-image", help="z-image, flux.2-klein (4B), flux.1, sd3 (3.5 Large) or sdxl (tokens: of the lowest level)")
args = parser.parse_args()
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
dev = "cuda"
torch.backends.cuda.matmul.allow_tf32 = True
E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
OUT = os.environ.get("OUT", ".")
rows = []
def say(name, **kw):
    rows.append(dict(name=name, **kw)); print(name, " ".join(f"{k}={v}" for k, v in kw.items()), flush=True)
def bench(fn, n=20, warm=3):
    for _ in range(warm): fn()
    torch.cuda.synchronize()
    ts = []
    for _ in range(n):
        a, b = torch.cuda.Event(True), torch.cuda.Event(True)
        a.record(); fn(); b.record(); b.synchronize(); ts.append(a.elapsed_time(b))
    ts.sort(); return ts[len(ts)//2]

def gemms():
    for M in (4096, 16384):
        for N, K in ((3840, 3840), (10240, 3840), (3840, 10240), (12288, 3072)):
            x = torch.randn(M, K, device=dev, dtype=torch.bfloat16); w = torch.randn(N, K, device=dev, dtype=torch.bfloat16)
            fl = 2*M*N*K/1e9
            t0 = bench(lambda: x @ w.t())
            xq, wq = x.to(E4), w.to(E4)
            one = torch.ones((), device=dev); sa = torch.ones(M, 1, device=dev); sb = torch.ones(1, N, device=dev)
            t1 = bench(lambda: torch._scaled_mm(xq, wq.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True))
            try: t2 = bench(lambda: torch._scaled_mm(xq, wq.t(), sa, sb, out_dtype=torch.bfloat16, use_fast_accum=True))
            except Exception as e: t2 = float("nan"); print(e)
            t3 = bench(lambda: torch._scaled_mm(xq, wq.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=False))
            say(f"gemm {M}x{N}x{K}", bf16=f"{fl/t0:.0f}", fp8_tensor=f"{fl/t1:.0f}", fp8_row=f"{fl/t2:.0f}", fp8_tensor_slowacc=f"{fl/t3:.0f}", unit="TFLOP/s")

def attn():
    from torch.nn.attention import sdpa_kernel, SDPBackend
    for B, S in ((1, 4224), (4, 4224)):
        q, k, v = (torch.randn(B, 30, S, 128, device=dev, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        fl = 4*B*30*S*S*128/1e9
        for nm, be in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
            try:
                with sdpa_kernel([be]):
                    with torch.no_grad(): t = bench(lambda: F.scaled_dot_product_attention(q, k, v))
                    o = F.scaled_dot_product_attention(q, k, v); g = torch.randn_like(o)
                    tb = bench(lambda: torch.autograd.grad(F.scaled_dot_product_attention(q, k, v), (q, k, v), g), n=10)
                say(f"sdpa {nm} B{B} S{S}", fwd=f"{fl/t:.0f}", fwdbwd=f"{3.5*fl/tb:.0f}", unit="TFLOP/s")
            except Exception as e: print(nm, repr(e)[:200])

def q_tensor(x, dt=E4):
    mx = torch.finfo(dt).max
    s = (x.abs().amax().float()/mx).clamp(min=1e-12)
    return (x.float()/s).clamp(-mx, mx).to(dt), s
def q_row(x, dt=E4):
    mx = torch.finfo(dt).max
    s = (x.abs().amax(-1, keepdim=True).float()/mx).clamp(min=1e-12)
    return (x.float()/s).clamp(-mx, mx).to(dt), s

class FP8Fn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, wq, ws, wtq, wts, row, bwd8, w):
        sh = x.shape; x2 = x.reshape(-1, sh[-1])
        xq, xs = (q_row if row else q_tensor)(x2)
        y = torch._scaled_mm(xq, wq.t(), xs, ws.t() if row else ws, out_dtype=torch.bfloat16, use_fast_accum=True)
        ctx.save_for_backward(wtq, wts, w); ctx.row, ctx.bwd8 = row, bwd8
        return y.view(*sh[:-1], -1)
    @staticmethod
    def backward(ctx, g):
        wtq, wts, w = ctx.saved_tensors; sh = g.shape; g2 = g.reshape(-1, sh[-1])
        if ctx.bwd8:
            gq, gs = (q_row if ctx.row else q_tensor)(g2, E5)
            gx = torch._scaled_mm(gq, wtq.t(), gs, wts.t() if ctx.row else wts, out_dtype=torch.bfloat16, use_fast_accum=False)
        else: gx = g2 @ w
        return gx.view(*sh[:-1], -1), None, None, None, None, None, None, None

class Lin(nn.Module):
    def __init__(s, i, o, mode="bf16", lora=0):
        super().__init__(); s.mode = mode
        s.w = nn.Parameter(torch.randn(o, i, device=dev, dtype=torch.bfloat16)*i**-.5, requires_grad=False)
        s.lora = lora
        if mode != "bf16":
            q = q_row if "row" in mode else q_tensor
            wq, ws = q(s.w); s.register_buffer("wq", wq); s.register_buffer("ws", ws)
            if lora: wt, wts = q(s.w.t().contiguous()); s.register_buffer("wt", wt); s.register_buffer("wts", wts)
            else: s.wt = s.wts = None
        if lora:
            s.a = nn.Parameter(torch.randn(lora, i, device=dev, dtype=torch.bfloat16)*i**-.5)
            s.b = nn.Parameter(torch.zeros(o, lora, device=dev, dtype=torch.bfloat16))
    def forward(s, x):
        if s.mode == "bf16": y = F.linear(x, s.w)
        else: y = FP8Fn.apply(x, s.wq, s.ws, s.wt, s.wts, "row" in s.mode, "bwd" in s.mode, s.w)
        if s.lora: y = y + F.linear(F.linear(x, s.a), s.b)
        return y
def rms(x, w): return F.rms_norm(x, (x.shape[-1],), w, 1e-5)
def rope(x, cos, sin):
    x = x.float().unflatten(-1, (-1, 2)); a, b = x[..., 0], x[..., 1]
    return torch.stack((a*cos-b*sin, a*sin+b*cos), -1).flatten(-2).to(torch.bfloat16)
class Block(nn.Module):
    def __init__(s, d=3840, h=30, f=10240, mode="bf16", lora=0):
        super().__init__(); s.h = h
        s.q, s.k, s.v, s.o = (Lin(d, d, mode, lora) for _ in range(4))
        s.w1, s.w3, s.w2 = Lin(d, f, mode, lora), Lin(d, f, mode, lora), Lin(f, d, mode, lora)
        s.n = nn.ParameterList([nn.Parameter(torch.ones(d, device=dev, dtype=torch.bfloat16), requires_grad=False) for _ in range(4)])
        s.qn, s.kn = (nn.Parameter(torch.ones(d//h, device=dev, dtype=torch.bfloat16), requires_grad=False) for _ in range(2))
        s.ada = Lin(256, 4*d)
    def forward(s, x, c, cos, sin):
        sm, gm, sf, gf = s.ada(c).unsqueeze(1).chunk(4, -1)
        B, S, D = x.shape
        y = rms(x, s.n[0])*(1+sm)
        q, k, v = (l(y).view(B, S, s.h, -1) for l in (s.q, s.k, s.v))
        q, k = rope(rms(q, s.qn), cos, sin), rope(rms(k, s.kn), cos, sin)
        a = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2).reshape(B, S, D)
        x = x + gm.tanh()*rms(s.o(a), s.n[1])
        y = rms(x, s.n[2])*(1+sf)
        return x + gf.tanh()*rms(s.w2(F.silu(s.w1(y))*s.w3(y)), s.n[3])
def data(B, S, d=3840, h=30):
    x = torch.randn(B, S, d, device=dev, dtype=torch.bfloat16); c = torch.randn(B, 256, device=dev, dtype=torch.bfloat16)
    t = torch.rand(1, S, 1, d//h//2, device=dev)*6.28
    return x, c, t.cos(), t.sin()

# FLUX.2-klein 4B: 5 blocks of two streams, 20 of one; modulation is computed once for all.
def ln(x): return F.layer_norm(x, (x.shape[-1],), eps=1e-6)
def attend(q, k, v):
    return F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2).flatten(2)
class Stream(nn.Module):
    def __init__(s, d, h, mode):
        super().__init__(); s.h = h
        s.q, s.k, s.v, s.o = (Lin(d, d, mode) for _ in range(4))
        s.i, s.u = Lin(d, 6*d, mode), Lin(3*d, d, mode)
        s.qn, s.kn = (nn.Parameter(torch.ones(d//h, device=dev, dtype=torch.bfloat16), requires_grad=False) for _ in range(2))
    def qkv(s, x, m):
        y = ln(x)*(1+m[1])+m[0]
        q, k, v = (l(y).unflatten(-1, (s.h, -1)) for l in (s.q, s.k, s.v))
        return rms(q, s.qn), rms(k, s.kn), v
    def rest(s, x, a, m):
        x = x + m[2]*s.o(a)
        g, u = s.i(ln(x)*(1+m[4])+m[3]).chunk(2, -1)
        return x + m[5]*s.u(F.silu(g)*u)
class Double(nn.Module):
    def __init__(s, d, h, mode):
        super().__init__(); s.img, s.txt = Stream(d, h, mode), Stream(d, h, mode)
    def forward(s, x, t, mi, mt, cos, sin):
        a, b = s.txt.qkv(t, mt), s.img.qkv(x, mi)
        q, k, v = (torch.cat(p, 1) for p in zip(a, b))
        y = attend(rope(q, cos, sin), rope(k, cos, sin), v)
        n = t.shape[1]
        return s.img.rest(x, y[:, n:], mi), s.txt.rest(t, y[:, :n], mt)
class Single(nn.Module):
    def __init__(s, d, h, mode):
        super().__init__(); s.h, s.d = h, d
        s.i, s.o = Lin(d, 9*d, mode), Lin(4*d, d, mode)
        s.qn, s.kn = (nn.Parameter(torch.ones(d//h, device=dev, dtype=torch.bfloat16), requires_grad=False) for _ in range(2))
    def forward(s, x, m, cos, sin):
        q, k, v, g, u = s.i(ln(x)*(1+m[1])+m[0]).split([s.d, s.d, s.d, 3*s.d, 3*s.d], -1)
        q, k, v = (p.unflatten(-1, (s.h, -1)) for p in (q, k, v))
        a = attend(rope(rms(q, s.qn), cos, sin), rope(rms(k, s.kn), cos, sin), v)
        return x + m[2]*s.o(torch.cat((a, F.silu(g)*u), -1))
def klein(B, S, mode, d=3072, h=24, T=512):
    x, t = (torch.randn(B, n, d, device=dev, dtype=torch.bfloat16) for n in (S, T))
    angle = torch.rand(1, S+T, 1, d//h//2, device=dev)*6.28
    cos, sin = angle.cos(), angle.sin()
    mi, mt, ms = (torch.randn(n, B, 1, d, device=dev, dtype=torch.bfloat16).unbind(0) for n in (6, 6, 3))
    blocks = [Double(d, h, mode) for _ in range(5)] + [Single(d, h, mode) for _ in range(20)]
    def run():
        a, b = x, t
        for block in blocks[:5]: a, b = block(a, b, mi, mt, cos, sin)
        y = torch.cat((b, a), 1)
        for block in blocks[5:]: y = block(y, ms, cos, sin)
        return y
    return blocks, run

def denoiser(B, S, mode):
    if args.family == "flux.2-klein": return klein(B, S, mode)
    if args.family == "sdxl":
        from torch_unet import Maker, unet
        return unet(B, S, Maker(Lin, mode, dev, torch.bfloat16))
    from torch_two_streams import Maker, two_streams
    return two_streams(args.family, B, S, Maker(Lin, rope, mode, dev, torch.bfloat16))

def infer_denoiser():
    S = args.tokens
    for B in (int(b) for b in args.batches.split(",")):
        for mode in ("bf16", "fp8_tensor", "fp8_row"):
            torch._dynamo.reset()
            blocks, run = denoiser(B, S, mode)
            with torch.no_grad():
                t0 = time.time()
                for b in blocks: b.compile(dynamic=False)
                run(); torch.cuda.synchronize(); w = time.time()-t0
                t = bench(run, n=10)
                g = torch.cuda.CUDAGraph()
                with torch.cuda.graph(g): run()
                tg = bench(g.replay, n=10)
            say(f"{args.family}-infer B{B} S{S} {mode} compiled", ms=f"{t:.1f}", cudagraph_ms=f"{tg:.1f}", warm_s=f"{w:.0f}", peak_GiB=f"{torch.cuda.max_memory_allocated()/2**30:.1f}")
            del blocks, g; torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()

def infer(L=30):
    if args.family != "z-image": return infer_denoiser()
    S = args.tokens
    for B in (int(b) for b in args.batches.split(",")):
        x, c, cos, sin = data(B, S)
        for mode in ("bf16", "fp8_tensor", "fp8_row"):
            torch._dynamo.reset()
            blocks = [Block(mode=mode) for _ in range(L)]
            def run():
                y = x
                for b in blocks: y = b(y, c, cos, sin)
                return y
            with torch.no_grad():
                if mode == "bf16" : say(f"dit-infer L{L} B{B} S{S} {mode} eager", ms=f"{bench(run, n=8, warm=2):.1f}")
                t0 = time.time()
                for b in blocks: b.compile()
                run(); torch.cuda.synchronize(); w = time.time()-t0
                t = bench(run, n=10)
                g = torch.cuda.CUDAGraph()
                with torch.cuda.graph(g): run()
                tg = bench(g.replay, n=10)
            say(f"dit-infer L{L} B{B} S{S} {mode} compiled", ms=f"{t:.1f}", cudagraph_ms=f"{tg:.1f}", warm_s=f"{w:.0f}", peak_GiB=f"{torch.cuda.max_memory_allocated()/2**30:.1f}")
            del blocks, g; torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()

def train_unet(B=4):
    from torch_unet import Maker, unet
    def linear(i, o, mode):  # adapters beside the blocks' linears, not beside what stands around them
        return Lin(i, o, mode.removeprefix("block "), 16 if mode.startswith("block ") else 0)
    for mode in ("bf16", "fp8_row_bwd"):
        torch._dynamo.reset(); torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
        blocks, run = unet(B, args.tokens, Maker(linear, "block " + mode, dev, torch.bfloat16))
        with torch.no_grad(): tgt = torch.randn_like(run().float())
        ps = [p for b in blocks for p in b.parameters() if p.requires_grad]
        opt = torch.optim.AdamW(ps, lr=1e-4, fused=True)
        for b in blocks: b.compile(dynamic=False)
        def step():
            F.mse_loss(run().float(), tgt).backward(); opt.step(); opt.zero_grad(set_to_none=True)
        t0 = time.time(); step(); torch.cuda.synchronize(); w = time.time()-t0
        t = bench(step, n=8, warm=2)
        say(f"sdxl-lora-train B{B} S{args.tokens} {mode} compiled", ms=f"{t:.1f}", warm_s=f"{w:.0f}", peak_GiB=f"{torch.cuda.max_memory_allocated()/2**30:.1f}")
        del blocks, run, opt, ps

def train(L=8, B=4, S=4096):
    if args.family == "sdxl": return train_unet()
    x, c, cos, sin = data(B, S); tgt = torch.randn_like(x)
    for mode in ("bf16", "fp8_tensor", "fp8_tensor_bwd", "fp8_row_bwd"):
        torch._dynamo.reset(); torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
        blocks = [Block(mode=mode, lora=16) for _ in range(L)]
        ps = [p for b in blocks for p in b.parameters() if p.requires_grad]
        opt = torch.optim.AdamW(ps, lr=1e-4, fused=True)
        for b in blocks: b.compile()
        def step():
            y = x.detach().requires_grad_()
            for b in blocks: y = b(y, c, cos, sin)
            loss = F.mse_loss(y.float(), tgt.float()); loss.backward(); opt.step(); opt.zero_grad(set_to_none=True); return loss
        t0 = time.time(); step(); torch.cuda.synchronize(); w = time.time()-t0
        t = bench(step, n=8, warm=2)
        say(f"dit-lora-train L{L} B{B} S{S} {mode} compiled", ms=f"{t:.1f}", warm_s=f"{w:.0f}", peak_GiB=f"{torch.cuda.max_memory_allocated()/2**30:.1f}")
        del blocks, opt, ps

from torch.nn.attention import sdpa_kernel, SDPBackend
def strongest(f):
    """the same with cuDNN attention, the strongest setting a PyTorch user can choose here"""
    def g():
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True): f()
    return g
for name, f in (("gemms", gemms), ("attn", attn), ("infer cudnn-sdpa", strongest(infer)), ("train cudnn-sdpa", strongest(train))):
    if name.split()[0] not in args.sections.split(","): continue
    t = time.time()
    try: f()
    except Exception as e:
        import traceback; traceback.print_exc()
    print(f"-- {name} took {time.time()-t:.0f}s", flush=True)
json.dump(rows, open(os.path.join(OUT, "torch_anchor.json"), "w"), indent=1)
