"""A training step of the U-Net in plain Python torch."""
import torch

from measured_steps import job, measure
from nets import Plain, unet


def add_flags(parser):
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="bf16: by autocast")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model; at least two steps warm up")


size = job(__doc__, add_flags)
torch.manual_seed(1)
measure(Plain(unet(size.width)), size, compiled=size.compile)
