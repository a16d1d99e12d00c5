"""Pickles that leave a marker when they are read, as each library would write them."""

import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.safety.hostile_files.folders import payload


def poisons(marker: Path) -> dict[str, bytes]:
    """Each kind of file that somebody's reader would unpickle."""
    text = payload(0, marker)
    return {
        "pickle": text,
        "pickle, protocol 4": payload(4, marker),
        "torch.save": archive({"archive/data.pkl": payload(2, marker), "archive/version": b"3\n"}),
        "torch.save, legacy": legacy(marker),
        "numpy, objects": objects(text),
        "numpy, archive": archive({"a.npy": objects(text)}),
        "joblib, compressed": zlib.compress(payload(4, marker)),
        "Parquet, extension type": extension(text),
    }


def archive(members: dict[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return sink.getvalue()


def legacy(marker: Path) -> bytes:
    """As torch wrote before 1.6: pickles one after the other, the first a magic number."""
    magic = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
    return magic + b"\x80\x02M\xe9\x03." + payload(2, marker) * 3


def objects(text: bytes) -> bytes:
    """An array of objects, whose data is a pickle."""
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    header = header.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + text


def extension(text: bytes) -> bytes:
    """A sound table, but for a type that pyarrow before 14.0.1 unpickled (CVE-2023-47248)."""
    metadata = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": text,
    }
    field = pa.field("path", pa.string(), metadata=metadata)
    sink = io.BytesIO()
    pq.write_table(pa.table([pa.array(["gone.safetensors"])], schema=pa.schema([field])), sink)
    return sink.getvalue()


def control(marker: Path) -> dict[str, object]:
    """Readers that would run what is in a poison, if they were used."""
    import pickle  # noqa: TID251  # the one place where the poison is shown to work

    kinds = poisons(marker)
    return {
        "pickle": lambda: pickle.loads(kinds["pickle"]),
        "pickle, protocol 4": lambda: pickle.loads(kinds["pickle, protocol 4"]),
        "numpy, objects": lambda: np.load(io.BytesIO(kinds["numpy, objects"]), allow_pickle=True),
        "joblib, compressed": lambda: pickle.loads(zlib.decompress(kinds["joblib, compressed"])),
    }
