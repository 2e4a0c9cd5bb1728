"""Makes tests/fixtures/datasets: data sets of every layout that `roll` reads, and rows.json, the rows as `datasets`
loads them.

    pip install datasets zstandard
    python tests/reference/make_datasets.py [DIRECTORY]

rows.json is a list of {path, name, split, rows}: the arguments of `load_dataset`, and its rows. Times are ISO 8601,
bytes Base64, decimals numbers with all their digits, and what JSON has no number for is null, as in `roll`.
"""

import bz2
import datetime
import decimal
import gzip
import json
import math
import re
import shutil
import sys
from base64 import b64encode
from pathlib import Path
from tempfile import mkdtemp

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from datasets import Dataset, load_dataset

HERE = Path(__file__).resolve().parent
OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "fixtures" / "datasets"
CASES = []
OWN = []


def sums(split, count, worded):
    """Rows with GSM8K's two columns."""
    rows = []
    for i in range(count):
        a, b = 3 * i + len(split), 7 * i + 2
        ask = f"How many pens are left of {a + b}, if {b} are lost?"
        step = f"{a + b} - {b} = <<{a + b}-{b}={a}>>{a}"
        asked = f"How many pens are left? ** {step}" if worded else step
        rows.append({"question": ask, "answer": f"{asked}\n#### {a:,}"})
    return rows


def case(path, name=None, splits=("train",)):
    CASES.extend((path, name, split) for split in splits)


def write(path, content):
    target = OUT / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content.encode() if isinstance(content, str) else content)


def parquet(path, rows, **options):
    (OUT / path).parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_list(rows).to_parquet(OUT / path, **options)


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def gsm8k():
    header = ["---", "license: mit", "configs:"]
    for name in ["main", "socratic"]:
        header += [f"- config_name: {name}", "  data_files:"]
        for split, count in [("train", 7), ("test", 3)]:
            parquet(f"gsm8k/{name}/{split}-00000-of-00001.parquet", sums(split, count, name == "socratic"))
            header += [f"  - split: {split}", f"    path: {name}/{split}-*"]
        case("gsm8k", name, ["train", "test"])
    write("gsm8k/README.md", "\n".join(header + ["---", "# Sums", ""]))
    case("gsm8k/main", None, ["train", "test"])


def shards():
    for split, counts in [("train", [3, 2]), ("validation", [2]), ("extra", [1])]:
        for i, count in enumerate(counts):
            parquet(f"shards/data/{split}-{i:05}-of-{len(counts):05}.parquet", sums(f"{split}{i}", count, False))
    case("shards", None, ["train", "validation", "extra"])


def nested():
    """Every type of column, over pages, row groups, encodings and codecs."""
    utc, naive = pa.timestamp("us", "UTC"), pa.timestamp("ms")
    schema = pa.schema(
        [
            ("text", pa.string()),
            ("large", pa.large_string()),
            ("flag", pa.bool_()),
            ("i8", pa.int8()),
            ("u8", pa.uint8()),
            ("i64", pa.int64()),
            ("u64", pa.uint64()),
            ("u32", pa.uint32()),
            ("f16", pa.float16()),
            ("f32", pa.float32()),
            ("f64", pa.float64()),
            ("date", pa.date32()),
            ("time", pa.time64("us")),
            ("utc", utc),
            ("naive", naive),
            ("dec", pa.decimal128(20, 4)),
            ("bin", pa.binary()),
            ("list", pa.list_(pa.int32())),
            ("deep", pa.list_(pa.list_(pa.string()))),
            ("struct", pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.list_(pa.string()))]))])),
            ("turns", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
            ("fixed", pa.list_(pa.float32(), 2)),
            ("word", pa.dictionary(pa.int32(), pa.string())),
            ("nothing", pa.null()),
        ]
    )
    full = {
        "text": "π ≈ 3.14159\n\"x\"",
        "large": "large",
        "flag": True,
        "i8": -7,
        "u8": 255,
        "i64": -(2**63),
        "u64": 2**64 - 1,
        "u32": 2**32 - 1,
        "f16": 0.5,
        "f32": 0.1,
        "f64": 1e-300,
        "date": datetime.date(2024, 2, 29),
        "time": datetime.time(1, 2, 3, 4),
        "utc": datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=datetime.timezone.utc),
        "naive": datetime.datetime(2024, 2, 29, 12, 0, 0, 500000),
        "dec": decimal.Decimal("-12345678901234.5600"),
        "bin": b"\x00\xff",
        "list": [1, None, 3],
        "deep": [["a", None], [], None, ["b"]],
        "struct": {"a": 1, "b": {"c": ["x", None]}},
        "turns": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None}],
        "fixed": [1.5, -2.5],
        "word": "red",
        "nothing": None,
    }
    empty = {**{name: None for name in full}, "list": [], "deep": [], "turns": [], "fixed": [0.0, 0.0]}
    partly = {**full, "struct": {"a": None, "b": None}, "turns": [None], "deep": [[]], "word": "blue", "f64": math.inf}
    sparse = {**full, "struct": {"a": 2, "b": {"c": None}}, "f64": math.nan, "f16": 65504.0, "dec": decimal.Decimal("0.1")}
    rows = [full, empty, partly, sparse] * 40
    for i, row in enumerate(rows):
        rows[i] = {**row, "i64": i, "list": None if i % 7 == 0 else list(range(i % 5))}
    rows[0] = full
    variants = {
        "snappy": dict(row_group_size=50),
        "zstd": dict(compression="zstd", data_page_version="2.0", data_page_size=256, write_batch_size=8),
        "gzip": dict(compression="gzip", use_dictionary=False),
        "brotli": dict(compression="brotli", row_group_size=33),
        "lz4": dict(compression="lz4"),
        "none": dict(compression="none", store_schema=False),
        "delta": dict(
            use_dictionary=False,
            column_encoding={
                "text": "DELTA_BYTE_ARRAY",
                "large": "DELTA_LENGTH_BYTE_ARRAY",
                "i64": "DELTA_BINARY_PACKED",
                "f64": "BYTE_STREAM_SPLIT",
            },
        ),
    }
    for name, options in variants.items():
        target = OUT / f"nested-{name}" / "train.parquet"
        target.parent.mkdir(parents=True)
        kept = rows if name == "zstd" else rows[:12]
        pq.write_table(pa.Table.from_pylist(kept, schema=schema), target, **options)
        case(f"nested-{name}")


def old_types():
    """What `datasets` has no features for: maps, times of 96 bits, and lists without annotation names."""
    rows = [
        {"map": [("a", 1), ("b", None)], "int96": datetime.datetime(2024, 2, 29, 12, 0, 0, 1), "list": [1, 2]},
        {"map": [], "int96": None, "list": []},
        {"map": None, "int96": datetime.datetime(1900, 1, 1), "list": None},
    ]
    schema = pa.schema(
        [("map", pa.map_(pa.string(), pa.int64())), ("int96", pa.timestamp("ns")), ("list", pa.list_(pa.int64()))]
    )
    target = OUT / "old-types" / "train.parquet"
    target.parent.mkdir(parents=True)
    options = dict(use_deprecated_int96_timestamps=True, use_compliant_nested_type=False)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), target, **options)
    for row in rows:
        row["map"] = row["map"] and dict(row["map"]) if row["map"] != [] else {}
    OWN.append({"path": "old-types", "name": None, "split": "train", "rows": [plain(row) for row in rows]})


def json_files():
    rows = sums("json", 4, False)
    rows[1] |= {"question": "A comma, a \"quote\" and 日本語"}
    write("json-lines/train.jsonl", lines(rows))
    write("json-lines/dev.jsonl", "\ufeff" + lines(rows[:2]).replace("\n", "\r\n"))
    case("json-lines", None, ["train", "validation"])
    write("json-list/train/part.json", json.dumps(rows, indent=2))
    write("json-list/test/part.json", json.dumps(rows[2:]))
    case("json-list", None, ["train", "test"])
    deep = [{"id": i, "facts": {"n": i / 4, "tags": ["a"] * (i + 1)}, "turns": [{"role": "user"}]} for i in range(3)]
    write("json-field/rows.json", json.dumps({"version": 1, "skipped": [[{}]], "data": deep}))
    write(
        "json-field/README.md",
        "---\nconfigs:\n- config_name: default\n  data_files: rows.json\n  field: data\n---\n",
    )
    case("json-field")
    write("compressed/train.jsonl.gz", gzip.compress(lines(rows).encode(), mtime=0))
    write("compressed/test.jsonl.zst", zstandard.compress(lines(rows[1:]).encode()))
    write("compressed/val.jsonl.bz2", bz2.compress(lines(rows[2:]).encode()))
    case("compressed", None, ["train", "validation", "test"])


def csv_files():
    write(
        "csv/train.csv",
        'question,answer,level,score,checked,note,code\n'
        '"Two, or three?",3,1,0.5,True,NA,007\n'
        '"A ""quoted"" word",-4,2,1e3,False,,08\n'
        '"Two\nlines",5,3,2,True,x,9\n'
        'plain,6,4,.25,False,None,10\n',
    )
    case("csv")
    write("tsv/test.tsv", "question\tanswer\nOne\t1\n\nTwo\t2\n")
    case("tsv", None, ["test"])
    write("csv-options/all.csv", "a;b\n1;x\n2;y, z\n")
    write("csv-options/README.md", "---\nconfigs:\n- config_name: only\n  data_files: '*.csv'\n  sep: ;\n---\n")
    case("csv-options", "only")


def configurations():
    """Configurations with a default, a directory, a list of files, and files that no pattern names."""
    for part in ["easy", "hard"]:
        for i in range(2):
            write(f"configs/{part}/{i}.jsonl", lines(sums(part + str(i), 2, False)))
    write("configs/hard/notes.txt", "not data")
    write("configs/easy/.hidden.jsonl", lines(sums("hidden", 1, False)))
    write("configs/easy/__old/2.jsonl", lines(sums("old", 1, False)))
    write(
        "configs/README.md",
        """---
configs:
- config_name: easy
  data_dir: easy
- config_name: hard
  default: true
  data_files:
  - split: train
    path: [hard/1.jsonl, hard/0.jsonl]
  - split: held_out
    path: easy/[0-9].jsonl
---
""",
    )
    case("configs", None, ["train", "held_out"])
    case("configs", "easy", ["train"])


def plain(value):
    """What `roll` has in place of a value of Python."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return f"decimal:{value}"
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    for make in [gsm8k, shards, nested, old_types, json_files, csv_files, configurations]:
        make()
    cache = mkdtemp()
    rows = OWN
    for path, name, split in CASES:
        loaded = load_dataset(str(OUT / path), name, split=split, cache_dir=cache)
        kept = [plain(row) for row in loaded]
        rows.append({"path": path, "name": name, "split": split, "rows": kept})
    shutil.rmtree(cache)
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":")).replace("},{", "},\n{")
    write("rows.json", re.sub(r'"decimal:([-0-9.]+)"', r"\1", text) + "\n")


main()
