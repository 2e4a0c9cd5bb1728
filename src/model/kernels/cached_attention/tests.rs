use super::*;
use crate::model::kernels::Isa;
use crate::model::kernels::testing::{assert_close, random};

const LAYERS: usize = 2;

struct Case {
    scores: AttentionScores,
    layout: BlockLayout,
    heads: usize,
    blocks: Vec<Vec<f32>>,
    keys: Vec<f32>,
    values: Vec<f32>,
    queries: Vec<f32>,
}

fn case(kv_heads: usize, group: usize, dim: usize, tokens: usize) -> Case {
    let layout = BlockLayout::new(LAYERS, kv_heads, dim);
    let (keys, values) = (random(tokens * kv_heads * dim, 1), random(tokens * kv_heads * dim, 2));
    let mut blocks = vec![random(layout.len(), 9); tokens.div_ceil(BLOCK_TOKENS)];
    let rows = keys.chunks(kv_heads * dim).zip(values.chunks(kv_heads * dim));
    let mut lines: Vec<Vec<f32>> = rows.map(|(k, v)| [&[0.0], k, v].concat()).collect();
    let lines: Vec<&mut [f32]> = lines.iter_mut().map(|line| &mut line[..]).collect();
    for (block, lines) in blocks.iter_mut().zip(lines.chunks(BLOCK_TOKENS)) {
        let (first, rest) = lines.split_at(lines.len() / 3);
        layout.write(block, 1, 0, first, 1);
        layout.write(block, 1, first.len(), rest, 1);
    }
    let queries = random(tokens * kv_heads * group * dim, 3)
        .iter()
        .map(|q| q * 5.0)
        .collect();
    Case {
        scores: AttentionScores {
            scale: 1.0 / (dim as f32).sqrt(),
            softcap: None,
            window: None,
        },
        layout,
        heads: kv_heads * group,
        blocks,
        keys,
        values,
        queries,
    }
}

impl Case {
    fn plain(&self) -> Vec<f32> {
        let (dim, kv) = (self.layout.head_dim, self.layout.kv_heads);
        let mut out = vec![];
        for (position, row) in self.queries.chunks(self.heads * dim).enumerate() {
            for (head, q) in row.chunks(dim).enumerate() {
                let at = |t: usize| (t * kv + head * kv / self.heads) * dim;
                let visible = self.scores.first_visible(position)..=position;
                let capped = |score: f64| match self.scores.softcap.map(f64::from) {
                    Some(cap) => cap * (score / cap).tanh(),
                    None => score,
                };
                let scores: Vec<f64> = visible
                    .clone()
                    .map(|t| {
                        q.iter()
                            .zip(&self.keys[at(t)..])
                            .map(|(a, b)| f64::from(a * b))
                            .sum::<f64>()
                    })
                    .map(|s| capped(s * f64::from(self.scores.scale)).exp())
                    .collect();
                let total: f64 = scores.iter().sum();
                for i in 0..dim {
                    let sum: f64 = visible
                        .clone()
                        .zip(&scores)
                        .map(|(t, score)| score * f64::from(self.values[at(t) + i]))
                        .sum();
                    out.push((sum / total) as f32);
                }
            }
        }
        out
    }

    fn given(&self, pool: &Pool, cuts: &[usize]) -> Vec<f32> {
        let tokens = self.queries.len() / (self.heads * self.layout.head_dim);
        let mut out = vec![f32::NAN; self.queries.len()];
        let mut start = 0;
        for &end in cuts.iter().chain([&tokens]) {
            let blocks = self.blocks.iter().map(|b| &b[..]).collect();
            let rows = [AttentionRows {
                first_row: start,
                rows: end - start,
                start,
                blocks,
            }];
            let queries = (&self.queries[..], self.heads * self.layout.head_dim);
            attention(pool, self.layout, 1, self.heads, self.scores, queries, &rows, &mut out);
            start = end;
        }
        out
    }
}

#[test]
fn agrees_with_a_plain_loop() {
    for isa in Isa::available() {
        let pool = Pool::with_isa(2, isa);
        for (kv_heads, group, dim, tokens) in [
            (1, 1, 8, 1),
            (2, 3, 16, 33),
            (3, 1, 64, 70),
            (1, 7, 40, 100),
            (1, 2, 8, 540),
        ] {
            let case = case(kv_heads, group, dim, tokens);
            assert_close(&case.given(&pool, &[]), &case.plain(), 1e-5);
        }
    }
}

/// Windows shorter than a block, of whole blocks, and beyond a segment; caps that bend most scores.
fn windowed_and_capped(tokens: usize) -> impl Iterator<Item = Case> {
    let scores = |scale, softcap, window| AttentionScores { scale, softcap, window };
    let cases = [
        scores(0.3, None, Some(1)),
        scores(0.3, None, Some(20)),
        scores(0.1, Some(2.0), Some(64)),
        scores(0.4, Some(1.5), None),
        scores(0.3, None, Some(530)),
    ];
    cases.into_iter().map(move |scores| Case {
        scores,
        ..case(2, 3, 8, tokens)
    })
}

#[test]
fn windows_and_caps_agree_with_a_plain_loop_however_the_prompt_is_cut() {
    for (isa, case) in Isa::available()
        .into_iter()
        .flat_map(|isa| windowed_and_capped(1100).map(move |case| (isa, case)))
    {
        let whole = case.given(&Pool::with_isa(2, isa), &[]);
        assert_close(&whole, &case.plain(), 1e-5);
        for (threads, cuts) in [(1, vec![33, 700, 1090, 1099]), (4, vec![5, 512, 1024, 1098])] {
            let cut = case.given(&Pool::with_isa(threads, isa), &cuts);
            assert_eq!(cut, whole, "{:?}, {} cut at {cuts:?}", case.scores, isa.name());
        }
    }
}

#[test]
fn items_are_large_where_there_are_enough_for_all_threads() {
    let size = |threads, rows: &[usize], heads| rows_per_item(threads, rows.iter().copied(), heads);
    for (threads, rows, heads, expected) in [
        (2, &[256][..], (3, 3), 64),
        (8, &[256], (3, 3), 32),
        (64, &[256], (3, 3), 16),
        (2, &[4096], (1, 1), 192),
        (2, &[1; 16], (3, 3), 64),
        (4, &[1], (8, 4), 48),
        (2, &[1], (1, 300), 1),
    ] {
        assert_eq!(size(threads, rows, heads), expected, "{rows:?} on {threads} threads");
    }
}

#[test]
fn a_long_sequence_is_the_same_whoever_computes_its_segments() {
    let case = case(1, 2, 8, 560);
    for isa in Isa::available() {
        // The last rows alone are few enough to be split over keys.
        let cuts = [300, 550, 555, 559];
        let alone = case.given(&Pool::with_isa(1, isa), &cuts);
        let shared = case.given(&Pool::with_isa(4, isa), &cuts);
        assert_eq!(alone, shared, "{}", isa.name());
        assert_eq!(
            alone,
            case.given(&Pool::with_isa(1, isa), &[]),
            "{} in one piece",
            isa.name()
        );
    }
}

#[test]
fn a_row_does_not_depend_on_how_the_prompt_is_cut() {
    let case = case(2, 3, 16, 101);
    for isa in Isa::available() {
        let bits =
            |pool: &Pool, cuts: &[usize]| -> Vec<u32> { case.given(pool, cuts).iter().map(|x| x.to_bits()).collect() };
        let whole = bits(&Pool::with_isa(1, isa), &[]);
        for cuts in [vec![1, 2, 3, 50], vec![32, 64, 96], (1..101).collect()] {
            assert_eq!(
                bits(&Pool::with_isa(3, isa), &cuts),
                whole,
                "{} cut at {cuts:?}",
                isa.name()
            );
        }
    }
}
