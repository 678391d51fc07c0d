"""Keras's fit(): the time of a batch, and of the first one, in which the step is traced.

`--lib smddp_tf.keras` or `horovod.tensorflow.keras` wrap the optimizer; `mwms` trains under
tf.distribute.MultiWorkerMirroredStrategy, whose workers talk over gRPC on the loopback; `none` adds
nothing. Keras is TensorFlow's own, or tf_keras with TF_USE_LEGACY_KERAS=1. Random data, one batch
again and again; the batch is per rank.
"""

import json
import os
import time

from common import Alone, Bench, argument_parser, comma_list, tf
from measure import LoadMeter, launcher_rank

keras = tf.keras
STEPS = {"mlp": 40, "cnn": 80, "deep": 120}


def dense_stack(inputs, widths):
    """Dense layers on an input of that shape."""
    layers = [keras.layers.Dense(width, activation="relu") for width in widths[:-1]]
    return [keras.Input(inputs), *layers, keras.layers.Dense(widths[-1])]


def cnn():
    """1.2 million parameters on 28x28 images."""
    layers = keras.layers
    return [
        keras.Input((28, 28, 1)),
        layers.Conv2D(32, 3, activation="relu"),
        layers.Conv2D(64, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(128, activation="relu"),
        layers.Dense(10),
    ]


MODELS = {
    "mlp": (lambda: dense_stack((784,), [4096, 4096, 10]), (784,)),
    "cnn": (cnn, (28, 28, 1)),
    # 400 variables
    "deep": (lambda: dense_stack((64,), [64] * 199 + [10]), (64,)),
}


class MultiWorker(Alone):
    """The strategy, with as many workers as mpirun started."""

    def __init__(self, port):
        ranks = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
        workers = [f"127.0.0.1:{port + r}" for r in range(ranks)]
        task = {"type": "worker", "index": launcher_rank()}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
        self.ranks = ranks

    def init(self):
        """Starts the workers' servers and connects them."""
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

    def rank(self):
        """Return the worker's index."""
        return launcher_rank()

    def size(self):
        """Return the number of workers."""
        return self.ranks


class Clock(keras.callbacks.Callback):
    """The time of each batch, and a ping-pong before and after it."""

    def __init__(self, ping_pong):
        super().__init__()
        self.seconds, self.pings = [], []
        self._ping_pong, self._before, self._start = ping_pong, 0, 0.0

    def on_train_begin(self, logs=None):
        """Starts."""
        self._before, self._start = self._ping_pong(), time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        """Notes."""
        self.seconds.append(time.perf_counter() - self._start)
        after = self._ping_pong()
        self.pings.append((self._before, after))
        self._before, self._start = after, time.perf_counter()


def compiled(bench, name):
    """The model, with the optimizer that the library makes."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(MODELS[name][0]())
    optimizer = keras.optimizers.SGD(0.01)
    if hasattr(bench.lib, "DistributedOptimizer"):
        optimizer = bench.lib.DistributedOptimizer(optimizer)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    return model


def measure(bench, name, batch):
    """Fit one model and emit its row."""
    steps = bench.repeats(STEPS[name])
    x = tf.random.stateless_uniform([batch, *MODELS[name][1]], [1, bench.rank])
    y = tf.random.stateless_uniform([batch], [2, bench.rank], maxval=10, dtype=tf.int32)
    data = tf.data.Dataset.from_tensors((x, y)).repeat(steps + steps // 8 + 3)
    clock = Clock(bench.ping_pong)
    callbacks = [clock]
    if hasattr(bench.lib, "callbacks"):
        callbacks.append(bench.lib.callbacks.BroadcastGlobalVariablesCallback(0))
    if isinstance(bench.lib, MultiWorker):
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        # The strategy takes the batch of all workers together.
        data = data.unbatch().batch(batch * bench.size).repeat().with_options(options)
        with bench.lib.strategy.scope():
            model = compiled(bench, name)
    else:
        model = compiled(bench, name)
    with LoadMeter() as load:
        model.fit(data, verbose=0, callbacks=callbacks, steps_per_epoch=steps + steps // 8 + 3)
    row = {**bench.summarize(clock.seconds[-steps:], clock.pings[-steps:]), **load.row}
    bench.emit(
        f"fit.{name}",
        bench="fit",
        model=name,
        batch=batch,
        variables=len(model.trainable_variables),
        first=clock.seconds[0],
        legacy=hasattr(keras.optimizers.Optimizer, "aggregate_gradients"),
        **row,
        samples_s=round(batch * bench.size / row["med"], 1),
    )


def main():
    """Measure every model."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument(
        "--models", type=comma_list(str, MODELS), default=list(MODELS), help=", ".join(MODELS)
    )
    parser.add_argument("--batch", type=int, default=32, help="samples per rank")
    parser.add_argument("--port", type=int, default=29871, help="of the strategy's first worker")
    args = parser.parse_args()
    library = MultiWorker(args.port) if args.lib == "mwms" else None
    bench = Bench(args, library)
    for name in args.models:
        measure(bench, name, args.batch)


if __name__ == "__main__":
    main()
