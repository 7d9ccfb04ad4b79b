"""The network of this example: a small convolutional one, for pictures of 8 by 8 pixels."""

from __future__ import annotations

import torch
from torch import nn


class Digits(nn.Module):  # type: ignore[misc]  # not looked into
    """Tell the ten digits apart: 29,066 weights.

    Reads ``float32 [N, 1, 8, 8]``, grey from 0 to 1; gives ``float32 [N, 10]``, a score per class.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classes = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 16, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a score per class, not yet probabilities."""
        scores: torch.Tensor = self.classes(self.features(images))
        return scores
