//! The interpreter of the script: an existing one, or one in an environment that is created once from a requirements
//! file, a `pyproject.toml` or a conda file, and cached by content.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use protocol::{CondaFile, Environment};
use tokio::sync::oneshot;

use crate::cache::{Cache, EntryKind, TURN_EVERY, Turn, Used};
use crate::conda;
use crate::tools::Tools;

/// Returns the interpreter of `environment`, and creates it in `cache` if needed. `default` is the interpreter of jobs that
/// name none. The environment stays while the second value exists. Calls `report` with file and folder before it creates
/// an environment.
///
/// Takes minutes if it installs packages. Two jobs that need the same environment wait for each other. Kills the installer
/// if it is dropped.
pub async fn interpreter(
    environment: Environment,
    default: PathBuf,
    cache: Cache,
    report: impl Fn(&Path, &Path) + Send + 'static,
) -> Result<(PathBuf, Option<Used>)> {
    let (file, base) = match environment {
        Environment::Node => return Ok((default, None)),
        Environment::Interpreter { path } => return Ok((path.as_path().to_owned(), None)),
        Environment::Requirements { file, base } => (file, base),
    };
    let tools = Tools::default();
    let _stop = tools.stop_on_drop();
    let (sender, receiver) = oneshot::channel();
    // In its own thread: a process that ends does not wait for it.
    std::thread::spawn(move || {
        let _ = sender.send(virtual_environment(file.as_path(), base.as_path(), &cache, &tools, report));
    });
    receiver.await.context("making the environment panicked")?
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
    tools: &Tools,
    report: impl Fn(&Path, &Path),
) -> Result<(PathBuf, Option<Used>)> {
    let content = std::fs::read(file).with_context(|| format!("read the environment file {}", file.display()))?;
    let recipe = recipe(file, &content, base, tools)?;
    let version = match &recipe {
        Recipe::Virtual { base, .. } => tools.version(base)?,
        Recipe::Conda => "conda".to_owned(),
    };
    let mut digest = blake3::Hasher::new();
    digest.update(&content).update(version.as_bytes()).update(file.extension().unwrap_or_default().as_encoded_bytes());
    let name = &digest.finalize().to_hex()[..16];
    let folder = cache.entry(EntryKind::Environment, name);
    let python = folder.join("bin/python");
    loop {
        match cache.take(EntryKind::Environment, name)? {
            Turn::Present(used) => return Ok((python, Some(used))),
            Turn::Taken => {
                tools.check_not_stopped()?;
                std::thread::sleep(TURN_EVERY);
            }
            Turn::Absent(making) => {
                report(file, &folder);
                cache.make_room(0)?;
                create(file, &recipe, &folder, tools)?;
                making.keep()?;
            }
        }
    }
}

fn create(file: &Path, recipe: &Recipe, folder: &Path, tools: &Tools) -> Result<()> {
    match recipe {
        Recipe::Virtual { base, packages } => {
            tools
                .create(Command::new(base).args(["-m", "venv"]).arg(folder), folder)
                .with_context(|| format!("create a virtual environment with {}", base.display()))?;
            let mut install = Command::new(folder.join("bin/python"));
            install.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input"]).args(packages);
            // Relative paths in the list are relative to its file.
            install.current_dir(file.parent().unwrap_or(Path::new("/")));
            if !packages.is_empty() {
                tools
                    .create(&mut install, folder)
                    .with_context(|| format!("install the packages of {}", file.display()))?;
            }
        }
        Recipe::Conda => {
            tools
                .create(&mut conda::command(file, folder, |tool| tools.find(tool))?, folder)
                .with_context(|| format!("create the environment of {}", file.display()))?;
        }
    }
    Ok(())
}

fn recipe(file: &Path, content: &[u8], base: &Path, tools: &Tools) -> Result<Recipe> {
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
            Ok(requirements) if !tools.has_conda() => drop(wanted.pip.splice(0..0, requirements)),
            _ => return Ok(Recipe::Conda),
        }
    }
    let packages = conda::pip_arguments(&wanted);
    let Some((major, minor)) = wanted.python else { return Ok(Recipe::Virtual { base: base.to_owned(), packages }) };
    let named = PathBuf::from(format!("python{major}.{minor}"));
    let is_wanted =
        |python: &Path| tools.version(python).is_ok_and(|version| version.starts_with(&format!("{major}.{minor}.")));
    match [base.to_owned(), named].into_iter().find(|python| is_wanted(python)) {
        Some(base) => Ok(Recipe::Virtual { base, packages }),
        None if tools.has_conda() => Ok(Recipe::Conda),
        None => bail!(
            "{} asks for Python {major}.{minor}, {} is another version, and there is neither a python{major}.{minor} nor \
             micromamba, mamba or conda on PATH: install one of them",
            file.display(),
            base.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::cache::Limits;

    fn environment(folder: &Path, requirements: &str) -> Environment {
        let file = folder.join("requirements.txt");
        std::fs::write(&file, requirements).expect("writable");
        Environment::Requirements { file: file.into(), base: "python3".into() }
    }

    async fn made(
        environment: Environment,
        folder: &Path,
        report: impl Fn(&Path, &Path) + Send + 'static,
    ) -> Result<(PathBuf, Option<Used>)> {
        let cache = Cache::new(folder.join("cache"), Limits::default());
        interpreter(environment, "python3".into(), cache, report).await
    }

    #[test]
    fn pip_installs_packages_of_conda_without_its_tools() {
        let tools = Tools::default();
        let file = b"dependencies: [six=1.16, {pip: [tqdm]}]";
        match recipe(Path::new("e.yml"), file, Path::new("python3"), &tools).expect("a conda file") {
            Recipe::Virtual { packages, .. } => assert_eq!(packages, ["six==1.16.*", "tqdm"]),
            Recipe::Conda => assert!(tools.has_conda()),
        }
    }

    #[tokio::test]
    async fn environment_is_created_once() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let environment = environment(folder.path(), "# nothing\n");
        let reports = Arc::new(AtomicUsize::new(0));
        for _ in 0..2 {
            let count = reports.clone();
            let report = move |_: &Path, _: &Path| {
                count.fetch_add(1, Ordering::Relaxed);
            };
            let found = made(environment.clone(), folder.path(), report).await;
            let (python, used) = found.expect("an empty environment can be created");
            assert!(python.exists() && used.is_some());
        }
        assert_eq!(reports.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn conda_file_with_pip_packages_only_needs_no_conda() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let wheelhouse = folder.path().join("none.txt");
        std::fs::write(wheelhouse, "# nothing\n").expect("writable");
        let python = Tools::default().version(Path::new("python3")).expect("installed");
        let minor = python.split('.').take(2).collect::<Vec<_>>().join(".");
        let create = |text: &str| {
            let file = folder.path().join("environment.yml");
            std::fs::write(&file, text).expect("writable");
            let environment = Environment::Requirements { file: file.into(), base: "python3".into() };
            made(environment, folder.path(), |_, _| ())
        };
        let made = create(&format!("dependencies: [python={minor}, pip, pip: ['-r none.txt']]")).await;
        assert!(made.expect("an empty environment can be created").0.exists());
        let error = create("dependencies: [python=3.99, pip: [a]]").await.expect_err("there is no such version");
        assert!(format!("{error:#}").contains("asks for Python 3.99"), "{error:#}");
    }

    #[tokio::test]
    async fn failed_installation_quotes_the_installer_and_is_retried() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let missing = environment(folder.path(), "/no/such/package.whl\n");
        let error = made(missing.clone(), folder.path(), |_, _| ()).await.expect_err("cannot be installed");
        assert!(format!("{error:#}").contains("/no/such/package.whl"), "{error:#}");
        let error = made(missing.clone(), folder.path(), |_, _| ()).await.expect_err("not complete");
        assert!(format!("{error:#}").contains("install the packages"), "{error:#}");
    }
}
