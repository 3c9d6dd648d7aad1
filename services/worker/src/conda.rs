//! The commands that create an environment from a conda file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};
use protocol::{CONDA_TOOLS, CondaFile};

/// Returns the arguments of `pip install` for the packages of `file`.
pub(crate) fn pip_arguments(file: &CondaFile) -> Vec<OsString> {
    // A line is one requirement, or an option with its value: `-r more.txt`.
    let words = |line: &String| match line.starts_with('-') {
        true => line.split_whitespace().map(OsString::from).collect(),
        false => vec![OsString::from(line)],
    };
    file.pip.iter().flat_map(words).collect()
}

/// Returns the command that creates an environment in `folder` from a conda file, with the first tool that `find`
/// finds.
pub(crate) fn command(
    file: &Path,
    folder: &Path,
    find: impl Fn(&str) -> Option<PathBuf>,
) -> Result<Command> {
    let Some((tool, program)) = CONDA_TOOLS.iter().find_map(|tool| Some((*tool, find(tool)?)))
    else {
        bail!(
            "{} names packages of conda, and none of micromamba, mamba and conda is installed: install micromamba, or list \
             the packages below `pip`",
            file.display()
        );
    };
    let mut command = Command::new(program);
    match tool {
        "micromamba" => command.args(["create", "--yes", "--quiet"]),
        _ => command.args(["env", "create", "--quiet"]),
    };
    // Some versions lack `--yes`; all of them read the variables.
    command.env("MAMBA_ALWAYS_YES", "true").env("CONDA_ALWAYS_YES", "true");
    // Files that environments share as hard links would change together.
    command.env("MAMBA_ALWAYS_COPY", "true").env("CONDA_ALWAYS_COPY", "true");
    command.arg("--prefix").arg(folder).arg("--file").arg(file);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_of_pip_is_split_from_its_value() {
        let pip = ["azureml-defaults", "torch==2.3", "-r more.txt"].map(str::to_owned).to_vec();
        let file = CondaFile { pip, ..CondaFile::default() };
        assert_eq!(pip_arguments(&file), ["azureml-defaults", "torch==2.3", "-r", "more.txt"]);
    }

    #[test]
    fn first_installed_tool_is_used() {
        let arguments = |there: &[&str]| {
            let find = |tool: &str| there.contains(&tool).then(|| PathBuf::from(tool));
            let command = command(Path::new("e.yml"), Path::new("to"), find)?;
            anyhow::Ok(format!("{command:?}"))
        };
        let micromamba = arguments(&["conda", "micromamba"]).expect("a tool");
        assert!(micromamba.ends_with(
            r#""micromamba" "create" "--yes" "--quiet" "--prefix" "to" "--file" "e.yml""#
        ));
        let conda = arguments(&["conda"]).expect("a tool");
        assert!(
            conda.ends_with(r#""conda" "env" "create" "--quiet" "--prefix" "to" "--file" "e.yml""#),
            "{conda}"
        );
        assert!(
            format!("{:#}", arguments(&[]).expect_err("no tool")).contains("install micromamba")
        );
    }
}
