"""Learning rate over a budget of wall time: known in minutes, whatever the speed of the machine turns out to be."""
import time

import torch


class Clock:
    def __init__(self, minutes, steps=None):
        self.start, self.seconds, self.steps = time.time(), minutes * 60, steps

    def progress(self, step):
        """0 .. 1, of a number of steps if one is given, of the time otherwise."""
        return min(1.0, step / self.steps if self.steps else self.elapsed() / self.seconds)

    def elapsed(self):
        return time.time() - self.start


def rate(progress, step, warmup=500, hold=0.4):
    """Rises over the warm-up, holds, then falls linearly to nothing."""
    return min(1.0, (step + 1) / warmup, max(0.0, (1 - progress) / (1 - hold)))


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def pick_device():
    if torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        return torch.device("cuda")
    return torch.device("cpu")


@torch.no_grad()
def average(into, model, decay):
    """Exponential moving average of the parameters."""
    torch._foreach_lerp_(list(into), [p.detach() for p in model.parameters()], 1 - decay)
