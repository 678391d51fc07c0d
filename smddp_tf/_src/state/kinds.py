"""What layers keep besides variables: one class for each kind of layer.

They are known by their attributes, so that those of Keras 3, tf_keras and Keras 2, and classes
derived from them, are all found. A kind has:

  is_of(layer)           whether the layer is of this kind
  capture(layer)         its state as a dict of arrays and numbers; None if it has none yet
  problem(layer, state)  why the layer cannot take a state; "" if it can
  apply(layer, state)    takes it
  refresh(layer)         computes anew what follows from variables; returns whether it changed
"""

from __future__ import annotations

import numpy as np

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.state import held, tables

tf = tensorflow()


def _built_shape(layer):
    """The shape that the layer was built with, as a tuple; None if unknown."""
    shape = getattr(layer, "_build_input_shape", None)
    return None if shape is None else tuple(tf.TensorShape(shape).as_list())


def _build(layer, shape) -> None:
    if not layer.built and shape is not None:
        layer.build(shape)
        layer.built = True


def _note_adapted(layer) -> None:
    if hasattr(layer, "_is_adapted"):  # of tf_keras and Keras 2
        layer._is_adapted = True


class Normalization:
    """Its `mean` and `variance` are plain tensors, made from the variables that adapt() sets."""

    title = "mean and variance"
    _VARIABLES = ("adapt_mean", "adapt_variance", "count")

    @staticmethod
    def is_of(layer) -> bool:
        """Also if they were given to the constructor; then they are configuration."""
        return hasattr(layer, "input_mean") and hasattr(layer, "finalize_state")

    def capture(self, layer):
        """The variables, and the shape to build them with."""
        if layer.input_mean is not None or not hasattr(layer, "adapt_mean"):
            return None
        values = {name: np.asarray(getattr(layer, name)) for name in self._VARIABLES}
        return {"shape": _built_shape(layer), **values}

    def problem(self, layer, state) -> str:
        """Other features than the root's."""
        if state is None or not hasattr(layer, "adapt_mean"):
            return ""
        own, new = tuple(layer.adapt_mean.shape), state["adapt_mean"].shape
        return "" if own == new else f"has means of shape {own}, but {new} on the root"

    def apply(self, layer, state) -> None:
        """Assigns the variables, and makes the tensors from them."""
        if not hasattr(layer, "adapt_mean"):
            _build(layer, state["shape"])
        for name in self._VARIABLES:
            getattr(layer, name).assign(state[name])
        layer.finalize_state()
        _note_adapted(layer)

    def refresh(self, layer) -> bool:
        """Makes the tensors from the variables."""
        if self.capture(layer) is None:
            return False
        before = [np.asarray(layer.mean), np.asarray(layer.variance)]
        layer.finalize_state()
        after = [np.asarray(layer.mean), np.asarray(layer.variance)]
        return not all(map(np.array_equal, before, after))

    @staticmethod
    def describe(state) -> str:
        """A few numbers, for messages."""
        return f"mean {state['adapt_mean'].ravel()[:3].tolist()}"


class Lookup:
    """StringLookup, IntegerLookup and that in a TextVectorization: a table, and weights of it."""

    title = "vocabulary"

    @staticmethod
    def is_of(layer) -> bool:
        """Derived from Keras's IndexLookup."""
        return hasattr(layer, "lookup_table") and hasattr(layer, "set_vocabulary")

    @staticmethod
    def _tokens(layer) -> np.ndarray:
        """The tokens in the order of their indices, without the special ones."""
        if int(layer.lookup_table.size()) == 0:
            return np.array([])
        keys, values = (one.numpy() for one in layer.lookup_table.export())
        tokens, indices = (values, keys) if layer.invert else (keys, values)
        return tokens[np.argsort(indices)]

    def capture(self, layer):
        """The tokens and, of "tf_idf", the weights."""
        weights = None
        if layer.output_mode == "tf_idf" and hasattr(layer, "idf_weights"):
            weights = layer.idf_weights.numpy()
        return {"tokens": self._tokens(layer), "weights": weights}

    def problem(self, layer, state) -> str:
        """Nothing to take, or an output of another width than the layers behind it expect."""
        own, new = len(self._tokens(layer)), len(state["tokens"])
        if own and not new:
            return "has no vocabulary on the root: adapt it there"
        wide = layer.output_mode != "int" and not layer.pad_to_max_tokens
        if own and own != new and wide:
            return (
                f"has {own} tokens, but {new} on the root, and its output is as wide as its "
                "vocabulary"
            )
        return ""

    def apply(self, layer, state) -> None:
        """Sets the vocabulary, in the table that traced functions use."""
        tokens, weights, table = state["tokens"], state["weights"], layer.lookup_table
        if not len(tokens):
            return
        start = layer._token_start_index()
        some = None if weights is None else weights[start : start + len(tokens)]
        layer.set_vocabulary(tokens, some)
        layer.lookup_table = tables.replaced(table, layer.lookup_table)
        if weights is not None:
            layer.idf_weights.assign(weights)
            layer.idf_weights_const = layer.idf_weights.value()
        if layer.input_vocabulary is not None:  # which a saved model has
            layer.input_vocabulary = layer.get_vocabulary(include_special_tokens=False)
            layer.input_idf_weights = None if some is None else some.tolist()
        _note_adapted(layer)

    def refresh(self, layer) -> bool:
        """Takes the weights of tokens from their variable."""
        if layer.output_mode != "tf_idf" or not hasattr(layer, "idf_weights"):
            return False
        before = layer.idf_weights_const.numpy()
        layer.idf_weights_const = layer.idf_weights.value()
        return not np.array_equal(before, layer.idf_weights_const.numpy())

    @staticmethod
    def describe(state) -> str:
        """How many tokens, and the first ones."""
        tokens = [tf.compat.as_str_any(one) for one in state["tokens"][:4]]
        return f"{len(state['tokens'])} tokens, {', '.join(tokens)}..."


class Discretization:
    """Boundaries in a list; and the summary that they come from, a variable but in Keras 3."""

    title = "boundaries"

    @staticmethod
    def is_of(layer) -> bool:
        """Keras's, or derived from it."""
        return hasattr(layer, "bin_boundaries") and hasattr(layer, "num_bins")

    @staticmethod
    def capture(layer):
        """The boundaries, and what they come from."""
        boundaries, summary = layer.bin_boundaries, getattr(layer, "summary", None)
        return {
            "boundaries": np.asarray([] if boundaries is None else boundaries, np.float64),
            "summary": None if summary is None else np.asarray(summary),
            "shape": _built_shape(layer),
        }

    @staticmethod
    def problem(layer, state) -> str:
        """Nothing to take, or an output of another width than the layers behind it expect."""
        own, new = len(layer.bin_boundaries or ()), len(state["boundaries"])
        if own and not new:
            return "has no boundaries on the root: adapt it there"
        if own and own != new and layer.output_mode != "int":
            return f"has {own} boundaries, but {new} on the root, and its output is as wide as that"
        return ""

    @staticmethod
    def apply(layer, state) -> None:
        """Sets them."""
        boundaries, summary = state["boundaries"].tolist(), state["summary"]
        if not boundaries:
            return
        layer.bin_boundaries = boundaries
        if getattr(layer, "input_bin_boundaries", None) is not None:
            layer.input_bin_boundaries = boundaries
        if summary is not None:
            _build(layer, state["shape"])
            if hasattr(getattr(layer, "summary", None), "assign"):
                layer.summary.assign(summary)
            else:
                layer.summary = summary
        _note_adapted(layer)

    @staticmethod
    def refresh(layer) -> bool:
        """Computes the boundaries from the variable, where there is one with something in it."""
        summary = getattr(layer, "summary", None)
        if not hasattr(summary, "assign") or not np.asarray(summary).size:
            return False
        before = list(layer.bin_boundaries)
        layer.finalize_state()
        return before != list(layer.bin_boundaries)

    @staticmethod
    def describe(state) -> str:
        """How many, and the first ones."""
        return f"{len(state['boundaries'])}, {state['boundaries'][:3].tolist()}..."


class FeatureSpace:
    """Has layers for its features, whose states are their own, and encoders as wide as these."""

    title = "features"

    @staticmethod
    def is_of(layer) -> bool:
        """Keras's, or derived from it."""
        return hasattr(layer, "one_hot_encoders") and hasattr(layer, "preprocessors")

    @staticmethod
    def capture(layer):
        """The widths of the encoders."""
        if not layer._is_adapted:
            return None
        return {"widths": {k: int(v.num_tokens) for k, v in layer.one_hot_encoders.items()}}

    def problem(self, layer, state) -> str:
        """Not adapted on the root, or encoders of another width that are in use."""
        own = self.capture(layer)
        if own and own["widths"] and state is None:
            return "is not adapted on the root: adapt it there"
        if own and own["widths"] and own != state:
            return f"has features of widths {own['widths']}, but {state['widths']} on the root"
        return ""

    @staticmethod
    def apply(layer, state) -> None:
        """Makes the encoders, as adapt() does, from what the features' layers have by now."""
        if layer._is_adapted and layer.one_hot_encoders:
            return
        layer._is_adapted = True
        layer.get_encoded_features()
        layer.built = True
        if hasattr(layer, "_sublayers_built"):  # Keras 3's
            layer._sublayers_built = True

    @staticmethod
    def refresh(layer) -> bool:
        """Nothing follows from variables."""
        return False

    @staticmethod
    def describe(state) -> str:
        """The widths."""
        return str(state["widths"])


class Adapted:
    """A layer of the script's own with adapt(): variables, other attributes, what follows."""

    title = "what adapt() computed"

    @staticmethod
    def is_of(layer) -> bool:
        """A TextVectorization, whose state is that of a layer in it, has no variables."""
        return callable(getattr(layer, "adapt", None)) and not hasattr(layer, "_lookup_layer")

    @staticmethod
    def _variables(layer) -> list:
        return [one for one in layer.weights if hasattr(one, "assign")]

    def capture(self, layer):
        """The variables, with the shape to build them with, and the attributes."""
        return {
            "shape": _built_shape(layer) if layer.built else None,
            "weights": [np.asarray(tf.convert_to_tensor(one)) for one in self._variables(layer)],
            "held": held.capture(layer),
        }

    def problem(self, layer, state) -> str:
        """Other variables than the root's, or a table that cannot be made."""
        both = (self._variables(layer), state["weights"])
        own, new = [[tuple(one.shape) for one in some] for some in both]
        if own != new and (layer.built or state["shape"] is None):
            return f"has variables of shapes {own}, but {new} on the root"
        return held.problem(layer, state["held"])

    def apply(self, layer, state) -> None:
        """Assigns and sets them."""
        _build(layer, state["shape"])
        for variable, value in zip(self._variables(layer), state["weights"], strict=True):
            variable.assign(value)
        held.apply(layer, state["held"])
        self.refresh(layer)
        _note_adapted(layer)

    @staticmethod
    def refresh(layer) -> bool:
        """Lets the layer do what Keras's do at the end of adapt()."""
        if layer.built and callable(getattr(layer, "finalize_state", None)):
            layer.finalize_state()
        return False

    @staticmethod
    def describe(state) -> str:
        """How many variables, and the names of the attributes."""
        return f"{len(state['weights'])} variables, {', '.join(state['held'])}"


_KINDS = (Lookup(), Discretization(), FeatureSpace(), Normalization(), Adapted())


def kind_of(layer):
    """The kind of a layer; None if it keeps nothing but variables."""
    return next((kind for kind in _KINDS if kind.is_of(layer)), None)
