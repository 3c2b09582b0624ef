"""A training step of the U-Net with torchgpipe: 22 layers over CPU stages, with stash and pop for skips."""
import torch
from torchgpipe import GPipe

from measured_steps import job, measure
from nets import unet
from torchgpipe_nets import for_torchgpipe


def add_flags(parser):
    parser.add_argument("--balance", default="13,9")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--recompute", choices=("never", "except_last", "always"), default="never")


size = job(__doc__, add_flags)
torch.manual_seed(1)
balance = [int(layers) for layers in size.balance.split(",")]
measure(GPipe(for_torchgpipe(unet(size.width)), balance, devices=["cpu"] * len(balance), chunks=size.micro_batches,
              checkpoint=size.recompute), size)
