//! Models with quantised weights, for tests.

use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QTensor};
use indexmap::IndexMap;

use super::ModelConfig;
use super::config::Family;
use super::kernels::{BlockFormat, QuantizedMatrix};
use super::weights::{Trainable, Weights, random_tensors};

/// Types of blocks, with candle's names.
const FORMATS: [(BlockFormat, GgmlDType); 5] = [
    (BlockFormat::Q4K, GgmlDType::Q4K),
    (BlockFormat::Q8_0, GgmlDType::Q8_0),
    (BlockFormat::Q6K, GgmlDType::Q6K),
    (BlockFormat::Q4_0, GgmlDType::Q4_0),
    (BlockFormat::Q5K, GgmlDType::Q5K),
];

/// A model whose matrices are in blocks of several types, and the same model with these values in f32. Adapters add
/// something from the start.
pub fn quantized_and_dequantized(family: Family, trainable: &Trainable) -> [Weights; 2] {
    let config = ModelConfig {
        hidden_size: 256,
        intermediate_size: 256,
        num_heads: 8,
        vocab_size: 301,
        ..ModelConfig::small(family)
    };
    let (mut kept, mut quantized, mut values) = (IndexMap::new(), IndexMap::new(), IndexMap::new());
    for (number, (name, tensor)) in random_tensors(&config, 0.1, 7).unwrap().into_iter().enumerate() {
        let whole = |(format, _): &&(BlockFormat, GgmlDType)| {
            tensor.rank() == 2 && tensor.dim(1).unwrap().is_multiple_of(format.block_inputs())
        };
        let Some((format, candles)) = FORMATS.iter().cycle().skip(number).take(FORMATS.len()).find(whole) else {
            kept.insert(name.clone(), tensor.clone());
            values.insert(name, tensor);
            continue;
        };
        let blocks = QTensor::quantize(&tensor, *candles).unwrap();
        let matrix = QuantizedMatrix::new(*format, tensor.dims2().unwrap(), &blocks.data().unwrap(), |output| {
            output
        });
        values.insert(name.clone(), blocks.dequantize(tensor.device()).unwrap());
        quantized.insert(name, Arc::new(matrix));
    }
    let both = [
        Weights::with_quantized(config.clone(), kept, quantized, trainable).unwrap(),
        Weights::new(config, values, trainable).unwrap(),
    ];
    for weights in &both {
        for (number, (name, var)) in weights.trainable().iter().enumerate() {
            if name.ends_with("lora_B.weight") {
                let value = 0.01 * (1 + number % 4) as f64;
                var.set(&var.ones_like().unwrap().affine(value, 0.0).unwrap()).unwrap();
            }
        }
    }
    both
}
