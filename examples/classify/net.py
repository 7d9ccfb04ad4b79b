"""The network: two convolutions and a linear layer over pictures of 8 x 8 pixels."""

from __future__ import annotations

import torch

__all__ = ["Digits"]


class Digits(torch.nn.Module):
    """Scores of the ten digits.

    Args:
        width: How many channels the first convolution has.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, width, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(width, 2 * width, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(2 * width * 16, 10),
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Give ``float32 [N, 10]`` for ``float32 [N, 1, 8, 8]``, 0 to 1."""
        scores: torch.Tensor = self.layers(image)
        return scores
