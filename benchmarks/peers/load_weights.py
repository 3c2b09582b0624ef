"""Loads a safetensors file into the parameters of an existing model, in Python: load_file and load_state_dict. The model
is that of load_weights.cpp."""
import argparse
import json
import time

import torch
from safetensors.torch import load_file


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", required=True)
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--loads", type=int, default=5)
    arguments = parser.parse_args()
    layers = [torch.nn.Linear(arguments.width, arguments.width, bias=False) for _ in range(arguments.layers)]
    model = torch.nn.Sequential(*layers)
    seconds = []
    for _ in range(1 + arguments.loads):  # the first load caches the file
        begin = time.perf_counter()
        model.load_state_dict(load_file(arguments.file))
        seconds.append(time.perf_counter() - begin)
    parameters = list(model.parameters())
    print(json.dumps({"bytes": sum(p.nbytes for p in parameters), "seconds": seconds[1:],
                      "sum": parameters[-1].double().sum().item()}))


main()
