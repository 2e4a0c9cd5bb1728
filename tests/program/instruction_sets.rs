//! Every instruction set of this machine, forced with `AJET_ISA`.

use std::process::{Command, Output};

use ajet_swarm::model::kernels::Isa;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ajet-swarm");

fn bench(isa: &str, arguments: &str) -> Output {
    let mut command = Command::new(PROGRAM);
    command.arg("bench").args(arguments.split(' ')).env("AJET_ISA", isa);
    command.output().unwrap()
}

#[test]
fn each_is_used_for_sampling_and_training_when_it_is_forced() {
    let sampling = "inference --model builtin:tiny --batch 2 --prompt 40 --tokens 3 --threads 1";
    let training = "training --model builtin:tiny --rows 2 --tokens 16 --repeats 1 --threads 1";
    for isa in Isa::available() {
        for (arguments, kind) in [
            (sampling.to_owned(), "f32"),
            (format!("{sampling} --bf16"), "bf16"),
            (format!("{training} --dtype bf16"), "bf16"),
        ] {
            let output = bench(isa.name(), &arguments);
            let text = String::from_utf8_lossy(&output.stdout);
            let expected = format!("{kind} products with {}, 1 threads; set by AJET_ISA", isa.name());
            assert!(
                output.status.success() && text.contains(&expected),
                "{arguments}: {output:?}"
            );
        }
    }
}

#[test]
fn one_that_the_machine_lacks_is_refused_with_those_it_has() {
    let output = bench("avx1024", "inference --model builtin:tiny --batch 1");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        error.contains("AJET_ISA is `avx1024`, which this machine does not have"),
        "{error}"
    );
    assert!(error.contains("hint: use one of portable"), "{error}");
}
