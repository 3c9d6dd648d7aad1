//! The tables of `REFERENCE.md`, from the table of keys.
//!
//! A part between `<!-- keys: NAME -->` and `<!-- end -->` is generated: a table of keys, or a list of names.

use crate::keys::{ENVIRONMENT, INPUT, JOB, Key, Keys, LIMITS, OPTIONS, REQUIRES, Table};

const BEGIN: &str = "<!-- keys: ";
const END: &str = "<!-- end -->";

/// Returns a document with its generated parts written anew. A part of an unknown name stays as it is.
pub fn with_tables(document: &str) -> String {
    let mut parts = document.split(BEGIN);
    let mut written = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let renewed = part.split_once(" -->\n").and_then(|(name, rest)| {
            let (_, rest) = rest.split_once(END)?;
            Some(format!("{name} -->\n{}{END}{rest}", generated(name)?))
        });
        written += BEGIN;
        written += renewed.as_deref().unwrap_or(part);
    }
    written
}

fn generated(name: &str) -> Option<String> {
    let listed = |is_listed: fn(&&Key) -> bool, prefix: &str| {
        let names: Vec<String> =
            JOB.rows().filter(is_listed).map(|key| format!("`{prefix}{}`", key.name)).collect();
        format!("{}\n", names.join(", "))
    };
    match name {
        "reserved" => Some(listed(|key| key.argument.is_some(), "--")),
        "not in the fingerprint" => Some(listed(|key| key.is_left_out, "")),
        _ => {
            let keys = [JOB, INPUT, ENVIRONMENT, LIMITS, REQUIRES, OPTIONS].into_iter();
            let mut tables =
                keys.flat_map(|keys| keys.tables.iter().map(move |table| (keys, table)));
            tables.find(|(_, table)| table.name == name).map(|(keys, table)| rows(keys, table))
        }
    }
}

fn rows(keys: Keys, table: &Table) -> String {
    let name = if keys.prefix.is_empty() { "key" } else { "option" };
    let head = format!("\n| {name} | allowed values | default | meaning |\n|---|---|---|---|\n");
    let rows = table.rows.iter().map(|key| {
        let default = match key.default {
            Some(number) if number.parse::<f64>().is_ok() => number.to_owned(),
            Some(text) => format!("`{text}`"),
            None => key.default_in_words.to_owned(),
        };
        let cells =
            [key.values, default.as_str(), key.meaning].map(|cell| cell.replace('|', "\\|"));
        format!("| `{}{}` | {} |\n", keys.prefix, key.name, cells.join(" | "))
    });
    format!("{head}{}\n", rows.collect::<String>())
}
