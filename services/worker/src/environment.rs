//! The interpreter of the script: an existing one, or one in an environment that is created once from a requirements
//! file, a `pyproject.toml` or a conda file, and cached by content.
//!
//! Installers run code of the packages that they build. Where the job has a user of its own, they run as this user, and the
//! worker takes over what they have made.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use protocol::{CondaFile, Environment};
use tokio::sync::oneshot;

use crate::cache::{ACQUIRE_EVERY, Acquisition, Cache, EntryKind, PinnedEntry};
use crate::conda;
use crate::job_users::JobUser;
use crate::tools::Tools;
use crate::variables::Variables;

/// The remedy for an environment that cannot be created, as is frequent for old ones.
const ANOTHER: &str =
    "a new job with --set environment=PATH, an interpreter or a requirements file, replaces it";

/// How long a shim may take; one that takes longer, or fails, shows why when a process starts.
const SHIM_TIME: Duration = Duration::from_secs(10);

/// The environment, in its entry: some tools create only folders that do not exist yet.
const PREFIX: &str = "env";

/// Returns the interpreter of `environment`, and creates it in `cache` if needed. `default` is the interpreter of jobs that
/// name none. The environment stays while the second value exists. Calls `report` with file and folder before it creates
/// an environment. `variables`: the environment of the programs that create it.
///
/// Takes minutes if it installs packages. Two jobs that need the same environment wait for each other. Kills the installer
/// if it is dropped.
pub async fn interpreter(
    environment: Environment,
    default: PathBuf,
    cache: Cache,
    variables: Variables,
    report: impl Fn(&Path, &Path) + Send + 'static,
) -> Result<(PathBuf, Option<PinnedEntry>)> {
    let (python, entry) =
        interpreter_for(None, environment, default, cache, variables, report).await?;
    Ok((behind_shim(python).await, entry))
}

/// Like [`interpreter`], for a job of any user: it keeps a shim, which would run with the rights of the worker. `user`: the
/// user that creates the environment, if it is not that of this process.
pub(crate) async fn interpreter_for(
    user: Option<Arc<JobUser>>,
    environment: Environment,
    default: PathBuf,
    cache: Cache,
    variables: Variables,
    report: impl Fn(&Path, &Path) + Send + 'static,
) -> Result<(PathBuf, Option<PinnedEntry>)> {
    let (file, base) = match environment {
        Environment::Node => return Ok((default, None)),
        Environment::Interpreter { path } => return Ok((path.as_path().to_owned(), None)),
        Environment::Requirements { file, base } => (file, base),
    };
    let tools = Tools::new(variables.installers, user);
    let _stop = tools.stop_on_drop();
    let (sender, receiver) = oneshot::channel();
    // In its own thread: a process that ends does not wait for it.
    std::thread::spawn(move || {
        let _ = sender.send(virtual_environment(
            file.as_path(),
            base.as_path(),
            &cache,
            &tools,
            report,
        ));
    });
    receiver.await.context("making the environment panicked")?
}

/// Returns the interpreter that a version manager (pyenv, asdf, mise) chooses, if `python` is in its folder of shims;
/// otherwise `python`. A shim chooses by the working directory, which is another one in the processes, and the one of pyenv
/// starts ten times as slowly as Python.
async fn behind_shim(python: PathBuf) -> PathBuf {
    if python.parent().and_then(Path::file_name) != Some("shims".as_ref()) {
        return python;
    }
    let mut shim = tokio::process::Command::new(&python);
    shim.args(["-I", "-S", "-c", "import sys; print(sys.executable)"]);
    let chosen = shim.stdin(Stdio::null()).kill_on_drop(true).output();
    let chosen = tokio::time::timeout(SHIM_TIME, chosen).await.ok();
    let chosen = chosen.and_then(Result::ok).filter(|output| output.status.success());
    let chosen = chosen.and_then(|output| String::from_utf8(output.stdout).ok());
    chosen
        .map(|path| PathBuf::from(path.trim_end()))
        .filter(|path| path.is_file())
        .unwrap_or(python)
}

/// Whether a file describes the project in its folder.
fn is_project(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "toml")
}

/// Copies the files of an unpacked snapshot.
fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to).with_context(|| format!("create {}", to.display()))?;
    for entry in std::fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type()?.is_dir() {
            true => copy_folder(&from, &to)?,
            false => drop(
                std::fs::copy(&from, &to).with_context(|| format!("copy {}", from.display()))?,
            ),
        }
    }
    Ok(())
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
) -> Result<(PathBuf, Option<PinnedEntry>)> {
    let content = std::fs::read(file)
        .with_context(|| format!("read the environment file {}", file.display()))?;
    let mut recipe = recipe(file, &content, base, tools)?;
    let version = match &recipe {
        Recipe::Virtual { base, .. } => tools.version(base)?,
        Recipe::Conda => "conda".to_owned(),
    };
    let mut digest = blake3::Hasher::new();
    digest
        .update(&content)
        .update(version.as_bytes())
        .update(file.extension().unwrap_or_default().as_encoded_bytes());
    // Of a project on a worker, which is an unpacked snapshot, the code belongs to the content, too.
    let project = file.parent().filter(|_| cache.is_guarded() && is_project(file));
    if let Some(code) = project.map(storage::digest_of).transpose()?.flatten() {
        digest.update(code.as_bytes());
    }
    let name = &digest.finalize().to_hex()[..16];
    let entry = cache.entry(EntryKind::Environment, name);
    let python = entry.join(PREFIX).join("bin/python");
    loop {
        match cache.take(EntryKind::Environment, name)? {
            Acquisition::Present(used) => return Ok((python, Some(used))),
            Acquisition::Taken => {
                tools.check_not_stopped()?;
                std::thread::sleep(ACQUIRE_EVERY);
            }
            Acquisition::Absent(making) => {
                report(file, &entry);
                cache.make_room(0)?;
                let scratch = cache.content(EntryKind::Environment, name);
                if let (Some(project), Recipe::Virtual { packages, .. }) = (project, &mut recipe) {
                    // Installers write into the folder of a project.
                    copy_folder(project, &scratch.join("project"))?;
                    *packages = vec![scratch.join("project").into()];
                }
                tools.own(&[&entry, &scratch])?;
                create(file, &recipe, &entry, &scratch, tools)?;
                tools.give_up(&entry)?;
                return Ok((python, Some(making.keep()?)));
            }
        }
    }
}

/// Creates an environment in an entry of the cache.
fn create(file: &Path, recipe: &Recipe, entry: &Path, scratch: &Path, tools: &Tools) -> Result<()> {
    let folder = &entry.join(PREFIX);
    match recipe {
        Recipe::Virtual { base, packages } => {
            tools
                .create(Command::new(base).args(["-m", "venv"]).arg(folder), entry, scratch)
                .with_context(|| format!("create a virtual environment with {}", base.display()))?;
            let mut install = Command::new(folder.join("bin/python"));
            install
                .args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input"])
                .args(packages);
            // Relative paths in the list are relative to its file.
            install.current_dir(file.parent().unwrap_or(Path::new("/")));
            if !packages.is_empty() {
                tools.create(&mut install, entry, scratch).with_context(|| {
                    format!("install the packages of {} ({ANOTHER})", file.display())
                })?;
            }
        }
        Recipe::Conda => {
            tools
                .create(&mut conda::command(file, folder, |tool| tools.find(tool))?, entry, scratch)
                .with_context(|| {
                    format!("create the environment of {} ({ANOTHER})", file.display())
                })?;
        }
    }
    Ok(())
}

fn recipe(file: &Path, content: &[u8], base: &Path, tools: &Tools) -> Result<Recipe> {
    if !CondaFile::is_named(file) {
        let packages = match is_project(file) {
            true => vec![file.parent().unwrap_or(Path::new(".")).into()],
            false => vec!["--requirement".into(), file.into()],
        };
        return Ok(Recipe::Virtual { base: base.to_owned(), packages });
    }
    let mut wanted = CondaFile::parse(&String::from_utf8_lossy(content))
        .with_context(|| format!("read {}", file.display()))?;
    if !wanted.packages.is_empty() {
        match wanted.for_pip() {
            Ok(requirements) if !tools.has_conda() => drop(wanted.pip.splice(0..0, requirements)),
            _ => return Ok(Recipe::Conda),
        }
    }
    let packages = conda::pip_arguments(&wanted);
    let Some((major, minor)) = wanted.python else {
        return Ok(Recipe::Virtual { base: base.to_owned(), packages });
    };
    let named = PathBuf::from(format!("python{major}.{minor}"));
    let is_wanted = |python: &Path| {
        tools.version(python).is_ok_and(|version| version.starts_with(&format!("{major}.{minor}.")))
    };
    match [base.to_owned(), named].into_iter().find(|python| is_wanted(python)) {
        Some(base) => Ok(Recipe::Virtual { base, packages }),
        None if tools.has_conda() => Ok(Recipe::Conda),
        None => bail!(
            "{} asks for Python {major}.{minor}, {} is another version, and there is neither a python{major}.{minor} nor \
             micromamba, mamba or conda on PATH: install one of them; {ANOTHER}",
            file.display(),
            base.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::cache::Limits;

    fn environment(folder: &Path, requirements: &str) -> Environment {
        let file = folder.join("requirements.txt");
        std::fs::write(&file, requirements).expect("writable");
        Environment::Requirements { file: file.into(), base: "python3".into() }
    }

    fn variables() -> Variables {
        Variables::without_secrets(std::env::vars_os().collect(), &[], &[])
    }

    fn tools() -> Tools {
        Tools::new(variables().installers, None)
    }

    async fn made(
        environment: Environment,
        folder: &Path,
        report: impl Fn(&Path, &Path) + Send + 'static,
    ) -> Result<(PathBuf, Option<PinnedEntry>)> {
        let cache = Cache::new(folder.join("cache"), Limits::default());
        interpreter(environment, "python3".into(), cache, variables(), report).await
    }

    #[test]
    fn pip_installs_packages_of_conda_without_its_tools() {
        let tools = tools();
        let file = b"dependencies: [six=1.16, {pip: [tqdm]}]";
        match recipe(Path::new("e.yml"), file, Path::new("python3"), &tools).expect("a conda file")
        {
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
        let python = tools().version(Path::new("python3")).expect("installed");
        let minor = python.split('.').take(2).collect::<Vec<_>>().join(".");
        let create = |text: &str| {
            let file = folder.path().join("environment.yml");
            std::fs::write(&file, text).expect("writable");
            let environment =
                Environment::Requirements { file: file.into(), base: "python3".into() };
            made(environment, folder.path(), |_, _| ())
        };
        let made =
            create(&format!("dependencies: [python={minor}, pip, pip: ['-r none.txt']]")).await;
        assert!(made.expect("an empty environment can be created").0.exists());
        let error = create("dependencies: [python=3.99, pip: [a]]")
            .await
            .expect_err("there is no such version");
        assert!(format!("{error:#}").contains("asks for Python 3.99"), "{error:#}");
    }

    /// Two teams have the same `pyproject.toml`, and different code. The build backend writes into
    /// the folder of the project.
    #[tokio::test]
    async fn project_on_a_worker_is_known_by_its_code_and_stays_as_it_is() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let project = folder.path().join("project");
        std::fs::create_dir(&project).expect("writable");
        let write =
            |name: &str, text: &str| std::fs::write(project.join(name), text).expect("writable");
        write(
            "pyproject.toml",
            "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n",
        );
        write(
            "backend.py",
            "import os, zipfile\n\
             def build_wheel(directory, config_settings=None, metadata_directory=None):\n\
             \x20   open('left', 'w').close()\n\
             \x20   name, about = 'tiny-1.0-py3-none-any.whl', 'tiny-1.0.dist-info/'\n\
             \x20   with zipfile.ZipFile(os.path.join(directory, name), 'w') as wheel:\n\
             \x20       wheel.write('tiny.py')\n\
             \x20       wheel.writestr(about + 'METADATA', 'Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n')\n\
             \x20       wheel.writestr(about + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n\
             \x20       wheel.writestr(about + 'RECORD', '')\n\
             \x20   return name\n",
        );
        let environment = Environment::Requirements {
            file: project.join("pyproject.toml").into(),
            base: "python3".into(),
        };
        for value in ["1", "2"] {
            write("tiny.py", &format!("VALUE = {value}"));
            let before = storage::digest_of(&project).expect("readable");
            let cache = Cache::new(folder.path().join("cache"), Limits::default()).guarded();
            let made =
                interpreter(environment.clone(), "python3".into(), cache, variables(), |_, _| ())
                    .await;
            let (python, _used) = made.expect("the project can be installed");
            let printed =
                tools().run(Command::new(python).args(["-c", "import tiny; print(tiny.VALUE)"]));
            assert_eq!(printed.expect("it is installed").trim(), value);
            assert_eq!(
                storage::digest_of(&project).expect("readable"),
                before,
                "nothing is left in its folder"
            );
        }
    }

    #[tokio::test]
    async fn shim_of_a_version_manager_is_replaced_by_the_interpreter_that_it_chooses() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let shims = folder.path().join("shims");
        std::fs::create_dir(&shims).expect("writable");
        let chosen = folder.path().join("python3.12");
        std::fs::write(&chosen, "").expect("writable");
        let write = |path: &Path, text: String| {
            std::fs::write(path, text).expect("writable");
            std::fs::set_permissions(path, Permissions::from_mode(0o755)).expect("own file");
        };
        let answers = format!("#!/bin/sh\necho {}\n", chosen.display());
        let (shim, wrapper, broken) =
            (shims.join("python3"), folder.path().join("python3"), shims.join("python3.9"));
        write(&shim, answers.clone());
        write(&wrapper, answers);
        write(&broken, "#!/bin/sh\nexit 127\n".into());
        for (python, expected) in [(&shim, &chosen), (&wrapper, &wrapper), (&broken, &broken)] {
            let cache = Cache::new(folder.path().join("cache"), Limits::default()).guarded();
            let named = Environment::Interpreter { path: python.clone().into() };
            for environment in [named, Environment::Node] {
                let (found, _) =
                    interpreter(environment, python.clone(), cache.clone(), variables(), |_, _| ())
                        .await
                        .expect("nothing to install");
                assert_eq!(found, *expected);
            }
        }
    }

    #[tokio::test]
    async fn failed_installation_quotes_the_installer_and_is_retried() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let missing = environment(folder.path(), "/no/such/package.whl\n");
        let error =
            made(missing.clone(), folder.path(), |_, _| ()).await.expect_err("cannot be installed");
        assert!(format!("{error:#}").contains("/no/such/package.whl"), "{error:#}");
        let error =
            made(missing.clone(), folder.path(), |_, _| ()).await.expect_err("not complete");
        assert!(format!("{error:#}").contains("install the packages"), "{error:#}");
    }
}
