"""A classifier of scikit-learn as a backend: from vectors of 64 grey levels, 0 to 1, to digits."""

from __future__ import annotations

from sklearn.datasets import load_digits
from sklearn.svm import SVC

import headrace

images, digits = load_digits(return_X_y=True)  # 8 x 8 grey levels, 0 to 16; part of the package
classifier = SVC(gamma=0.25).fit(images / 16, digits)

headrace.register("Digit", classifier.predict, batched=True)
