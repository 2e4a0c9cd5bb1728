//! The header of a GGUF file: metadata, and where each tensor lies. The file may be cut short or lie about every
//! length, so nothing is allocated that its bytes do not fill.

use std::collections::HashMap;
use std::io::{BufRead, Read, Seek, SeekFrom};

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::{TensorInfo, Value};
use candle_core::{Device, Tensor};
use indexmap::IndexMap;

use crate::model::error::ModelError;
use crate::model::kernels::BlockFormat;

const MAGIC: &[u8; 4] = b"GGUF";
/// Header bytes and list elements that a file may have; vocabularies have some 10 MB and a million.
const LARGEST_HEADER: u64 = 1 << 28;
const MOST_ELEMENTS: u64 = 1 << 24;
/// As in ggml.
const MOST_DIMENSIONS: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;
/// Experts of a layer; more are a damaged header.
const MOST_EXPERTS: usize = 1 << 12;

/// Types of tensors by number, name, and, where it can be read, candle's.
const TYPES: [(u32, &str, Option<GgmlDType>); 34] = [
    (0, "F32", Some(GgmlDType::F32)),
    (1, "F16", Some(GgmlDType::F16)),
    (2, "Q4_0", Some(GgmlDType::Q4_0)),
    (3, "Q4_1", Some(GgmlDType::Q4_1)),
    (6, "Q5_0", Some(GgmlDType::Q5_0)),
    (7, "Q5_1", Some(GgmlDType::Q5_1)),
    (8, "Q8_0", Some(GgmlDType::Q8_0)),
    (9, "Q8_1", None),
    (10, "Q2_K", Some(GgmlDType::Q2K)),
    (11, "Q3_K", Some(GgmlDType::Q3K)),
    (12, "Q4_K", Some(GgmlDType::Q4K)),
    (13, "Q5_K", Some(GgmlDType::Q5K)),
    (14, "Q6_K", Some(GgmlDType::Q6K)),
    (15, "Q8_K", None),
    (16, "IQ2_XXS", None),
    (17, "IQ2_XS", None),
    (18, "IQ3_XXS", None),
    (19, "IQ1_S", None),
    (20, "IQ4_NL", None),
    (21, "IQ3_S", None),
    (22, "IQ2_S", None),
    (23, "IQ4_XS", None),
    (24, "I8", None),
    (25, "I16", None),
    (26, "I32", None),
    (27, "I64", None),
    (28, "F64", None),
    (29, "IQ1_M", None),
    (30, "BF16", Some(GgmlDType::BF16)),
    (34, "TQ1_0", None),
    (35, "TQ2_0", None),
    (39, "MXFP4", None),
    (40, "NVFP4", None),
    (41, "Q1_0", None),
];

/// Header of a file: metadata, and the place and type of each tensor.
pub(super) struct Header {
    /// How the file is called in messages.
    place: String,
    /// Settings by key.
    pub(super) metadata: HashMap<String, Value>,
    tensors: IndexMap<String, Entry>,
    data_start: u64,
    file_size: u64,
}

/// Where a tensor lies.
struct Entry {
    kind: u32,
    /// Rows first, as everywhere but in the file.
    shape: Vec<usize>,
    offset: u64,
}

impl Header {
    /// Reads a file's header. `place` names the file in errors.
    pub(super) fn read<R: BufRead + Seek>(file: &mut R, place: &str) -> Result<Self, ModelError> {
        let fail = |reason: String| ModelError::file(place, reason);
        let size = file
            .seek(SeekFrom::End(0))
            .and_then(|size| file.rewind().map(|()| size));
        let file_size = size.map_err(|e| fail(e.to_string()))?;
        let mut bytes = Bytes {
            file,
            left: file_size.min(LARGEST_HEADER),
            elements: MOST_ELEMENTS,
            long_lengths: true,
        };
        let header = bytes.header().map_err(&fail)?;
        let used = file_size.min(LARGEST_HEADER) - bytes.left;
        let alignment = match header.0.get("general.alignment") {
            None => DEFAULT_ALIGNMENT,
            Some(Value::U32(n)) if n.is_power_of_two() => u64::from(*n),
            Some(other) => {
                return Err(fail(format!(
                    "general.alignment is {other:?}, it must be a power of two"
                )));
            }
        };
        Ok(Self {
            place: place.to_owned(),
            metadata: header.0,
            tensors: header.1,
            data_start: used.next_multiple_of(alignment),
            file_size,
        })
    }

    /// Splits tensors that hold all experts of a layer, such as `blk.0.ffn_up_exps.weight`, into one of each expert, with
    /// the names that older files have for them: `blk.0.ffn_up.3.weight`.
    ///
    /// # Errors
    /// Fails if their type is not supported, or their shape is not possible for it.
    pub(super) fn split_experts(&mut self) -> Result<(), ModelError> {
        let mut split = IndexMap::new();
        for (name, entry) in &self.tensors {
            let (Some(stem), &[experts, rows, columns]) = (name.strip_suffix("_exps.weight"), &entry.shape[..]) else {
                continue;
            };
            if experts > MOST_EXPERTS {
                return Err(self.fail(
                    name,
                    format!("it has {experts} experts; at most {MOST_EXPERTS} are supported"),
                ));
            }
            let kind = readable(entry.kind).map_err(|reason| self.fail(name, reason))?;
            let blocks = rows
                .checked_mul(columns)
                .filter(|count| count.is_multiple_of(kind.block_size()));
            let bytes = blocks.and_then(|count| (count / kind.block_size()).checked_mul(kind.type_size()));
            for number in 0..experts {
                let offset =
                    bytes.and_then(|bytes| entry.offset.checked_add((bytes as u64).checked_mul(number as u64)?));
                let Some(offset) = offset else {
                    let reason = format!("the shape {:?} is not possible for type {kind:?}", entry.shape);
                    return Err(self.fail(name, reason));
                };
                let (kind, shape) = (entry.kind, vec![rows, columns]);
                split.insert(format!("{stem}.{number}.weight"), Entry { kind, shape, offset });
            }
        }
        self.tensors.extend(split);
        Ok(())
    }

    /// Returns whether the file has the tensor `name`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Returns the shape of a tensor, the outer dimension first.
    pub(super) fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(&self.tensors.get(name)?.shape)
    }

    /// Reads a tensor as f32.
    ///
    /// # Errors
    /// Fails if there is none of that name, its type is not supported, or the file ends before it.
    pub(super) fn tensor<R: Read + Seek>(&self, file: &mut R, name: &str) -> Result<Tensor, ModelError> {
        let fail = |reason: String| self.fail(name, reason);
        let (entry, _) = self.find(name)?;
        let info = TensorInfo {
            ggml_dtype: readable(entry.kind).map_err(fail)?,
            shape: entry.shape.clone().into(),
            offset: entry.offset,
        };
        let tensor = info.read(file, self.data_start, &Device::Cpu);
        let tensor = tensor.and_then(|tensor| tensor.dequantize(&Device::Cpu));
        tensor.map_err(|e| fail(e.to_string()))
    }

    /// Returns the type of a matrix's blocks if they can be computed with: `None` for other tensors.
    pub(super) fn block_format(&self, name: &str) -> Option<BlockFormat> {
        let entry = self.tensors.get(name)?;
        let (_, type_name, _) = TYPES.iter().find(|(number, ..)| *number == entry.kind)?;
        let format = BlockFormat::ALL
            .into_iter()
            .find(|format| format.name() == *type_name)?;
        let whole_rows = entry.shape.last()?.is_multiple_of(format.block_inputs());
        (entry.shape.len() == 2 && whole_rows).then_some(format)
    }

    /// Reads the blocks of a matrix, of the type that [`block_format`](Self::block_format) returned.
    ///
    /// # Errors
    /// Fails if there is no tensor of that name, the file ends before it, or weights are not finite.
    pub(super) fn blocks<R: Read + Seek>(
        &self,
        file: &mut R,
        name: &str,
        format: BlockFormat,
    ) -> Result<Vec<u8>, ModelError> {
        let (entry, count) = self.find(name)?;
        let mut bytes = vec![0; count];
        let start = self.data_start + entry.offset; // `find` saw that the end is within the file
        let read = file
            .seek(SeekFrom::Start(start))
            .and_then(|_| file.read_exact(&mut bytes));
        read.map_err(|e| self.fail(name, e.to_string()))?;
        match format.non_finite_blocks(&bytes) {
            0 => Ok(bytes),
            bad => Err(self.fail(
                name,
                format!(
                    "{bad} of its {} blocks have a scale that is NaN or infinite\nhint: the file is damaged; use another \
                     copy",
                    bytes.len() / format.block_bytes()
                ),
            )),
        }
    }

    fn fail(&self, name: &str, reason: String) -> ModelError {
        ModelError::file(format!("{name} of {}", self.place), reason)
    }

    /// Finds a tensor that the file has all bytes of, and how many.
    fn find(&self, name: &str) -> Result<(&Entry, usize), ModelError> {
        let fail = |reason: String| self.fail(name, reason);
        let entry = self.tensors.get(name);
        let entry = entry.ok_or_else(|| fail("there is no such tensor".into()))?;
        let kind = readable(entry.kind).map_err(fail)?;
        let count = entry.shape.iter().try_fold(1_usize, |count, n| count.checked_mul(*n));
        let bytes = count
            .filter(|count| count.is_multiple_of(kind.block_size()))
            .and_then(|count| (count / kind.block_size()).checked_mul(kind.type_size()));
        let Some(bytes) = bytes else {
            return Err(fail(format!(
                "the shape {:?} is not possible for type {kind:?}",
                entry.shape
            )));
        };
        let end = u128::from(self.data_start) + u128::from(entry.offset) + bytes as u128;
        if end > u128::from(self.file_size) {
            return Err(fail(format!(
                "it ends at byte {end}, the file has {}\nhint: a download was cut short; fetch the file again",
                self.file_size
            )));
        }
        Ok((entry, bytes))
    }
}

fn readable(kind: u32) -> Result<GgmlDType, String> {
    let found = TYPES.iter().find(|(number, ..)| *number == kind);
    if let Some((_, _, Some(readable))) = found {
        return Ok(*readable);
    }
    let given = found.map_or(format!("number {kind}"), |(_, name, _)| (*name).to_owned());
    let supported: Vec<&str> = TYPES
        .iter()
        .filter(|(.., kind)| kind.is_some())
        .map(|(_, name, _)| *name)
        .collect();
    Err(format!(
        "tensors of type {given} are not supported; supported are {}\nhint: use another quantization of the model, such \
         as Q8_0 or Q4_K_M",
        supported.join(", ")
    ))
}

/// Settings, and places of tensors.
type Contents = (HashMap<String, Value>, IndexMap<String, Entry>);

/// The bytes of a header that are left to read.
struct Bytes<'a, R> {
    file: &'a mut R,
    left: u64,
    /// List elements that may still come.
    elements: u64,
    /// Whether lengths have 8 bytes: since version 2.
    long_lengths: bool,
}

impl<R: Read> Bytes<'_, R> {
    fn header(&mut self) -> Result<Contents, String> {
        let not_gguf = "this is neither a model directory nor a GGUF file";
        if self.left < 4 || self.array::<4>()? != *MAGIC {
            return Err(not_gguf.into());
        }
        let version = self.u32()?;
        self.long_lengths = match version {
            1 => false,
            2 | 3 => true,
            _ => {
                return Err(format!(
                    "GGUF version {version} is not supported; supported are 1, 2 and 3, little-endian"
                ));
            }
        };
        let (tensors, settings) = (self.length()?, self.length()?);
        let mut metadata = HashMap::new();
        for _ in 0..settings {
            let key = self.text()?;
            let kind = self.u32()?;
            let value = self.value(kind).map_err(|why| format!("{key}: {why}"))?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(format!("the key {key} is there twice"));
            }
        }
        let mut entries = IndexMap::new();
        for _ in 0..tensors {
            let name = self.text()?;
            let entry = self.entry().map_err(|why| format!("tensor {name}: {why}"))?;
            if entries.insert(name.clone(), entry).is_some() {
                return Err(format!("the tensor {name} is there twice"));
            }
        }
        Ok((metadata, entries))
    }

    fn entry(&mut self) -> Result<Entry, String> {
        let dimensions = self.u32()?;
        if dimensions > MOST_DIMENSIONS {
            return Err(format!(
                "it has {dimensions} dimensions, at most {MOST_DIMENSIONS} are possible"
            ));
        }
        let sizes: Vec<u64> = (0..dimensions).map(|_| self.length()).collect::<Result<_, _>>()?;
        let shape: Option<Vec<usize>> = sizes.iter().rev().map(|n| usize::try_from(*n).ok()).collect();
        Ok(Entry {
            shape: shape.ok_or_else(|| format!("its shape is {sizes:?}"))?,
            kind: self.u32()?,
            offset: u64::from_le_bytes(self.array()?),
        })
    }

    fn value(&mut self, kind: u32) -> Result<Value, String> {
        Ok(match kind {
            0 => Value::U8(self.array::<1>()?[0]),
            1 => Value::I8(i8::from_le_bytes(self.array()?)),
            2 => Value::U16(u16::from_le_bytes(self.array()?)),
            3 => Value::I16(i16::from_le_bytes(self.array()?)),
            4 => Value::U32(self.u32()?),
            5 => Value::I32(i32::from_le_bytes(self.array()?)),
            6 => Value::F32(f32::from_le_bytes(self.array()?)),
            7 => Value::Bool(self.array::<1>()?[0] != 0),
            8 => Value::String(self.text()?),
            9 => return self.list(),
            10 => Value::U64(u64::from_le_bytes(self.array()?)),
            11 => Value::I64(i64::from_le_bytes(self.array()?)),
            12 => Value::F64(f64::from_le_bytes(self.array()?)),
            _ => return Err(format!("values of type number {kind} are not known")),
        })
    }

    fn list(&mut self) -> Result<Value, String> {
        const LIST: u32 = 9;
        let kind = self.u32()?;
        if kind == LIST {
            return Err("lists of lists are not supported".into());
        }
        let count = self.length()?;
        let Some(left) = self.elements.checked_sub(count) else {
            return Err(format!("a list of {count} elements; at most {MOST_ELEMENTS} are read"));
        };
        self.elements = left;
        let mut values = Vec::new(); // grows with what is there
        for _ in 0..count {
            values.push(self.value(kind)?);
        }
        Ok(Value::Array(values))
    }

    fn text(&mut self) -> Result<String, String> {
        let length = self.length()?;
        self.take(length)?;
        let mut bytes = vec![0; length as usize];
        self.file.read_exact(&mut bytes).map_err(cut)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn length(&mut self) -> Result<u64, String> {
        match self.long_lengths {
            true => Ok(u64::from_le_bytes(self.array()?)),
            false => Ok(self.u32()?.into()),
        }
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        self.take(N as u64)?;
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes).map_err(cut)?;
        Ok(bytes)
    }

    fn take(&mut self, bytes: u64) -> Result<(), String> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or_else(|| cut("the header goes on behind the end of the file, or is damaged"))?;
        Ok(())
    }
}

fn cut(why: impl std::fmt::Display) -> String {
    format!("the GGUF header cannot be read: {why}\nhint: a download may have been cut short; fetch the file again")
}
