"""Train a small convolutional network on scikit-learn's handwritten digits."""

import argparse
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    """8x8 grey images; those for training are shifted, scaled and made noisy at random."""

    def __init__(self, images, labels, augment):
        self.images = torch.from_numpy(images.astype(np.float32) / 16.0).unsqueeze(1)
        self.labels = torch.from_numpy(labels.astype(np.int64))
        self.augment = augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.augment:
            shift = torch.randint(-1, 2, (2,)).tolist()
            image = torch.roll(image, shift, dims=(1, 2))
            image = image * (0.8 + 0.4 * torch.rand(1)) + 0.05 * torch.randn_like(image)
        return image, self.labels[index]


def make_model():
    """Return three convolutions and a linear layer: 10 classes from 8x8 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(128, 10),
    )


def train_epoch(model, loader, optimizer, loss_function, device):
    """Train for one epoch and return the mean loss."""
    model.train()
    total = 0.0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = loss_function(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
    return total / len(loader.dataset)


@torch.no_grad()
def evaluate(model, loader, device):
    """Return the share of images that are classified correctly."""
    model.eval()
    correct = 0
    for images, labels in loader:
        predicted = model(images.to(device)).argmax(dim=1).cpu()
        correct += (predicted == labels).sum().item()
    return correct / len(loader.dataset)


def main():
    """Train and evaluate, epoch by epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.2, random_state=arguments.seed, stratify=labels
    )
    train_loader = DataLoader(
        Digits(train_x, train_y, augment=True),
        batch_size=arguments.batch,
        shuffle=True,
        num_workers=arguments.workers,
    )
    test_loader = DataLoader(
        Digits(test_x, test_y, augment=False), batch_size=256, num_workers=arguments.workers
    )

    model = make_model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
    loss_function = nn.CrossEntropyLoss()
    for epoch in range(1, arguments.epochs + 1):
        begun = time.perf_counter()
        loss = train_epoch(model, train_loader, optimizer, loss_function, device)
        accuracy = evaluate(model, test_loader, device)
        took = time.perf_counter() - begun
        print(
            f"epoch {epoch}/{arguments.epochs}  loss {loss:.3f}  accuracy {accuracy:.1%}"
            f"  {took:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
