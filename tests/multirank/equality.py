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
# What else users train with; make test has it in graph mode of the newest Keras.
MORE = {
    "LSTM": "a recurrent layer over 4 steps",
    "sample weights": "fit(sample_weight=)",
    "add_loss": "a layer that adds a loss of its activations",
    "Lion": "updates of one size, by the sign of the momentum",
    "Ftrl": "rates that follow each weight's gradients, with l1",
    "Muon": "orthogonalised momentum",
    "LoRA": "enable_lora(2): the kernels are frozen",
    "int8": 'quantize("int8") with LoRA: the frozen kernels are integers',
    "float8": 'quantize("float8"): scales are overwritten by their "gradients"',
}
ALL = {**FEATURES, **MORE}
# What an older Keras does not have.
_NEWEST_ONLY = ("Muon", "LoRA", "int8", "float8")


def available(keras: str, way: str, feature: str) -> bool:
    """Whether this Keras trains this feature that way in a single process."""
    if keras != "keras3":
        return feature not in _NEWEST_ONLY
    # Keras 3's float8 layers fail with run_eagerly=True: their gradient unpacks three of two.
    return (way, feature) != ("eager", "float8")


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
    "LSTM": 1e-5,
    "sample weights": 2.5e-6,
    "add_loss": 2.5e-6,
    # As long as rounding turns no sign: then it would be twice the rate, 0.002.
    "Lion": 2.5e-6,
    "Ftrl": 5e-5,
    "Muon": 5e-5,
    "LoRA": 2.5e-6,
    "int8": 2.5e-6,
    "float8": 5e-3,
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
rounded elsewhere than sums of wholes. A dash: that Keras cannot do it in a
single process either.
"""


def page(found: dict) -> str:
    """The page, from Keras -> "way/feature" -> difference."""
    lines = [
        INTRODUCTION,
        "| feature | what |",
        "|---|---|",
        *[f"| {name} | {what} |" for name, what in ALL.items()],
    ]
    for keras, title in KERAS_NAMES.items():
        lines += ["", f"## {title}", "", "| feature | eager | graph | jit | bound |"]
        lines.append("|---|---|---|---|---|")
        for feature, bound in BOUNDS.items():
            cells = [found[keras].get(f"{way}/{feature}") for way in WAYS]
            numbers = ["-" if cell is None else f"{cell:.1e}" for cell in cells]
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
            found[name] = {}
            for way in WAYS:
                features = [feature for feature in ALL if available(name, way, feature)]
                results = job(bodies.cells([way], features), 2, timeout=900).check(2)
                found[name] |= results[0]["differences"]
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
