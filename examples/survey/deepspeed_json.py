"""DeepSpeed's JSON as tutorials print it (deepspeed.json, beside this file). Needs DeepSpeed, and GPUs for fp16:

    torchrun --nproc-per-node 2 deepspeed_json.py [FILE]

--plain computes fp16 without DeepSpeed, in one process: weights in fp16 beside fp32 masters, a scaled loss, gradients clipped
at a norm of 1, as DeepSpeed 0.19 does where the file is silent, and Adam with decoupled weight decay of 0."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import survey

BATCH, STEPS = 32, 10


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(10, 50)
        self.out = nn.Linear(50, 2)

    def forward(self, x):
        return self.out(F.relu(self.hidden(x)))


def batch(step):
    return survey.samples((BATCH, 10), 1000 + step), survey.classes((BATCH,), 2000 + step, 2)


def train(file):
    import deepspeed

    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    net = Net()
    survey.set_weights(net)
    engine, _, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=file)
    dtype = next(engine.module.parameters()).dtype
    for step in range(STEPS):
        x, y = (part.chunk(dist.get_world_size())[dist.get_rank()].to(engine.device) for part in batch(step))
        loss = F.cross_entropy(engine(x.to(dtype)).float(), y)
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            survey.print_loss(step, mean.item() / dist.get_world_size())


def train_plain():
    masters = Net()
    survey.set_weights(masters)
    net = Net().half()
    optimizer = torch.optim.AdamW(masters.parameters(), lr=0.001, weight_decay=0)
    scale = 65536.0
    for step in range(STEPS):
        with torch.no_grad():
            for mine, master in zip(net.parameters(), masters.parameters()):
                mine.copy_(master)
        x, y = batch(step)
        loss = F.cross_entropy(net(x.half()).float(), y)
        (loss * scale).backward()
        for mine, master in zip(net.parameters(), masters.parameters()):
            master.grad = mine.grad.float() / scale
            mine.grad = None
        torch.nn.utils.clip_grad_norm_(masters.parameters(), 1.0)
        optimizer.step()
        survey.print_loss(step, loss.item())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", nargs="?", default=str(Path(__file__).with_name("deepspeed.json")))
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    arguments = parser.parse_args()
    train_plain() if arguments.plain else train(arguments.file)


if __name__ == "__main__":
    main()
