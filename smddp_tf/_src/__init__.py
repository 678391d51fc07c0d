"""Private: what the public modules beside this folder are made of.

job          init and shutdown, ranks, process sets, options, the C library; no framework
elastic      states and samples that outlive ranks; no framework
plan         which gradients share a bucket; no framework
graph        TensorFlow ops of collectives, their order, their gradients, XLA
compression  compressors and Adasum
collectives  the functions that scripts call
gradients    tapes, and the way of a step's gradients
state        what a model has besides weights: sent, compared and made anew
"""
