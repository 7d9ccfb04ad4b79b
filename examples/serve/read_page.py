"""Ask a served examples/ocr/page.toml with Triton's client: what pictures of pages say.

python examples/serve/read_page.py localhost:8000 PICTURE...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import tritonclient.http as triton


def main(address: str, files: list[str]) -> None:
    """Send the files as the items of one request; print the text of each, and of one that fails why."""
    pictures = np.array([Path(file).read_bytes() for file in files], object)
    sent = triton.InferInput("data", list(pictures.shape), "BYTES")
    sent.set_data_from_numpy(pictures)
    with triton.InferenceServerClient(address) as client:
        answer = client.infer("page", [sent], parameters={"partial": True})
    parameters = answer.get_response().get("parameters", {})
    failed = {one["index"]: one["message"] for one in json.loads(parameters.get("errors", "[]"))}
    read = iter(answer.as_numpy("result"))  # what failed has no place there
    for index, file in enumerate(files):
        text = failed[index] if index in failed else json.loads(next(read))["text"]
        print(f"{file}:\n{text}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
