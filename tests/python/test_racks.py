"""smddprun orders the hosts of a Slurm allocation by racks."""

import pytest

from smddp_tf.launch import __main__ as launch
from smddp_tf.launch import mpi, options, racks
from smddp_tf.launch.hosts import Host, show
from smddp_tf.launch.machine import Machine

HERE = Machine(root=False, cores=8, name="here")

# As Slurm 22.05 prints it.
RACKS = """SwitchName=rack1 Level=0 LinkSpeed=1 Nodes=host[1,3]
SwitchName=rack2 Level=0 LinkSpeed=1 Nodes=host[2,4]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=host[1-4] Switches=rack[1-2]
"""


@pytest.mark.parametrize(
    ("names", "topology", "wanted"),
    [
        ("host1 host2 host3 host4", RACKS, "host1 host3 host2 host4"),
        ("host2 host3 host4", RACKS, "host2 host4 host3"),
        ("other host1 host2 host3", RACKS, "other host1 host3 host2"),
        ("host1 host2 host3", "", "host1 host2 host3"),
        ("host1 host2 host3", "No topology information available\n", "host1 host2 host3"),
        ("host1 host2 host3", "SwitchName=s Nodes=host[1-\n" + RACKS, "host1 host3 host2"),
        (
            "a1 a2 a3 a4 a5 a6",
            "BlockName=b1 BlockIndex=0 Nodes=a[1,4] BlockSize=2\n"
            "BlockName=b2 BlockIndex=1 Nodes=a[2,5] BlockSize=2\n",
            "a1 a4 a2 a5 a3 a6",
        ),
        (  # two levels: pods of two racks each
            "n1 n2 n3 n4 n5 n6 n7 n8",
            "SwitchName=r1 Level=0 Nodes=n[1,5]\nSwitchName=r2 Level=0 Nodes=n[2,6]\n"
            "SwitchName=r3 Level=0 Nodes=n[3,7]\nSwitchName=r4 Level=0 Nodes=n[4,8]\n"
            "SwitchName=p1 Level=1 Nodes=n[1,3,5,7] Switches=r[1,3]\n"
            "SwitchName=p2 Level=1 Nodes=n[2,4,6,8] Switches=r[2,4]\n"
            "SwitchName=s Level=2 Nodes=n[1-8] Switches=p[1-2]\n",
            "n1 n5 n3 n7 n2 n6 n4 n8",
        ),
    ],
)
def test_racks(names, topology, wanted):
    """Hosts of a switch are adjacent, at each level; what is not known stays in its order."""
    given = [Host(name, 2) for name in names.split()]
    assert " ".join(host.name for host in racks.ordered(given, topology)) == wanted


def test_racks_in_an_allocation():
    """Each host keeps its slots; with -H the order is the user's."""
    in_slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "host[1-4]", "PATH": "/usr/bin:/bin"}
    in_slurm["SLURM_TASKS_PER_NODE"] = "2(x2),1,3"
    for words, wanted in (
        ("sh", "host1:2,host3:1,host2:2,host4:3"),
        ("-np 3 sh", "host1:2,host3:1"),
        ("-H host2:1,host1:1,host4:1 sh", "host2:1,host1:1,host4:1"),
    ):
        job = launch.make_job(options.parse(words.split()), in_slurm, HERE, RACKS)
        assert show(job.hosts) == wanted


def test_who_keeps_the_order():
    """Open MPI 4 does not in an allocation; outside of one nobody is asked."""
    versions = [("openmpi", "4.1.8"), ("openmpi", "5.0.11"), ("mpich", "5.0.2")]
    assert [mpi.Mpi("m", *one).keeps_order for one in versions] == [False, True, True]
    assert racks.ask({}) == ""


def test_what_scontrol_says(tmp_path, monkeypatch):
    """Its output, unless it fails or is not there."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\necho "$@"; exit $CODE\n')
    monkeypatch.setenv("PATH", str(tmp_path))
    assert racks.ask({"SLURM_JOB_ID": "7"}) == ""  # not executable
    scontrol.chmod(0o755)
    for code, wanted in (("0", "show topology\n"), ("1", "")):
        monkeypatch.setenv("CODE", code)
        assert racks.ask({"SLURM_JOB_ID": "7"}) == wanted
