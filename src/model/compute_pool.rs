//! The compute threads of an engine on a CPU, and the instruction set that they compute with.

use std::env;
use std::sync::Arc;

use super::error::{ModelError, Result};
use super::kernels::{Choice, Isa, Pool, Precision, fastest};
use crate::config::schema::{Dtype, Engine};

/// Environment variable that forces an instruction set, such as `avx2`.
pub const ISA_VARIABLE: &str = "AJET_ISA";

/// Returns the precision of matrix products on a CPU.
pub fn precision(dtype: Dtype) -> Precision {
    match dtype {
        Dtype::Bf16 => Precision::Bf16,
        Dtype::Auto | Dtype::F32 => Precision::F32,
    }
}

/// Starts the configured threads with the instruction set that is fastest for the configured type, or with that of
/// [`ISA_VARIABLE`].
///
/// # Errors
/// Fails if the variable names an instruction set that this machine does not have.
pub fn compute_pool(engine: &Engine) -> Result<Arc<Pool>> {
    start(engine, env::var(ISA_VARIABLE).ok().as_deref())
}

fn start(engine: &Engine, name: Option<&str>) -> Result<Arc<Pool>> {
    let isa = match forced(name)? {
        Some(isa) => isa,
        None => fastest(precision(engine.dtype)).isa,
    };
    Ok(Arc::new(Pool::with_isa(Pool::threads_for(engine.threads), isa)))
}

/// Returns the pool's instruction set and why it was chosen, for logs.
pub fn describe(pool: &Pool, engine: &Engine) -> String {
    let isa = pool.isa();
    let kind = match precision(engine.dtype) {
        Precision::F32 | Precision::Int8 => "f32",
        Precision::Bf16 => "bf16",
    };
    let forced = env::var_os(ISA_VARIABLE).is_some_and(|name| !name.is_empty());
    let why = match forced {
        true => format!("set by {ISA_VARIABLE}"),
        false => comparison(fastest(precision(engine.dtype))),
    };
    format!("{kind} products with {}, {} threads; {why}", isa.name(), pool.threads())
}

fn comparison(choice: &Choice) -> String {
    match choice.measured.len() {
        0 | 1 => "nothing faster to choose from".into(),
        _ => {
            let rate = |(isa, rate): &(Isa, f64)| format!("{} {:.0}", isa.name(), rate / 1e9);
            let rates: Vec<String> = choice.measured.iter().map(rate).collect();
            format!("the fastest of {} GFLOP/s a thread", rates.join(", "))
        }
    }
}

/// The instruction set of a name; `None` for no name.
fn forced(name: Option<&str>) -> Result<Option<Isa>> {
    match name {
        None | Some("") => Ok(None),
        Some(name) => Isa::named(name).map(Some).ok_or_else(|| ModelError::Isa {
            given: name.into(),
            available: Isa::available().into_iter().map(Isa::name).collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_forces_its_instruction_set_and_an_unknown_one_is_refused() {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let engine = Engine {
                dtype,
                ..Engine::default()
            };
            for name in [None, Some("")] {
                assert_eq!(start(&engine, name).unwrap().isa(), fastest(precision(dtype)).isa);
            }
            for isa in Isa::available() {
                assert_eq!(start(&engine, Some(isa.name())).unwrap().isa(), isa);
            }
        }
        let error = start(&Engine::default(), Some("mmx")).err();
        let message = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(message.starts_with("AJET_ISA is `mmx`, which this machine does not have\nhint: use one of portable"));
    }

    #[test]
    fn the_log_says_what_was_compared() {
        let isas = Isa::available();
        let (first, last) = (isas[0], isas[isas.len() - 1]);
        let choice = |measured: Vec<(Isa, f64)>| Choice { isa: first, measured };
        assert_eq!(comparison(&choice(vec![(first, 0.0)])), "nothing faster to choose from");
        let compared = comparison(&choice(vec![(first, 99.6e9), (last, 61e9)]));
        let expected = format!("the fastest of portable 100, {} 61 GFLOP/s a thread", last.name());
        assert_eq!(compared, expected);
    }
}
