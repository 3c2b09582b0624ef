#!/usr/bin/env python3
"""The backward of a stage as a whole, and in torch.distributed.pipelining's two halves, in turn, on the nets of
split_backward_cost.cpp.

Prints a line of JSON: {"linear": {"whole_seconds": [...], "input_seconds": [...], "weight_seconds": [...]}, ...}.
"""
import argparse
import json
import time

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward, stage_backward_input, stage_backward_weight

WARM_UPS = 3


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.qkv, self.projection = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, heads=6):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def linear(arguments):
    width = arguments.width
    return torch.randn(128, width), [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(4)]


def convolution(arguments):
    channels = arguments.channels
    return torch.randn(4, channels, 32, 32), [
        nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
        for _ in range(4)]


def attention(arguments):
    width = arguments.width * 3 // 8
    return torch.randn(4, 128, width), [Block(width) for _ in range(2)]


def measure(batch, layers, steps):
    net = nn.Sequential(*layers)
    gradient = torch.randn_like(net(batch).detach())

    def forward():
        given = batch.detach().requires_grad_()
        return given, net(given)

    def whole():
        given, output = forward()
        begin = time.perf_counter()
        gradients = stage_backward(output, gradient, [given])
        seconds = time.perf_counter() - begin
        del gradients
        return seconds

    def split():
        given, output = forward()
        begin = time.perf_counter()
        gradients, groups = stage_backward_input([output], [gradient], [given], net.parameters())
        middle = time.perf_counter()
        stage_backward_weight(net.parameters(), groups)
        end = time.perf_counter()
        del gradients
        return middle - begin, end - middle

    found = {"whole_seconds": [], "input_seconds": [], "weight_seconds": []}
    for step in range(-WARM_UPS, steps):
        if step % 2 == 0:
            together, halves = whole(), split()
        else:
            halves, together = split(), whole()
        if step < 0:
            continue
        found["whole_seconds"].append(together)
        found["input_seconds"].append(halves[0])
        found["weight_seconds"].append(halves[1])
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--channels", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    print(json.dumps({make.__name__: measure(*make(arguments), arguments.steps) for make in (linear, convolution, attention)}),
          flush=True)


if __name__ == "__main__":
    main()
