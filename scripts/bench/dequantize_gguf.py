#!/usr/bin/env python3
"""dequantize_gguf.py SOURCE TARGET f32|bf16: the same model with its weights in another type. Needs `pip install gguf`."""

import sys

import gguf
from gguf import quants


def main(source, target, dtype):
    reader = gguf.GGUFReader(source)
    architecture = reader.get_field(gguf.Keys.General.ARCHITECTURE).contents()
    writer = gguf.GGUFWriter(target, architecture)
    file_type = {"f32": gguf.LlamaFileType.ALL_F32, "bf16": gguf.LlamaFileType.MOSTLY_BF16}[dtype]
    for field in reader.fields.values():
        if field.name in (gguf.Keys.General.ARCHITECTURE, gguf.Keys.General.FILE_TYPE) or field.name.startswith("GGUF."):
            continue
        array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=field.types[-1] if array else None)
    writer.add_file_type(file_type)
    for tensor in reader.tensors:
        data = quants.dequantize(tensor.data, tensor.tensor_type)
        if dtype == "bf16" and data.ndim > 1:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(tensor.name, quants.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[3] not in ("f32", "bf16"):
        sys.exit(__doc__)
    main(*sys.argv[1:])
