//! Mixtures of experts: several MLPs in a layer, of which a router chooses some for each token.

use serde_json::Value;

use super::config_fields::Fields;
use super::error::ModelError;
pub use super::family::ExpertNames;
use super::family::Family;

/// The experts of each layer that has some.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Number of experts of a layer.
    pub count: usize,
    /// Number of experts that compute a token, from 1 to `count`.
    pub per_token: usize,
    /// Width inside an expert.
    pub intermediate_size: usize,
    /// Whether the weights of a token's experts add up to 1; otherwise they are shares of all experts' softmax.
    pub normalized: bool,
    /// Names of router and projections.
    pub names: ExpertNames,
}

impl Experts {
    /// Reads the experts of a family that has some.
    ///
    /// # Errors
    /// Fails for a field outside its range.
    pub(super) fn from_fields(fields: &Fields, family: Family) -> Result<Option<Self>, ModelError> {
        let Some(traits) = family.traits().experts else {
            return Ok(None);
        };
        let count = match fields.optional_size("num_experts")? {
            Some(count) => count,
            None => fields.optional_size("num_local_experts")?.unwrap_or(traits.count),
        };
        let per_token = fields.optional_size("num_experts_per_tok")?.unwrap_or(traits.per_token);
        if per_token > count {
            return Err(ModelError::Config(format!(
                "num_experts_per_tok is {per_token}; a layer has {count} experts"
            )));
        }
        let (field, default) = traits.width;
        let width = fields.optional_size(field)?.or(default);
        Ok(Some(Self {
            count,
            per_token,
            intermediate_size: width.ok_or_else(|| ModelError::Config(format!("`{field}` is missing")))?,
            normalized: traits.normalized || fields.flag("norm_topk_prob")?,
            names: traits.names,
        }))
    }

    /// Returns the name of a layer's router.
    pub fn router(&self, layer: usize) -> String {
        format!("model.layers.{layer}.{}.gate", self.names.block)
    }

    /// Returns the names of the gate, up and down projections of an expert.
    pub fn expert(&self, layer: usize, number: usize) -> [String; 3] {
        let block = self.names.block;
        self.names
            .projections
            .map(|name| format!("model.layers.{layer}.{block}.experts.{number}.{name}"))
    }

    /// Returns names and shapes of a layer's parameters, out × in, in the model's order.
    pub(super) fn tensor_shapes(&self, layer: usize, hidden: usize) -> Vec<(String, Vec<usize>)> {
        let inner = self.intermediate_size;
        let mut shapes = vec![(format!("{}.weight", self.router(layer)), vec![self.count, hidden])];
        for number in 0..self.count {
            let [gate, up, down] = self.expert(layer, number).map(|module| format!("{module}.weight"));
            shapes.extend([
                (gate, vec![inner, hidden]),
                (up, vec![inner, hidden]),
                (down, vec![hidden, inner]),
            ]);
        }
        shapes
    }

    /// Returns whether a parameter is a weight of an expert.
    pub fn is_of_expert(parameter: &str) -> bool {
        parameter.contains(".experts.")
    }

    /// Returns whether a parameter is the weight of a router.
    pub fn is_router(&self, parameter: &str) -> bool {
        parameter.ends_with(&format!(".{}.gate.weight", self.names.block))
    }
}

/// Returns whether each of so many layers has experts: every `decoder_sparse_step`-th one that `mlp_only_layers` does
/// not list, or all layers of a family without these fields.
pub(super) fn layers_with_experts(fields: &Fields, family: Family, layers: usize) -> Result<Vec<bool>, ModelError> {
    let known = |key: &str| family.traits().fields.contains(&key);
    let step = match known("decoder_sparse_step") {
        true => fields.optional_size("decoder_sparse_step")?.unwrap_or(1),
        false => 1,
    };
    let dense = match known("mlp_only_layers") {
        true => fields.read("mlp_only_layers", "a list of numbers of layers", |v| {
            v.as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>()
        })?,
        false => None,
    };
    let dense = dense.unwrap_or_default();
    let of_layer = |layer: usize| (layer + 1).is_multiple_of(step) && !dense.contains(&(layer as u64));
    Ok((0..layers)
        .map(|layer| family.has_experts() && of_layer(layer))
        .collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn layers(json: Value) -> Result<Vec<bool>, ModelError> {
        layers_with_experts(&Fields::of(&json)?, Family::Qwen3Moe, 4)
    }

    #[test]
    fn layers_have_experts_by_step_and_list() {
        let (yes, no) = (true, false);
        assert_eq!(layers(json!({})).unwrap(), [yes; 4]);
        let listed = json!({"mlp_only_layers": [0, 2, 9]});
        assert_eq!(layers(listed).unwrap(), [no, yes, no, yes]);
        let both = json!({"decoder_sparse_step": 2, "mlp_only_layers": [3]});
        assert_eq!(layers(both).unwrap(), [no, yes, no, no]);
        for wrong in [json!({"decoder_sparse_step": 0}), json!({"mlp_only_layers": [-1]})] {
            let message = layers(wrong.clone()).unwrap_err().to_string();
            assert!(message.contains("it must be"), "{wrong}: {message}");
        }
        let dense = layers_with_experts(&Fields::of(&json!({})).unwrap(), Family::Qwen3, 2);
        assert_eq!(dense.unwrap(), [no, no]);
    }

    #[test]
    fn numbers_are_read_under_either_name_and_checked() {
        let read = |json: Value| Experts::from_fields(&Fields::of(&json).unwrap(), Family::Qwen3Moe);
        let known = read(json!({"num_local_experts": 6, "num_experts_per_tok": 6}))
            .unwrap()
            .unwrap();
        assert_eq!((known.count, known.per_token, known.normalized), (6, 6, false));
        assert_eq!(known.intermediate_size, 768);
        let normalized = read(json!({"num_experts": 9, "norm_topk_prob": true}))
            .unwrap()
            .unwrap();
        assert_eq!(
            (normalized.count, normalized.per_token, normalized.normalized),
            (9, 8, true)
        );
        let message = read(json!({"num_experts": 4, "num_experts_per_tok": 5})).unwrap_err();
        assert!(
            message
                .to_string()
                .contains("num_experts_per_tok is 5; a layer has 4 experts")
        );
        assert!(read(json!({"num_experts": 1 << 20})).is_err());
    }

    #[test]
    fn routers_and_experts_are_known_by_name() {
        let none = serde_json::Map::new();
        for (family, router, expert) in [
            (
                Family::Qwen3Moe,
                "model.layers.2.mlp.gate",
                "model.layers.2.mlp.experts.5.up_proj",
            ),
            (
                Family::Mixtral,
                "model.layers.2.block_sparse_moe.gate",
                "model.layers.2.block_sparse_moe.experts.5.w3",
            ),
        ] {
            let mut fields = none.clone();
            fields.insert("intermediate_size".into(), 4.into());
            let experts = Experts::from_fields(&Fields(&fields), family).unwrap().unwrap();
            assert_eq!(experts.router(2), router);
            assert_eq!(experts.expert(2, 5)[1], expert);
            let [router, expert] = [router, expert].map(|module| format!("{module}.weight"));
            assert!(experts.is_router(&router) && !experts.is_router(&expert));
            assert!(Experts::is_of_expert(&expert) && !Experts::is_of_expert(&router));
            assert!(!experts.is_router("model.layers.2.mlp.gate_proj.weight"));
        }
    }
}
