//! An instruction set forced with `AJET_ISA`.

use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ajet-swarm");

#[test]
fn one_that_the_machine_lacks_is_refused_with_those_it_has() {
    let mut command = Command::new(PROGRAM);
    command.args(["bench", "inference", "--model", "builtin:tiny", "--batch", "1"]);
    let output = command.env("AJET_ISA", "avx1024").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        error.contains("AJET_ISA is `avx1024`, which this machine does not have"),
        "{error}"
    );
    assert!(error.contains("hint: use one of portable"), "{error}");
}
