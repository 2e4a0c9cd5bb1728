//! Which of our environment variables a program of a job sees.

use std::ffi::{OsStr, OsString};
use std::sync::OnceLock;

use crate::protocol::swarm::TOKEN_VARIABLE;
use crate::roll::job::URL_VARIABLE;

/// Variables that every agent sees where they are set: where programs and their libraries are, who the user is, the
/// language, and how the network is reached. A `*` at the end stands for any ending.
pub(crate) const PASSED: &str = "PATH HOME USER LOGNAME SHELL LANG LANGUAGE LC_* TZ TERM TMPDIR XDG_* LD_LIBRARY_PATH \
    DYLD_* PYTHONPATH PYTHONHOME PYTHONUNBUFFERED VIRTUAL_ENV CONDA_PREFIX PYENV_ROOT PYENV_VERSION NODE_PATH \
    NODE_OPTIONS NODE_EXTRA_CA_CERTS JAVA_HOME DOCKER_HOST CUDA_VISIBLE_DEVICES SSL_CERT_FILE SSL_CERT_DIR \
    REQUESTS_CA_BUNDLE HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy";

/// The token that steers the server.
static TOKEN: OnceLock<String> = OnceLock::new();

/// Keeps the token that steers the server from every program of a job, under whatever name the environment has it.
pub fn keep_from_programs(token: &str) {
    // The first one stays: a process is a client of one server.
    let _ = TOKEN.set(token.to_owned());
}

/// Our variables that a program sees: those of [`PASSED`] and those that `also` names, secrets aside.
pub(super) fn passed(also: &[String]) -> Vec<(OsString, OsString)> {
    select(std::env::vars_os().collect(), also, TOKEN.get().map(String::as_str))
}

fn select(variables: Vec<(OsString, OsString)>, also: &[String], token: Option<&str>) -> Vec<(OsString, OsString)> {
    let secrets = secrets(&variables, token);
    let allowed = |name: &OsStr| {
        let mut patterns = PASSED.split_whitespace().chain(also.iter().map(String::as_str));
        patterns.any(|pattern| matches(pattern, name))
    };
    let passed = variables
        .into_iter()
        .filter(|(name, _)| allowed(name) && !secrets.contains(name));
    passed.collect()
}

fn matches(pattern: &str, name: &OsStr) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.as_encoded_bytes().starts_with(beginning.as_bytes()),
        None => name == pattern,
    }
}

/// Variables that may hold the token that steers the server: an agent gets its episode's key and nothing else.
fn secrets(variables: &[(OsString, OsString)], known: Option<&str>) -> Vec<OsString> {
    const NAMES: [&str; 2] = [TOKEN_VARIABLE, URL_VARIABLE];
    let variables: Vec<_> = variables
        .iter()
        .map(|(name, value)| (name, value.to_string_lossy()))
        .collect();
    let token = variables.iter().find(|(name, _)| *name == TOKEN_VARIABLE);
    let tokens = [token.map(|(_, token)| token.trim()), known];
    let tokens: Vec<_> = tokens.into_iter().flatten().filter(|token| !token.is_empty()).collect();
    let is_secret = |name: &OsString, value: &str| {
        NAMES.iter().any(|secret| name == secret)
            || tokens.iter().any(|token| value.contains(token))
            || value.contains("://") && value.contains("/t/")
    };
    let secret = variables.iter().filter(|(name, value)| is_secret(name, value));
    secret.map(|(name, _)| (*name).clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(variables: &[(&str, &str)], also: &[&str], token: Option<&str>) -> Vec<String> {
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        let also: Vec<_> = also.iter().map(ToString::to_string).collect();
        let passed = select(variables.collect(), &also, token).into_iter();
        passed.map(|(name, _)| name.into_string().unwrap()).collect()
    }

    #[test]
    fn a_program_sees_what_it_needs_and_what_the_job_names() {
        let variables = [
            ("PATH", "/bin"),
            ("LC_ALL", "C"),
            ("AWS_SECRET_ACCESS_KEY", "x"),
            ("HF_TOKEN", "hf_x"),
            ("SERPER_API_KEY", "y"),
            ("PATHS", "z"),
        ];
        assert_eq!(names(&variables, &[], None), ["PATH", "LC_ALL"]);
        assert_eq!(
            names(&variables, &["SERPER_*"], None),
            ["PATH", "LC_ALL", "SERPER_API_KEY"]
        );
        assert_eq!(names(&variables, &["*"], None).len(), variables.len());
    }

    /// Seen with `/t/TOKEN` in the server's URL: agents got the token that steers the server.
    #[test]
    fn a_token_is_in_no_variable_of_a_program() {
        let variables = [
            ("AJET_SWARM_TOKEN", "s3cret-token"),
            ("AJET_SWARM_URL", "http://box:1"),
            ("MY_SERVER", "https://box/t/another-token"),
            ("NOTES", "use s3cret-token here"),
            ("PATH", "/usr/bin:/t/bin"),
            ("DOCS", "http://example.com/x"),
            ("HOME", "/home/a"),
            // Seen with a token that only the URL had.
            ("PROXY", "http://user:token-of-url@box"),
        ];
        let passed = names(&variables, &["*"], Some("token-of-url"));
        assert_eq!(passed, ["PATH", "DOCS", "HOME"]);
    }
}
