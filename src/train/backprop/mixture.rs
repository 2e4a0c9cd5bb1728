//! Forward and backward pass of a mixture of experts with the CPU kernels. The tokens of each expert are gathered into one
//! block, so that an expert is one product per projection; the blocks lie one behind the other.

use super::pass::Pass;
use super::projection::{Projection, Projections};
use crate::model::Transformer;
use crate::model::experts::Experts;
use crate::model::kernels::{Compute, Into, Precision, glu, glu_backward};
use crate::model::routing::Routing;
use crate::train::error::Result;
use crate::train::gradients::Gradients;

/// Borrowed weights of a layer's experts.
pub(super) struct Mixture<'a> {
    config: &'a Experts,
    layer: usize,
    router: Projection<'a>,
    experts: Vec<Expert<'a>>,
    /// Factor of what is added to the residual stream.
    scale: f32,
}

struct Expert<'a> {
    gate_up: Projections<'a, 2>,
    down: Projection<'a>,
}

/// Memory inside an MLP or a mixture of experts.
pub(super) struct Inside<'m> {
    /// Results of the gate and up projections: tokens × width, or pairs of token and expert × width of an expert. So for
    /// the next three.
    pub gate: &'m mut [f32],
    pub up: &'m mut [f32],
    pub inner: &'m mut [f32],
    pub by_inner: &'m mut [f32],
    /// Logits of the router, tokens × experts.
    pub logits: &'m mut [f32],
    /// Rows of one expert's tokens, tokens × hidden at most.
    pub rows: [&'m mut [f32]; 2],
}

impl<'a> Mixture<'a> {
    /// Borrows the weights of a layer. The router decides between experts, so it computes in f32 whatever the precision.
    ///
    /// # Errors
    /// Fails if a parameter is missing or not f32 on the CPU.
    pub fn read(model: &Transformer<'a>, config: &'a Experts, layer: usize, compute: Compute<'a>) -> Result<Self> {
        let expert = |number: usize| -> Result<Expert<'a>> {
            let [gate, up, down] = config.expert(layer, number);
            let read = |module: String| Projection::read(model, module, compute);
            Ok(Expert {
                gate_up: Projections::Separate([read(gate)?, read(up)?]),
                down: read(down)?,
            })
        };
        let exact = Compute::new(compute.pool, Precision::F32);
        Ok(Self {
            config,
            layer,
            router: Projection::read(model, config.router(layer), exact)?,
            experts: (0..config.count).map(expert).collect::<Result<_>>()?,
            scale: model.weights().config.residual_scale,
        })
    }

    /// Computes what the backward pass needs and, if `output` is given, the residual stream after the mixture: `stream`
    /// plus the results for the input `x`, all tokens × hidden.
    pub fn forward(&self, pass: &Pass, x: &[f32], stream: &[f32], inside: Inside, mut output: Option<&mut [f32]>) {
        let pool = pass.compute.pool;
        self.router.linear().forward(x, inside.logits, Into::Replace);
        let routing = Routing::new(self.config, inside.logits);
        if let Some(output) = &mut output {
            pass.loads.count(self.layer, &routing);
            output.copy_from_slice(stream);
        }
        let (hidden, width) = (pass.config.hidden_size, self.config.intermediate_size);
        let [input, computed] = inside.rows;
        for block in routing.blocks() {
            let expert = &self.experts[block.expert];
            let rows = ..block.pairs.len() * hidden;
            let own = block.pairs.start * width..block.pairs.end * width;
            let (gate, up) = (&mut inside.gate[own.clone()], &mut inside.up[own.clone()]);
            routing.gather(block, x, &mut input[rows]);
            expert.gate_up.forward(&input[rows], [&mut *gate, &mut *up], &mut []);
            if let Some(output) = &mut output {
                let inner = &mut inside.inner[own];
                glu(pool, pass.config.activation, gate, up, inner);
                expert.down.linear().forward(inner, &mut computed[rows], Into::Replace);
                routing.weigh(block, self.scale, &mut computed[rows]);
                routing.scatter_add(block, &computed[rows], output);
            }
        }
    }

    /// Adds to `dx` the gradient of the input `x`, given that of the residual stream. Overwrites the stored results.
    ///
    /// With the weight w of a pair, y = w·inner·Wᵀ: the down projection is given w·inner instead of w·g, so that the
    /// gradient g·W of w·inner, times w·inner, is the gradient of w times w, which the router's softmax needs.
    ///
    /// # Errors
    /// Fails if out of memory.
    pub fn backward(
        &self,
        pass: &Pass,
        x: &[f32],
        inside: Inside,
        flow: &[f32],
        dx: &mut [f32],
        gradients: &mut Gradients,
    ) -> Result<()> {
        let (pool, activation) = (pass.compute.pool, pass.config.activation);
        let routing = Routing::new(self.config, inside.logits);
        let (hidden, width) = (pass.config.hidden_size, self.config.intermediate_size);
        let [input, by_input] = inside.rows;
        let mut by_weights = Vec::with_capacity(routing.tokens().len());
        for block in routing.blocks() {
            let expert = &self.experts[block.expert];
            let rows = ..block.pairs.len() * hidden;
            let own = block.pairs.start * width..block.pairs.end * width;
            let (gate, up) = (&mut inside.gate[own.clone()], &mut inside.up[own.clone()]);
            let (inner, by_inner) = (&mut inside.inner[own.clone()], &mut inside.by_inner[own]);

            glu(pool, activation, gate, up, inner);
            routing.weigh(block, self.scale, inner);
            routing.gather(block, flow, &mut input[rows]);
            let by = Some((&mut *by_inner, Into::Replace));
            expert.down.backward(inner, &input[rows], by, gradients)?;
            let pairs = inner.chunks_exact(width).zip(by_inner.chunks_exact(width));
            by_weights.extend(pairs.map(|(x, by)| x.iter().zip(by).map(|(x, by)| x * by).sum::<f32>()));
            routing.weigh(block, self.scale, by_inner);
            glu_backward(pool, activation, gate, up, by_inner);

            routing.gather(block, x, &mut input[rows]);
            let by = Some((&mut by_input[rows], Into::Replace));
            expert
                .gate_up
                .backward(&input[rows], [gate, up], by, &mut [], gradients)?;
            routing.scatter_add(block, &by_input[rows], dx);
        }
        routing.logit_gradients(inside.logits, &by_weights);
        self.router.backward(x, inside.logits, Some((dx, Into::Add)), gradients)
    }
}
