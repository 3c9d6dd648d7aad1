//! `gristmill man-pages`: manual pages, from the definitions that parse the arguments, so that they always agree.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::{Arguments, Exit};

#[derive(Debug, clap::Args)]
pub struct ManPagesArguments {
    /// Folder of the pages.
    folder: PathBuf,
    /// Date of the pages: YYYY-MM-DD.
    date: String,
}

const FILES: &[(&str, &str)] = &[
    (
        "gristmill.toml",
        "Compute targets; the nearest one, from the working folder or that of the document upwards.",
    ),
    ("~/.config/gristmill/gristmill.toml", "Compute targets, if there is no such file."),
    ("~/.gristmill", "Local jobs and caches; GRISTMILL_HOME names another folder."),
];

/// The title of a section, then its entries: a term and its text.
type Section<'a> = (&'a str, Vec<(String, &'a str)>);

/// Writes one page for the command, and one for each subcommand.
pub fn man_pages(arguments: &ManPagesArguments) -> Result<Exit> {
    let ManPagesArguments { folder, date } = arguments;
    std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    let statuses = Exit::ALL.map(|exit| (exit.number().to_string(), exit.meaning())).to_vec();
    let files = FILES.iter().map(|(name, text)| ((*name).to_owned(), *text)).collect();
    write_pages(
        &command,
        "gristmill",
        &[("EXIT STATUS", statuses), ("FILES", files)],
        date,
        folder,
    )?;
    Ok(Exit::Done)
}

fn write_pages(
    command: &Command,
    name: &str,
    sections: &[Section<'_>],
    date: &str,
    folder: &Path,
) -> Result<()> {
    let mut page = Vec::new();
    let source = concat!("gristmill ", env!("CARGO_PKG_VERSION"));
    let examples = command.get_after_help().map(ToString::to_string);
    let definition = command.clone().after_help(None::<&str>);
    let man = Man::new(definition).title(name).date(date).source(source).manual("Gristmill");
    man.render(&mut page).context("render a manual page")?;
    let mut more = Roff::new();
    if let Some(examples) = examples {
        // Line by line, without filling.
        more.control("SH", ["EXAMPLES"]).control("nf", []);
        for line in examples.lines().skip(1) {
            more.text([roman(line.trim_start())]);
        }
        more.control("fi", []);
    }
    for (title, entries) in sections {
        more.control("SH", [*title]);
        for (term, text) in entries {
            more.control("TP", []).text([roman(term.as_str())]).text([roman(*text)]);
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
