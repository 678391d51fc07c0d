"""What processes do in test_settings.py; they import the library in an environment of their own."""

import json
import locale
import os
import resource

import machine_time
from harness import OUT, rank, report, report_in_time, without_init


@without_init
def becomes():
    """Reports what became of init(), and of a second one without the bad setting.

    ON_ONE_RANK has settings for rank 1 alone; with AGAIN there is a second init(). With SPARE_MIB,
    rank 1 may map no more than that.
    """
    bad = json.loads(os.environ.get("ON_ONE_RANK", "{}")) if rank == 1 else {}
    os.environ.update(bad)
    import smddp_tf as hvd
    from smddp_tf.errors import InitError

    if "SPARE_MIB" in os.environ and rank == 1:
        with open("/proc/self/statm") as sizes:
            used = int(sizes.read().split()[0]) * resource.getpagesize()
        most = used + (int(os.environ["SPARE_MIB"]) << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    begin, error = machine_time.now(), ""
    try:
        hvd.init()
    except InitError as caught:
        error = str(caught)
    seconds = machine_time.now() - begin
    again = 0
    if error:
        for name in bad:
            del os.environ[name]
        if "AGAIN" in os.environ:
            hvd.init()
            again = hvd.size()
    size = hvd.size() if hvd.is_initialized() else 0
    chunk_bytes = hvd.stats()["chunk_bytes"] if size else None
    report_in_time(error=error, seconds=seconds, again=again, size=size, chunk_bytes=chunk_bytes)


@without_init
def a_part_of_the_ranks():
    import smddp_tf as hvd
    from smddp_tf.errors import InitError

    for words, value, ranks in (
        ("rank 1 cannot start", "nope", [2, 0]),
        ("shm on rank 1", "shm", [2, 1, 0]),
    ):
        if rank == 1:
            os.environ["SMDDP_ALLREDUCE"] = value
        try:
            hvd.init(comm=ranks)
            said = "accepted"
        except InitError as error:
            said = str(error)
        assert words in said, said
    hvd.init(comm=[2, 0])  # without rank 1, which is alone
    print("job of", hvd.size())


@without_init
def has_few_threads(threads):
    import resource

    import smddp_tf as hvd
    from smddp_tf._src.job import agreement, native
    from smddp_tf.errors import InitError

    # The other user may not read the files.
    native.core()
    agreement.terms()
    resource.setrlimit(resource.RLIMIT_NPROC, (threads, threads))
    os.setuid(65530 + threads)  # one user's threads count together, those of other tests too
    try:
        hvd.init()
        print("size", hvd.size())
    except InitError as error:
        print("refused:", error)


@without_init
def mpi_runs_already():
    from mpi4py import MPI

    number = str(MPI.COMM_WORLD.rank)
    for name in list(os.environ):
        if name.startswith(("OMPI_", "PMIX_")):
            del os.environ[name]
    os.environ.update(SLURM_STEP_ID="0", SLURM_STEP_NUM_TASKS="2", SLURM_PROCID=number)
    import smddp_tf as hvd

    hvd.init()
    print("joined", hvd.size())


@without_init
def where_numbers_have_commas(locales):
    """Numbers in variables, in the arguments of XLA's older calls, in JSON, whatever the locale."""
    os.environ["LOCPATH"] = locales
    locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
    assert locale.format_string("%.1f", 0.5) == "0,5"
    os.environ["SMDDP_TIMEOUT_SECONDS"] = "30.5"
    os.environ["SMDDP_TIMELINE"] = str(OUT / "trace.json")
    import tensorflow as tf

    import smddp_tf as hvd

    hvd.init()

    @tf.function(jit_compile=True)
    def half(x):
        return hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5)

    found = half(tf.ones([3])).numpy().tolist()
    awaited = hvd.stats()["awaited_seconds"]
    hvd.shutdown()
    events = json.loads((OUT / f"trace.rank{rank}.json").read_text())
    report(found=found, awaited=awaited, events=len(events))
