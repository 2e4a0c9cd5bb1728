//! The CPU kernels in shapes of SmolLM2-135M, on every instruction set of this machine:
//! `cargo bench --bench kernels -- [FILTER]`.

use std::hint::black_box;
use std::time::Duration;

use ajet_swarm::model::kernels::{
    AttentionRows, AttentionScores, BLOCK_TOKENS, BlockLayout, Isa, PackedMatrix, Pool, Precision, RowScratch,
    attention, exp_and_sum, rms_norm,
};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const HIDDEN: usize = 576;
const INTERMEDIATE: usize = 1536;
const VOCAB: usize = 49152;
const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const HEAD_DIM: usize = 64;

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i * 7919 % 1009) as f32 / 1009.0 - 0.5).collect()
}

fn matmul(c: &mut Criterion) {
    let weight = numbers(INTERMEDIATE * HIDDEN);
    for isa in Isa::available() {
        let pool = Pool::with_isa(Pool::physical_cores(), isa);
        for precision in [Precision::F32, Precision::Bf16] {
            let mut matrix = PackedMatrix::new(isa, precision, INTERMEDIATE, HIDDEN);
            matrix.pack(&pool, &[&weight], None);
            let mut group = c.benchmark_group(format!("matmul {} {precision:?}", isa.name()));
            for rows in [1, 8, 16, 64, 512] {
                let (x, mut y) = (numbers(rows * HIDDEN), vec![0.0; rows * INTERMEDIATE]);
                let mut scratch = RowScratch::default();
                group.throughput(Throughput::Elements((2 * rows * HIDDEN * INTERMEDIATE) as u64));
                group.bench_function(BenchmarkId::from_parameter(rows), |b| {
                    b.iter(|| matrix.multiply(&pool, black_box(&x), &mut y, &mut scratch));
                });
            }
        }
    }
}

fn packing(c: &mut Criterion) {
    let pool = Pool::new(Pool::physical_cores());
    let weight = numbers(VOCAB * HIDDEN);
    let mut group = c.benchmark_group("pack");
    group.throughput(Throughput::Bytes(size_of_val(&weight[..]) as u64));
    for precision in [Precision::F32, Precision::Bf16] {
        let mut matrix = PackedMatrix::new(Isa::detect(), precision, VOCAB, HIDDEN);
        group.bench_function(format!("{precision:?}"), |b| {
            b.iter(|| matrix.pack(&pool, &[black_box(&weight)], None))
        });
    }
}

/// One decoding row, and a chunk of a prompt, behind so many tokens.
fn attend(c: &mut Criterion) {
    let layout = BlockLayout::new(1, KV_HEADS, HEAD_DIM);
    let scores = AttentionScores {
        scale: 1.0 / (HEAD_DIM as f32).sqrt(),
        softcap: None,
        window: None,
    };
    for isa in Isa::available() {
        let pool = Pool::with_isa(Pool::physical_cores(), isa);
        let mut group = c.benchmark_group(format!("attention {}", isa.name()));
        for (rows, tokens) in [(1, 128), (1, 4096), (64, 128), (256, 4096)] {
            let block = numbers(layout.len());
            let queries = numbers(rows * HEADS * HEAD_DIM);
            let mut out = vec![0.0; queries.len()];
            let sequences = [AttentionRows {
                first_row: 0,
                rows,
                start: tokens - rows,
                blocks: vec![&block; tokens.div_ceil(BLOCK_TOKENS)],
            }];
            group.bench_function(format!("{rows} rows, {tokens} tokens"), |b| {
                let queries = (black_box(&queries[..]), HEADS * HEAD_DIM);
                b.iter(|| attention(&pool, layout, 0, HEADS, scores, queries, &sequences, &mut out));
            });
        }
    }
}

fn rows(c: &mut Criterion) {
    let (logits, weight) = (numbers(VOCAB), numbers(HIDDEN));
    let (x, mut y) = (numbers(16 * HIDDEN), vec![0.0; 16 * HIDDEN]);
    let mut weights = vec![0.0; VOCAB];
    for isa in Isa::available() {
        let name = isa.name();
        let pool = Pool::with_isa(Pool::physical_cores(), isa);
        c.bench_function(&format!("softmax of a vocabulary {name}"), |b| {
            b.iter(|| exp_and_sum(isa, black_box(&logits), 1.0, &mut weights));
        });
        c.bench_function(&format!("rms-norm of 16 rows {name}"), |b| {
            b.iter(|| rms_norm(&pool, black_box(&x), &weight, 1e-5, &mut y));
        });
    }
}

criterion_group! {
    name = kernels;
    config = Criterion::default().warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1)).sample_size(20);
    targets = matmul, packing, attend, rows
}
criterion_main!(kernels);
