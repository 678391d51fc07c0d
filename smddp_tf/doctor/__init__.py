"""python -m smddp_tf.doctor: whether a job can run here, and how its ranks reach each other."""
