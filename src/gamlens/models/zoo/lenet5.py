"""LeNet-5 for digits of 28 x 28 or 32 x 32 pixels, with ReLU and max pooling. LeCun et al. 1998."""

import torch.nn.functional as F
from torch import Tensor, nn

from gamlens.models import checkpoint
from gamlens.models.network import Network

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class LeNet5(nn.Module):
    """Digits (B,1,28,28) or (B,1,32,32) -> class scores (B,classes)."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        self.pool1, self.pool2 = nn.MaxPool2d(2), nn.MaxPool2d(2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] == 28:
            x = F.pad(x, (2, 2, 2, 2))
        x = self.pool1(self.relu1(self.conv1(x)))
        x = self.pool2(self.relu2(self.conv2(x))).flatten(1)
        logits: Tensor = self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))
        return logits


def lenet5(weights: checkpoint.LoadedWeights = None) -> Network:
    """LeNet-5; no package has weights for it, so `weights` are a user's or "random"."""
    module, _ = checkpoint.build("lenet5", LeNet5, len(DIGITS), weights)
    return Network(module, "lenet5", "file", size=(28, 28), mean=(0.1307,), std=(0.3081,), short=28, labels=DIGITS)
