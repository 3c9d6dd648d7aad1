//! What the command tells shells and `man` about itself: completions and manual pages, made from the same definitions
//! that read the arguments, so that they cannot disagree.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::Arguments;

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
pub struct CompletionsArguments {
    /// The shell that will read them.
    shell: clap_complete::Shell,
}

/// Prints the script that a shell reads to complete this command.
pub fn completions(arguments: &CompletionsArguments) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "gristmill", &mut script);
    // Whoever reads it may have gone.
    let _ = std::io::stdout().write_all(&script);
    ExitCode::SUCCESS
}

/// Arguments of `man-pages`.
#[derive(Debug, clap::Args)]
pub struct ManPagesArguments {
    /// Folder to write them to.
    folder: PathBuf,
    /// Day they are from: YYYY-MM-DD.
    date: String,
}

/// Title, then entries of a term and its text.
type Section = (&'static str, &'static [(&'static str, &'static str)]);

/// What no definition of an argument holds, for the page of the command itself.
const SECTIONS: &[Section] = &[
    (
        "EXIT STATUS",
        &[
            ("0", "The job completed, or the command did what it was asked."),
            ("1", "The command itself failed; standard error says why."),
            ("2", "The arguments or the job file are invalid."),
            ("42", "The job failed."),
            ("130", "The job was canceled, or the command was interrupted."),
        ],
    ),
    (
        "FILES",
        &[
            ("gristmill.toml", "Compute targets; looked for in the working folder and upwards."),
            ("~/.config/gristmill/gristmill.toml", "Compute targets, where no such file is found."),
            ("~/.gristmill", "Local jobs and caches; GRISTMILL_HOME names another folder."),
        ],
    ),
];

/// Writes one page for the command, and one for each of its subcommands.
pub fn man_pages(arguments: &ManPagesArguments) -> Result<ExitCode> {
    let ManPagesArguments { folder, date } = arguments;
    std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    write_pages(&command, "gristmill", SECTIONS, date, folder)?;
    Ok(ExitCode::SUCCESS)
}

fn write_pages(command: &Command, name: &str, sections: &[Section], date: &str, folder: &Path) -> Result<()> {
    let mut page = Vec::new();
    let source = concat!("gristmill ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).title(name).date(date).source(source).manual("Gristmill");
    man.render(&mut page).context("render a manual page")?;
    let mut more = Roff::new();
    for (title, entries) in sections {
        more.control("SH", [*title]);
        for (term, text) in *entries {
            more.control("TP", []).text([roman(*term)]).text([roman(*text)]);
        }
    }
    more.to_writer(&mut page).context("render a manual page")?;
    let path = folder.join(format!("{name}.1"));
    std::fs::write(&path, page).with_context(|| format!("write {}", path.display()))?;
    let subcommands = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    for subcommand in subcommands {
        write_pages(subcommand, &format!("{name}-{}", subcommand.get_name()), &[], date, folder)?;
    }
    Ok(())
}
