//! Names of routers and experts in GGUF files.

use crate::model::experts::Experts;

/// Names of an expert's gate, up and down projections.
const PROJECTIONS: [&str; 3] = ["ffn_gate", "ffn_up", "ffn_down"];

/// Returns the name of a router or of a projection of an expert, `blk.0.ffn_up.3.weight`; `None` for another parameter.
pub(super) fn expert_name(experts: &Experts, parameter: &str) -> Option<String> {
    let (layer, rest) = parameter.strip_prefix("model.layers.")?.split_once('.')?;
    let rest = rest.strip_prefix(experts.names.block)?.strip_prefix('.')?;
    if rest == "gate.weight" {
        return Some(format!("blk.{layer}.ffn_gate_inp.weight"));
    }
    let (number, projection) = rest.strip_prefix("experts.")?.split_once('.')?;
    let projection = projection.strip_suffix(".weight")?;
    let place = experts.names.projections.iter().position(|name| *name == projection)?;
    Some(format!("blk.{layer}.{}.{number}.weight", PROJECTIONS[place]))
}
