//! The interpreter that runs the script: one that is there, or one in a virtual environment made once from a
//! requirements file or a `pyproject.toml`, and cached by content.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use protocol::Environment;
use storage::disk;

/// Lines of the installer's output that an error carries.
const INSTALLER_LINES: usize = 15;

/// The interpreter of `environment`, made ready below `cache` if need be; `default` is what this node uses where the
/// job names none.
///
/// Blocks, for minutes when packages are installed. Two jobs that need the same environment wait for each other.
pub fn interpreter(environment: &Environment, default: &Path, cache: &Path, tell: impl Fn(&str)) -> Result<PathBuf> {
    match environment {
        Environment::Node => Ok(default.to_owned()),
        Environment::Interpreter { path } => Ok(path.as_path().to_owned()),
        Environment::Requirements { file, base } => virtual_environment(file.as_path(), base.as_path(), cache, tell),
    }
}

fn virtual_environment(file: &Path, base: &Path, cache: &Path, tell: impl Fn(&str)) -> Result<PathBuf> {
    let content = std::fs::read(file).with_context(|| format!("read the environment file {}", file.display()))?;
    let version = run(Command::new(base).args(["-c", "import sys; print(sys.version, sys.base_prefix)"]))
        .with_context(|| format!("ask {} for its version", base.display()))?;
    let mut digest = blake3::Hasher::new();
    digest.update(&content).update(version.as_bytes()).update(file.extension().unwrap_or_default().as_encoded_bytes());
    let name = &digest.finalize().to_hex()[..16];
    let folder = cache.join(name);
    let python = folder.join("bin/python");
    let complete = folder.join("complete");

    std::fs::create_dir_all(cache).with_context(|| format!("make {}", cache.display()))?;
    let lock = File::create(cache.join(format!("{name}.lock")))?;
    lock.lock().context("wait for another job that makes the same environment")?;
    if complete.exists() {
        return Ok(python);
    }
    tell(&format!("making a Python environment from {} (once; kept in {})", file.display(), folder.display()));
    // What an interrupted installation left behind is not worth mending.
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    run(Command::new(base).args(["-m", "venv"]).arg(&folder))
        .with_context(|| format!("make a virtual environment with {}", base.display()))?;
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input"]);
    if file.extension().is_some_and(|extension| extension == "toml") {
        install.arg(file.parent().unwrap_or(Path::new(".")));
    } else {
        install.arg("--requirement").arg(file);
    }
    run(&mut install).with_context(|| format!("install the packages of {}", file.display()))?;
    // Once it is complete it is believed, after a power cut too.
    disk::sync_file_system(&folder).with_context(|| format!("write {} to disk", folder.display()))?;
    File::create(&complete)?;
    Ok(python)
}

fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("start {program}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(INSTALLER_LINES)..].join("\n  ");
    bail!("{program} ended with {}; its last lines:\n  {last}", output.status)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(folder: &Path, requirements: &str) -> Environment {
        let file = folder.join("requirements.txt");
        std::fs::write(&file, requirements).expect("writable");
        Environment::Requirements { file: file.into(), base: "python3".into() }
    }

    #[test]
    fn an_environment_is_made_once() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let environment = environment(folder.path(), "# nothing\n");
        let told = std::cell::Cell::new(0);
        for _ in 0..2 {
            let python = interpreter(&environment, Path::new("python3"), &folder.path().join("cache"), |_| {
                told.set(told.get() + 1)
            });
            assert!(python.expect("an empty environment can be made").exists());
        }
        assert_eq!(told.get(), 1);
    }

    #[test]
    fn a_failed_installation_shows_what_the_installer_said_and_is_tried_again() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let cache = folder.path().join("cache");
        let missing = environment(folder.path(), "/no/such/package.whl\n");
        let error = interpreter(&missing, Path::new("python3"), &cache, |_| ()).expect_err("cannot be installed");
        assert!(format!("{error:#}").contains("/no/such/package.whl"), "{error:#}");
        let error = interpreter(&missing, Path::new("python3"), &cache, |_| ()).expect_err("is not taken for complete");
        assert!(format!("{error:#}").contains("install the packages"), "{error:#}");
    }
}
