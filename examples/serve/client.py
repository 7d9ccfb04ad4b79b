"""Ask the served example with Triton's client: several pictures in one request.

python examples/serve/client.py localhost:8000 PICTURE...
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tritonclient.http as triton


def main(address: str, files: list[str]) -> None:
    """Send the files as the items of one request, and print the size of each answer."""
    pictures = np.array([Path(file).read_bytes() for file in files], object)
    sent = triton.InferInput("data", list(pictures.shape), "BYTES")
    sent.set_data_from_numpy(pictures)
    with triton.InferenceServerClient(address) as client:
        answer = client.infer("thumbnail", [sent], timeout=1_000_000)
    for file, small in zip(files, answer.as_numpy("result"), strict=True):
        print(f"{file}\t{len(small)} bytes")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
