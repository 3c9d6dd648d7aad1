//! Names the commit of the build: that of `GRISTMILL_COMMIT`, or that of the clone.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=GRISTMILL_COMMIT");
    // A source archive may lie in the repository of another project, whose commit says nothing.
    let is_clone = git(&["ls-files", "--error-unmatch", "build.rs"]).is_some();
    let of_clone = |arguments: &[&str]| if is_clone { git(arguments) } else { None };
    // The log changes with every commit and checkout.
    if let Some(log) = of_clone(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])
        && Path::new(&log).exists()
    {
        println!("cargo:rerun-if-changed={log}");
    }
    let version = env!("CARGO_PKG_VERSION");
    let commit = std::env::var("GRISTMILL_COMMIT").ok().filter(|commit| !commit.is_empty());
    let build = match commit.or_else(|| of_clone(&["rev-parse", "HEAD"])) {
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
