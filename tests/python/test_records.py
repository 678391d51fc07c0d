"""Records of FIFOs, as SageMaker's pipe mode has them, and of files."""

import json
import os
import struct
import threading

import pytest
import tensorflow as tf

from smddp_tf import sagemaker
from smddp_tf._src import records as reading

RECORDS = [b"", b"a", b"1234", bytes(range(256)) * 5]


def recordio(records) -> bytes:
    """As MXNet writes them, and SageMaker's SDK."""
    made = b""
    for data in records:
        made += struct.pack("<II", 0xCED7230A, len(data)) + data + bytes(-len(data) % 4)
    return made


def tfrecord(folder, records) -> bytes:
    """As TensorFlow writes them."""
    path = os.path.join(folder, "written")
    with tf.io.TFRecordWriter(path) as writer:
        for data in records:
            writer.write(data)
    with open(path, "rb") as file:
        made = file.read()
    os.unlink(path)
    return made


def job(folder, mode, name="training"):
    """A training job with one channel."""
    return sagemaker.job(
        {
            "SM_HOSTS": '["algo-1"]',
            "SM_CHANNELS": json.dumps([name]),
            f"SM_CHANNEL_{name.upper()}": str(folder / name),
            "SM_INPUT_DATA_CONFIG": json.dumps({name: {"TrainingInputMode": mode}}),
        }
    )


@pytest.mark.parametrize("kind", ["recordio", "tfrecord", "lines"])
def test_a_fifo_for_each_epoch(tmp_path, kind):
    """tf.data reads the next one in each epoch; it is made only when the last one was opened."""
    epochs = [RECORDS, RECORDS[::-1], [b"of epoch 2", b"x" * 3_000_000]]
    if kind == "lines":
        epochs = [[b"a", b"", b"c"], [b"d"], [b"e", b"f"]]
    made = {"recordio": recordio, "tfrecord": lambda records: tfrecord(tmp_path, records)}
    streams = [
        made[kind](records) if kind in made else b"\n".join(records) + b"\n" for records in epochs
    ]

    def service():
        for epoch, data in enumerate(streams):
            path = tmp_path / f"training_{epoch}"
            os.mkfifo(path)
            with open(path, "wb") as file:
                file.write(data)

    thread = threading.Thread(target=service, daemon=True)
    thread.start()
    stream = job(tmp_path, "Pipe").records("training", kind)
    data = tf.data.Dataset.from_generator(stream, output_signature=tf.TensorSpec([], tf.string))
    for records in epochs:
        assert list(data.as_numpy_iterator()) == records
    thread.join(10)
    assert not thread.is_alive()


def test_files(tmp_path):
    """In file mode, or outside of SageMaker: those of the folder, in each epoch the same."""
    (tmp_path / "training/b").mkdir(parents=True)
    (tmp_path / "training/b/2.rec").write_bytes(recordio(RECORDS[2:]))
    (tmp_path / "training/1.rec").write_bytes(recordio(RECORDS[:2]))
    stream = job(tmp_path, "File").records("training", "recordio")
    assert list(stream()) == list(stream()) == RECORDS
    elsewhere = sagemaker.job({}).records("training", "recordio", default=tmp_path / "training")
    assert list(elsewhere()) == RECORDS
    with pytest.raises(KeyError, match="no channel 'training'"):
        sagemaker.job({}).records("training")
    with pytest.raises(FileNotFoundError, match="no files in"):
        list(reading.Stream(tmp_path / "none", "lines", piped=False)())


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        ("recordio", recordio([b"ab"])[:-3], "record 0: the stream ends 1 bytes before"),
        ("recordio", recordio([b"ab"]) + b"\1", "record 1: the stream ends 7 bytes before"),
        ("recordio", b"01234567", "record 0: it begins with 0x33323130, not RecordIO's 0xced7230a"),
        ("recordio", struct.pack("<II", 0xCED7230A, 1 << 29), "record 0: it is in parts"),
        ("tfrecord", bytes(12), "record 0: the checksum of its length is wrong"),
        ("tfrecord", struct.pack("<QI", 9, reading._masked_crc(struct.pack("<Q", 9))), "9 bytes"),
    ],
)
def test_streams_that_are_broken(tmp_path, kind, data, said):
    """An error that says where, and no record that is not one."""
    path = tmp_path / "stream"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=said):
        list(reading.read(path, kind))


def test_no_such_pipe(tmp_path, monkeypatch):
    """The next epoch does not come; or what is there is a file."""
    monkeypatch.setattr(reading, "_APPEARS_SECONDS", 0.1)
    with pytest.raises(FileNotFoundError, match="training_0 has not appeared within 0.1 s"):
        list(job(tmp_path, "Pipe").records("training")())
    (tmp_path / "training_0").touch()
    with pytest.raises(ValueError, match="training_0 is no FIFO"):
        list(job(tmp_path, "Pipe").records("training")())
    with pytest.raises(ValueError, match="kind='csv'; it takes one of recordio, tfrecord, lines"):
        job(tmp_path, "Pipe").records("training", "csv")
