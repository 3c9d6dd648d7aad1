//! The interpreter of the script: an existing one, or one in an environment that is created once from a requirements
//! file, a `pyproject.toml` or a conda file, and cached by content.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use protocol::{CONDA_TOOLS, CondaFile, Environment};

use crate::cache::{Cache, Kind, TURN_EVERY, Turn, Used};
use crate::conda;

const INSTALLER_LINES: usize = 15;

/// Returns the interpreter of `environment`, and creates it in `cache` if needed. `default` is the interpreter of jobs that
/// name none. The environment stays while the second value exists. Calls `report` with file and folder before it creates
/// an environment.
///
/// Blocks, for minutes if it installs packages. Two jobs that need the same environment wait for each other.
pub fn interpreter(
    environment: &Environment,
    default: &Path,
    cache: &Cache,
    report: impl Fn(&Path, &Path),
) -> Result<(PathBuf, Option<Used>)> {
    match environment {
        Environment::Node => Ok((default.to_owned(), None)),
        Environment::Interpreter { path } => Ok((path.as_path().to_owned(), None)),
        Environment::Requirements { file, base } => virtual_environment(file.as_path(), base.as_path(), cache, report),
    }
}

enum Recipe {
    /// A virtual environment, and the arguments of pip.
    Virtual { base: PathBuf, packages: Vec<OsString> },
    /// A tool of conda creates it.
    Conda,
}

fn virtual_environment(
    file: &Path,
    base: &Path,
    cache: &Cache,
    report: impl Fn(&Path, &Path),
) -> Result<(PathBuf, Option<Used>)> {
    let content = std::fs::read(file).with_context(|| format!("read the environment file {}", file.display()))?;
    let recipe = recipe(file, &content, base)?;
    let version = match &recipe {
        Recipe::Virtual { base, .. } => version(base)?,
        Recipe::Conda => "conda".to_owned(),
    };
    let mut digest = blake3::Hasher::new();
    digest.update(&content).update(version.as_bytes()).update(file.extension().unwrap_or_default().as_encoded_bytes());
    let name = &digest.finalize().to_hex()[..16];
    let folder = cache.entry(Kind::Environment, name);
    let python = folder.join("bin/python");
    loop {
        match cache.take(Kind::Environment, name)? {
            Turn::Present(used) => return Ok((python, Some(used))),
            Turn::Taken => std::thread::sleep(TURN_EVERY),
            Turn::Absent(making) => {
                report(file, &folder);
                cache.make_room(0)?;
                create(file, &recipe, &folder)?;
                making.keep()?;
            }
        }
    }
}

fn create(file: &Path, recipe: &Recipe, folder: &Path) -> Result<()> {
    match recipe {
        Recipe::Virtual { base, packages } => {
            run(Command::new(base).args(["-m", "venv"]).arg(folder))
                .with_context(|| format!("create a virtual environment with {}", base.display()))?;
            let mut install = Command::new(folder.join("bin/python"));
            install.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input"]).args(packages);
            // Relative paths in the list are relative to its file.
            install.current_dir(file.parent().unwrap_or(Path::new("/")));
            if !packages.is_empty() {
                run(&mut install).with_context(|| format!("install the packages of {}", file.display()))?;
            }
        }
        Recipe::Conda => {
            run(&mut conda::command(file, folder, is_installed)?)
                .with_context(|| format!("create the environment of {}", file.display()))?;
        }
    }
    Ok(())
}

fn recipe(file: &Path, content: &[u8], base: &Path) -> Result<Recipe> {
    if !CondaFile::is_named(file) {
        let packages = match file.extension().is_some_and(|extension| extension == "toml") {
            true => vec![file.parent().unwrap_or(Path::new(".")).into()],
            false => vec!["--requirement".into(), file.into()],
        };
        return Ok(Recipe::Virtual { base: base.to_owned(), packages });
    }
    let mut wanted =
        CondaFile::parse(&String::from_utf8_lossy(content)).with_context(|| format!("read {}", file.display()))?;
    if !wanted.packages.is_empty() {
        match wanted.for_pip() {
            Ok(requirements) if !has_conda_tool() => drop(wanted.pip.splice(0..0, requirements)),
            _ => return Ok(Recipe::Conda),
        }
    }
    let packages = conda::pip_arguments(&wanted);
    let Some((major, minor)) = wanted.python else { return Ok(Recipe::Virtual { base: base.to_owned(), packages }) };
    let named = PathBuf::from(format!("python{major}.{minor}"));
    let is_wanted =
        |python: &Path| version(python).is_ok_and(|version| version.starts_with(&format!("{major}.{minor}.")));
    match [base.to_owned(), named].into_iter().find(|python| is_wanted(python)) {
        Some(base) => Ok(Recipe::Virtual { base, packages }),
        None if has_conda_tool() => Ok(Recipe::Conda),
        None => bail!(
            "{} asks for Python {major}.{minor}, {} is another version, and there is neither a python{major}.{minor} nor \
             micromamba, mamba or conda on PATH: install one of them",
            file.display(),
            base.display()
        ),
    }
}

/// Returns the version of an interpreter, and where it is installed.
fn version(python: &Path) -> Result<String> {
    run(Command::new(python).args(["-c", "import sys; print(sys.version, sys.base_prefix)"]))
        .with_context(|| format!("ask {} for its version", python.display()))
}

fn has_conda_tool() -> bool {
    CONDA_TOOLS.iter().any(|tool| is_installed(tool).is_some())
}

fn is_installed(program: &str) -> Option<PathBuf> {
    run(Command::new(program).arg("--version")).ok().map(|_| PathBuf::from(program))
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
    use crate::cache::Limits;

    fn environment(folder: &Path, requirements: &str) -> Environment {
        let file = folder.join("requirements.txt");
        std::fs::write(&file, requirements).expect("writable");
        Environment::Requirements { file: file.into(), base: "python3".into() }
    }

    fn cache(folder: &Path) -> Cache {
        Cache::new(folder.join("cache"), Limits::default())
    }

    #[test]
    fn pip_installs_packages_of_conda_without_its_tools() {
        let file = b"dependencies: [six=1.16, {pip: [tqdm]}]";
        match recipe(Path::new("e.yml"), file, Path::new("python3")).expect("a conda file") {
            Recipe::Virtual { packages, .. } => assert_eq!(packages, ["six==1.16.*", "tqdm"]),
            Recipe::Conda => assert!(has_conda_tool()),
        }
    }

    #[test]
    fn environment_is_created_once() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let environment = environment(folder.path(), "# nothing\n");
        let reports = std::cell::Cell::new(0);
        for _ in 0..2 {
            let found = interpreter(&environment, Path::new("python3"), &cache(folder.path()), |_, _| {
                reports.set(reports.get() + 1)
            });
            let (python, used) = found.expect("an empty environment can be created");
            assert!(python.exists() && used.is_some());
        }
        assert_eq!(reports.get(), 1);
    }

    #[test]
    fn conda_file_with_pip_packages_only_needs_no_conda() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let wheelhouse = folder.path().join("none.txt");
        std::fs::write(wheelhouse, "# nothing\n").expect("writable");
        let python = version(Path::new("python3")).expect("installed");
        let minor = python.split('.').take(2).collect::<Vec<_>>().join(".");
        let create = |text: &str| {
            let file = folder.path().join("environment.yml");
            std::fs::write(&file, text).expect("writable");
            let environment = Environment::Requirements { file: file.into(), base: "python3".into() };
            interpreter(&environment, Path::new("python3"), &cache(folder.path()), |_, _| ()).map(|found| found.0)
        };
        let python = create(&format!("dependencies: [python={minor}, pip, pip: ['-r none.txt']]"));
        assert!(python.expect("an empty environment can be created").exists());
        let error = create("dependencies: [python=3.99, pip: [a]]").expect_err("there is no such version");
        assert!(format!("{error:#}").contains("asks for Python 3.99"), "{error:#}");
    }

    #[test]
    fn failed_installation_quotes_the_installer_and_is_retried() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let cache = cache(folder.path());
        let missing = environment(folder.path(), "/no/such/package.whl\n");
        let error = interpreter(&missing, Path::new("python3"), &cache, |_, _| ()).expect_err("cannot be installed");
        assert!(format!("{error:#}").contains("/no/such/package.whl"), "{error:#}");
        let error = interpreter(&missing, Path::new("python3"), &cache, |_, _| ()).expect_err("not complete");
        assert!(format!("{error:#}").contains("install the packages"), "{error:#}");
    }
}
