"""Muon: momentum made orthogonal, for the matrices inside the layers. Matrices of one shape are done together."""
import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic Newton-Schulz iteration


def orthogonal(m):
    """The nearest orthogonal matrices, roughly, of m [N, rows <= columns]."""
    a, b, c = COEFFICIENTS
    x = m.bfloat16() if m.is_cuda else m
    x = x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-7).to(x.dtype)
    for _ in range(5):
        g = x @ x.transpose(1, 2)
        h = torch.baddbmm(g, g, g, beta=b, alpha=c)
        x = torch.baddbmm(x, h, x, beta=a, alpha=1.0)
    return x


class Muon:
    def __init__(self, parameters, momentum=0.95):
        self.momentum, self.groups = momentum, {}
        for p in parameters:
            self.groups.setdefault(tuple(sorted(p.shape)), []).append(p)
        self.velocity = {shape: torch.zeros(len(ps), *shape, device=ps[0].device) for shape, ps in self.groups.items()}

    @torch.no_grad()
    def step(self, lr):
        """lr is a tensor, so that a captured step can be replayed with another rate."""
        for shape, parameters in self.groups.items():
            wide = [p.shape[0] <= p.shape[1] for p in parameters]
            grads = torch.stack([p.grad if w else p.grad.T for p, w in zip(parameters, wide)])
            velocity = self.velocity[shape].lerp_(grads, 1 - self.momentum)
            update = orthogonal(grads.lerp(velocity, self.momentum)).float()
            # As large, element by element, as a step of Adam: rates carry over.
            update = update * (-0.2 * shape[1] ** 0.5 * lr)
            torch._foreach_add_(parameters, [u if w else u.T for u, w in zip(update.unbind(0), wide)])
