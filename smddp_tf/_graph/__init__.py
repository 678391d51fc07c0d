"""Operations in TensorFlow's graphs: loading, order, XLA. Only here and above is it imported."""
