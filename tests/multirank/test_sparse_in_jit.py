"""Sparse gradients under jit_compile=True, which fit() chooses by itself on machines with a GPU."""

from bodies import sparse_in_jit
from conftest import KERASES, PYTHONS, on_ranks


@on_ranks("keras_job", KERASES, 2)
def test_embeddings_fit_in_jit(keras_job, ranks):
    """fit(jit_compile=True) on an Embedding equals one process; what moves is rows or the table."""
    keras_job(sparse_in_jit.embeddings_fit, ranks).check(ranks)


@on_ranks("python", PYTHONS, 2)
def test_slices_in_jit(job, python, ranks):
    """The tape and allreduce, by what is smaller: the table or all ranks' rows."""
    job(sparse_in_jit.slices, ranks, python=python).check(ranks)
