"""Images as tensors: decoding JPEG files, resizing, cropping, colour and normalization."""
