//! Names the commit of the build: that of `GRISTMILL_COMMIT`, or that of the repository.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=GRISTMILL_COMMIT");
    // It changes with every commit and checkout. Without it, as in a source archive, there is nothing to follow.
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])
        && Path::new(&log).exists()
    {
        println!("cargo:rerun-if-changed={log}");
    }
    let version = env!("CARGO_PKG_VERSION");
    let commit = std::env::var("GRISTMILL_COMMIT").ok().filter(|commit| !commit.is_empty());
    let build = match commit.or_else(|| git(&["rev-parse", "HEAD"])) {
        Some(commit) => format!("{version} ({})", commit.get(..12).unwrap_or(&commit)),
        None => version.to_owned(),
    };
    println!("cargo:rustc-env=BUILD={build}");
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
