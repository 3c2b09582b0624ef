"""The nets of nets.py for torchgpipe."""

from torch import nn
from torchgpipe.skip import Namespace, pop, skippable, stash


def for_torchgpipe(layers):
    """The same modules as a Sequential of skippables. A skip that two layers take is stashed twice, because torchgpipe
    pairs one stash with one pop."""
    takers = {}
    for name, _, _, taken in layers:
        for skip in taken:
            takers.setdefault(skip, []).append(name)
    namespaces = {skip: Namespace() for skip in takers}

    def key(skip, taker):
        return f"{skip}>{taker}".replace(".", "_")

    def wrap(name, module, keep, taken):
        stashes = [key(keep[1], taker) for taker in takers[keep[1]]] if keep else []
        pops = [key(skip, name) for skip in taken]
        if not stashes and not pops:
            return module

        class Wrapped(nn.Module):
            def __init__(self):
                super().__init__()
                self.module = module

            def forward(self, x):
                if stashes and keep[0] == "input":
                    for skip in stashes:
                        yield stash(skip, x)
                arguments = []
                for skip in pops:
                    arguments.append((yield pop(skip)))
                x = self.module(x, *arguments)
                if stashes and keep[0] == "output":
                    for skip in stashes:
                        yield stash(skip, x)
                return x

        wrapped = skippable(stash=stashes, pop=pops)(Wrapped)()
        if stashes:
            wrapped = wrapped.isolate(namespaces[keep[1]], only=stashes)
        for skip, pop_key in zip(taken, pops):
            wrapped = wrapped.isolate(namespaces[skip], only=[pop_key])
        return wrapped

    return nn.Sequential(*[wrap(*layer) for layer in layers])
