"""Which iris a flower is, by a model of scikit-learn; iris_serve.toml says what a request holds."""

from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

import headrace

IRIS = load_iris()
MODEL = LogisticRegression(max_iter=1000).fit(IRIS.data, IRIS.target)


@headrace.register("Iris", batched=True)
def species(flowers: list[list[float]]) -> list[str]:
    """Return the species of each flower, from lengths and widths of its sepal and petal in centimetres."""
    return IRIS.target_names[MODEL.predict(flowers)].tolist()
