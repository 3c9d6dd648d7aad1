//! `gristmill target`: imports a target from Terraform into `gristmill.toml`, lists the targets of that file, and sets
//! the quotas of a target.

mod quota;

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use self::quota::{QUOTA_EXAMPLES, QuotaArguments, quota};
use crate::{Exit, Settings};
use engine::targets::file::{self, FILE_NAME};
use engine::targets::import::{Imported, TerraformTarget};
use engine::targets::{QueueAddress, TargetsFile};

const INPUT_BYTES_MAX: u64 = 16 << 20;

#[derive(Debug, clap::Subcommand)]
pub enum TargetCommand {
    /// Write a target into gristmill.toml: `terraform output -json | gristmill target import`.
    Import(ImportArguments),
    /// List the targets of gristmill.toml.
    List {
        /// The gristmill.toml to read [default: the nearest one, from the working folder upwards].
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Show or change how many jobs of a target may run at a time, in all and by owner.
    #[command(after_help = QUOTA_EXAMPLES, mut_arg("target", crate::without_default))]
    Quota(QuotaArguments),
}

#[derive(Debug, clap::Args)]
pub struct ImportArguments {
    /// Name of the target [default: the name that Terraform gives it].
    name: Option<String>,
    /// Read this file instead of standard input.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Replace a target of that name that has other values.
    #[arg(long)]
    replace: bool,
    /// The gristmill.toml to write [default: the one in this folder].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub async fn target(command: TargetCommand, settings: &Settings) -> Result<Exit> {
    match command {
        TargetCommand::Quota(arguments) => quota(&arguments, settings).await,
        TargetCommand::Import(arguments) => import(&arguments, settings),
        TargetCommand::List { config } => list(config.as_deref(), settings),
    }
}

fn import(arguments: &ImportArguments, settings: &Settings) -> Result<Exit> {
    let source = arguments
        .from
        .as_ref()
        .map_or_else(|| "standard input".to_owned(), |from| from.display().to_string());
    let given = TerraformTarget::read(&input(arguments.from.as_deref(), &source)?)
        .with_context(|| format!("read {source}"))?;
    let name = arguments.name.as_ref().or(given.name.as_ref());
    let name = name.context("the target has no name; pass one: gristmill target import NAME")?;
    let folder = std::env::current_dir().context("find the current folder")?;
    let named = arguments.config.as_deref().or(settings.targets.config.as_deref());
    let path = folder.join(named.unwrap_or(Path::new(FILE_NAME)));
    let in_effect =
        file::find(named, &folder, None, settings.engine.settings().user_folder.as_deref());
    let (text, is_new) = match std::fs::read_to_string(&path) {
        Ok(text) => (text, false),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => (String::new(), true),
        Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
    };
    match given.import(name, &path, &text, arguments.replace)? {
        Imported::Differs(keys) => bail!(
            "{} has another target {name}: {} differ{}; --replace replaces it, another NAME keeps both",
            path.display(),
            keys.join(", "),
            if keys.len() == 1 { "s" } else { "" }
        ),
        Imported::Unchanged => say!(out, "target {name} is already in {}", path.display()),
        Imported::Changed(text) => {
            write(&path, &text)?;
            say!(out, "wrote target {name} to {}", path.display());
        }
    }
    if let Some(earlier) = in_effect.filter(|file| is_new && *file != path) {
        say!(out, "in this folder, it now takes precedence over {}", earlier.display());
    }
    for variable in given.variables.iter().filter(|variable| Settings::variable(variable).is_none())
    {
        say!(out, "it uses the environment variable {variable}, which is not set");
    }
    say!(out, "check it with: gristmill doctor --target {name}");
    Ok(Exit::Done)
}

fn input(from: Option<&Path>, source: &str) -> Result<String> {
    let reader: Box<dyn Read> = match from {
        Some(path) => {
            Box::new(std::fs::File::open(path).with_context(|| format!("read {source}"))?)
        }
        None => {
            let input = std::io::stdin().lock();
            ensure!(
                !input.is_terminal(),
                "pipe the outputs into this command, as in `terraform output -json | gristmill target import`, or pass \
                 --from FILE"
            );
            Box::new(input)
        }
    };
    let mut text = String::new();
    reader
        .take(INPUT_BYTES_MAX)
        .read_to_string(&mut text)
        .with_context(|| format!("read {source}"))?;
    Ok(text)
}

/// Replaces the file atomically. Keeps a symbolic link to it.
fn write(path: &Path, text: &str) -> Result<()> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let name = path
        .file_name()
        .with_context(|| format!("{} is not a file", path.display()))?
        .to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    let written = std::fs::write(&beside, text)
        .and_then(|()| match std::fs::metadata(&path) {
            Ok(metadata) => std::fs::set_permissions(&beside, metadata.permissions()),
            Err(_) => Ok(()),
        })
        .and_then(|()| std::fs::rename(&beside, &path));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written.with_context(|| format!("write {}", path.display()))
}

fn list(config: Option<&Path>, settings: &Settings) -> Result<Exit> {
    let folder = std::env::current_dir().context("find the current folder")?;
    let named = config.or(settings.targets.config.as_deref());
    let Some(path) =
        file::find(named, &folder, None, settings.engine.settings().user_folder.as_deref())
    else {
        bail!(
            "there is no {FILE_NAME} in this folder or above it; name one with --config, or create it with `gristmill target import`"
        );
    };
    // A list needs no values of variables.
    let variable = |name: &str| Settings::variable(name).or_else(|| Some(format!("${name}")));
    let TargetsFile { targets, .. } = file::read(&path, variable)?;
    say!(out, "{:<20} {:<44} STORE", "TARGET", "QUEUE");
    for (name, entry) in targets {
        let folder = path.parent().unwrap_or(Path::new("/"));
        let queue = match &entry.queue {
            // The text of an address never shows its password.
            Some((text, _)) => QueueAddress::parse(text, folder)
                .map_or("(invalid)".to_owned(), |queue| queue.to_string()),
            None => "(none)".to_owned(),
        };
        let store = entry.store.unwrap_or_else(|| "(none)".to_owned());
        say!(out, "{name:<20} {queue:<44} {store}");
    }
    Ok(Exit::Done)
}
