//! A client written in Python from the wire protocol alone, against a server with a real engine: see
//! `tests/python/run_protocol.py`.

use std::path::Path;
use std::process::{Command, Stdio};

/// Python is not needed to build or use the program. Where tools are required, in CI, a missing one is a failure.
pub fn tools_are_required() -> bool {
    ["CI", "AJET_REQUIRE_TOOLS"]
        .iter()
        .any(|name| std::env::var_os(name).is_some())
}

#[test]
fn a_client_written_from_the_protocol_alone_goes_through_all_of_it() {
    let python = std::env::var("AJET_PYTHON").unwrap_or_else(|_| "python3".into());
    let has_httpx = Command::new(&python)
        .args(["-c", "import httpx"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !has_httpx {
        let told = format!("{python} with httpx is not installed; scripts/integration-python-client.sh brings it");
        assert!(!tools_are_required(), "{told}");
        eprintln!("SKIPPED: {told}");
        return;
    }
    let runner = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/run_protocol.py");
    let status = Command::new(&python)
        .arg(runner)
        .arg(env!("CARGO_BIN_EXE_ajet-swarm"))
        .env_remove("AJET_SWARM_TOKEN")
        .status()
        .unwrap();
    assert!(status.success(), "see the output above");
}
