"""Train a small network in which one thing is wrong: the jobs of docs/guides.

The last rank has the fault; without a launcher there is one rank.
"""

import argparse
import json
import os
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FAULTS = ("none", "starved", "late", "hang", "death", "leak")


class Lines(Dataset):
    """Vectors of 256 numbers, each parsed from a line of JSON that takes some time to read."""

    def __init__(self, seconds):
        self.line = json.dumps([n / 256 for n in range(256)])
        self.seconds = seconds

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.tensor(json.loads(self.line)), index % 10


def train(model, loader, optimizer, fault, steps):
    """Train for a number of steps, and let the fault show after a few."""
    loss_function = nn.CrossEntropyLoss()
    history = []
    for step, (vectors, labels) in enumerate(loader):
        if step == steps:
            break
        if fault == "hang" and step == 50:
            time.sleep(3600)
        if fault == "death" and step == 50:
            raise ValueError("line 50 of the data is no JSON")
        optimizer.zero_grad()
        output = model(vectors.to(next(model.parameters()).device))
        loss = loss_function(output, labels.to(output.device))
        loss.backward()
        optimizer.step()
        if fault == "leak":
            history.append(output.repeat(256, 8))


def main():
    """Train on each rank that a launcher starts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--width", type=int, default=1024)
    arguments = parser.parse_args()

    rank = int(os.environ.get("RANK", "0"))
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    fault = arguments.fault if rank == ranks - 1 else "none"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    width = arguments.width
    model = nn.Sequential(
        nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    ).to(device)
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    seconds = 0.005 if fault in ("starved", "late") else 0
    loader = DataLoader(Lines(seconds), batch_size=32)
    train(model, loader, optimizer, fault, arguments.steps)
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
