//! Selects the environment variables of this process for scripts, and for the programs that install
//! their packages, and hides the others.

use std::ffi::{OsStr, OsString};

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Environment variables with their values.
pub type Environment = Vec<(OsString, OsString)>;

/// Variables with paths and settings of programs. They hold no secrets, apart from passwords of
/// proxies.
const NAMES: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "TEMP",
    "TMP",
    "HOSTNAME",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "GRISTMILL_HOME",
    "GRISTMILL_AZUREML_NAMES",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
];
const PREFIXES: &[&str] = &[
    "LC_",
    "PYTHON",
    "CUDA_",
    "NVIDIA_",
    "NCCL_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "NUMEXPR_",
    "SSL_CERT_",
];
/// Settings of the programs that install packages, which may hold a password of a package index.
const INSTALLERS: &[&str] = &["PIP_", "UV_", "CONDA_", "MAMBA_"];

/// The variables of this process that it passes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variables {
    /// Variables for scripts.
    pub scripts: Environment,
    /// Variables for the programs that create environments, and so for the packages that these
    /// build.
    pub installers: Environment,
}

impl Variables {
    /// Returns all variables: the person who set them also owns the scripts.
    pub fn all(environment: Environment) -> Self {
        Self { scripts: environment.clone(), installers: environment }
    }

    /// Returns the variables without secrets, and those that the owner of the worker passes on:
    /// `passed` has names, or `NAME*` for a prefix. `secret`: names that are never passed on.
    pub fn without_secrets(environment: Environment, passed: &[String], secret: &[String]) -> Self {
        let mut variables = Self::default();
        for (name, value) in environment {
            let begins =
                |prefixes: &[&str]| prefixes.iter().any(|prefix| begins_with(&name, prefix));
            let is_passed = passed.iter().any(|passed| match passed.strip_suffix('*') {
                Some(prefix) => begins_with(&name, prefix),
                None => name == **passed,
            });
            if secret.iter().any(|secret| name == **secret) {
                continue;
            }
            let for_scripts =
                is_passed || NAMES.iter().any(|known| name == *known) || begins(PREFIXES);
            if for_scripts {
                variables.scripts.push((name.clone(), value.clone()));
            }
            if for_scripts || begins(INSTALLERS) {
                variables.installers.push((name, value));
            }
        }
        variables
    }
}

/// Hides the environment and the memory of this process from other processes of its user, which could otherwise read them
/// in `/proc` or attach as debuggers. It writes no core dumps from then on. Child processes are not affected.
pub fn hide_process() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!("scripts may read the environment of this process: {error}");
    }
}

fn begins_with(name: &OsStr, prefix: &str) -> bool {
    name.as_encoded_bytes().starts_with(prefix.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(environment: &Environment) -> Vec<&str> {
        environment.iter().map(|(name, _)| name.to_str().expect("text")).collect()
    }

    fn environment() -> Environment {
        let names = [
            "PATH",
            "LC_ALL",
            "PYTHONPATH",
            "CUDA_HOME",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "BROKER_PASSWORD",
            "GRISTMILL_QUEUE",
            "PIP_INDEX_URL",
            "TEAM_A_KEY",
            "TEAM_B_KEY",
            "XPATH",
        ];
        names.into_iter().map(|name| (name.into(), "value".into())).collect()
    }

    #[test]
    fn scripts_of_other_people_get_no_secrets() {
        let variables = Variables::without_secrets(environment(), &[], &[]);
        assert_eq!(names(&variables.scripts), ["PATH", "LC_ALL", "PYTHONPATH", "CUDA_HOME"]);
        assert_eq!(
            names(&variables.installers),
            ["PATH", "LC_ALL", "PYTHONPATH", "CUDA_HOME", "PIP_INDEX_URL"]
        );
    }

    #[test]
    fn owner_of_the_worker_passes_on_variables_but_never_those_of_the_broker() {
        let passed = ["AWS_SECRET_ACCESS_KEY", "TEAM_*", "BROKER_PASSWORD"].map(str::to_owned);
        let variables =
            Variables::without_secrets(environment(), &passed, &["BROKER_PASSWORD".to_owned()]);
        let expected = [
            "PATH",
            "LC_ALL",
            "PYTHONPATH",
            "CUDA_HOME",
            "AWS_SECRET_ACCESS_KEY",
            "TEAM_A_KEY",
            "TEAM_B_KEY",
        ];
        assert_eq!(names(&variables.scripts), expected);
        let all = ["*".to_owned()];
        let secret = ["BROKER_PASSWORD", "GRISTMILL_QUEUE"].map(str::to_owned);
        assert_eq!(
            Variables::without_secrets(environment(), &all, &secret).scripts.len(),
            environment().len() - 2
        );
    }
}
