"""Every feature in every way to run: what training on N ranks differs by from one process.

    make equality

The page has a cell for each Keras, way and feature, with the largest difference of a weight after
12 steps and the bound that it is held to; test_equality.py trains half of the cells and compares
the page's cells and bounds with this file.
"""

import argparse
import pathlib
import sys
import tempfile

WAYS = {
    "eager": {"run_eagerly": True},
    "graph": {"jit_compile": False},
    "jit": {"jit_compile": True},
}
FEATURES = {
    "plain": "SGD with momentum",
    "fp16": "mixed_float16 with a dynamic loss scale",
    "bf16": "mixed_bfloat16",
    "accumulation": "two passes an update, averaged",
    "clipping": "global_clipnorm, of the reduced gradients",
    "sparse": "an Embedding's tf.IndexedSlices",
    "BatchNorm": "SyncBatchNormalization against BatchNormalization on the whole batch",
    "EMA": "AdamW with averaged weights that overwrite them every 4 steps",
    "custom train_step": "a subclassed model, built by its first batch",
    "GAN": "two networks and two optimizers in one train_step",
}
# Which differences there may be is derived in keras_modes.py.
BOUNDS = {
    "plain": 2.5e-6,
    "fp16": 1e-3,
    "bf16": 5e-3,
    "accumulation": 2.5e-6,
    "clipping": 2.5e-6,
    "sparse": 2.5e-6,
    # Its variance is put together from those of the parts, and divides.
    "BatchNorm": 2e-5,
    "EMA": 5e-5,
    "custom train_step": 2.5e-6,
    "GAN": 1e-5,
}
KERAS_NAMES = {
    "keras3": "Keras 3, TensorFlow 2.21",
    "tf_keras": "tf_keras, TensorFlow 2.21",
    "keras2": "Keras 2, TensorFlow 2.15",
}


INTRODUCTION = """\
# Equal to one process

Written by `make equality`, which holds every cell to its bound; `make test` does so with half of
them. Each trains two models from the same weights for 12 steps with `fit`: one in a
single process on whole batches, one on 2 ranks, with `hvd.DistributedOptimizer`, on their parts
(weights differ by rank until the broadcast). Afterwards the ranks hold the same bits; the number
is the largest difference of any weight from the single process's. It is not 0, as sums of parts are
rounded elsewhere than sums of wholes.
"""


def page(found: dict) -> str:
    """The page, from Keras -> "way/feature" -> difference."""
    lines = [
        INTRODUCTION,
        "| feature | what |",
        "|---|---|",
        *[f"| {name} | {what} |" for name, what in FEATURES.items()],
    ]
    for keras, title in KERAS_NAMES.items():
        lines += ["", f"## {title}", "", "| feature | eager | graph | jit | bound |"]
        lines.append("|---|---|---|---|---|")
        for feature, bound in BOUNDS.items():
            numbers = [f"{found[keras][f'{way}/{feature}']:.1e}" for way in WAYS]
            lines.append(f"| {feature} | {' | '.join(numbers)} | {bound:.1e} |")
    return "\n".join(lines) + "\n"


def measure() -> dict:
    """Runs all cells, each Keras in a job of its own."""
    from bodies import equality as bodies
    from conftest import KERASES, KerasJob

    found = {}
    for name in KERASES:
        with tempfile.TemporaryDirectory() as folder:
            job = KerasJob(name, folder)
            results = job(bodies.cells(list(WAYS)), 2, timeout=900).check(2)
            found[name] = results[0]["differences"]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=pathlib.Path, help="the page to write")
    arguments = parser.parse_args()
    text = page(measure())
    if arguments.write:
        arguments.write.write_text(text)
    else:
        sys.stdout.write(text)
